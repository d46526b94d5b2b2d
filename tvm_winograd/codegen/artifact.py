"""The artifact folder: modules, shared parameters and a manifest. What `compile` writes.

    manifest.json            everything a reader needs to know, and the SHA-256 of the rest
    params.bin               every distinct tensor once, of all modules
    sm_90/module.so          one per architecture ("cpu", "sm_90", "ptx"); where the batch varies
                             one for each of its sizes ("sm_90-b1", "sm_90-b8")
    sm_90/tensor-cache.json  TVM's own index: where param_0, param_1, ... lie in params.bin
    labels.txt               optional, a class name per line

TVM's runtime reads the index, so a C++ host needs no JSON parser (examples/cpp/host.cc).
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..deploy import libraries
from ..deploy.batches import Batches
from ..deploy.manifest import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    PARAMS,
    check_files,
    check_manifest,
    read_manifest,
)
from ..errors import ArtifactError
from . import replacing
from .param_store import TensorStore

__all__ = ["Artifact", "BuiltModule", "check_files", "read_manifest", "write_artifact"]

_LEAST_SPACE = 64 << 20  # bytes, for objects and libraries on their way
MODULE, INDEX, LABELS = "module.so", "tensor-cache.json", "labels.txt"


@dataclass(frozen=True)
class BuiltModule:
    """One architecture of a model, or one of its buckets, ready to be written.

    All but the library goes into the manifest. A function may say how much shared memory it
    needs ("shared_bytes"): `runtime.load` then keeps it off GPUs with less; and its "workspaces".
    """

    name: str  # "cpu", "sm_90", "ptx", "sm_90-b8": the folder
    arch: str  # "cpu", "sm_90"; of PTX the lowest architecture it runs on
    kind: str  # "llvm", "cubin" or "ptx"
    library: bytes  # of an executable whose entry is main(inputs..., params), checked by `export`
    params: Mapping[str, np.ndarray]  # in the order of the call
    batch: int | None = None  # the bucket's, where the batch varies
    layout: Mapping[str, str] | None = None  # choose_layout.Layout; None: no convolutions
    layers: Sequence[Mapping[str, Any]] = ()
    functions: Sequence[Mapping[str, Any]] = ()
    planned_bytes: int = 0  # of activations and workspaces
    cuda_graph: Mapping[str, int] | None = None  # plan.Graph; None: kernel by kernel
    device: Mapping[str, Any] | str | None = None
    compiler: str | None = None  # of CUDA code: "nvrtc 13.0"


class Artifact:
    """An artifact on disk. `load` gives something to run; `run` does both."""

    def __init__(self, path: str | Path) -> None:
        """Reads the manifest; the files are checked when they are loaded."""
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)
        self._runner: Any = None

    def load(self, device: str | None = None) -> Any:
        """A `Runner`, or a `BatchRunner` for a range of batches: see `runtime.load`."""
        from ..deploy import runtime

        return runtime.load(self.path, device)

    def run(self, *inputs: Any, **options: Any) -> Any:
        """Loads on the default device once and runs; see `Runner.run` of runtime.py."""
        if self._runner is None:
            self._runner = self.load()
        return self._runner.run(*inputs, **options)

    def check(self) -> None:
        """Raises:
        ArtifactError: a file is missing or damaged.
        """
        check_files(self.path, self.manifest)

    def __repr__(self) -> str:
        modules = ", ".join(m["name"] for m in self.manifest["modules"])
        return f"Artifact({str(self.path)!r}, target={self.manifest['target']}, modules={modules})"


@dataclass(frozen=True)
class Contents:
    """What a manifest says beside its modules."""

    target: str  # "llvm" or "cuda"
    # {"name", "shape", "dtype"} of each, in the order of the call; of the largest batch
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    model: Mapping[str, Any] | str | None  # where it comes from; any JSON
    batches: Batches | None = None  # what axis 0 of every input and output may be at run time
    preprocess: Mapping[str, Any] | None = None  # how an image becomes the input; any JSON
    labels: Sequence[str] | None = None  # class names
    options: Mapping[str, Any] | None = None  # what was asked for: choose.options.Options

    def as_dict(self) -> dict[str, Any]:
        batches = self.batches
        return {
            "target": self.target,
            "model": self.model,
            "inputs": [_plain(t) for t in self.inputs],
            "outputs": [_plain(t) for t in self.outputs],
            "batch": {"min": batches.low, "max": batches.high} if batches else None,
            "preprocess": self.preprocess,
            "labels": LABELS if self.labels is not None else None,
            "options": self.options,
        }


def write_artifact(
    path: str | Path, contents: Contents, modules: Sequence[BuiltModule]
) -> Artifact:
    """Writes an artifact folder, whole or not at all; an artifact already there is replaced.

    Args:
        path: the folder.
        contents: what the manifest says.
        modules: one per architecture, and for each of the batches.

    Raises:
        ArtifactError: `path` holds something else or cannot be written, or the description is
            incomplete.
        BuildError: a module without machine code.
    """
    path, labels = Path(path), contents.labels
    check_replaceable(path)
    names = [m.name for m in modules]
    if len(set(names)) != len(names):
        raise ArtifactError(f"modules {names}: every name may occur once")
    if not modules:
        raise ArtifactError("no module was asked for; name at least one architecture")
    described = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **contents.as_dict(),
        "versions": _versions(modules),
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    try:
        with _folder_for(path) as folder:
            if labels is not None:
                (folder / LABELS).write_text("".join(f"{n}\n" for n in labels), encoding="utf-8")
            manifest = {**described, **_write_modules(folder, modules), "files": _checksums(folder)}
            _write_json(folder / MANIFEST, manifest)
            check_manifest(json.loads((folder / MANIFEST).read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise ArtifactError(f"{path} cannot be written: {error}; name another place") from error
    return Artifact(path)


def _write_modules(folder: Path, modules: Sequence[BuiltModule]) -> dict[str, Any]:
    """params.bin and the module folders; their part of the manifest."""
    with (folder / PARAMS).open("wb") as stream:
        store = TensorStore(stream)
        located = [store.add_all(m.params) for m in modules]
    entries = [
        _write_module(folder, module, records, store.size)
        for module, records in zip(modules, located, strict=True)
    ]
    params = {"file": PARAMS, "bytes": store.size, "tensors": store.count}
    return {"modules": entries, "params": params}


def _write_module(
    folder: Path, module: BuiltModule, records: list[dict[str, Any]], params_bytes: int
) -> dict[str, Any]:
    from .build import check_device_code

    place = folder / module.name
    place.mkdir()
    check_device_code(module.library, cuda=module.kind != "llvm", ptx=module.kind == "ptx")
    (place / MODULE).write_bytes(module.library)
    shard: dict[str, Any] = {"dataPath": f"../{PARAMS}", "format": "raw-shard"}
    shard.update(nbytes=params_bytes, records=records)
    # TVM reads a shard's whole file, so: one shard per module, all of them the same file
    _write_json(place / INDEX, {"metadata": {}, "records": [shard] if records else []})
    return {
        "name": module.name,
        "arch": module.arch,
        "kind": module.kind,
        "batch": module.batch,
        "file": f"{module.name}/{MODULE}",
        "params": {"file": f"{module.name}/{INDEX}", "names": list(module.params)},
        "layout": dict(module.layout) if module.layout is not None else None,
        "layers": [dict(layer) for layer in module.layers],
        "functions": [dict(function) for function in module.functions],
        "planned_bytes": module.planned_bytes,
        "cuda_graph": dict(module.cuda_graph) if module.cuda_graph is not None else None,
        "device": module.device,
    }


@contextmanager
def _folder_for(path: Path) -> Iterator[Path]:
    """A fresh folder beside `path` that takes its place when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replacing.remove_leftovers(path)
    with replacing.scratch_beside(path) as scratch:
        new = scratch / "new"
        new.mkdir()
        yield new
        if path.exists():
            check_replaceable(path)
        replacing.put_in_place(new, path, scratch / "old")


def check_space(folder: str | Path | None = None) -> None:
    """Raises:
    ArtifactError: the folder for temporary files is full: LLVM would end the process.
    """
    folder = tempfile.gettempdir() if folder is None else folder
    free = shutil.disk_usage(folder).free
    if free < _LEAST_SPACE:
        raise ArtifactError(
            f"{folder} has {free / 2**20:.0f} MiB left, {_LEAST_SPACE >> 20} are needed to "
            "compile: free some, or set TMPDIR to another folder"
        )


def check_replaceable(path: Path) -> None:
    """Raises:
    ArtifactError: an artifact must not be written there: `path` is no folder, or a folder of
        something else.
    """
    try:
        above = next((p for p in path.absolute().parents if p.exists()), path)
        possible = path.name and above.is_dir() and os.access(above, os.W_OK)
        path.exists()
    except OSError:  # a name too long, a folder not to be looked into
        possible = False
    if not possible:
        raise ArtifactError(f"no folder can be made at {path.absolute()}; name another place")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ArtifactError(f"{path} is not a folder; name another place for the artifact")
    if not path.exists() or not any(path.iterdir()):
        return
    try:
        found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ArtifactError(
            f"{path} exists and is not an artifact of ours; it is left alone, name another folder"
        )
    if foreign := _foreign(path, found):
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ArtifactError(
            f"{path} holds {', '.join(foreign[:3])}{more}, which would be lost with the artifact "
            "there; move it, or name another folder"
        )


def _foreign(path: Path, manifest: dict[str, Any]) -> list[str]:
    """The files below an artifact that it does not name."""
    files = manifest.get("files")
    own = {MANIFEST, *(files if isinstance(files, dict) else ())}
    below = (p for p in path.rglob("*") if not p.is_dir() or p.is_symlink())
    return sorted(name for p in below if (name := p.relative_to(path).as_posix()) not in own)


def _checksums(folder: Path) -> dict[str, str]:
    from ..deploy.manifest import sha256

    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): sha256(p) for p in files}


def _versions(modules: Sequence[BuiltModule]) -> dict[str, str | None]:
    from .. import __version__

    return {
        "tvm": libraries.tvm_version(),
        "tvm_ffi": importlib.metadata.version("apache-tvm-ffi"),
        "tvm_winograd": __version__,
        "cuda_compiler": next((m.compiler for m in modules if m.compiler), None),
    }


def _plain(tensor: Mapping[str, Any]) -> dict[str, Any]:
    return {**tensor, "shape": [int(d) for d in tensor["shape"]], "dtype": str(tensor["dtype"])}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
