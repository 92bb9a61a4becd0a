"""From the source of a kernel to machine code: intrinsics, numba, and the store on disk."""
