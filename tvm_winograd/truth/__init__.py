"""What is right: float64 references, an interpreter of networks, error limits, a peer."""
