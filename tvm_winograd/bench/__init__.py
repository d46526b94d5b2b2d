"""Convolutions measured side by side: providers, checked results, rows with their conditions."""
