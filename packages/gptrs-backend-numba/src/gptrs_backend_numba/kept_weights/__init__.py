"""Forms of weights on disk: `weight_file` maps one, `weight_folder` keeps to a budget, `writer`."""
