"""Commands that several processes run together: what they need, and who prints."""

from __future__ import annotations

from typing import Any

import pytest

from gptrs.api.backends import ProcessGroup
from gptrs.errors import UsageError
from gptrs_cli.generate.generation_options import require_alike
from gptrs_cli.options.settings import Settings, printed_once
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.load_options import LoadOptions

ALL: dict[str, Any] = {"coordinator": "localhost:9", "processes": 2, "process_id": 1}


def test_all_of_the_options_or_none() -> None:
    assert LoadOptions().group() is None
    group = LoadOptions(**ALL).group()
    assert group is not None
    assert (group.coordinator, group.count, group.number) == ("localhost:9", 2, 1)
    with pytest.raises(UsageError, match="need `--coordinator`"):
        LoadOptions(processes=2).group()


def test_a_launcher_knows_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_MCA_orte_hnp_uri", "SLURM_STEP_NODELIST", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    launched = LoadOptions(coordinator="auto")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(UsageError, match="`JOB_COMPLETION_INDEX` is not set"):
        launched.group()
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "3")
    assert launched.group() == ProcessGroup("auto", None, 3)
    with pytest.raises(UsageError, match="takes no `--processes`"):
        LoadOptions(coordinator="auto", processes=2).group()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(UsageError, match="no launcher has numbered this process"):
        launched.group()


def test_the_first_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        with printed_once(Settings(LoadOptions(**{**ALL, "process_id": number}))):
            print("process", number)
    assert capsys.readouterr().out == "process 0\n"


def test_what_processes_do_not_share() -> None:
    sampled = Sampling(temperature=1.0)
    with pytest.raises(UsageError, match="give a --seed"):
        require_alike(sampled, guesses=False)
    with pytest.raises(UsageError, match="leave out --draft"):
        require_alike(Sampling(temperature=0), guesses=True)
    require_alike(Sampling(temperature=1.0, seed=3), guesses=False)


def test_a_backend_without_processes(gptrs):
    where = ("--coordinator", "localhost:9", "--processes", "2", "--process-id", "0")
    result = gptrs("generate", "--backend", "ref", *where, "def")
    assert result.code == 2
    assert "`ref` takes no processes" in result.err
