"""How kernels are written, one file per operator family."""
