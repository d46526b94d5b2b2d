"""Direct convolution on CUDA, scheduled by TVM's dlight: what no kernel of ours takes."""
