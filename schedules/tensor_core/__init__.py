"""Convolution on tensor cores with the accuracy of float32 (fp16x3): see wgmma.cuh."""
