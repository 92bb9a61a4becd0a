"""Write a model anew: `convert` reads its `model_content`, rounds weights and cuts `shards`."""
