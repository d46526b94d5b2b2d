"""Hand-written schedules, one file per kernel family; KERNELS lists them, preferred first."""
