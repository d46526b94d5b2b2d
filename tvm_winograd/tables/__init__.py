"""Tuning results as readable tables: read and looked up, written and merged."""
