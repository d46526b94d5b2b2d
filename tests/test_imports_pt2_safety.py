"""A .pt2 file is read without running anything in it, unless it is trusted."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tvm_winograd.errors import ModelError
from tvm_winograd.frontend import load_model
from tvm_winograd.truth.evaluate import evaluate

ROOT = "net/"
CONFIG = ROOT + "data/weights/model_weights_config.json"
GRAPH = ROOT + "models/model.json"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("shift", torch.arange(4.0).view(4, 1, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * self.shift + torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture
def saved(tmp_path) -> tuple[Path, np.ndarray]:
    """A file straight from torch.export.save, with a dynamic batch, and its output for ones."""
    net, x = Net().eval(), torch.ones(2, 3, 7, 5)
    shapes = {"x": {0: torch.export.Dim("batch")}}
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=shapes), path)
    return path, net(x).detach().numpy()


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None], **options) -> Path:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


class Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def test_a_file_of_torch_loads_without_trust(saved) -> None:
    path, want = saved
    model = load_model(path, batch=2)
    (got,) = evaluate(model.mod, model.params, [np.ones((2, 3, 7, 5), "float32")])
    assert np.allclose(got, want, atol=1e-6)
    assert np.allclose(model.original([np.ones((2, 3, 7, 5), "float32")])[0], want)


def test_sample_inputs_are_not_unpickled(saved, tmp_path) -> None:
    path, _ = saved
    bomb = pickle.dumps(Evil(tmp_path / "ran"))
    rewritten(path, lambda m: m.update({ROOT + "data/sample_inputs/model.pt": bomb}))
    assert load_model(path).batch == 1
    assert not (tmp_path / "ran").exists()


def edited(name: str, key: str, value, *, nth: int = 0) -> Callable[[dict[str, bytes]], None]:
    """Puts `value` at the nth place of `key` in a member that is JSON."""

    def places(tree):
        if isinstance(tree, dict):
            for k, v in tree.items():
                if k == key:
                    yield tree
                yield from places(v)
        elif isinstance(tree, list):
            for v in tree:
                yield from places(v)

    def change(members: dict[str, bytes]) -> None:
        tree = json.loads(members[name])
        list(places(tree))[nth][key] = value
        members[name] = json.dumps(tree).encode()

    return change


def pickled(members: dict[str, bytes]) -> None:
    edited(CONFIG, "use_pickle", True)(members)
    members[ROOT + "data/weights/weight_0"] = pickle.dumps(Evil(Path("ran")))


HOSTILE = {
    "a pickled weight": (pickled, "kept as a pickle"),
    "a script object": (edited(CONFIG, "path_name", "custom_obj_0"), "not a tensor"),
    "a path": (edited(CONFIG, "path_name", "../../x"), "not a tensor"),
    "AOTInductor": (lambda m: m.update({ROOT + "data/aotinductor/model/a.so": b""}), "aotinductor"),
    "the old format": (
        lambda m: m.update({"version": b"8.1"}) or m.pop(GRAPH),
        "torch.export.save has written",
    ),
    "old weights": (lambda m: m.update({ROOT + "data/weights/model.pt": b""}), "no part"),
    "any function of torch": (edited(GRAPH, "target", "torch.os.system", nth=0), "torch.os.system"),
    "a library": (edited(GRAPH, "target", "torch.ops.load_library"), "load_library"),
    "code as a size": (
        edited(GRAPH, "expr_str", "__import__('os').system('touch ran')"),
        "a size is given",
    ),
    "exec as a size": (edited(GRAPH, "expr_str", "exec(chr(112))"), "a size is given"),
    "an imported structure": (
        edited(GRAPH, "in_spec", '[1, {"type": "collections.defaultdict"}]'),
        "must import",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_refused_without_trust(name, saved, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    change, words = HOSTILE[name]
    path = rewritten(saved[0], change)
    with pytest.raises(ModelError, match=rf"(?s){words}.*--trust"):
        load_model(path)
    assert not Path("ran").exists()


def test_compressed_members_are_refused(saved) -> None:
    path = rewritten(saved[0], lambda m: None, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match="compressed"):
        load_model(path)


def test_trust_gives_the_file_to_torch(saved, tmp_path) -> None:
    path, _ = saved
    bomb = pickle.dumps(Evil(tmp_path / "ran"))
    rewritten(path, lambda m: m.update({ROOT + "data/sample_inputs/model.pt": bomb}))
    with pytest.raises(ModelError):  # None is no sample input
        load_model(path, trust=True)
    assert (tmp_path / "ran").exists()
