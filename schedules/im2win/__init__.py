"""im2win on CUDA: windows of the input are made contiguous, then multiplied."""
