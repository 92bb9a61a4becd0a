"""What programs are made of: `report` on the work, `diagram`, times of kernels."""
