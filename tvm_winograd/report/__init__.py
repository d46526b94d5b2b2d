"""Pictures of measured rows; no GPU is needed to draw them."""
