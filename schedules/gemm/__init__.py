"""Convolution as a matrix product on CUDA: implicit GEMM, and im2col with a workspace."""
