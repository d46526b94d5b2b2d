"""The deploy side's public name: `tvm_winograd.runtime` is `tvm_winograd.deploy.runtime`."""

from .deploy.runtime import BatchRunner, Runner, load

__all__ = ["BatchRunner", "Runner", "load"]
