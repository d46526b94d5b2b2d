"""Scheduled functions become machine code, a memory plan and an artifact; no GPU is needed."""
