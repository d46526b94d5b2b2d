"""What kernel families share: a kernel's record, what a GPU allows, schedule moves, main loops.

A family is a folder with the same files as every other:

    config.py   the frozen dataclass of knobs, and the sizes that follow from them
    legal.py    `supports` (a convolution), `illegal` (a config), `needs` (of a GPU)
    search.py   the configs worth trying, the default first
    cost.py     the estimated seconds of a config, and its bytes of workspace
    kernel.py   the TE function, the schedule as a chain of stages, the KERNEL record

and a file for each larger stage. A stage is a function `stage(sch, config, ...)`, marked by
`stages.stage`, whose docstring says in a line "loops: ..." which loops it gets and leaves.
"""
