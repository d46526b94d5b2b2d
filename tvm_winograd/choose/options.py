"""What may be asked of a compilation, said once: each field with its meaning and its form as text.

The command line's options (cli/options.py), the keywords of `compile`, the manifest's record and
the text in benchmark rows are all made of these records. No TVM is loaded here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .. import precision
from ..errors import UnsupportedError

ALGORITHMS = (
    "auto", "winograd", "winograd-f2", "winograd-f4", "im2win", "im2col", "gemm", "direct",
)  # fmt: skip
LAYOUTS = ("NCHW", "NHWC")  # that a network may have inside
TARGETS = ("llvm", "cuda")
COMPILERS = ("nvrtc", "nvcc")
DTYPES = ("float32",)

T = TypeVar("T", bound="Asked")


def option(
    default: Any,
    text: str,
    *,
    flag: str | None = None,
    form: str = "text",
    metavar: str | None = None,
    choices: Sequence[str] = (),
    write: Callable[[Any], str] = str,
) -> Any:
    """A dataclass field that can be asked for.

    Args:
        default: its value, or a function that makes one.
        text: its meaning, one sentence.
        flag: its name on the command line ("--no-NAME" for what is on); None: not there.
        form: how it is written there, a key of cli.options.FORMS.
        choices: all values, where they are few.
        write: its value as text, for records.
    """
    made: dict[str, Any] = {"default_factory" if callable(default) else "default": default}
    says = {
        "text": text, "flag": flag, "form": form, "metavar": metavar, "choices": tuple(choices),
        "write": write,
    }  # fmt: skip
    return field(**made, metadata=says)


class Asked:
    """What records of options have in common."""

    @classmethod
    def options(cls) -> Iterator[dataclasses.Field[Any]]:
        """The fields, those of records inside in their place."""
        for known in dataclasses.fields(cls):  # type: ignore[arg-type]
            inner = known.metadata.get("inner")
            yield from inner.options() if inner else (known,)

    def value(self, name: str) -> Any:
        """Of a field of this record or of one inside."""
        for known in dataclasses.fields(self):  # type: ignore[arg-type]
            inner = known.metadata.get("inner")
            if inner and name in {f.name for f in inner.options()}:
                return getattr(self, known.name).value(name)
        return getattr(self, name)

    def but(self: T, **changes: Any) -> T:
        """The same record with other values; names of fields, those of records inside too.

        Raises:
            TypeError: a name that no field has.
        """
        here: dict[str, Any] = {}
        for known in dataclasses.fields(self):  # type: ignore[arg-type]
            if known.name in changes:
                here[known.name] = changes.pop(known.name)
        for known in dataclasses.fields(self):  # type: ignore[arg-type]
            if inner := known.metadata.get("inner"):
                theirs = {f.name for f in inner.options()} & set(changes)
                value = here.get(known.name, getattr(self, known.name))
                here[known.name] = value.but(**{name: changes.pop(name) for name in theirs})
        if changes:
            known_names = ", ".join(known.name for known in self.options())
            raise TypeError(f"no option is called {', '.join(changes)}; there are {known_names}")
        return dataclasses.replace(self, **here)  # type: ignore[type-var]

    def asked(self) -> dict[str, str]:
        """What differs from the defaults, as text, by the name on the command line."""
        plain, found = type(self)(), {}
        for known in self.options():
            flag = known.metadata["flag"]
            if flag and self.value(known.name) != plain.value(known.name):
                name = flag.removeprefix("--").removeprefix("no-")
                found[name] = known.metadata["write"](self.value(known.name))
        return found

    def record(self) -> dict[str, Any]:
        """All fields as JSON-able values, for a manifest; folders by their names alone."""
        found = {}
        for known in self.options():
            value = self.value(known.name)
            is_path = known.metadata["form"] == "path" and value is not None
            found[known.name] = _plain(Path(value) if is_path else value)
        return found


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


def inside(record: type[Asked]) -> Any:
    """A field that is a record of options itself."""
    return field(default_factory=record, metadata={"inner": record})


def _one_of(name: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise UnsupportedError(f"{name}={value!r}: there are {', '.join(known)}")


def check_algorithm(name: str) -> None:
    """Raises:
    UnsupportedError: not one of ALGORITHMS.
    """
    _one_of("algorithm", name, ALGORITHMS)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


@dataclass(frozen=True)
class Limits(Asked):
    """What a user lets the selector take.

    Raises:
        UnsupportedError: at construction, for values that mean nothing.
    """

    algorithms: tuple[str, ...] = option(
        ("auto",), "one of these computes each convolution, or it is an error",
        flag="--algorithms", form="names", metavar="A,B", write=",".join,
    )  # fmt: skip
    max_error: float | None = option(
        None, "only algorithms whose limit is this or less: 1e-6 leaves out winograd-f4",
        flag="--max-error", form="float", metavar="E", write="{:g}".format,
    )  # fmt: skip
    workspace: int | None = option(
        None, "bytes that a convolution may need beside its arguments: e.g. 0 or 64M",
        flag="--workspace-limit", form="bytes", metavar="BYTES",
    )  # fmt: skip
    deterministic: bool = option(
        False, "two runs must give the same bits", flag="--deterministic", write=_yes
    )
    math: str = option(
        "float32",
        "what float32 products may be computed with (float32: fma and fp16x3, both as exact as "
        "float32; fma: that alone; tf32: TF32 as well, of which there is no kernel yet)",
        flag="--math", choices=tuple(precision.WISHES),
    )  # fmt: skip

    def __post_init__(self) -> None:
        for name in self.algorithms:
            check_algorithm(name)
        precision.check_wish(self.math)
        if not self.algorithms:
            raise UnsupportedError(f"no algorithm is allowed; there are {', '.join(ALGORITHMS)}")
        for name in ("max_error", "workspace"):
            if (value := getattr(self, name)) is not None and not value >= 0:
                raise UnsupportedError(f"{name}={value!r}: a number of 0 or more is needed")


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Wishes(Asked):
    """How the kernels of a network are to be chosen."""

    algorithm: str = option(
        "auto", "computes every convolution that it applies to; the others are chosen as for auto",
        flag="--algorithm", metavar="NAME",
    )  # fmt: skip
    limits: Limits = inside(Limits)
    layout: str = option(
        "auto", "of all maps inside (auto: the faster by estimate); inputs and outputs keep theirs",
        flag="--layout", choices=("auto", *LAYOUTS),
    )  # fmt: skip
    layers: Mapping[str, str] = option(
        dict, "algorithm of one convolution, or an error; may be repeated",
        flag="--use", form="pairs", metavar="LAYER=ALGORITHM",
        write=lambda layers: ",".join(f"{name}={layers[name]}" for name in layers),
    )  # fmt: skip
    logs: str | Path | None = option(
        None, "a folder of tuning tables, looked at before the shipped ones",
        flag="--logs", form="path", metavar="DIR", write=lambda folder: Path(folder).name,
    )  # fmt: skip
    configs: Mapping[str, Any] = option(
        dict,
        "layer -> its kernel's config, before everything else, for the architectures asked for; "
        "PTX, which must fit any GPU, keeps its defaults",
    )

    def __post_init__(self) -> None:
        _one_of("layout", self.layout, ("auto", *LAYOUTS))

    @property
    def names(self) -> set[str]:
        """The layers that are named."""
        return {*self.layers, *self.configs}


@dataclass(frozen=True)
class Options(Wishes):
    """Everything that `compile` may be asked for, but where to write and whom to tell.

    Raises:
        UnsupportedError: at construction, for values that mean nothing.
    """

    target: str = option(
        "llvm", "llvm (this CPU) or cuda (no GPU needed)", flag="--target", choices=TARGETS
    )
    arch: str | Sequence[str] | None = option(
        None, "of cuda: e.g. sm_90 or sm_90,sm_86 (default: of the GPU here, else sm_90)",
        flag="--arch",
    )  # fmt: skip
    cpu: str | Sequence[str] | None = option(
        None,
        "of llvm: native (this machine's, the default), x86-64-v2, -v3, -v4, a name of LLVM's, or "
        "several with commas, of which the best that fits is loaded",
        flag="--cpu", metavar="NAMES",
    )  # fmt: skip
    batch: int | tuple[int, int] | None = option(
        None, "images per run (default: the model's, or 1); a range, e.g. 1-32, for any between",
        flag="--batch", form="batch", metavar="N|LOW-HIGH",
    )  # fmt: skip
    buckets: Sequence[int] | None = option(
        None, "sizes to compile such a range for (default: powers of two)",
        flag="--buckets", form="buckets", metavar="N,...",
    )  # fmt: skip
    weights: str | Path | None = option(
        None, ".safetensors or .npz of a built-in (default: seeded random, calibrated)",
        flag="--weights", form="path", metavar="FILE",
    )  # fmt: skip
    seed: int = option(0, "of random weights")
    input_shapes: Mapping[str, Any] = option(
        dict, "a size that a file leaves open: images=1x3x320x320, or height=320; may be repeated",
        flag="--input-shape", form="shapes", metavar="NAME=SIZES",
        write=lambda shapes: ",".join(f"{name}={shapes[name]}" for name in shapes),
    )  # fmt: skip
    trust: bool = option(
        False, "torch may run what a .pt2 file holds beside tensors and a graph", flag="--trust",
        write=_yes,
    )  # fmt: skip
    dtype: str = option("float32", "of weights and maps; float32 is what exists", flag="--dtype")
    labels: Sequence[str] | None = option(
        None, "class names for `run`; a file with one a line",
        flag="--labels", form="lines", metavar="FILE",
    )  # fmt: skip
    compiler: str = option("nvrtc", "of CUDA code", flag="--compiler", choices=COMPILERS)
    ptx: bool = option(
        True, "no PTX for GPUs newer than every architecture asked for", flag="--no-ptx", write=_yes
    )
    cuda_graph: bool = option(
        True, "launch kernel by kernel, not as one CUDA graph", flag="--no-cuda-graph", write=_yes
    )
    cache: bool = option(
        True, "neither take nor keep CUDA code compiled by earlier runs", flag="--no-cache",
        write=_yes,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in DTYPES:
            raise UnsupportedError(f"dtype={self.dtype!r}: only {', '.join(DTYPES)} exists for now")


def document(function: Callable[..., Any], record: type[Asked]) -> None:
    """Puts a record's fields into a function's signature, and its docstring at {options}."""
    lines, parameters = [], []
    for known in dataclasses.fields(record):  # type: ignore[arg-type]
        inner = known.metadata.get("inner")
        text = f"a {inner.__name__}" if inner else known.metadata["text"]
        lines.append(f"{known.name}: {text}.")
        default = known.default
        if known.default_factory is not dataclasses.MISSING:
            default = known.default_factory()
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(known.name, keyword, default=default))
    function.__doc__ = (function.__doc__ or "").replace("{options}", "\n            ".join(lines))
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=[*own, *parameters])  # type: ignore
