"""A run of training in a process of its own, which tells of each update; tests kill it."""

from __future__ import annotations

import sys
from pathlib import Path

from gptrs_train.learner import LowRank
from gptrs_train.runs import Data, Outputs, Watch, finetune
from gptrs_train.trainer import Settings


def main(model: str, data: str, out: str, what: str, resume: str) -> None:
    def settings(length: int) -> Settings:
        return Settings(
            steps=24, batch=3, length=16, rate=3e-3, warmup=4, accumulate=2, seed=5, save_every=3,
            eval_every=5, patience=3,
        )  # fmt: skip

    learnt = LowRank(2, 4.0) if what == "lora" else ["*"]
    watch = Watch(tell=lambda status: print(status.step, flush=True))
    outputs = Outputs(Path(out), resume == "resume")
    finetune(model, Data(Path(data)), outputs, learnt, settings, watch=watch)


if __name__ == "__main__":
    main(*sys.argv[1:])
