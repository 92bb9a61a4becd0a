"""The runner of documentation examples runs what it should, and fails where it should."""

from pathlib import Path

import pytest

import doc_examples

DOCUMENT = """
# Title

```python
from pathlib import Path
x = 1
```

- In a list:

  ```python
  Path("seen").write_text(str(x + 1))
  ```

```python no-run
raise SystemExit
```

```sh
exit 1
```

````text
```python
raise SystemExit
```
````
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    return tmp_path / "document.md"


def test_blocks_are_those_to_run_with_their_lines():
    blocks = doc_examples.find_blocks(DOCUMENT)
    assert [(block.language, block.start) for block in blocks] == [("python", 5), ("python", 12)]
    assert blocks[1].lines == ('Path("seen").write_text(str(x + 1))',)


def test_python_blocks_share_a_namespace_and_run_in_the_given_folder(
    document: Path, tmp_path: Path
):
    document.write_text(DOCUMENT, encoding="utf-8")
    before = Path.cwd()
    assert doc_examples.run_file(document, cwd=tmp_path) == 2
    assert (tmp_path / "seen").read_text(encoding="utf-8") == "2"
    assert Path.cwd() == before


def test_an_error_names_the_line_of_the_document(document: Path, tmp_path: Path):
    document.write_text("# Title\n\n```python\nx = 1\nassert x == 2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError) as caught:
        doc_examples.run_file(document, cwd=tmp_path)
    last = caught.traceback[-1]
    assert (Path(last.path), last.lineno + 1) == (document, 5)


def test_an_unclosed_block_is_an_error():
    with pytest.raises(doc_examples.ExampleError, match="line 2: the block is not closed"):
        doc_examples.find_blocks("text\n```python\nx = 1\n")


def test_console_commands_carry_what_is_shown_below_them():
    block = doc_examples.Block("console", ("$ gptrs a", "one", "two", "$ gptrs b"), 7)
    assert doc_examples.console_commands(block) == [
        (7, "gptrs a", "one\ntwo"),
        (10, "gptrs b", ""),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("gptrs --help",), "line 3: a `console` block starts with"),
        (("$ rm -r /",), "line 3: a `console` block runs `gptrs`, not `rm -r /`"),
        (("$ gptrs --no-such-option",), "line 3: `gptrs --no-such-option` exits 2"),
        (("$ gptrs --help", "nothing like it"), "line 3: `gptrs --help` prints"),
    ],
)
def test_a_console_block_that_is_not_as_shown_is_an_error(lines: tuple[str, ...], message: str):
    with pytest.raises(doc_examples.ExampleError) as caught:
        doc_examples.run_console(doc_examples.Block("console", lines, 3))
    assert str(caught.value).startswith(message)


def test_a_console_block_that_is_as_shown_passes():
    block = doc_examples.Block("console", ("$ gptrs --help", "...generate..."), 3)
    doc_examples.run_console(block)


PROGRAM = ("ptir.v0.5", "func @main(%x: f32[?0]) -> f32[?0] {", "  return %x", "}")


def test_a_ptir_block_is_a_program(document: Path, tmp_path: Path):
    text = "\n".join(PROGRAM)
    document.write_text(f"```ptir\n{text}\n```\n", encoding="utf-8")
    assert doc_examples.run_file(document, cwd=tmp_path) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (PROGRAM[:3], "line 3: the program is refused:\nline 4, column 1: expected"),
        ((*PROGRAM[:2], "  return %x // x", "}"), "line 3: the program is printed as\nptir.v0.5"),
    ],
)
def test_a_ptir_block_that_is_not_as_printed_is_an_error(lines: tuple[str, ...], message: str):
    with pytest.raises(doc_examples.ExampleError) as caught:
        doc_examples.read_program(doc_examples.Block("ptir", lines, 3))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("expected", "output", "shown"),
    [
        ("a\nb", "a  \nb\n", True),
        ("a ... c", "a b\nb c", True),
        ("a.c", "abc", False),
        ("a", "a\nb", False),
    ],
)
def test_shown_output_is_compared_with_dots_for_any_text(expected: str, output: str, shown: bool):
    assert doc_examples.shown_by(expected, output) is shown


@pytest.mark.parametrize(
    ("expected", "output", "shown"),
    [
        ("took 0.25 s\nA    B", "took 13 s\nA  B", True),
        ("python 3.11.7, ...", "python 3.14, numpy", True),
        ("x f32", "x f16", True),  # whoever shows types does without the flag
        ("took 1 s", "took long", False),
    ],
)
def test_numbers_of_one_run_stand_for_others(expected: str, output: str, shown: bool):
    assert doc_examples.shown_by(expected, output, varies=True) is shown


def test_a_flag_says_that_numbers_vary():
    (block,) = doc_examples.find_blocks("```console varies\n$ gptrs --version\ngptrs 7.8\n```\n")
    assert block.varies
    doc_examples.run_console(block)


def test_outputs_are_written_where_they_are_left_out_or_differ(document: Path, tmp_path: Path):
    page = "- In a list:\n\n  ```console\n  $ gptrs --version\n{}  ```\n\nEnd.\n"
    document.write_text(page.format("  ...\n") + page.format(""), encoding="utf-8")
    doc_examples.write_outputs(document, tmp_path)
    version = doc_examples.shortened(doc_examples._printed("gptrs --version", 1))
    assert document.read_text("utf-8") == page.format(f"  {version}\n") + page.format("")


def test_long_outputs_are_cut():
    assert doc_examples.shortened("a\n" * 16).count("\n") == 15
    assert doc_examples.shortened("a\n" * 17).split("\n")[-2:] == ["a", "..."]
    assert doc_examples.shortened("b" * 200) == f"{'b' * 120}..."
