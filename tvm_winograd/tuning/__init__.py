"""Finding the fastest right config of each convolution on a device. See docs/tuning.md.

tasks > spaces > order > runner (build_worker, worker) > journal > tables; loop.py drives.
"""
