"""All kernels for CPUs: direct, Winograd and im2win; tiles.py has their register budget.

Loops beside those of base/blocks.py: kb, hb and wb count blocks of filters, rows and columns; ki,
hi and wi what is inside one (k and p inside Winograd's kb and pb).
"""
