"""All kernels for CPUs: direct, Winograd and im2win; tiles.py has their register budget."""
