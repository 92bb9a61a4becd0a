"""Programs as shared libraries: kernels as objects, the schedule as data, a small runtime in C."""
