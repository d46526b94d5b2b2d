"""Winograd convolution for CNNs, compiled by Apache TVM. See docs/architecture.md.

Importing this package loads neither TVM nor any compiler; the names below load what they need.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "ConvSpec": "shapes",
    "Epilogue": "shapes",
    "Limits": "choose.options",
    "Options": "choose.options",
    "TvmWinogradError": "errors",
    "SpecError": "errors",
    "UnsupportedError": "errors",
    "ModelError": "errors",
    "BuildError": "errors",
    "ArtifactError": "errors",
    "InputError": "errors",
    "DeviceError": "errors",
    "LogError": "errors",
    "compile": "compiler",
    "conv2d": "conv",
    "CompiledConv": "conv",
    "load": "deploy.runtime",
    "Artifact": "codegen.artifact",
}
__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
