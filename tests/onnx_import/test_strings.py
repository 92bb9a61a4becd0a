"""Strings, lists and random numbers at the border of programs, beside ONNX Runtime."""

from __future__ import annotations

import json
import locale
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="these tests read ONNX models")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="the peer that runs the same graphs")

from onnx import parser  # noqa: E402

import gptrs_onnx  # noqa: E402
from gptrs.errors import ExecutionError, ModelError, UnsupportedError, UsageError  # noqa: E402
from gptrs_cli.main import main  # noqa: E402

HEAD = '<ir_version: 8, opset_import: ["" : 20, "ai.onnx.ml": 3, "com.microsoft": 1]>\n'


def texts(*found: str) -> np.ndarray:
    return np.array(found, object)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


PETS = [{"x": texts("dog", "cat", "newt")}, {"x": texts("cat", "ant", "ant", "", "dog")}]
ROWS = [{"x": floats(4, 2)}, {"x": floats(7, 2)}]
NAMED = '"cat", "dog", "eel"'
GRAPHS: dict[str, tuple[str, str, list[dict[str, Any]]]] = {
    "codes of strings": (
        "(string[n] x) => (int64[n] a, string[n] b, float[n] c, int64[n] d)",
        f"""a = ai.onnx.ml.LabelEncoder <keys_strings = [{NAMED}], values_int64s = [4, 5, 6]> (x)
        b = ai.onnx.ml.LabelEncoder <keys_strings = ["dog"], values_strings = ["wolf"]> (x)
        c = ai.onnx.ml.LabelEncoder
            <keys_strings = [{NAMED}], values_floats = [0.5, 1.5, 2.5], default_float = 9.0> (x)
        d = ai.onnx.ml.CategoryMapper <cats_strings = [{NAMED}], cats_int64s = [7, 8, 9]> (x)""",
        PETS,
    ),
    "strings of codes": (
        "(int64[n] x) => (string[n] a, string[n] b)",
        f"""a = ai.onnx.ml.LabelEncoder <keys_int64s = [1, 2, 3], values_strings = [{NAMED}]> (x)
        b = ai.onnx.ml.CategoryMapper <cats_strings = [{NAMED}], cats_int64s = [7, 8, 9],
            default_string = "none"> (x)""",
        [{"x": np.array([1, 7, 3])}, {"x": np.array([8, 2])}],
    ),
    "strings that only move": (
        "(string[n] x) => (string[a, b] y, string[c] z, bool[n] same)",
        """dog = Constant <value_string = "dog"> ()
        same = Equal (x, dog)
        other = Constant <value_strings = ["other"]> ()
        chosen = Where (same, x, other)
        z = Concat <axis = 0> (chosen, x)
        y = Unsqueeze (x, zero)""",
        PETS,
    ),
    "categories as columns": (
        "(string[n] x) => (float[n, 3] y)",
        f"y = ai.onnx.ml.OneHotEncoder <cats_strings = [{NAMED}]> (x)",
        PETS,
    ),
    "labels of a linear model": (
        "(float[n, 2] x) => (string[n] y, float[n, 3] p)",
        f"""y, p = ai.onnx.ml.LinearClassifier <classlabels_strings = [{NAMED}],
            coefficients = [1.0, 2.0, -1.0, 0.5, 0.3, -2.0], intercepts = [0.1, 0.2, 0.3],
            post_transform = "SOFTMAX"> (x)""",
        ROWS,
    ),
    "labels of two classes": (
        "(float[n, 2] x) => (string[n] y, float[n, 2] p)",
        """y, p = ai.onnx.ml.LinearClassifier <classlabels_strings = ["no", "yes"],
            coefficients = [1.0, 2.0], intercepts = [0.1], post_transform = "LOGISTIC"> (x)""",
        ROWS,
    ),
    "words of texts": (
        "(string[n] x) => (float[a, b] y, string[n] low)",
        """low = StringNormalizer <case_change_action = "LOWER", locale = "C"> (x)
        t = com.microsoft.Tokenizer
            <mark = 0, mincharnum = 2, pad_value = "#", tokenexp = "[a-z]+"> (low)
        y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 2,
            max_skip_count = 0, ngram_counts = [0, 2], ngram_indexes = [0, 1, 2],
            pool_strings = ["cat", "sea", "the", "sea"]> (t)""",
        [{"x": texts("The sea, the SEA", "a cat")}, {"x": texts("cat, cat!")}],
    ),
    "numbers in strings": (
        "(string[n, m] x) => (float[a, b] y)",
        "t = Transpose (x) f = Cast <to = 1> (t) y = Mul (f, f)",
        [{"x": np.array([["1.5", "-2", "1e3"]], object)}],
    ),
    "parts of an axis": (
        "(float[n, 2] x) => (seq(float[n, 1]) y, float[n, 2] z)",
        "y = SplitToSequence <axis = 1> (x) z = Relu (x)",
        ROWS,
    ),
    "a list that becomes longer": (
        "(seq(float[k]) x, float[k] w) => (seq(float[k]) y, int64 count)",
        "y = SequenceInsert (x, w) count = SequenceLength (y)",
        [{"x": [floats(3), floats(2)], "w": floats(3)}, {"x": [floats(5)], "w": floats(1)}],
    ),
    "nodes in the order of a converter": (
        "(float[n, 2] x) => (float[n, 2] y)", "h = Relu (x) y = Neg (h)", ROWS,
    ),
}  # fmt: skip
"""Inputs and outputs, nodes, calls."""


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for each, other in zip(found, wanted, strict=True):
            assert_same(each, other)
    elif wanted.dtype == object:
        assert found.dtype == object
        np.testing.assert_array_equal(found, wanted)
    else:
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", GRAPHS)
def test_strings_and_lists_are_those_of_onnx_runtime(name: str) -> None:
    head, nodes, calls = GRAPHS[name]
    proto = parser.parse_model(f"{HEAD}g {head} <int64[1] zero = {{0}}> {{ {nodes} }}")
    if name.startswith("nodes in"):
        nodes_in_order = list(proto.graph.node)
        del proto.graph.node[:]
        proto.graph.node.extend(reversed(nodes_in_order))
    model = gptrs_onnx.from_proto(proto, "ref")
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for call in [*calls, calls[0]]:
        found = model(**call)
        names = [each.name for each in session.get_outputs()]
        assert list(found) == names
        for each, wanted in zip(names, session.run(None, call), strict=True):
            assert_same(found[each], wanted)


@pytest.mark.parametrize("change", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("exact", [0, 1])
def test_words_are_dropped_and_changed_as_onnx_runtime_does(change: str, exact: int) -> None:
    """Whole words, in any case or exactly; accents stay, and so does the locale of the process."""
    proto = parser.parse_model(
        f"""{HEAD}g (string[n] x, string[1, m] z) => (string[a] y, string[1, b] w) {{
        y = StringNormalizer <case_change_action = "{change}", is_case_sensitive = {exact},
            locale = "C", stopwords = ["Monday", "the day"]> (x)
        w = StringNormalizer <case_change_action = "{change}", locale = "C"> (z) }}"""
    )
    before = locale.setlocale(locale.LC_ALL)
    model = gptrs_onnx.from_proto(proto, "ref")
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for words in (["Monday", "tuesday", "the day", "MONDAY", ""], ["Monday"]):
        given = {"x": texts(*words), "z": texts("Ah", "the day")[None]}
        for found, wanted in zip(model(**given).values(), session.run(None, given), strict=True):
            assert_same(found, wanted)
    kept = model(x=texts("Élan"), z=texts("Über")[None])
    cased = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[change]
    assert [*kept["y"], *kept["w"][0]] == [cased("Élan"), cased("Über")]
    assert locale.setlocale(locale.LC_ALL) == before


def test_strings_of_a_file_are_found_in_graphs_inside_it() -> None:
    inner = '(string[1] {0}) {{ {0} = Constant <value_strings = ["{1}"]> () }}'
    graph = "then_branch = a () => {}, else_branch = b () => {}".format(
        inner.format("p", "above"), inner.format("q", "below")
    )
    head = "(bool c, string[1] x) => (string[1] y, bool[1] same)"
    nodes = f"y = If (c) <{graph}> same = Equal (x, y)"
    model = gptrs_onnx.from_proto(parser.parse_model(f"{HEAD}g {head} {{ {nodes} }}"), "ref")
    for given, wanted in ((True, "above"), (False, "below")):
        found = model(np.array(given), texts(wanted))
        assert (found["y"].tolist(), found["same"].tolist()) == ([wanted], [True])


REFUSED = {
    "y = Cast <to = 8> (f)": "writes numbers as strings",
    "z = Equal (x, x) w = Where (z, x, x) y = StringConcat (w, x)": "strings that a program",
    "y = ai.onnx.ml.LabelEncoder <keys_int64s = [1], values_strings = ['a']> (x)": "as keys",
}


@pytest.mark.parametrize("nodes", REFUSED)
def test_what_programs_cannot_do_with_strings_is_refused(nodes: str) -> None:
    text = nodes.replace("'", '"')
    head = "g (string[n] x, float[n] f) => (string[n] y)"
    model = gptrs_onnx.from_proto(parser.parse_model(f"{HEAD}{head} {{ {text} }}"), "ref")
    with pytest.raises((UnsupportedError, ModelError), match=REFUSED[nodes]):
        model(texts("a"), floats(1))


def test_inputs_that_are_no_strings_or_lists_are_refused() -> None:
    text = "g (string[n] x, seq(float[k]) s) => (string[n] y, float[k] z) { y = Identity (x)"
    text += " zero = Constant <value_int = 0> () z = SequenceAt (s, zero) }"
    model = gptrs_onnx.from_proto(parser.parse_model(HEAD + text), "ref")
    assert repr(model) == "<OnnxModel g(x: string[n], s: seq(f32[..])) -> (y, z)>"
    for x, s in ((np.ones(2), [floats(2)]), (texts("a"), floats(2)), (["a"], [np.ones(2, int)])):
        with pytest.raises(UsageError, match=r"got an array|got a `ndarray`"):
            model(x, s)
    assert model(["a", "b"], [floats(2)])["y"].tolist() == ["a", "b"]
    with pytest.raises(UnsupportedError, match="has strings or lists"):
        model.captured(["a", "b"], [floats(2)])


def test_an_input_with_the_name_of_an_array_of_a_list_is_refused() -> None:
    text = "g (seq(float[k]) s, float[k] x) => (float[k] y) { n = Neg (x)"
    text += " zero = Constant <value_int = 0> () z = SequenceAt (s, zero) y = Add (n, z) }"
    proto = parser.parse_model(HEAD + text)
    proto.graph.input[1].name = proto.graph.node[0].input[0] = "s[0]"
    model = gptrs_onnx.from_proto(proto, "ref")
    with pytest.raises(UsageError, match=r"`s\[0\]` is an input, and an array of the input s: seq"):
        model([floats(2)], floats(2))


def test_the_command_shows_strings_and_lists(tmp_path: Path, capsys: Any) -> None:
    text = "g (string[n] x, float[n] f) => (string[n] y, seq(float[n]) z)"
    text += " { y = Identity (x) z = SequenceConstruct (f) }"
    file = tmp_path / "lists.onnx"
    file.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    command = ["run", str(file), "--random-seed", "1", "--symbol", "n=2", "--backend", "ref"]
    assert main([*command, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [each["name"] for each in results] == ["y", "z[0]"]
    assert all(isinstance(each, str) for each in results[0]["values"])


RANDOM = """g (float[n, m] x) => (float[n, m] a, float[n, m] b, float[n, m] c, int32[n, k] d,
    float[n, m] e, float[n, m] f) {
    a = RandomNormalLike <mean = 2.0, scale = 3.0> (x)
    b = RandomUniformLike <seed = 5.0, low = -1.0> (x)
    c = RandomUniformLike <seed = 5.0, low = -1.0> (x)
    d = Multinomial <sample_size = 500> (x)
    share = RandomUniformLike <low = 0.25, high = 0.25> (x)
    e = Bernoulli (share)
    f = RandomNormalLike <mean = 2.0, scale = 3.0> (x)
}"""


def drawn(seed: int | None, x: np.ndarray) -> Mapping[str, np.ndarray]:
    return gptrs_onnx.from_proto(parser.parse_model(HEAD + RANDOM), "ref", seed=seed)(x)


def test_random_numbers_follow_from_a_seed() -> None:
    x = np.log(np.tile(np.array([0.5, 0.25, 0.125, 0.125], np.float32), (100, 1)))
    with pytest.raises(UnsupportedError, match="seed=0"):
        drawn(None, x)
    first, again, other = drawn(1, x), drawn(1, x), drawn(2, x)
    for name in "abcdef":
        np.testing.assert_array_equal(first[name], again[name])
        # A seed of a node is its own, whatever that of the model is.
        assert np.array_equal(first[name], other[name]) == (name in "bc")
    np.testing.assert_array_equal(first["b"], first["c"])
    assert not np.array_equal(first["a"], first["f"])
    assert abs(first["a"].mean() - 2) < 0.5
    assert abs(first["a"].std() - 3) < 0.5
    assert -1 <= first["b"].min() < first["b"].max() < 1
    assert abs(first["e"].mean() - 0.25) < 0.1
    shares = np.bincount(first["d"].ravel(), minlength=4) / first["d"].size
    np.testing.assert_allclose(shares, [0.5, 0.25, 0.125, 0.125], atol=0.02)


def test_random_numbers_in_a_long_loop_are_refused() -> None:
    body = "(int64 i, bool k, float[n] s) => (bool k2, float[n] s2)"
    nodes = "k2 = Identity (k) r = RandomNormalLike (s) s2 = Add (s, r)"
    count = "m = Constant <value_int = 5000> () t = Constant <value = bool {1}> ()"
    text = f"g (float[n] x) => (float[n] y) {{ {count} y = Loop (m, t, x) <body = b {body}"
    model = gptrs_onnx.from_proto(
        parser.parse_model(f"{HEAD}{text} {{ {nodes} }}> }}"), "ref", seed=1
    )
    with pytest.raises(UnsupportedError, match="in a loop"):
        model(floats(3))


def test_an_unknown_category_fails_where_the_node_says_so(backend: Any) -> None:
    proto = parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 5]>
    g (string[n] x) => (float[n, 3] y) {
      y = ai.onnx.ml.OneHotEncoder <cats_strings = ["a", "b", "a"], zeros = 0> (x)
    }""")
    model = gptrs_onnx.from_proto(proto, backend)
    assert model(["b", "a"])["y"].tolist() == [[0, 1, 0], [0, 0, 1]]
    with pytest.raises(ExecutionError, match="got `c`, and knows the categories `a`, `b`") as error:
        model(["b", "c"])
    assert "`zeros`" in error.value.hint
