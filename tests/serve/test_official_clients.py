"""The clients of OpenAI, Anthropic and Ollama as they are, on the protocols of their own."""

from __future__ import annotations

from contextlib import closing

import pytest

from serve.talkers import HELLO, PARAMETERS, SAID, THOUGHTS

pytest.importorskip("llguidance", reason="llguidance is not installed")
USER = [{"role": "user", "content": "hi"}]
FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": PARAMETERS,
            "strict": False}  # fmt: skip
TOOL = {"name": "f", "description": "d", "input_schema": PARAMETERS}
MANY = pytest.mark.filterwarnings("ignore")
"""Libraries of others warn of what is theirs."""


@MANY
def test_responses_of_openai(talking):
    openai = pytest.importorskip("openai", reason="the client of OpenAI is not installed")
    with openai.OpenAI(base_url=f"{talking[0]}/v1", api_key="none", max_retries=0) as client:
        asked = {"model": "agent", "input": "hi", "tools": [FUNCTION], "temperature": 0}
        with client.responses.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        whole = client.responses.create(**asked)
        for made in (final, whole):
            thoughts, said, call = made.output
            assert thoughts.content[0].text == THOUGHTS
            assert made.output_text == said.content[0].text == SAID
            assert (call.name, call.arguments) == ("f", '{"a": 1}')
        say = client.responses.create(model="say", input="hi", max_output_tokens=3)
        more = client.responses.create(
            model="say", input="more", previous_response_id=say.id, max_output_tokens=3
        )
        assert more.usage.input_tokens > 0
        assert client.responses.retrieve(say.id).id == say.id
        listed = client.responses.input_items.list(more.id, limit=1, order="asc")
        assert [item.content[0].text for item in listed] == ["hi", say.output_text, "more"]
        with pytest.raises(openai.BadRequestError, match="disconnects"):
            client.responses.cancel(say.id)
        client.responses.delete(say.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(say.id)
        with pytest.raises(openai.BadRequestError, match="web_search"):
            client.responses.create(model="say", input="hi", tools=[{"type": "web_search"}])


@pytest.mark.long
@MANY
def test_messages_of_anthropic(talking):
    anthropic = pytest.importorskip("anthropic", reason="the client of Anthropic is not installed")
    with anthropic.Anthropic(base_url=talking[0], api_key="none", max_retries=0) as client:
        asked = {"model": "agent", "max_tokens": 200, "messages": USER, "tools": [TOOL],
                 "extra_body": {"temperature": 0}}  # fmt: skip
        with client.messages.stream(**asked) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_message()
        assert {"message_start", "thinking", "text", "input_json", "message_stop"} <= kinds
        whole = client.messages.create(**asked)
        for made in (final, whole):
            thoughts, said, call = made.content
            assert (thoughts.thinking, said.text, call.input) == (THOUGHTS, SAID, {"a": 1})
            assert made.stop_reason == "tool_use"
        asked = {"model": "agent", "messages": USER, "tools": [TOOL]}
        assert client.messages.count_tokens(**asked).input_tokens == 12
        assert [model.id for model in client.models.list()] == ["say", "agent", "lists"]
        with pytest.raises(anthropic.NotFoundError, match="there is no model called 'x'"):
            client.messages.create(model="x", max_tokens=1, messages=USER)


@MANY
def test_chats_of_ollama(talking):
    ollama = pytest.importorskip("ollama", reason="the client of Ollama is not installed")
    client = ollama.Client(host=talking[0])
    with closing(client._client):
        _chats_of_ollama(ollama, client)


def _chats_of_ollama(ollama, client):
    tool = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
    asked = {"model": "agent", "messages": USER, "tools": [tool], "options": {"temperature": 0}}
    whole = client.chat(**asked)
    assert (whole.message.thinking, whole.message.content) == (THOUGHTS, SAID)
    assert whole.message.tool_calls[0].function.arguments == {"a": 1}
    pieces = list(client.chat(**asked, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == SAID
    assert pieces[-1].done_reason == "stop"
    greedy = {"model": "say", "prompt": "hi", "options": {"temperature": 0}}
    assert client.generate(**greedy).response == HELLO
    assert [each.model for each in client.list().models] == [
        "say:latest", "agent:latest", "lists:latest",
    ]  # fmt: skip
    with pytest.raises(ollama.ResponseError, match="gptrs serve NAME=MODEL"):
        client.pull("say")


@MANY
def test_an_agent_calls_its_function(talking):
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    openai = pytest.importorskip("openai", reason="the client of OpenAI is not installed")
    import asyncio

    called = []

    @agents.function_tool
    def f(a: int) -> str:
        called.append(a)
        return "seven"

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{talking[0]}/v1", api_key="none")
    agent = agents.Agent(
        name="x",
        model=agents.OpenAIResponsesModel(model="agent", openai_client=client),
        tools=[f],
        model_settings=agents.ModelSettings(temperature=0),
        tool_use_behavior="stop_on_first_tool",
    )

    async def run():
        async with client:
            return await agents.Runner.run(agent, "hi")

    assert asyncio.run(run()).final_output == "seven"
    assert called == [1]
