"""Reads and checks an artifact's manifest.json. Standard library only: the deploy side uses it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import ArtifactError
from .batches import Batches

FORMAT = "tvm-winograd artifact"
FORMAT_VERSION = 3
MANIFEST = "manifest.json"
PARAMS = "params.bin"
KINDS = ("llvm", "cubin", "ptx")
TARGETS = ("llvm", "cuda")

# field -> types; a field whose types hold NoneType may be null, none may be absent
_TOP: dict[str, tuple[type, ...]] = {
    "format": (str,),
    "format_version": (int,),
    "target": (str,),
    "model": (dict, str, type(None)),
    "inputs": (list,),
    "outputs": (list,),
    "batch": (dict, type(None)),  # {"min", "max"}: any between; the shapes are those of "max"
    "modules": (list,),
    "params": (dict,),
    "versions": (dict,),
    "created": (str,),
    "preprocess": (dict, type(None)),
    "labels": (str, type(None)),
    "files": (dict,),
}
_PARAMS: dict[str, tuple[type, ...]] = {"file": (str,), "bytes": (int,), "tensors": (int,)}
_BATCH: dict[str, tuple[type, ...]] = {"min": (int,), "max": (int,)}
_VERSIONS: dict[str, tuple[type, ...]] = {
    "tvm": (str,),
    "tvm_ffi": (str,),
    "tvm_winograd": (str,),
    "cuda_compiler": (str, type(None)),
}
_TENSOR: dict[str, tuple[type, ...]] = {"name": (str,), "shape": (list,), "dtype": (str,)}
_MODULE: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "arch": (str,),
    "kind": (str,),
    "batch": (int, type(None)),  # the most images that it takes, where the batch varies
    "file": (str,),
    "params": (dict,),
    "layout": (dict, type(None)),  # of all convolutions: {"chosen", "given", "reason"}
    "layers": (list,),
    "functions": (list,),
    "planned_bytes": (int,),
    "cuda_graph": (dict, type(None)),
    "device": (dict, str, type(None)),
}
_INDEX: dict[str, tuple[type, ...]] = {"file": (str,), "names": (list,)}


def read_manifest(path: str | Path) -> dict[str, Any]:
    """The manifest of the artifact folder `path`, every field checked.

    Raises:
        ArtifactError: no artifact, damaged JSON, a missing or wrong field, a newer format.
    """
    folder = Path(path)
    file = folder / MANIFEST
    if not folder.is_dir() or not file.is_file():
        raise ArtifactError(
            f"{folder} is no artifact: it has no {MANIFEST}; make one with "
            f"`tvm-winograd compile MODEL -o {folder}`"
        )
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{file} is damaged: {error}; compile the model again") from error
    check_manifest(manifest, str(file))
    return dict(manifest)


def check_manifest(manifest: Any, where: str) -> None:
    """Raises:
    ArtifactError: a field is missing or has the wrong type or value.
    """
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f'{where} is not ours: it has no "format": "{FORMAT}"')
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ArtifactError(
            f"{where} has format {version}, this package reads up to {FORMAT_VERSION}: "
            "update tvm-winograd or compile the model again"
        )
    _check(manifest, _TOP, where)
    _check(manifest["params"], _PARAMS, f"{where}: params")
    _check(manifest["versions"], _VERSIONS, f"{where}: versions")
    _one_of(manifest["target"], TARGETS, f"{where}: target")
    for key in ("inputs", "outputs"):
        for i, tensor in enumerate(manifest[key]):
            _check_tensor(tensor, f"{where}: {key}[{i}]")
    if not manifest["modules"]:
        raise ArtifactError(f"{where}: modules is empty; compile the model again")
    for i, module in enumerate(manifest["modules"]):
        at = f"{where}: modules[{i}]"
        _check(module, _MODULE, at)
        _one_of(module["kind"], KINDS, f"{at}.kind")
        _check(module["params"], _INDEX, f"{at}.params")
        _check_features(module["device"], f"{at}.device")
        if not re.fullmatch(r"[\w.-]+", module["name"]):
            raise ArtifactError(f"{at}.name is {module['name']!r}: letters, digits, _ . - only")
    _check_batches(manifest, where)
    _check_listed(manifest, where)


def batches_of(manifest: Mapping[str, Any]) -> Batches | None:
    """What an artifact was compiled for, if its batch varies."""
    if manifest["batch"] is None:
        return None
    sizes = {module["batch"] for module in manifest["modules"]}
    return Batches(manifest["batch"]["min"], tuple(sorted(sizes)))


def with_batch(tensors: Sequence[Mapping[str, Any]], batch: int | None) -> list[dict[str, Any]]:
    """Entries of a manifest's inputs or outputs for another batch; unchanged if None."""
    if batch is None:
        return [dict(tensor) for tensor in tensors]
    return [{**tensor, "shape": [batch, *tensor["shape"][1:]]} for tensor in tensors]


def read_labels(path: str | Path, manifest: Mapping[str, Any]) -> list[str] | None:
    """The class names of an artifact, None if it has none.

    Raises:
        ArtifactError: their file is missing or no text.
    """
    if manifest["labels"] is None:
        return None
    file = Path(path) / manifest["labels"]
    try:
        return file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{file} cannot be read: {error}; compile the model again") from error


def check_files(path: str | Path, manifest: Mapping[str, Any]) -> None:
    """Compares every file of an artifact with its recorded SHA-256.

    Raises:
        ArtifactError: a file is missing or its content has changed.
    """
    for name, wanted in manifest["files"].items():
        file = Path(path) / name
        if not file.is_file():
            raise ArtifactError(f"{file} is missing; copy the artifact again or compile it again")
        if (got := sha256(file)) != wanted:
            raise ArtifactError(
                f"{file} is damaged: its SHA-256 is {got[:12]}..., the manifest says "
                f"{str(wanted)[:12]}...; copy the artifact again or compile it again"
            )


def sha256(file: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check(value: Any, fields: Mapping[str, tuple[type, ...]], where: str) -> None:
    if not isinstance(value, dict):
        raise ArtifactError(f"{where} is {_kind(value)}: an object was expected")
    for name, types in fields.items():
        if name not in value:
            raise ArtifactError(f"{where} has no {name!r}; compile the model again")
        got = value[name]
        if not isinstance(got, types) or (isinstance(got, bool) and bool not in types):
            wanted = " or ".join(t.__name__ for t in types)
            raise ArtifactError(f"{where}.{name} is {_kind(got)}: {wanted} was expected")


def _check_features(device: Any, where: str) -> None:
    """Of a CPU: names, which need not be there."""
    found = device.get("features") if isinstance(device, dict) else None
    if found is not None and not (
        isinstance(found, list) and all(isinstance(name, str) for name in found)
    ):
        raise ArtifactError(f"{where}.features is {found!r}: a list of names was expected")


def _check_tensor(tensor: Any, where: str) -> None:
    _check(tensor, _TENSOR, where)
    if not all(isinstance(d, int) and not isinstance(d, bool) and d > 0 for d in tensor["shape"]):
        raise ArtifactError(f"{where}.shape is {tensor['shape']}: positive integers were expected")


def _check_batches(manifest: Mapping[str, Any], where: str) -> None:
    """Every architecture must have every bucket, the largest as large as the inputs say."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for module in manifest["modules"]:
        sizes.setdefault((module["arch"], module["kind"]), []).append(module["batch"])
    distinct = {tuple(sorted(map(str, of_one))) for of_one in sizes.values()}
    if manifest["batch"] is None:
        good = distinct == {("None",)}
    else:
        _check(manifest["batch"], _BATCH, f"{where}: batch")
        low, high = manifest["batch"]["min"], manifest["batch"]["max"]
        tensors = [*manifest["inputs"], *manifest["outputs"]]
        found = next(iter(sizes.values()))
        good = len(distinct) == 1 and None not in found and len(set(found)) == len(found)
        good = good and 1 <= low <= min(found) and max(found) == high
        good = good and all(tensor["shape"][:1] == [high] for tensor in tensors)
    if not good:
        raise ArtifactError(
            f"{where}: batch {manifest['batch']} does not fit the modules' {list(sizes.values())} "
            "or the shapes of inputs and outputs; compile the model again"
        )


def _check_listed(manifest: Mapping[str, Any], where: str) -> None:
    """Every file the manifest names must have a checksum, and lie inside the artifact."""
    files = manifest["files"]
    named = [manifest["params"]["file"], *([manifest["labels"]] if manifest["labels"] else [])]
    for module in manifest["modules"]:
        named += [module["file"], module["params"]["file"]]
    for name in named:
        if name not in files:
            raise ArtifactError(f"{where}: files has no checksum of {name}; compile again")
    for name, digest in files.items():
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or not isinstance(digest, str):
            raise ArtifactError(f"{where}: files has a bad entry {name!r}: {digest!r}")


def _one_of(value: Any, allowed: tuple[str, ...], where: str) -> None:
    if value not in allowed:
        raise ArtifactError(f"{where} is {value!r}: supported are {', '.join(allowed)}")


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
