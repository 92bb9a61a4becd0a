"""Model kinds written against the functionals of gptrs, and the bundled demo model."""
