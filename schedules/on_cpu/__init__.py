"""All kernels for CPUs: direct, Winograd and im2win."""
