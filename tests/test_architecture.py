"""The rules of docs/architecture.md that a machine can check."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "tvm_winograd"

# Rooms from the ground up: a module may import its own room and those above it in this list.
ROOMS = [
    "errors",
    "deploy",
    "transforms",
    "precision",
    "activation",
    "shapes",
    "gpu",
    "ir",
    "truth",
    "te",
    "schedules",
    "tune_logs",
    "tables",
    "choose",
    "passes",
    "frontend",
    "codegen",
    "conv",
    "compiler",
    "env",
    "check",
    "measure",
    "tuning",
    "bench",
    "cli",
    "runtime",
]
DEPLOY = {"deploy", "errors"}  # what a deployed program loads: no compiler side behind it
LOOSE = 10  # files on top, beside __init__ and __main__
LONGEST = 40  # lines of code of a function
ALIKE = 10  # lines that no two bodies may share
MOST_ARGUMENTS = 8  # but of entry points that users call by keyword:
PUBLIC = {"conv2d", "bench_convs", "bench_models"}


def sources() -> dict[str, Path]:
    """Module name -> file, of everything that is installed."""
    found = {}
    for folder in (PACKAGE, "schedules", "tune_logs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if parts[0] == PACKAGE else (PACKAGE, *parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


SOURCES = sources()


def room(module: str) -> str:
    """tvm_winograd.te.common -> te."""
    return module.split(".")[1] if "." in module else module


def imports(module: str) -> set[str]:
    """Our modules that a module imports anywhere, lazily or not."""
    path, found = SOURCES[module], set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(base, package) if node.level else base
            names = [f"{base}.{alias.name}" for alias in node.names]
        for name in names:
            while name and name not in SOURCES:
                name = name.rpartition(".")[0]
            found.add(name)
    return found - {"", PACKAGE, module}


def test_every_room_is_known():
    known = {room(module) for module in SOURCES} - {PACKAGE, "__main__"}
    assert known == set(ROOMS), "add the room to ROOMS here and to docs/architecture.md"


@pytest.mark.parametrize("module", SOURCES)
def test_nothing_flows_backwards(module):
    own = room(module)
    if own in (PACKAGE, "__main__"):
        return
    upward = {name for name in imports(module) if ROOMS.index(room(name)) > ROOMS.index(own)}
    assert not upward, f"{own} must not import {sorted(upward)}"


def test_no_circles():
    """Modules import each other in one direction, within rooms too."""
    left = {module: imports(module) & set(SOURCES) for module in SOURCES}
    while ready := [module for module, needs in left.items() if not needs & set(left)]:
        for module in ready:
            del left[module]
    assert not left, f"a circle among {sorted(left)}"


def test_the_deploy_side_stands_alone():
    for module in SOURCES:
        if room(module) in DEPLOY:
            assert {room(name) for name in imports(module)} <= DEPLOY, module


def test_every_folder_says_what_it_is():
    for module, path in SOURCES.items():
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text())), f"{module} needs a sentence"
    folders = {path.parent for path in SOURCES.values()}
    assert all((folder / "__init__.py").is_file() for folder in folders)


def test_few_files_lie_loose():
    loose = {path.name for path in (ROOT / PACKAGE).glob("*.py")} - {"__init__.py", "__main__.py"}
    assert len(loose) <= LOOSE, sorted(loose)


def functions() -> list[tuple[str, ast.FunctionDef]]:
    """(file and name, definition) of every function of ours, tests and benchmarks too."""
    found = []
    paths = [
        *SOURCES.values(),
        *(p for f in ("tests", "benchmarks") for p in (ROOT / f).glob("*.py")),
    ]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((f"{path.relative_to(ROOT)}:{node.name}", node))
    return found


def body(node: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a function behind its docstring."""
    return node.body[1:] if ast.get_docstring(node) else node.body


def lines(node: ast.FunctionDef) -> int:
    """Lines of code: docstring and comments do not count."""
    return sum(len(ast.unparse(s).splitlines()) for s in body(node))


def test_functions_are_short():
    long = {name: lines(node) for name, node in functions() if lines(node) > LONGEST}
    assert not long, f"split them: {long}"


def test_functions_take_few_arguments():
    many = {}
    for name, node in functions():
        given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        count = len([a for a in given if a.arg not in ("self", "cls")])
        if count > MOST_ARGUMENTS and node.name not in PUBLIC:
            many[name] = count
    assert not many, f"a record would say it better: {many}"


def test_no_two_bodies_are_alike():
    seen: dict[str, str] = {}
    alike = []
    for name, node in functions():
        text = "\n".join(ast.unparse(s) for s in body(node))
        if len(text.splitlines()) > ALIKE:
            if text in seen:
                alike.append((seen[text], name))
            seen[text] = name
    assert not alike, f"one place for both: {alike}"


def test_architecture_page_names_every_room():
    page = (ROOT / "docs" / "architecture.md").read_text()
    missing = [r for r in ROOMS if f"{r}.py" not in page and f"{r}/" not in page]
    assert not missing


def test_environment_variables_are_listed_in_one_place():
    from tvm_winograd.env import VARIABLES

    read = set()
    for path in SOURCES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                read.add(path)
    assert len(VARIABLES) <= 6
    text = "".join(path.read_text() for path in read)
    assert all(f'"{name}"' in text for name in VARIABLES)
