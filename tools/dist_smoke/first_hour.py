"""Play the first hour of a newcomer: each command of the docs ends well, and says what it should.

A server on this machine stands for the Hugging Face hub, and serves tiny models by the names that
`gptrs models recommended` lists.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from openai import OpenAI

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))

from checkpoint.fake_hub import FakeHub, serving
from runtime.tiny_bert import save_sentence_bert
from runtime.tiny_chat import save_scripted_chat
from runtime.tiny_whisper import save_sound, save_tiny_whisper

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
ASKED, ANSWER = "Tell a joke.", "Two bits walk into a bar."
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
MEAN = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


def filled_hub() -> FakeHub:
    """Return a hub with a model that chats, one that embeds and one that transcribes."""
    hub = FakeHub()
    chat = save_scripted_chat(Path("chat"), ANSWER, prompt=f"{ASKED}\n", template=TEMPLATE)
    hub.add_folder("HuggingFaceTB/SmolLM2-135M-Instruct", chat)
    words = save_sentence_bert(Path("words"), MEAN)
    hub.add_folder("sentence-transformers/all-MiniLM-L6-v2", words)
    hub.add_folder("openai/whisper-tiny", save_tiny_whisper(Path("ear")))
    return hub


def says(*expected: str, command: str, words: tuple[str, ...] = ()) -> str:
    """Run a command, which must end with 0 and say all that is expected; return its output."""
    line = [*command.split(), *words]
    done = subprocess.run(
        line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
    )
    said = f"{done.stdout}{done.stderr}"
    missing = [text for text in expected if text not in said]
    assert done.returncode == 0, f"`{' '.join(line)}` ended with {done.returncode}:\n{said}"
    assert not missing, f"`{' '.join(line)}` did not say {missing}:\n{said}"
    print(f"{' '.join(line)}: as expected", flush=True)
    return done.stdout


def typed(*turns: tuple[str, str], command: str, words: tuple[str, ...] = ()) -> None:
    """Run a command on a terminal: wait for each text, then type the line beside it."""
    ours, theirs = pty.openpty()
    line = [*command.split(), *words]
    with subprocess.Popen(
        line, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        seen, end = "", time.monotonic() + SECONDS
        for text, reply in turns:
            while text not in seen:
                assert time.monotonic() < end, f"`{' '.join(line)}` did not show {text!r}:\n{seen}"
                if select.select([ours], [], [], 0.2)[0]:
                    seen += CONTROL.sub("", read_some(ours)).replace("\r\n", "\n")
                    assert seen or process.poll() is None
            seen = seen.partition(text)[2]
            os.write(ours, reply.encode())
        while process.poll() is None and time.monotonic() < end:
            if select.select([ours], [], [], 0.2)[0]:
                read_some(ours)
        process.kill()
    os.close(ours)
    assert process.returncode == 0, f"`{' '.join(line)}` ended with {process.returncode}"
    print(f"{' '.join(line)}, on a terminal: as expected", flush=True)


def read_some(terminal: int) -> str:
    """Return what a terminal shows next, "" at its end."""
    try:
        return os.read(terminal, 4096).decode(errors="replace")
    except OSError:  # Linux: nobody has the other side open
        return ""


def serves() -> None:
    """Ask `gptrs serve` by curl and by the client of OpenAI, and end it by Ctrl-C."""
    with subprocess.Popen(
        ["gptrs", "serve", "smollm2:135m", "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            address = next(
                found[1]
                for line in server.stderr
                if (found := re.search(r"^serving .* at (http://\S+)", line))
            )
            if shutil.which("curl"):
                says("SmolLM2-135M-Instruct", command=f"curl --silent --fail {address}/v1/models")
            client = OpenAI(base_url=f"{address}/v1", api_key="none")
            made = client.chat.completions.create(
                model=client.models.list().data[0].id,
                messages=[{"role": "user", "content": ASKED}],
                temperature=0,
            )
            assert made.choices[0].message.content == ANSWER, made
            server.send_signal(signal.SIGINT)
            said = server.communicate(timeout=SECONDS)[1]
        finally:
            server.kill()
    assert server.returncode in (0, 130), (server.returncode, said)
    assert "Traceback" not in said, said
    print("gptrs serve, curl and openai: as expected", flush=True)


def notebook() -> None:
    """Run the notebook of the docs in a kernel of its own."""
    file = ROOT / "docs" / "assets" / "notebooks.ipynb"
    cells = nbformat.read(file, as_version=4)
    NotebookClient(cells, timeout=SECONDS, kernel_name="python3").execute()
    print("the notebook of the docs: as expected", flush=True)


def own_plugin() -> None:
    """Make a package with a backend, install it, and generate text with it."""
    says("gptrs-backend-acme", command="gptrs new backend acme")
    says(command=f"{sys.executable} -m pip install --quiet --editable gptrs-backend-acme")
    says("acme", command="gptrs list backends")
    says("acme", command="gptrs plugins check backend:acme --no-conformance")
    says(command="gptrs generate import --backend acme --greedy --max-tokens 2")


def main() -> None:
    """Play the hour in the working directory, with nothing in the caches."""
    hub = filled_hub()
    with serving(hub):
        os.environ |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(Path("hub").resolve())}
        os.environ |= {"TERM": "xterm", "NO_COLOR": "1", "GPTRS_CHAT_HISTORY": "off"}
        says("smollm2:135m", "all-minilm", "whisper:tiny", command="gptrs models recommended")
        says(
            "Return the file-like object",
            command="gptrs generate --greedy",
            words=("def read_file(path):",),
        )
        says(command="gptrs pull smollm2:135m")
        says("SmolLM2-135M-Instruct", command="gptrs ls")
        typed((ANSWER, ""), command="gptrs run smollm2:135m", words=(ASKED,))
        # Ctrl-D counts at the prompt only: the terminal drops one that comes before it.
        turns = (">", f"{ASKED}\n"), (ANSWER, ""), (">", "\x04")
        typed(*turns, command="gptrs chat smollm2:135m")
        similar = says(command="gptrs embed all-minilm --text cat --text dog --similarity --json")
        assert len(json.loads(similar)["similarity"]) == 2, similar
        save_sound(Path("talk.wav"))
        heard = says(command="gptrs transcribe whisper:tiny talk.wav --json")
        assert json.loads(heard)["segments"], heard
        serves()
        says(command="gptrs rm smollm2:135m --yes")
    notebook()
    own_plugin()


if __name__ == "__main__":
    main()
