"""The command line imports TVM without torch, and torch behind it where a model needs it."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import sys
from tvm_winograd.ir import without_torch
{first}
without_torch.install()
import tvm
assert ("torch" in sys.modules) == {there}, "torch"
import torch
tensor = tvm.runtime.from_dlpack(torch.arange(3.0))
assert tensor.numpy().tolist() == [0, 1, 2]
assert torch.from_dlpack(tensor).tolist() == [0, 1, 2]
"""


@pytest.mark.parametrize(("first", "there"), [("", False), ("import torch", True)])
def test_tvm_is_imported_without_torch(first, there):
    text = PROGRAM.format(first=first, there=there)
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
