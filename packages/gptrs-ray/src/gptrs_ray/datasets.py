"""A model over a dataset of Ray Data."""

from __future__ import annotations

from typing import Any, cast

import ray
from ray.data import ActorPoolStrategy, Dataset

from gptrs_ray.cluster import MOST_CPUS
from gptrs_ray.tasks import task_named
from gptrs_ray.worker import BatchWorker, WorkerSettings


def map_batches(
    dataset: Dataset,
    model: str | None,
    task: str = "generate",
    *,
    column: str | None = None,
    workers: int | tuple[int, int] = 1,
    cpus: int = MOST_CPUS,
    batch_size: int = 64,
    skip_bad: bool = False,
    backend: str | None = None,
    weights: str | None = None,
    precision: str | None = None,
    **options: Any,
) -> Dataset:
    """Return `dataset` with columns that `model` adds: `generate`, `embed` or `forward` each row.

    `column` names what is read: a text, tokens or messages for `generate` (`prompt`, `prompt_ids`
    or `messages` unless told), a text for `embed` (`text`), numbers for `forward` (`input`). Added
    are `generated`, `generated_token_ids` and `finish_reason`; `embedding`; `output`. `workers`
    actors, or from so many to so many, have `cpus` CPUs and as many threads each; those of a host
    share one copy of the weights in memory. `options` are those of `gptrs.generate` or
    `gptrs.embed`. With `skip_bad` a row that cannot be run has nulls, and says why in `error`.

    As always with Ray Data nothing runs before the dataset is read. UsageError for a task or an
    option that is none; other errors are raised when it runs.
    """
    task_named(task).require_options(options)
    settings = WorkerSettings(
        model=model,
        task=task,
        column=column,
        options=options,
        skip_bad=skip_bad,
        backend=backend,
        threads=cpus,
        weights=weights,
        precision=precision,
    )
    least, most = (workers, workers) if isinstance(workers, int) else workers
    found = cast("Any", dataset).map_batches(
        BatchWorker,
        fn_constructor_args=(settings,),
        batch_size=batch_size,
        batch_format="numpy",
        num_cpus=cpus,
        compute=ActorPoolStrategy(min_size=least, max_size=most),
    )
    return cast("ray.data.Dataset", found)
