"""Functions of one tensor as programs of torch.export."""

from __future__ import annotations

from collections.abc import Callable

import torch


class _Net(torch.nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.forward = function


def exported(function: Callable, x: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(_Net(function).eval(), (x,))
