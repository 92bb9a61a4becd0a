"""Training: optimizers and schedules, data, adapters, `gptrs finetune` and `gptrs train`."""
