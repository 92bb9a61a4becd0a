"""How calls of functionals become calls of this backend's own kernels, one module a family."""
