"""Each rule for words bites on made-up files, and leaves correct ones alone."""

import ast
from pathlib import Path, PurePosixPath

import pytest

import prose_rules


@pytest.fixture(autouse=True)
def _limits(monkeypatch):
    monkeypatch.setattr(prose_rules, "PHRASES", dict.fromkeys(prose_rules.PHRASES, 0))
    monkeypatch.setattr(prose_rules, "OPENINGS", {"What": 1})


def checked(root: Path, path: str, text: str) -> tuple[list[str], list[str]]:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")
    files = [PurePosixPath(p.relative_to(root).as_posix()) for p in root.rglob("*") if p.is_file()]
    trees = {file: ast.parse((root / file).read_text()) for file in files if file.suffix == ".py"}
    return prose_rules.prose_problems(root, sorted(files), trees)


@pytest.mark.parametrize(
    "text",
    ["[map](map.md)", "[map](../docs/map.md#top)", "[web](https://a.b/c.md)", "[here](#top)",
     "```sh\n[x](gone.md)\n```", '`f[x]("p", y)`'],
)  # fmt: skip
def test_links_that_lead_somewhere(tmp_path: Path, text: str):
    checked(tmp_path, "docs/map.md", "")
    assert checked(tmp_path, "docs/page.md", text)[0] == []


@pytest.mark.parametrize("target", ["gone.md", "../map.md", "gone.md#top"])
def test_a_dead_link_is_a_problem(tmp_path: Path, target: str):
    checked(tmp_path, "docs/map.md", "")
    problems, _ = checked(tmp_path, "docs/page.md", f"see [the\nmap]({target})")
    assert problems == [f"docs/page.md: links to `{target}`, which does not exist"]


def test_a_link_by_the_name_of_another_file_is_a_problem(tmp_path: Path):
    checked(tmp_path, "docs/map.py", "")
    assert checked(tmp_path, "docs/page.md", "see [`docs/map.py`](map.py)")[0] == []
    problems, _ = checked(tmp_path, "docs/page.md", "see [`old.py`](map.py#top)")
    assert problems == ["docs/page.md: the link `old.py` leads to `map.py`"]


@pytest.mark.parametrize("phrase", sorted(prose_rules.PHRASES))
@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("docs/page.md", "So {}\nwe say."),
        ("packages/a/a.py", '"""So {} we say."""'),
        ("packages/a/a.py", "# So {} we say.\n"),
        ("packages/a/a.py", "# So\n# {} we say.\n"),
    ],
)
def test_a_phrase_above_its_limit_is_a_problem(tmp_path: Path, path: str, form: str, phrase: str):
    [problem] = checked(tmp_path, path, form.format(phrase))[0]
    assert problem.startswith(f"{path}: `{phrase}` stands in 1 places, 0 are allowed")


def test_a_phrase_on_two_lines_of_a_comment(tmp_path: Path):
    [problem] = checked(tmp_path, "packages/a.py", "# The sum of\n# which we know.\n")[0]
    assert "`of which`" in problem
    assert checked(tmp_path, "packages/a.py", "# The sum of whichever.\n")[0] == []


def test_a_limit_that_is_too_high_is_noted(tmp_path: Path):
    source = 'def f():\n    """What is it."""\n'
    assert checked(tmp_path, "packages/a.py", source) == ([], [])
    problems, notes = checked(tmp_path, "packages/a.py", '"""Whatever is."""\n')
    assert problems == []
    assert notes == [
        "tools/prose_rules.py: a docstring that opens with `What` stands in 0 places; allow no more"
    ]
    [problem] = checked(tmp_path, "packages/a.py", source * 2)[0]
    assert problem.startswith("packages/a.py:4: a docstring that opens with `What` stands in 2")
