"""Heads on encoders: `classify`, `rank`, `zero_shot` of texts, `tag` and `fill` of tokens.

`logit_scores` ranks with a language model.
"""
