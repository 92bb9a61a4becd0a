"""Events of programs for trace sinks: compilations, passes, runs, kernels."""
