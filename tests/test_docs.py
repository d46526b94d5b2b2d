"""The documentation names what exists: paths, commands, options, code; its links lead somewhere."""

from __future__ import annotations

import argparse
import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
CODE = ("tvm_winograd", "schedules", "benchmarks")
# Rooms whose comments and docstrings are held to the names of files too.
HELD = ("tvm_winograd/bench", "tvm_winograd/measure", "tvm_winograd/tuning", "benchmarks", "tests")
# Names of others, which no file of ours defines.
OTHERS = set(
    """
    LocalBuilder XGBModel ms.tune_tir ScheduleFn __restrict__ ld.global.nc cudnn.benchmark
    cudnnConvolutionFwdAlgo_t CUDNN_FMA_MATH cudnnConvolutionBiasActivationForward torch.compile
    libtvm_runtime.so libtvm_runtime_cuda.so libcudart.so.13 tvm/lib/libtvm_compiler.so
    tvm_ffi/lib/libtvm_ffi.so tvm/lib/libtvm_runtime.so .cuda_stream TVM_NUM_THREADS --use_fast_math
    erff expf __builtin_cpu_supports("x86-64-v3") znver4
    """.split()
)
# Files that commands write.
WRITTEN = {"conv.json", "conv.csv", "model.json", "model.csv", "model-kernels.json"}
# Words of a page that stand for what a user has, in paths and commands.
PLACES = re.compile(r"<|ARTIFACT|DIR\b|FILE|PICTURES|MODEL|SPEC|NAME|\*")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def spans(page: Path) -> list[str]:
    """What stands in backticks, lines joined."""
    return [" ".join(s.split()) for s in re.findall(r"`([^`]+)`", prose(page))]


def commands(page: Path) -> Iterator[str]:
    """Commands in backticks and in fenced blocks, continued lines joined."""
    blocks = re.findall(r"^```(?!python).*?\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for text in [*lines, *spans(page)]:
        if re.match(r"(tvm-winograd|python benchmarks/\S+\.py)\b", text.strip()):
            yield re.split(r"\s{3,}|\s#\s", text.strip())[0]


@functools.cache
def files() -> list[str]:
    """Paths of all files of ours, below the root."""
    found = [p for p in ROOT.rglob("*") if p.is_file()]
    return [t for t in map(relative, found) if not re.search(r"(^|/)\.(git|venv|mypy|ruff)", t)]


@functools.cache
def names() -> frozenset[str]:
    """What the code defines or writes: functions, arguments, fields, attributes, texts, files."""
    found: set[str] = set()
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.py"):
            found |= {path.stem, path.parent.name}
            for node in ast.walk(ast.parse(path.read_text())):
                for field in ("name", "id", "attr", "arg"):
                    value = getattr(node, field, None)
                    found |= {value} if isinstance(value, str) else set()
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= {node.value} if " " not in node.value else set()
    return frozenset(found)


@functools.cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    """Command, with its subject -> parser."""
    from tvm_winograd import cli

    found = {}

    def walk(parser: argparse.ArgumentParser, path: str) -> None:
        found[path] = parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, sub in action.choices.items():
                    walk(sub, f"{path} {name}".strip())

    walk(cli._parser(), "")
    return found


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


@functools.cache
def all_options() -> set[str]:
    """Of every command, and of every script in benchmarks/."""
    scripts = "".join(p.read_text() for p in (ROOT / "benchmarks").glob("*.py"))
    found = set(re.findall(r'"(--[a-z][a-z0-9-]*)"', scripts))
    return found.union(*map(options_of, parsers().values()))


def missing_in_command(text: str) -> str | None:
    """None, or what a command names that does not exist."""
    words = [word.strip("[]") for word in text.split()]
    used = [re.split("=", word)[0] for word in words if word.startswith("--")]
    if words[0] == "python":
        script = ROOT / words[1]
        if not script.is_file():
            return words[1]
        known = set(re.findall(r'"(--[a-z][a-z0-9-]*)"', script.read_text()))
    else:
        path = ""
        for word in words[1:]:
            if f"{path} {word}".strip() not in parsers():
                break
            path = f"{path} {word}".strip()
        following = words[1 + len(path.split()) :][:1]
        if not path and following and re.fullmatch("[a-z]+", following[0]):
            return f"command {following[0]}"
        known = options_of(parsers()[path]) if path else {"--help"}
    lost = [option for option in used if option not in known | {"--help", "--json"}]
    return lost[0] if lost else None


def exists(span: str) -> bool:
    """Whether a span, if it looks like a name of ours, is one."""
    if span in OTHERS | WRITTEN:
        return True
    if span.startswith("--"):
        return re.split("[= ]", span)[0] in all_options()
    if " " in span and span.split()[0] in parsers():
        return missing_in_command(f"tvm-winograd {span}") is None
    if PLACES.search(span):
        return True
    if re.fullmatch(r"[\w./{}-]*[\w}-]/?", span) and ("/" in span or is_file_name(span)):
        return any(f"/{path}/".find(f"/{span.strip('/')}/") >= 0 for path in files()) or (
            span.strip("/") in names() or all(part in names() for part in span.split("/"))
        )
    text = re.sub(r"\(.*\)$|\[[^\]]*\]|=.*$", "", span)
    if re.fullmatch(r"\.?[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*", text):
        return text in names() or all(part in names() for part in text.strip(".").split("."))
    return True  # a formula, a value, a sentence


def is_file_name(span: str) -> bool:
    return bool(re.search(r"\.(py|md|json|jsonl|csv|cc|bin|so|txt|png)$", span))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_names_in_backticks_exist(page):
    if page.name == "operators.md":
        pytest.skip("made of the frontends' tables: its names are ONNX's and torch's")
    lost = sorted({span for span in spans(page) if not exists(span)})
    assert not lost, f"{relative(page)} names what is not there: {lost}"


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_and_their_options_exist(page):
    lost = {text: what for text in commands(page) if (what := missing_in_command(text))}
    assert not lost


def test_the_checks_can_fail():
    for span in ("no_such_function", "schedules/no_such.py", "--no-such-option", "a.no_such_thing",
                 "no_such_knob=4", "no_such_call()", "held_leads.py",
                 "compile --no-such DIR", "--no-such DIR"):  # fmt: skip
        assert not exists(span), span
    assert missing_in_command("tvm-winograd tune MODEL --no-such") == "--no-such"
    assert missing_in_command("tvm-winograd polish MODEL") == "command polish"
    assert missing_in_command("python benchmarks/gemm.py --bacth 1") == "--bacth"
    assert missing_in_command("tvm-winograd logs check [DIR] --build") is None
    assert len(list(commands(ROOT / "README.md"))) > 10


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    plain = [re.sub(r"[^\w\- ]", "", head.lower().replace("`", "")) for head in found]
    return {text.strip().replace(" ", "-") for text in plain}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page):
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match("https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert not lost


def test_every_page_can_be_reached():
    """From README.md, link by link."""
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
        todo += [page.parent / link for link in links if (page.parent / link).is_file()]
    assert {page.resolve() for page in PAGES} <= seen


@pytest.mark.parametrize("folder", HELD)
def test_files_named_in_comments_and_docstrings_exist(folder):
    """So that a renamed file is renamed there too."""
    known = {Path(path).name for path in files()}
    lost = set()
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text()
        found = re.findall(r"#.*", text)
        found += [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text))
                  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]  # fmt: skip
        named = re.findall(r"\b([a-z]\w*\.py)\b", "\n".join(found))
        lost |= {f"{relative(path)}: {name}" for name in named if name not in known}
    assert not lost
