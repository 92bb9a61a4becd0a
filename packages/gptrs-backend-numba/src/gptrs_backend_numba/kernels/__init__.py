"""Kernels by op family; families with several kernels have a folder."""
