"""What a worker does with rows; no cluster is needed."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

import gptrs
from gptrs.api import GptrsError, UsageError

pytest.importorskip("ray", reason="Ray is not installed")

from gptrs_ray.tasks import ERROR, TASKS, row_results, run_rows, task_named
from gptrs_ray.worker import BatchWorker, Failed, RowWorker, WorkerSettings
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.verbs import VERBS
from runtime.tiny_bert import save_tiny_bert
from runtime.tiny_chat import save_tiny_chat
from runtime.tiny_heads import save_tiny_head


@pytest.fixture(scope="module")
def demo():
    return gptrs.load_model(backend="ref")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("ray") / "bert")


def test_rows_keep_their_columns_and_gain_what_generate_gives(demo):
    options = {"max_tokens": 3, "temperature": 0}
    rows = [{"id": 7, "prompt": "def f("}, {"id": 8, "prompt": "class A"}]
    found = run_rows(demo, task_named("generate"), rows, options=options)
    for row, given in zip(found, rows, strict=True):
        alone = gptrs.generate(demo, given["prompt"], **options)
        assert row == {
            **given,
            "generated": alone.text,
            "generated_token_ids": list(alone.token_ids),
            "finish_reason": alone.finish_reason,
        }


def test_prompts_may_be_tokens_and_arrays(demo):
    task = task_named("generate")
    listed, array = (
        run_rows(demo, task, [{"prompt_ids": tokens}], options={"max_tokens": 2, "temperature": 0})
        for tokens in ([5, 6, 7], np.array([5, 6, 7]))
    )
    assert listed[0]["generated"] == array[0]["generated"]


def test_columns_say_what_the_template_of_messages_is_told(tmp_path):
    template = "{{ tools[0].function.name if tools }}{{ messages[0].content }}{{ mood }}"
    model = gptrs.load_model(save_tiny_chat(tmp_path / "chat", template), backend="ref")
    said = [{"role": "user", "content": [{"type": "text", "text": "the"}]}]
    tools = [{"function": {"name": "cat"}}]
    row = {"messages": np.array(said), "tools": tools, "chat_template_kwargs": {"mood": " dog"}}
    options = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
    rows = [row, {"messages": said, "tools": None}, {"messages": said, "tools": "x"}]
    found = run_rows(model, task_named("generate"), rows, options=options, skip_bad=True)
    texts = ["catthe dog", "the"]
    expected = [gptrs.generate(model, text, **options).text for text in texts]
    assert [each["generated"] for each in found] == [*expected, None]
    assert "tools must be a list" in found[2][ERROR]


def test_vectors_are_those_of_embed(bert):
    model = gptrs.load_model(bert, backend="ref")
    rows = [{"text": "one two"}, {"text": "three"}]
    found = run_rows(model, task_named("embed"), rows)
    expected = gptrs.embed(model, ["one two", "three"])
    np.testing.assert_allclose([row["embedding"] for row in found], expected, rtol=1e-6)


def test_forward_runs_rows_of_several_lengths(demo):
    rows = [{"input": [1, 2, 3]}, {"input": [4, 5]}, {"input": [6, 7, 8]}]
    found = run_rows(demo, task_named("forward"), rows)
    for row in found:
        expected = demo.forward(np.array([row["input"]]))[0]
        np.testing.assert_allclose(row["output"], expected, rtol=1e-5, atol=1e-5)


def test_a_bad_row_says_why_and_leaves_the_others(demo):
    rows = [{"prompt": "def"}, {"prompt": ""}, {"text": "def"}, {"prompt": 5}]
    found = run_rows(demo, task_named("generate"), rows, options={"max_tokens": 1}, skip_bad=True)
    assert [row[ERROR] is None for row in found] == [True, False, False, False]
    assert found[0]["generated"]
    assert found[1]["generated"] is None
    assert "found `text`" in found[2][ERROR]
    with pytest.raises(UsageError, match="found `text`"):
        run_rows(demo, task_named("generate"), rows[2:3])


def test_errors_are_of_their_rows_and_stop_those_after_them_only_if_asked_to(demo):
    rows = [{"prompt": "def"}, {"prompt": "a " * 2000}, {"prompt": "if"}, {"text": "x"}]
    task, options = task_named("generate"), {"max_tokens": 2, "batch_size": 2}
    found = row_results(demo, task, rows, options=options, stops=True)
    assert [type(each).__name__ for each in found] == [
        "dict",
        "ContextLengthError",
        "NoneType",
        "UsageError",
    ]
    assert isinstance(found[1], GptrsError)
    assert not found[1].message.startswith("prompt 0")
    found = row_results(demo, task, rows, options=options, stops=False)
    assert [isinstance(each, dict) for each in found] == [True, False, True, False]


def test_a_column_is_not_overwritten(demo):
    rows = [{"prompt": "def", "generated": "mine"}]
    with pytest.raises(UsageError, match="have a column `generated`"):
        run_rows(demo, task_named("generate"), rows)


HEADS = {
    "classify": ("ForSequenceClassification", ("no", "yes")),
    "tag": ("ForTokenClassification", ("O", "B-PER")),
    "fill": ("ForMaskedLM",),
}


def test_each_verb_that_treats_texts_by_themselves_is_a_task():
    verbs = {name for name, verb in VERBS.items() if verb.each}
    assert verbs == HEADS.keys() | {"embed"}
    assert TASKS.keys() == {"generate", "forward", *verbs}


@pytest.mark.parametrize("verb", [VERBS[name] for name in HEADS], ids=lambda v: v.name)
def test_rows_gain_what_a_verb_finds(verb, tmp_path):
    model = gptrs.load_model(save_tiny_head(tmp_path / "model", *HEADS[verb.name]), backend="ref")
    rows = [{"id": 1, "text": "the [MASK] sat"}, {"id": 2, "text": "[MASK] cat"}]
    found = run_rows(model, task_named(verb.name), rows, options={"batch_size": 1})
    alone = verb.function()(model, [row["text"] for row in rows], batch_size=1)
    assert found == [
        {**row, verb.column: msgspec.to_builtins(each)}
        for row, each in zip(rows, alone, strict=True)
    ]
    assert json.loads(json.dumps(found[0]))["id"] == 1


def test_rows_get_labels_of_ones_own(tmp_path):
    head = ("ForSequenceClassification", ("contradiction", "neutral", "entailment"))
    model = gptrs.load_model(save_tiny_head(tmp_path / "model", *head), backend="ref")
    rows, labels = [{"text": "the cat"}, {"text": "red"}], ["cat", "dog"]
    found = run_rows(model, task_named("classify"), rows, options={"labels": labels})
    expected = gptrs.zero_shot(model, ["the cat", "red"], labels)
    assert [row["classes"] for row in found] == msgspec.to_builtins(expected)


def test_unknown_tasks_and_options_are_refused(demo):
    with pytest.raises(UsageError, match="no task `embedd`"):
        task_named("embedd")
    with pytest.raises(UsageError, match="has no option `max_tokens`"):
        task_named("embed").require_options({"max_tokens": 3, "temperature": 0})
    options = {"batch_size", "labels", "multi_label", "template", "truncate"}
    assert set(task_named("classify").options or ()) == options
    with pytest.raises(UsageError, match="`batch_size` must be at least 1, got 0"):
        task_named("fill").require_options({"batch_size": 0})
    with pytest.raises(UsageError, match="`--multi-label` are for `--label`, which is missing"):
        task_named("classify").require_options({"multi_label": True})
    with pytest.raises(UsageError, match="no option `max_tokes`"):
        run_rows(demo, task_named("generate"), [{"prompt": "a"}], options={"max_tokes": 3})


def test_a_worker_says_what_it_could_not_do():
    worker = RowWorker(
        WorkerSettings("/nowhere/at/all", "generate", loading=LoadOptions(backend="ref"))
    )
    failed = worker.load()
    assert isinstance(failed, Failed)
    assert failed.exit_code == 3
    assert "/nowhere/at/all" in failed.message


def test_columns_of_ray_data_become_rows_and_columns_again(bert):
    worker = BatchWorker(WorkerSettings(str(bert), "embed", loading=LoadOptions(backend="ref")))
    found = worker({"text": np.array(["one", "two three"], object), "n": np.array([1, 2])})
    assert found["embedding"].dtype == np.float32
    assert found["embedding"].shape[0] == 2
    assert list(found["n"]) == [1, 2]
