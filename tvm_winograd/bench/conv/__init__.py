"""Single convolutions measured side by side: providers, checked results, rows, pictures."""
