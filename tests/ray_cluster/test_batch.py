"""`gptrs batch` on clusters: results, losses, and going on; each cluster is of this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import gptrs
from gptrs.api import UsageError

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from gptrs_ray import map_batches  # noqa: E402
from gptrs_ray.batch import run_batch  # noqa: E402
from gptrs_ray.cluster import (  # noqa: E402
    ClusterError,
    InputRowsError,
    OutputRowsError,
    RemoteError,
    joined,
)
from gptrs_ray.records import records  # noqa: E402
from gptrs_ray.worker import RowWorker, WorkerSettings  # noqa: E402
from gptrs_runtime.load_options import LoadOptions  # noqa: E402
from runtime.tiny_bert import WORDS, save_tiny_bert  # noqa: E402

pytestmark = pytest.mark.exhaustive
ROWS = int(os.environ.get("GPTRS_TEST_RAY_ROWS", "1000"))
"""Rows of the long run; 20,000 were run once."""


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("ray") / "bert")


@pytest.fixture(scope="module")
def cluster():
    with joined("local"):
        yield


def save_texts(path: Path, count: int) -> list[str]:
    rng = np.random.default_rng(0)
    words = WORDS[4:]
    texts = [" ".join(rng.choice(words, rng.integers(1, 12))) for _ in range(count)]
    lines = (json.dumps({"id": number, "text": text}) for number, text in enumerate(texts))
    path.write_text("\n".join(lines) + "\n")
    return texts


def settings(model: Path | str, task: str = "embed", **fields: object) -> WorkerSettings:
    return WorkerSettings(str(model), task, loading=LoadOptions(backend="ref"), **fields)


def vectors_in(path: Path) -> np.ndarray:
    rows = [record.row for record in records(path)]
    assert [row["id"] for row in rows] == list(range(len(rows)))
    return np.array([row["embedding"] for row in rows], np.float32)


def test_a_cluster_that_is_not_there_is_said_at_once(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    save_texts(tmp_path / "in.jsonl", 2)
    with pytest.raises(ClusterError, match=r"no Ray cluster answers at `127\.0\.0\.1:9`"):
        run_batch(
            tmp_path / "in.jsonl", tmp_path / "o.jsonl", settings(bert), address="127.0.0.1:9"
        )


def test_another_cluster_than_that_of_the_process_is_refused(bert, cluster, tmp_path):
    save_texts(tmp_path / "in.jsonl", 2)
    with pytest.raises(ClusterError, match="is in a Ray cluster already"):
        run_batch(tmp_path / "in.jsonl", tmp_path / "o.jsonl", settings(bert), address="auto")


def test_vectors_of_a_file_are_those_of_one_process(bert, cluster, tmp_path):
    texts = save_texts(tmp_path / "in.jsonl", 50)
    told = []
    result = run_batch(
        tmp_path / "in.jsonl", tmp_path / "out.parquet", settings(bert),
        workers=2, cpus=1, rows=8, progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert (result.rows, result.before, result.bad, result.lost) == (50, 0, 0, 0)
    assert told[0] == (0, 50)
    assert told[-1] == (50, 50)
    expected = gptrs.embed(gptrs.load_model(bert, backend="ref"), texts)
    np.testing.assert_allclose(vectors_in(tmp_path / "out.parquet"), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(OutputRowsError, match="already exists"):
        run_batch(tmp_path / "in.jsonl", tmp_path / "out.parquet", settings(bert))


def test_a_run_goes_on_after_a_bad_row_however_that_is_mended(bert, cluster, tmp_path):
    """The error names the row; finished rows are kept for an edited file and for other options."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [json.dumps({"id": number, "text": "a cat"}) for number in range(6)]
    bad = json.dumps({"id": 6, "words": 1})
    source.write_text("\n".join([*rows, "", bad, json.dumps({"id": 7, "text": "x"})]))
    with pytest.raises(RemoteError, match=r"^line 8 of `.*` \(id 6\): a row needs `text`"):
        run_batch(source, out, settings(bert), workers=1, cpus=1, rows=2)
    assert not out.exists()
    with pytest.raises(OutputRowsError, match="another `task`"):
        run_batch(source, out, settings(bert, "fill"), workers=1, cpus=1)
    skipping = tmp_path / "skipped.jsonl"
    parts = out.with_name("out.jsonl.parts")
    shutil.copytree(parts, skipping.with_name("skipped.jsonl.parts"))
    result = run_batch(source, skipping, settings(bert, skip_bad=True), workers=1, cpus=1, rows=5)
    assert (result.rows, result.bad) == (8, 1)
    assert result.before >= 6
    mended = ["", json.dumps({"id": 6, "text": "a dog"}), *rows[:5]]
    source.write_text("\n".join(mended))
    result = run_batch(source, out, settings(bert), workers=1, cpus=1, rows=3)
    assert (result.rows, result.before, result.bad) == (6, 5, 0)
    ids = [record.row["id"] for record in records(out)]
    assert ids == [6, 0, 1, 2, 3, 4]
    expected = gptrs.embed(gptrs.load_model(bert, backend="ref"), ["a dog", "a cat"])
    found = [record.row["embedding"] for record in records(out)][:2]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_lines_that_are_no_rows_end_the_run_first_or_are_left_out(bert, cluster, tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a cat"}\n{"text": \n{"text": "a dog"}\n')
    with pytest.raises(InputRowsError, match="line 2 of"):
        run_batch(source, out, settings(bert), workers=1, cpus=1)
    result = run_batch(source, out, settings(bert, skip_bad=True), workers=1, cpus=1)
    assert (result.rows, result.bad) == (3, 1)
    found = [record.row for record in records(out)]
    assert [row["error"] is None for row in found] == [True, False, True]


def test_a_row_that_ends_workers_is_named(bert, cluster, tmp_path, monkeypatch):
    class Deadly(RowWorker):
        def run(self, rows):
            if any(row["text"] == "the" for row in rows):
                os._exit(1)
            return super().run(rows)

    monkeypatch.setattr("gptrs_ray.pool.RowWorker", Deadly)
    monkeypatch.setattr("gptrs_ray.pool.MOST_LOSSES", 2)
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    texts = ["a cat", "a dog", "the", "red"]
    source.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    with pytest.raises(RemoteError, match=r"^line 3 of `.*`: the row ended"):
        run_batch(source, out, settings(bert), workers=1, cpus=1)
    result = run_batch(source, out, settings(bert, skip_bad=True), workers=1, cpus=1)
    assert (result.rows, result.bad) == (4, 1)


def test_bad_rows_are_left_out_where_asked_to(bert, cluster, tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a cat"}\n{"words": 1}\n')
    result = run_batch(source, out, settings(bert, skip_bad=True), workers=1, cpus=1)
    good, bad = [json.loads(line) for line in out.read_text().splitlines()]
    assert result.bad == 1
    assert good["error"] is None
    assert bad["embedding"] is None
    assert "needs `text`" in bad["error"]


def test_what_workers_cannot_load_ends_the_run(cluster, tmp_path):
    save_texts(tmp_path / "in.jsonl", 2)
    with pytest.raises(RemoteError, match="/nowhere"):
        run_batch(tmp_path / "in.jsonl", tmp_path / "o.jsonl", settings("/nowhere"), cpus=1)
    assert not (tmp_path / "o.jsonl").exists()


REFUSED = {
    "no option `max_tokens`": {"task": "embed", "options": {"max_tokens": 1}},
    "no option `max_tokes`": {"task": "generate", "options": {"max_tokes": 1}},
    "temperature` must be": {"task": "generate", "options": {"temperature": -1}},
    "batch size must be": {"task": "generate", "options": {"batch_size": 0}},
    "`precision` cannot be `f64`": {"loading": LoadOptions(precision="f64")},
    "`weights` cannot be `q3`": {"loading": LoadOptions(weights="q3")},
    "nothing": {"loading": LoadOptions(backend="nothing")},
}


@pytest.mark.parametrize("told", REFUSED)
def test_settings_are_checked_before_a_worker_starts(told, tmp_path, monkeypatch):
    monkeypatch.setattr("gptrs_ray.batch.joined", None)
    save_texts(tmp_path / "in.jsonl", 2)
    asked = WorkerSettings(**{"model": "/x", "task": "embed"} | REFUSED[told])
    with pytest.raises(UsageError, match=told):
        run_batch(tmp_path / "in.jsonl", tmp_path / "o.jsonl", asked)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_lost_worker_is_replaced(bert, cluster, tmp_path):
    texts = save_texts(tmp_path / "in.jsonl", 64)
    killed = []

    def kill_one(done: int, total: int) -> None:
        if done >= 16 and not killed:
            killed.append(_end_a_worker())

    result = run_batch(
        tmp_path / "in.jsonl", tmp_path / "out.jsonl", settings(bert),
        workers=1, cpus=1, rows=4, progress=kill_one,
    )  # fmt: skip
    assert killed
    assert result.lost == 1
    expected = gptrs.embed(gptrs.load_model(bert, backend="ref"), texts)
    np.testing.assert_allclose(vectors_in(tmp_path / "out.jsonl"), expected, rtol=1e-5, atol=1e-6)


def _end_a_worker() -> int:
    """Kill the process of an actor of ours; return its number."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if command.startswith(b"ray::RowWorker"):
            os.kill(int(folder.name), signal.SIGKILL)
            return int(folder.name)
    raise AssertionError("there is no worker")


@pytest.fixture
def two_nodes():
    """The address of a cluster of two nodes, and a function that kills the second one."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    cluster.add_node(num_cpus=1, include_dashboard=False)
    second = cluster.add_node(num_cpus=1)
    yield cluster.address, lambda: cluster.remove_node(second, allow_graceful=False)
    cluster.shutdown()


def results_in(folder: Path) -> int:
    """Return the number of results; 0 while the database is not there yet, or locked."""
    try:
        with closing(sqlite3.connect(f"file:{folder}/results.sqlite?mode=ro", uri=True)) as found:
            return found.execute("SELECT count(*) FROM results").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def wait_for_results(path: Path, count: int, run: subprocess.Popen[bytes]) -> None:
    """Wait until so many results are there; the run must not end before."""
    deadline = time.monotonic() + 240
    while results_in(path) < count:
        assert run.poll() is None, "it was too quick to be disturbed"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_nothing_is_lost_or_doubled_where_a_node_and_the_driver_are_killed(
    bert, two_nodes, tmp_path
):
    """Each row is there once, in order, with the numbers of one process."""
    address, kill_second_node = two_nodes
    texts = save_texts(tmp_path / "in.jsonl", ROWS)
    command = [
        *(sys.executable, "-m", "gptrs_cli", "batch", "in.jsonl", "out.parquet"),
        *("--model", str(bert), "--task", "embed", "--backend", "ref", "--ray", address),
        *("--rows", str(ROWS // 200), "--cpus", "1", "--json"),
    ]
    parts = tmp_path / "out.parquet.parts"
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        wait_for_results(parts, ROWS // 10, run)
        kill_second_node()
        wait_for_results(parts, results_in(parts) + ROWS // 10, run)
        run.kill()
    assert not (tmp_path / "out.parquet").exists()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert ROWS // 5 <= found["before"] < ROWS
    assert found["rows"] == ROWS
    expected = gptrs.embed(gptrs.load_model(bert, backend="ref"), texts)
    np.testing.assert_allclose(vectors_in(tmp_path / "out.parquet"), expected, rtol=1e-5, atol=1e-6)
    assert not parts.exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, of its own settings
def test_a_dataset_gains_columns(bert, cluster):
    texts = ["a cat", "the dog ran", "two red mat"]
    dataset = ray.data.from_items([{"id": n, "text": text} for n, text in enumerate(texts)])
    found = map_batches(dataset, str(bert), "embed", cpus=1, batch_size=2, backend="ref")
    rows = sorted(found.take_all(), key=lambda row: row["id"])
    expected = gptrs.embed(gptrs.load_model(bert, backend="ref"), texts)
    np.testing.assert_allclose([row["embedding"] for row in rows], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError, match="no option `max_tokens`"):
        map_batches(dataset, str(bert), "embed", max_tokens=3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_that_would_take_all_cpus_leave_one_to_ray_data(bert, cluster, tmp_path):
    """Reads wait forever where the actors of a later step hold all CPUs."""
    save_texts(tmp_path / "in.jsonl", 8)
    cpus = int(ray.cluster_resources()["CPU"])
    dataset = ray.data.read_json(str(tmp_path / "in.jsonl"))
    found = map_batches(dataset, str(bert), "embed", workers=cpus, cpus=1, backend="ref")
    assert len(found.take_all()) == 8
    with pytest.raises(UsageError, match=rf"need {cpus + 1}, the cluster has {cpus}"):
        map_batches(dataset, str(bert), "embed", workers=cpus + 1, cpus=1)
    with pytest.raises(UsageError, match="at least 1 worker"):
        map_batches(dataset, str(bert), "embed", workers=0)
