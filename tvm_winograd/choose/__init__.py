"""Which kernel computes a convolution, with which config, and why."""
