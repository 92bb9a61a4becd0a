"""Rewrite a model: `convert` reads its `model_content`, rounds weights and cuts `shards`."""
