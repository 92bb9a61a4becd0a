"""Rewrites a model: `convert` reads its `model_content`, rounds weights and splits them into
shards."""
