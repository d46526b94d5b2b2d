"""Rewrites of a network, one a file; pipeline.py alone knows their order."""
