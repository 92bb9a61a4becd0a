"""Products, convolutions and attention on AMX, the matrix instructions of x86 processors."""
