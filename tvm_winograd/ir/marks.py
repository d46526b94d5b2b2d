"""Marks that a schedule leaves on loops and the code generator reads; TVM keeps them to the end."""

HELD = "pragma_held_loads"  # loads to registers stay where they are
NEAR = "pragma_near_copies"  # addresses of cp.async are an immediate apart
