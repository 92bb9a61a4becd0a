"""Heads on encoders: `classify`, `rank`, `zero_shot` of texts, `tag` and `fill` of tokens.

`scores` makes probabilities of logits.
"""
