"""Benchmarks beside the peers: conv/ of single convolutions, network/ of whole networks."""
