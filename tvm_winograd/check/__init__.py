"""A compiled network is held against the float64 truth; each step of its making can be shown."""
