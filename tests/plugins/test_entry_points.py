"""Entry points of any package can be damaged: that distribution is left out, with one warning."""

from __future__ import annotations

import logging
import os

import pytest

from gptrs.errors import PluginError
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.entry_points import LARGEST_FILE, MOST_ENTRIES, Metadata, metadata_of
from gptrs.plugins.manager import configure

GOOD = """
from gptrs.api import BackendPlugin
P = BackendPlugin(name="x", summary="s", priority=1, factory="nowhere:create", api="0.1")
"""
OURS = b"[gptrs.backends]\nbad = bad:P\n"


def damaged(kind: str, path) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "bytes":
        path.write_bytes(OURS + b"# caf\xe9\n")
    elif kind == "large":
        path.write_bytes(OURS + b"#" * LARGEST_FILE)
    elif kind == "entries":
        lines = (f"x{i} = a:b" for i in range(MOST_ENTRIES + 1))
        path.write_text("\n".join(["[gptrs.models]", *lines]))
    elif kind == "line":
        path.write_bytes(OURS + b"nonsense\n")
    elif kind == "no group":
        path.write_bytes(b"x = a:b\n" + OURS)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pipe", "it is not a regular file"),
        ("folder", "it is not a regular file"),
        ("device", "it is not a regular file"),
        ("bytes", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9"),
        ("large", "it is larger than 1048576 bytes"),
        ("entries", "it has more than 1000 entry points for gptrs"),
        ("line", "line 3 is not `name = value` in a `[group]`"),
        ("no group", "line 1 is not `name = value` in a `[group]`"),
    ],
)
def test_a_damaged_file_is_one_warning_and_stops_nothing(install, tmp_path, caplog, kind, reason):
    install("bad-dist", "")
    install("good", {"gptrs.backends": {"x": "good_x:P"}}, {"good_x": GOOD})
    damaged(kind, tmp_path / "bad_dist-1.0.dist-info" / "entry_points.txt")
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        records = {record.name: record for record in configure().records()}
    assert records["x"].state == "available"
    assert (records["bad-dist"].kind, records["bad-dist"].state) == ("distribution", "broken")
    expected = f"its entry_points.txt cannot be read: {reason}"
    assert records["bad-dist"].reason.startswith(expected)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"`bad-dist` is skipped: {expected}")
    assert warning.endswith("; reinstall `bad-dist`")


@pytest.mark.parametrize(
    "content", [b"[console_scripts]\ncaf\xe9 = a:b\n", b"[console_scripts]\nnonsense\n", b"\xff"]
)
def test_damage_in_a_file_that_names_no_group_of_ours_is_none_of_our_business(
    install, tmp_path, caplog, content
):
    install("other", "")
    (tmp_path / "other-1.0.dist-info" / "entry_points.txt").write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        assert configure().records() == []
    assert caplog.records == []


def test_malformed_lines_in_groups_of_others_are_left_alone(install):
    text = "[other]\nnonsense\n[gptrs.backends]\nx = good_x:P\n"
    install("dist", text, {"good_x": GOOD})
    assert [record.state for record in configure().records()] == ["available"]


@pytest.mark.parametrize("kind", ["pipe", "bytes", "gone"])
def test_damaged_metadata_leaves_the_name_of_the_folder(install, tmp_path, kind):
    install("bad-dist", {"gptrs.backends": {"x": "good_x:P"}}, {"good_x": GOOD})
    metadata = tmp_path / "bad_dist-1.0.dist-info" / "METADATA"
    metadata.unlink()
    if kind == "pipe":
        os.mkfifo(metadata)
    elif kind == "bytes":
        metadata.write_bytes(b"Metadata\xff")
    assert metadata_of("bad-dist") == Metadata("", ())
    (record,) = configure().records()
    assert (record.distribution, record.version) == ("bad_dist", "1.0")
    assert record.state == "available"


def test_metadata_has_the_version_and_all_requirements(install, tmp_path):
    install("good-dist", {})
    metadata = tmp_path / "good_dist-1.0.dist-info" / "METADATA"
    metadata.write_text(
        "Name: good-dist\nVersion: 1.0\nRequires-Dist: a>=1\nRequires-Dist: b\n\nx: y"
    )
    assert metadata_of("good-dist") == Metadata("1.0", ("a>=1", "b"))
    assert metadata_of("no-such-dist") is None


def test_a_file_may_be_a_link(install, tmp_path):
    install("dist", {"gptrs.backends": {"x": "good_x:P"}}, {"good_x": GOOD})
    file = tmp_path / "dist-1.0.dist-info" / "entry_points.txt"
    file.rename(tmp_path / "kept")
    file.symlink_to(tmp_path / "kept")
    assert [record.state for record in configure().records()] == ["available"]


@pytest.mark.parametrize(
    ("group", "hint"),
    [
        ("gptrs.backend", "did you mean `gptrs.backends`?"),
        ("gptrs_backends", "did you mean `gptrs.backends`?"),
        ("gptrs-models", "did you mean `gptrs.models`?"),
        ("gptrs.qqq", "the groups are `gptrs.backends`, `gptrs.commands`, "),
    ],
)
def test_a_group_that_gptrs_does_not_have_is_told_with_the_nearest_one(
    install, caplog, group, hint
):
    install("acme-dist", {group: {"acme": "acme_x:P"}})
    plugins = configure()
    (record,) = plugins.records()
    reason = f"gptrs reads no entry points in the group `{group}`"
    assert (record.name, record.kind, record.state) == ("acme", "plugin", "misplaced")
    assert record.reason == reason
    assert record.hint.startswith(hint)
    with pytest.raises(PluginError, match="there is no backend `acme`; available: none") as error:
        plugins.find(BackendPlugin, "acme")
    assert f"plugin `acme` (from acme-dist 1.0) is misplaced: {reason}; {hint}" in str(error.value)
    assert caplog.records == []


def test_a_strict_selection_refuses_a_misplaced_plugin(install, monkeypatch):
    install("acme-dist", {"gptrs.backend": {"acme": "acme_x:P"}})
    monkeypatch.setenv("GPTRS_PLUGIN_STRICT", "1")
    with pytest.raises(PluginError, match=r"is misplaced: .* did you mean `gptrs.backends`\?"):
        configure().records()


def test_a_pipe_stops_no_process(tmp_path, probe):
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    os.mkfifo(info / "entry_points.txt")
    code = "from gptrs.plugins.manager import get_backend\nanswer = get_backend('ref').name"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = probe(code, PYTHONPATH=path)
    assert result["answer"] == "ref"
    assert result["stderr"].count("`stranger` is skipped: ") == 1
