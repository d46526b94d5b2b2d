"""Whole networks measured side by side: ours beside torch and stock TVM, with the same weights."""
