"""The lowerings from ops to views and kernel calls, one module per op family."""
