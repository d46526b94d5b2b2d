"""Model: what every frontend returns and everything behind it takes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..deploy.manifest import sha256
from ..errors import ModelError
from ..ir.conv_spec import static_shape

Original = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
# what TVM's importers raise about models they cannot take (InternalError is a RuntimeError)
IMPORT_ERRORS = (
    NotImplementedError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
    AssertionError,
    AttributeError,
    IndexError,
    OverflowError,
)


# of inputs and outputs: images may come as bytes, classes of a segmentation go as integers
DTYPES = ("float32", "int32", "int64", "bool", "int8", "uint8")
# what TVM's own texts hold; they mean nothing to who wrote the model
_RAW = re.compile(r"Check failed|\bR\.|\bT\.|tirx|relax|0x[0-9a-f]{6}|^\W*\w*\W*$")


def refused(what: str, error: Exception) -> ModelError:
    """The error about a part of a model that TVM's importer cannot take.

    Args:
        what: operator and node.
        error: what the importer raised; its first line is quoted if it says anything.
    """
    line = str(error).strip().split("\n", 1)[0]
    internal = isinstance(error, AttributeError | KeyError | IndexError | TypeError)
    why = "TVM's importer cannot convert it" if internal or _RAW.search(line) else line
    return ModelError(f"{what} is not supported: {why}; export the model without it")


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and dtype of a network input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, eq=False)
class Model:
    """A network that computes in float32, with static shapes, not yet lowered.

    `mod["main"]` takes the inputs, then one argument per entry of `params`, in that order (its
    attribute num_input is the number of inputs).
    """

    name: str
    mod: Any  # relax IRModule
    params: dict[str, np.ndarray]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    source: dict[str, Any]  # JSON-able; enough to load the same model again
    preprocess: dict[str, Any] | None = None  # how an image becomes the input
    labels: list[str] | None = None
    rebuild: Callable[[int], Any] | None = None  # batch -> `mod` for it; None: not known
    original: Original | None = None  # the outputs of inputs by its own framework, float32
    notes: tuple[str, ...] = ()  # what a user should know of its file

    @property
    def batch(self) -> int:
        """The leading dimension of the first input."""
        return self.inputs[0].shape[0]

    def at_batch(self, batch: int) -> Model:
        """The same network, with the same parameters, for another number of images per run.

        Raises:
            ModelError: the network is known for its own batch only, or depends on it.
        """
        if batch == self.batch:
            return self
        if self.rebuild is None:
            raise ModelError(
                f"this model is loaded for batch {self.batch}, not {batch}; load it again from its "
                f"name or file with batch={batch}"
            )
        other = make_model(
            self.name,
            self.rebuild(batch),
            self.params,
            {**self.source, "batch": batch},
            self.preprocess,
            [t.name for t in self.inputs],
            [t.name for t in self.outputs],
        )
        self._check_variables(other)
        return replace(other, labels=self.labels, rebuild=self.rebuild, original=self.original)

    def _check_variables(self, other: Model) -> None:
        """Parameters are handed over by their order: they must not depend on the batch."""
        count = len(self.inputs)
        mine, theirs = (
            [(v.name, static_shape(v)) for v in m.mod["main"].params[count:]] for m in (self, other)
        )
        if mine != theirs:
            raise ModelError(
                f"the parameters of {self.name!r} depend on the batch: they differ between "
                f"batch {self.batch} and {other.batch}; compile it for one batch"
            )


def make_model(
    name: str,
    mod: Any,
    params: dict[str, np.ndarray],
    source: dict[str, Any],
    preprocess: dict[str, Any] | None = None,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    rebuild: Callable[[int], Any] | None = None,
) -> Model:
    """A Model of `mod`, its inputs and outputs read from `mod["main"]`, all static; their
    dtypes are of DTYPES, parameters float32.

    Raises:
        ModelError: another dtype, batch norms in training mode.
        UnsupportedError: a dynamic shape.
    """
    function = mod["main"]
    _refuse_training(name, function)
    _refuse_empty(name, function)
    count = len(function.params) - len(params)
    variables = list(function.params)[:count]
    input_names = input_names or [v.name for v in variables]
    inputs = tuple(_tensor_spec(n, v) for n, v in zip(input_names, variables, strict=True))
    if not inputs or not inputs[0].shape:
        got = f"the scalar {inputs[0].name!r} first" if inputs else "no input"
        raise ModelError(f"{name!r} takes {got}; a tensor whose axis 0 is the batch is needed")
    fields = list(getattr(function.ret_ty, "fields", [function.ret_ty]))
    output_names = output_names or _output_names(len(fields))
    outputs = tuple(
        _tensor_spec(n, _Typed(ty), "output") for n, ty in zip(output_names, fields, strict=True)
    )
    if empty := [t for t in outputs if 0 in t.shape]:
        raise ModelError(
            f"output {empty[0].name!r} of the shape {list(empty[0].shape)} has no elements; export "
            "the model without it"
        )
    for parameter, array in params.items():
        if array.dtype != np.float32:
            raise wrong_dtype(f"parameter {parameter!r}", str(array.dtype), ("float32",))
    mod = mod.clone()
    mod["main"] = function.with_attr("num_input", count)
    return Model(name, mod, params, inputs, outputs, source, preprocess, rebuild=rebuild)


def tidy(mod: Any, params: dict[str, np.ndarray]) -> tuple[Any, dict[str, np.ndarray]]:
    """An imported module without trivial bindings, dead code and unused weight parameters."""
    from tvm import relax
    from tvm.relax.analysis import free_vars

    from .scalars import keep_axes

    mod = keep_axes(relax.transform.CanonicalizeBindings()(mod))
    mod = relax.transform.DeadCodeElimination(["main"])(mod)
    function = mod["main"]
    variables = list(function.params)
    inputs, weights = variables[: -len(params) or None], variables[len(variables) - len(params) :]
    used = set(free_vars(function.body))
    kept = {v: n for v, n in zip(weights, params, strict=True) if v in used}
    mod = mod.clone()
    mod["main"] = relax.Function(
        [*inputs, *kept], function.body, function.ret_ty, function.is_pure, function.attrs
    )
    return mod, {name: params[name] for name in kept.values()}


def same_pixels(size: int, factor: float, nearest: bool) -> bool:
    """Whether a resize by `factor` reads the pixels of one to the size that it makes.

    Args:
        nearest: it takes the pixel at or before i / factor; else it interpolates.
    """
    made = math.floor(size * factor + 1e-6)
    if abs(made - size * factor) < 1e-6 * size:  # a factor may be a float32: 4 / 3 of 9 are 12
        return True
    return nearest and all(int(i / factor) == i * size // made for i in range(made))


@dataclass(frozen=True)
class Sizes:
    """What a user gives for sizes that a model leaves open.

    Attributes:
        batch: of axis 0 of every input; None: what `given` says, else 1.
        given: input name -> shape, or name of a symbolic size -> size.
    """

    batch: int | None = None
    given: Mapping[str, Sequence[int] | int] = field(default_factory=dict)

    def bound(self, name: str, axis: int, dim: int | None, symbol: str, rank: int) -> int:
        """One size of an input.

        Args:
            dim: fixed by the model, or None; `symbol`: its name there, or "".
        Raises:
            ModelError: it is open and not given, or given as another than the model's.
        """
        shape = self.given.get(name)
        by_symbol = self.given.get(symbol)
        asked = by_symbol if isinstance(by_symbol, int) else None
        if isinstance(shape, Sequence):
            if len(shape) != rank:
                raise ModelError(
                    f"input {name!r} has {rank} axes, but a shape of {len(shape)} is given"
                )
            asked = shape[axis]
        if axis == 0 and self.batch is not None:
            asked = self.batch
        elif dim is not None and asked not in (None, dim):
            raise ModelError(
                f"input {name!r} has the fixed size {dim} on axis {axis}, but {asked} is given"
            )
        if asked is None and dim is None and axis == 0:
            return 1
        if asked is None and dim is None:
            raise ModelError(
                f"input {name!r} has the dynamic size {symbol or '?'} on axis {axis}: only the "
                f"batch (axis 0) may be left open; give it with --input-shape "
                f"{name}={'x'.join(['1', *['N'] * (rank - 1)])}"
                f"{f' or {symbol}=N' if symbol else ''} (input_shapes=)"
            )
        size = dim if asked is None else asked
        assert size is not None
        return size

    def check_used(self, names: Iterable[str]) -> None:
        """Raises:
        ModelError: something is given that is none of these inputs and symbols.
        """
        known = sorted(set(names))
        if unknown := sorted(set(self.given) - set(known)):
            raise ModelError(
                f"{', '.join(unknown)}: the model's inputs and dynamic sizes are {', '.join(known)}"
            )

    def described(self) -> dict[str, Any]:
        """JSON-able; {} if nothing was given."""
        if not self.given:
            return {}
        values = {n: list(v) if isinstance(v, Sequence) else v for n, v in self.given.items()}
        return {"input_shapes": values}


def file_source(kind: str, path: Path) -> dict[str, Any]:
    """The part of Model.source that names a file."""
    return {"kind": kind, "file": path.name, "sha256": sha256(path)}


@dataclass
class _Typed:
    """Something with a relax type, for `static_shape`."""

    ty: Any


def _refuse_training(name: str, function: Any) -> None:
    for block in function.body.blocks:
        for binding in block.bindings:
            op = getattr(getattr(binding.value, "op", None), "name", "")
            if op == "relax.nn.batch_norm" and binding.value.attrs.training:
                raise ModelError(
                    f"{name!r} holds batch normalization in training mode; call .eval() before "
                    "exporting it"
                )


def _refuse_empty(name: str, function: Any) -> None:
    """An empty tensor is a window larger than its map, or an empty input: nobody means it."""
    bound = [b.var for block in function.body.blocks for b in block.bindings]
    for variable in (*function.params, *bound):
        shape = list(getattr(getattr(variable.ty, "shape", None), "values", []))
        if any(getattr(dim, "value", 1) < 1 for dim in shape):
            raise ModelError(
                f"{name!r} computes a tensor without elements: {variable.name} has the shape "
                f"{[int(dim) for dim in shape]}; enlarge the input or the padding"
            )


def _output_names(count: int) -> list[str]:
    return ["output"] if count == 1 else [f"output{i}" for i in range(count)]


def _tensor_spec(name: str, expr: Any, kind: str = "input") -> TensorSpec:
    dtype = str(getattr(expr.ty, "dtype", expr.ty))
    if dtype not in DTYPES:
        raise wrong_dtype(f"{kind} {name!r}", dtype)
    return TensorSpec(name, static_shape(expr), dtype)


def wrong_dtype(what: str, dtype: str, supported: Sequence[str] = DTYPES) -> ModelError:
    """The error about an input, output or parameter of another dtype."""
    return ModelError(
        f"{what} is {dtype}; supported are {', '.join(supported)}: export the model in float32"
    )
