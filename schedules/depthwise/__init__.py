"""Depthwise convolution on CUDA."""
