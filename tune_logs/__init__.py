"""Readable tuning tables, one folder per architecture."""
