"""The reference backend of gptrs: runs programs op by op with NumPy."""
