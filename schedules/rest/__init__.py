"""Schedules of what is no convolution: pooling, softmax, element-wise chains."""
