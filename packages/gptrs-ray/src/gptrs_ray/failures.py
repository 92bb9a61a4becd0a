"""Errors that end a run on a cluster."""

from __future__ import annotations

from gptrs.api import GptrsError
from gptrs_ray.worker import Failed


class InputRowsError(GptrsError):
    """A file of rows cannot be read."""

    exit_code = 3
    code = "file"


class OutputRowsError(GptrsError):
    """The results cannot be written, or those that are there are of something else."""

    exit_code = 3
    code = "file"


class ClusterError(GptrsError):
    """The cluster cannot be reached, has no room, or loses its workers again and again."""

    exit_code = 4
    code = "cluster"


class RemoteError(GptrsError):
    """An error of a worker, in its own words."""

    def __init__(self, failed: Failed, where: str = "") -> None:
        super().__init__(f"{where}{failed.message}", hint=failed.hint)
        self.exit_code = failed.exit_code  # pyright: ignore[reportAttributeAccessIssue]
        self.code = failed.code  # pyright: ignore[reportAttributeAccessIssue]
