"""Winograd F(4x4) on CUDA in three kernels: input transform, batched product, output transform."""
