"""How each op becomes views and kernel calls, one module an op family."""
