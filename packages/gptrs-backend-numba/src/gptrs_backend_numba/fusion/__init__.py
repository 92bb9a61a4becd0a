"""The fusions of calls of functionals into calls of this backend's kernels, one module a family."""
