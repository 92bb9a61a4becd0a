"""`gptrs batch` on clusters: results, losses, and going on; each cluster is of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
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
    OutputRowsError,
    RemoteError,
    joined,
)
from gptrs_ray.records import slices  # noqa: E402
from gptrs_ray.worker import WorkerSettings  # noqa: E402
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
    return WorkerSettings(str(model), task, backend="ref", **fields)


def vectors_in(path: Path) -> np.ndarray:
    rows = [row for part in slices(path, 1000) for row in part]
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
    with pytest.raises(OutputRowsError, match="is there already"):
        run_batch(tmp_path / "in.jsonl", tmp_path / "out.parquet", settings(bert))


def test_an_error_names_the_rows_and_the_run_goes_on_when_it_is_mended(bert, cluster, tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [json.dumps({"id": number, "text": "a cat"}) for number in range(6)]
    source.write_text("\n".join([*rows, json.dumps({"id": 6, "words": 1})]))
    with pytest.raises(RemoteError, match=r"in the rows 7 to 7: a row needs `text`"):
        run_batch(source, out, settings(bert), workers=1, cpus=1, rows=2)
    assert not out.exists()
    with pytest.raises(OutputRowsError, match="another `skip_bad`"):
        run_batch(source, out, settings(bert, skip_bad=True), workers=1, cpus=1, rows=2)
    source.write_text("\n".join([*rows, json.dumps({"id": 6, "text": "a dog"})]))
    with pytest.raises(OutputRowsError, match="another `input`"):
        run_batch(source, out, settings(bert), workers=1, cpus=1, rows=2)


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
    with pytest.raises(UsageError, match="no option `max_tokens`"):
        run_batch(
            tmp_path / "in.jsonl", tmp_path / "o.jsonl", settings("/x", options={"max_tokens": 1})
        )
    assert not (tmp_path / "o.jsonl").exists()


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


def parts_of(path: Path) -> int:
    return len(list(path.glob("part-*"))) if path.exists() else 0


def wait_for_parts(path: Path, count: int, run: subprocess.Popen[bytes]) -> None:
    """Wait until results of so many slices are there; the run must not end before."""
    deadline = time.monotonic() + 240
    while parts_of(path) < count:
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
        wait_for_parts(parts, 20, run)
        kill_second_node()
        wait_for_parts(parts, parts_of(parts) + 20, run)
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
