"""One model at a time: TVM's builder of modules, and what importers change, are a process's own."""

import threading

COMPILING = threading.RLock()  # held while a model is imported, lowered and compiled
