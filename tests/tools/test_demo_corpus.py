"""The text of the demo model: which files it is made of, and which of them are held out."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from demo_model.corpus import (
    HELD_OUT_PERCENT,
    SourceFile,
    is_excluded,
    source_files,
    split_by_file,
    standard_library_corpus,
)


@pytest.mark.parametrize(
    ("name", "excluded"),
    [
        ("json/decoder.py", False),
        ("test.py", False),
        ("html/parser.py", False),
        ("test/test_json.py", True),
        ("unittest/test/support.py", True),
        ("idlelib/run.py", True),
        ("site-packages/numpy/linalg.py", True),
        ("encodings/cp1252.py", True),
        ("_sysconfigdata__linux_x86_64-linux-gnu.py", True),
        ("config-3.12-x86_64-linux-gnu/python-config.py", True),
        ("html/entities.py", True),
        ("re/_casefix.py", True),
    ],
)
def test_what_is_no_part_of_the_corpus(name: str, excluded: bool) -> None:
    assert is_excluded(PurePosixPath(name)) == excluded


def test_files_come_by_name_and_each_text_once(tmp_path: Path) -> None:
    contents = {
        "b.py": b"second = 2\n",
        "a/z.py": b"first = 1\r\n",
        "c.py": b"second = 2\n",
        "blank.py": b" \n\n",
        "latin.py": b"name = '\xe9'\n",
        "test/t.py": b"never = 0\n",
        "notes.txt": b"never\n",
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    assert list(source_files(tmp_path)) == [
        SourceFile("a/z.py", "first = 1\n"),
        SourceFile("b.py", "second = 2\n"),
    ]


def test_the_split_is_by_the_name_alone() -> None:
    files = [SourceFile(f"package/module_{number}.py", str(number)) for number in range(2000)]
    whole = split_by_file(files)
    assert sorted([*whole.train, *whole.held_out], key=files.index) == files
    assert len(whole.held_out) == pytest.approx(2000 * HELD_OUT_PERCENT / 100, rel=0.4)
    other = [SourceFile(file.name, "other text") for file in files[::3]]
    part = split_by_file(other)
    held_out = {file.name for file in whole.held_out}
    assert {file.name for file in part.held_out} == held_out & {file.name for file in other}
    assert [file.name for file in part.train] == [f.name for f in other if f.name not in held_out]


def test_the_standard_library_is_there() -> None:
    corpus = standard_library_corpus()
    names = [file.name for file in corpus.train]
    assert names == sorted(names)
    held_out = {file.name for file in corpus.held_out}
    assert held_out
    assert held_out.isdisjoint(names)
    assert {"ast.py", "json/__init__.py", "typing.py"} <= held_out.union(names)
