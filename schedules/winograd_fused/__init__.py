"""Winograd F(2x2) and F(4x4) on CUDA, transforms and products in one kernel."""
