"""Everything that runs a compiled model: TVM's runtime and numpy, no compiler."""
