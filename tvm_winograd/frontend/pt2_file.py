"""What a .pt2 file may hold before torch sees it: numbers, names and a graph, nothing that runs.

torch.export.load unpickles sample inputs, some weights and constants, script objects and all of an
older format, loads libraries of AOTInductor, evaluates texts as sympy expressions, and takes any
function below `torch` as an operator. So the members are read here first. torch gets a copy without
the sample inputs, which every file has and no import needs.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ModelError

# of torch 2.8 and later, below the archive's one folder; "model" is the program's name
_MODEL = "models/model.json"
_CONFIGS = {
    "data/weights/": "data/weights/model_weights_config.json",
    "data/constants/": "data/constants/model_constants_config.json",
}
_SAMPLES = "data/sample_inputs/model.pt"
_PLAIN = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|archive_format|archive_version"
    r"|byteorder|\.data/(version|serialization_id)|extra/.*"
)
_MAX_JSON = 2**28  # bytes of the graph
_SPACES = ("aten", "prims", "torchvision", "higher_order")
_OPERATOR = re.compile(
    rf"torch\.ops\.({'|'.join(_SPACES)})\.(?!__(?!(and|or|xor|lshift|rshift)__))\w+(\.[A-Za-z]\w*)?"
    r"|torch\.(sym_(int|float|not|max|min|ite|sum|sqrt)|_sym_sqrt)"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|getitem|and_|or_|not_|index"
    r"|ge|gt|le|lt|eq|ne)"
    r"|math\.(ceil|floor|trunc|sqrt)"
)
# of sympy and torch.utils._sympy, in the text of a dynamic size
_FUNCTIONS = set(
    "Symbol Integer Float Rational Add Mul Pow Mod Max Min Abs Equality Unequality Eq Ne "
    "Le Lt Ge Gt StrictLessThan StrictGreaterThan LessThan GreaterThan And Or Not FloorDiv "
    "CleanDiv PythonMod ModularIndexing IntTrueDiv FloatTrueDiv CeilToInt FloorToInt "
    "TruncToInt ToFloat PowByNatural Where Identity floor ceiling oo int_oo true false ".split()
)
_NODES = (
    ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp,
    ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.Tuple,
)  # fmt: skip
_CONTAINERS = re.compile(
    r"builtins\.(tuple|list|dict)|collections\.(OrderedDict|namedtuple|deque)|torch\.Size"
)


def plain_copy(path: Path) -> io.BytesIO:
    """The archive for torch.export.load, its sample inputs empty, if nothing in it can run.

    Raises:
        ModelError: it holds something else; `trust` gives the file to torch as it is.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _copied(path, archive)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise ModelError(f"{path.name} is not a program that torch can load: {error}") from error


def _copied(path: Path, archive: zipfile.ZipFile) -> io.BytesIO:
    members = {info.filename: info for info in archive.infolist()}
    folder = next(iter(members), "").split("/", 1)[0] + "/"
    names = {name.removeprefix(folder): name for name in members}
    if len(members) != len(archive.infolist()) or _MODEL not in names:
        raise _refuse(path, "it is not of the format that torch.export.save has written since 2.8")
    kept = {*_CONFIGS.values(), _MODEL, _SAMPLES}
    for name, whole in names.items():
        if name not in kept and not _PLAIN.fullmatch(name):
            raise _refuse(path, f"its member {whole!r} is no part of a plain program")
        if members[whole].file_size != members[whole].compress_size:
            raise _refuse(path, f"its member {whole!r} is compressed, which torch never does")
    for prefix, config in _CONFIGS.items():
        _check_payloads(path, prefix, _json(path, archive, members, names.get(config)))
    _check_program(path, _json(path, archive, members, names[_MODEL]))
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w") as plain:
        for name, whole in names.items():
            plain.writestr(whole, b"" if name == _SAMPLES else archive.read(whole))
    copy.seek(0)
    return copy


def _json(path: Path, archive: zipfile.ZipFile, members: Any, name: str | None) -> Any:
    if name is None:
        raise _refuse(path, "it has no list of its weights or constants")
    if members[name].file_size > _MAX_JSON:
        raise _refuse(path, f"its member {name!r} is larger than {_MAX_JSON} bytes")
    try:
        return json.loads(archive.read(name))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path.name} is damaged: {name}: {error}; export it again") from error


def _check_payloads(path: Path, prefix: str, config: Any) -> None:
    payloads = config.get("config") if isinstance(config, dict) else None
    if not isinstance(payloads, dict):
        raise _refuse(path, f"its list of {prefix} has another form")
    for name, payload in payloads.items():
        file = payload.get("path_name") if isinstance(payload, dict) else None
        if not isinstance(file, str) or not _PLAIN.fullmatch(prefix + file):
            raise _refuse(path, f"{name!r} is kept as {file!r}: an object, not a tensor")
        if payload.get("use_pickle") is not False:
            raise _refuse(path, f"{name!r} is kept as a pickle, which may run code")


def _check_program(path: Path, program: Any) -> None:
    try:
        for key, value in _walk(program):
            if key == "expr_str" and not _is_size(value):
                raise _refuse(path, f"a size is given as {str(value)[:60]!r}")
            if key in ("target", "as_operator") and not _OPERATOR.fullmatch(str(value)):
                raise _refuse(path, f"a node calls {str(value)[:60]!r}, which is no operator")
            if key in ("in_spec", "out_spec") and not _is_structure(value):
                raise _refuse(path, "its inputs or outputs lie in a type that torch must import")
    except RecursionError as error:
        raise _refuse(path, "its graph is nested too deeply") from error


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """The texts in a program that torch interprets, by key; `target` of calls alone."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("expr_str", "as_operator", "in_spec", "out_spec"):
                yield key, item
            elif key == "target" and "inputs" in value:
                yield key, item
            yield from _walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item)


def _is_size(text: Any) -> bool:
    """Whether a text is an expression of sympy's functions, numbers and names alone."""
    try:
        nodes = list(ast.walk(ast.parse(str(text), mode="eval")))
    except (SyntaxError, ValueError, MemoryError):
        return False
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if not isinstance(node, _NODES):
            return False
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name):
            return False
        if isinstance(node, ast.Name) and node.id not in _FUNCTIONS:
            if id(node) in called or not re.fullmatch(r"[a-z]+\d+", node.id):
                return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not re.fullmatch(r"[A-Za-z]\w*|-?[\d.]+(e[+-]?\d+)?", node.value):
                return False
    return True


def _is_structure(text: Any) -> bool:
    """Whether a pytree (JSON) is of plain containers."""
    if text in (None, ""):
        return True
    types = re.findall(r'"type"\s*:\s*"((?:[^"\\]|\\.)*)"', str(text))
    imports = "default_factory" in str(text) or "__enum__" in str(text)
    return not imports and all(_CONTAINERS.fullmatch(t) for t in types)


def _refuse(path: Path, why: str) -> ModelError:
    return ModelError(
        f"{path.name} may run code when torch loads it: {why}; write it with torch.export.save, or "
        "pass trust=True (--trust) if you know where it comes from"
    )
