"""What kernel families share: a kernel's record, schedule moves, register tiles, times."""
