"""Benchmark of whole networks: ours beside torch and stock TVM, with the same weights."""
