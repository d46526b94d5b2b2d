"""The rules of docs/architecture.md that a machine can check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Rooms from the ground up: a module may import its own room and those below.
ROOMS = [
    ("ground", ["errors"]),
    (
        "facts",
        [
            "shapes",
            "transforms",
            "gpu",
            "libraries",
            "cuda_timing",
            "manifest",
            "loading",
            "gate",
            "arguments",
            "batches",
            "memory",
        ],
    ),
    ("reference", ["reference", "tolerances"]),
    ("te", ["te"]),
    ("schedules", ["schedules"]),
    ("logs", ["logs", "log_store", "tune_logs"]),
    ("select", ["select"]),
    ("passes", ["passes"]),
    ("models", ["numpy_maps", "numpy_norms", "numpy_ops", "evaluate", "peers", "frontend"]),
    (
        "build",
        [
            "cp_async",
            "held_loads",
            "nvrtc",
            "cubin",
            "plan",
            "build",
            "serial",
            "artifact",
            "param_store",
            "runtime",
            "batch_runner",
            "cppflags",
        ],
    ),
    ("compile", ["conv", "chooser", "compiler"]),
    ("tools", ["preprocess", "verify_report", "verify", "inspect", "env"]),
    ("tuning", ["tuning"]),
    ("bench", ["bench", "report"]),
    ("cli", ["cli"]),
]
RANK = {module: rank for rank, (_, modules) in enumerate(ROOMS) for module in modules}
# What a deployed program loads: no compiler side behind it.
DEPLOY = {
    *("errors", "libraries", "manifest", "loading", "gate", "arguments", "batches", "memory"),
    *("runtime", "batch_runner"),
}
LONGEST = 300
LONG_FILES: dict[str, str] = {}  # file -> why it is longer


def sources() -> list[Path]:
    folders = ("tvm_winograd", "schedules", "tune_logs")
    return sorted(p for f in folders for p in (ROOT / f).rglob("*.py"))


def module_name(path: Path) -> str:
    """The room's key of a file: tvm_winograd/te/common.py -> te."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[0] != "tvm_winograd" else parts[1]


def imports(path: Path) -> set[str]:
    """Keys of our modules that a file imports anywhere, lazily or not."""
    relative = path.relative_to(ROOT).with_suffix("").parts
    package = (relative if relative[0] == "tvm_winograd" else ("tvm_winograd", *relative))[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            names = [".".join([*base, alias.name]) for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "tvm_winograd" and len(parts) > 1:
                found.add(parts[1])
    return {f for f in found if f in RANK}


def test_every_module_has_a_room():
    known = {module_name(p) for p in sources()} - {"__init__", "__main__"}
    assert known == set(RANK), "add the module to ROOMS here and to docs/architecture.md"


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_flows_backwards(path):
    own = module_name(path)
    if own in ("__init__", "__main__"):
        return
    upward = {name for name in imports(path) if RANK[name] > RANK[own]}
    assert not upward, f"{own} must not import {sorted(upward)}"


def test_the_deploy_side_stands_alone():
    for path in sources():
        if module_name(path) in DEPLOY:
            assert imports(path) <= DEPLOY, path


def test_no_long_files():
    long = {
        str(p.relative_to(ROOT))
        for folder in ("tvm_winograd", "schedules", "tests", "benchmarks", "examples")
        for p in (ROOT / folder).rglob("*.py")
        if len(p.read_text().splitlines()) > LONGEST
    }
    assert long <= set(LONG_FILES), f"split them, or give the reason in LONG_FILES: {long}"


def test_architecture_page_names_every_module():
    page = (ROOT / "docs" / "architecture.md").read_text()
    missing = [m for m in RANK if f"{m}.py" not in page and f"{m}/" not in page]
    assert not missing


def test_environment_variables_are_listed_in_one_place():
    from tvm_winograd.env import VARIABLES

    read = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                read.add(str(path.relative_to(ROOT)))
    assert len(VARIABLES) <= 6
    text = "".join((ROOT / p).read_text() for p in read)
    assert all(f'"{name}"' in text for name in VARIABLES)
