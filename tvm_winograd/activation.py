"""What a convolution may apply to each element of its result: one table, `ACTIVATIONS`.

An entry says an activation once for everybody: in numpy (the float64 truth), as a TIR expression
(fused into every kernel's store), as torch's function (benchmarks), as the relax operators that
importers make of it (recognised behind a convolution), and how `verify` gets the bare convolution
back. Adding an activation is adding an entry; nothing else knows one by name.

Text such as `silu` or `leaky_relu(0.1)` stands in epilogues' keys, tables and manifests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .errors import SpecError

# --- how relax spells it -------------------------------------------------------------------------

_ERF_TERMS = 60  # of the power series, below 2.5
_ERFC_STEPS = 60  # of the continued fraction, from 2.5 on


@dataclass(frozen=True)
class Value:
    """The element that the activation is applied to."""


@dataclass(frozen=True)
class Param:
    """A parameter of the activation: any constant, attribute or model parameter of one element."""

    name: str


@dataclass(frozen=True)
class Op:
    """A relax operator, `name` behind "relax."; of add and multiply the order does not matter."""

    name: str
    args: tuple[Term, ...]
    attrs: tuple[tuple[str, Term], ...] = ()


@dataclass(frozen=True)
class Clip:
    """min(max(value, low), high), in any spelling that passes/merge_clips.py understands."""

    value: Term
    low: float
    high: float


Term = Value | Param | Op | Clip | float
X = Value()


def op(name: str, *args: Term, **attrs: Term) -> Op:
    """An `Op` term."""
    return Op(name, args, tuple(attrs.items()))


# --- how it is undone ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Deployed:
    """A convolution y as deployed, its activation a fused, bias and residual zero."""

    at: Callable[[float], np.ndarray]  # a(s * y) for a power of two s, maybe negative
    want: np.ndarray  # y in float64

    @property
    def peak(self) -> float:
        """The largest magnitude of y."""
        return float(np.abs(self.want).max())


Undo = Callable[..., np.ndarray]  # (Deployed, *parameters) -> y as it was computed


def _scale(peak: float, below: float, most: float = 1.0) -> float:
    """The largest power of two, at most `most`, that brings `peak` below `below`."""
    _, exponent = math.frexp(peak / below)
    return min(math.ldexp(1.0, -exponent), most) if peak else 1.0


def odd_part(conv: Deployed, *_: float, below: float = math.inf, gain: float = 1.0) -> np.ndarray:
    """y, where a(v) - a(-v) = gain * v for magnitudes below `below`."""
    scale = 1.0 if math.isinf(below) else _scale(conv.peak, below)
    return (conv.at(scale) - conv.at(-scale)) / (scale * gain)


def smaller_side(
    conv: Deployed, inverse: Callable[[np.ndarray], np.ndarray], below: float, most: float
) -> np.ndarray:
    """y, where a(v) + a(-v) = 1: from the smaller of the two, which float32 holds more exactly.

    Args:
        inverse: of `a`, in float64.  below, most: of the scale of y, a power of two.
    """
    scale = _scale(conv.peak, below, most)
    up, down = (conv.at(s).astype("float64") for s in (scale, -scale))
    with np.errstate(divide="ignore", invalid="ignore"):  # a wrong result may be anything
        return np.where(up < down, inverse(up), -inverse(down)) / scale


def compared(
    conv: Deployed, function: Callable[[np.ndarray], np.ndarray], steepest: float
) -> np.ndarray:
    """The right y plus what is wrong behind the activation, over its steepest slope.

    For activations without a stable inverse: a(y + e) differs from a(y) by at most steepest * e,
    so the error that is seen is never larger than that of y, and may be smaller.
    """
    return conv.want + (conv.at(1.0) - function(conv.want)) / steepest


# --- the table -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Activation:
    """One activation. Functions take the parameters' values behind their other arguments."""

    name: str
    numpy: Callable[..., np.ndarray]  # (x), in x's dtype
    tir: Callable[..., Any]  # (tvm.tirx, x): an expression of x's dtype; NaN stays NaN
    torch: Callable[..., Any]  # (torch.nn.functional, x)
    spelled: tuple[Term, ...]  # the first one is what we write ourselves
    undo: Undo
    parameters: tuple[str, ...] = ()
    integers: bool = False  # of int32 results too


@dataclass(frozen=True)
class Applied:
    """An activation with values for its parameters, each exact in float32."""

    activation: Activation
    values: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        """E.g. `silu`, `leaky_relu(0.1)`: the shortest numbers that are the same in float32."""
        shown = ",".join(map(_shortest, self.values))
        return f"{self.activation.name}({shown})" if self.values else self.activation.name

    def numpy(self, x: np.ndarray) -> np.ndarray:
        return self.activation.numpy(x, *self.values)

    def tir(self, x: Any) -> Any:
        from tvm import tirx

        return self.activation.tir(tirx, x, *self.values)

    def torch(self, functional: Any, x: Any) -> Any:
        """Of torch's tensor; torch.nn.functional is given, so that torch.compile can trace it."""
        return self.activation.torch(functional, x, *self.values)

    def undo(self, conv: Deployed) -> np.ndarray:
        return self.activation.undo(conv, *self.values)


def _shortest(value: float) -> str:
    """Without "+", which joins the parts of an epilogue's key."""
    return str(np.float32(value)).removesuffix(".0").replace("+", "")


def apply(name: str, values: tuple[float, ...]) -> Applied:
    """The activation `name` with values for its parameters.

    Raises:
        SpecError: no such activation, or not that many values, or one that is not finite.
    """
    if name not in ACTIVATIONS or len(ACTIVATIONS[name].parameters) != len(values):
        raise SpecError(f"activation {name!r} of {len(values)} numbers: there are {_known()}")
    with np.errstate(over="ignore"):
        rounded = tuple(float(np.float32(value)) for value in values)
    if not all(map(math.isfinite, rounded)):
        raise SpecError(f"activation {name}{values}: finite numbers are needed")
    return Applied(ACTIVATIONS[name], rounded)


def parse(text: str) -> Applied:
    """The activation that `Applied.text` means.

    Raises:
        SpecError: text of another form, or as of `apply`.
    """
    found = re.fullmatch(r"(\w+)(?:\(([^()]*)\))?", text) if isinstance(text, str) else None
    try:
        numbers = () if not found or found[2] is None else tuple(map(float, found[2].split(",")))
    except ValueError:
        found = None
    if found is None:
        raise SpecError(f"activation {text!r}: there are {_known()}")
    return apply(found[1], numbers)


def _known() -> str:
    return ", ".join(
        f"{a.name}({', '.join(a.parameters)})" if a.parameters else a.name
        for a in ACTIVATIONS.values()
    )


def operators() -> set[str]:
    """The relax operators of all spellings: element-wise, each with one result."""
    return {
        f"relax.{term.name}"
        for activation in ACTIVATIONS.values()
        for spelled in activation.spelled
        for term in subterms(spelled)
        if isinstance(term, Op)
    }


def subterms(term: Term) -> Iterator[Term]:
    """`term` and all that is inside."""
    yield term
    inner = term.args if isinstance(term, Op) else (term.value,) if isinstance(term, Clip) else ()
    for one in inner:
        yield from subterms(one)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, to a few roundings of float64.

    Below 2.5 it is the series 2/sqrt(pi) exp(-x^2) sum of 2^n x^(2n+1) / (1 3 5 ... (2n+1)), all of
    one sign; above, 1 minus the continued fraction of erfc.
    """
    a = np.minimum(np.abs(x.astype("float64")), 30)
    small = np.minimum(a, 2.5)
    term, total = small.copy(), small.copy()
    for n in range(1, _ERF_TERMS):
        term = term * (2 * small * small / (2 * n + 1))
        total += term
    near = 2 / math.sqrt(math.pi) * np.exp(-small * small) * total
    large = np.maximum(a, 2.5)
    fraction = large.copy()
    for n in range(_ERFC_STEPS, 0, -1):
        fraction = large + n / 2 / fraction
    far = 1 - np.exp(-large * large) / (math.sqrt(math.pi) * fraction)
    return np.where(np.isnan(x), x, np.sign(x) * np.where(a < 2.5, near, far)).astype(x.dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _from(t: Any, x: Any, low: float) -> Any:
    """max(x, low), but NaN stays NaN; below `low` the activation is 0 or its limit."""
    return t.Select(x < low, low, x)


def _numpy_leaky(x: np.ndarray, slope: float) -> np.ndarray:
    return np.where(x < 0, x * x.dtype.type(slope), x)


def _undo_leaky(conv: Deployed, slope: float) -> np.ndarray:
    """a(v) - a(-v) = (1 + slope) * v; near slope = -1 nothing is left of v."""
    if slope >= 0:
        return odd_part(conv, gain=1 + slope)
    return compared(conv, partial(_numpy_leaky, slope=slope), max(1.0, -slope))


def _logit(p: np.ndarray) -> np.ndarray:
    return np.log(p / (1 - p))


def _undo_sigmoid(conv: Deployed) -> np.ndarray:
    """Peaks of 16 to 32: sigmoid(-32) = 1e-14 is known to 7 digits, -32 to 8."""
    return smaller_side(conv, _logit, below=32.0, most=math.inf)


def _undo_hard_sigmoid(conv: Deployed) -> np.ndarray:
    """Straight between -3 and 3; peaks of 1.5 to 3."""
    return smaller_side(conv, lambda p: 6 * p - 3, below=3.0, most=math.inf)


_GREATER = op("greater", X, 0.0), X, op("multiply", X, Param("slope"))
_LESS = op("less", X, 0.0), op("multiply", X, Param("slope")), X
_UP = Clip(op("add", X, 3.0), 0.0, 6.0)  # 6 * hard_sigmoid
_HARD = (
    op("divide", _UP, 6.0),
    op("multiply", _UP, 1 / 6),
    Clip(op("add", op("multiply", X, 1 / 6), 0.5), 0.0, 1.0),
    Clip(op("add", op("divide", X, 6.0), 0.5), 0.0, 1.0),
)
_PHI = tuple(  # 2 * the normal distribution
    op("add", op("erf", inner), 1.0)
    for inner in (op("divide", X, math.sqrt(2)), op("multiply", X, math.sqrt(0.5)))
)
_HALVES = op("multiply", X, 0.5), op("divide", X, 2.0)

_TABLE = (
    Activation(
        "relu",
        numpy=lambda x: np.maximum(x, 0),
        tir=lambda t, x: t.max(x, 0),
        torch=lambda f, x: f.relu(x),
        spelled=(Clip(X, 0.0, math.inf),),
        undo=odd_part,
        integers=True,
    ),
    Activation(
        "relu6",
        numpy=lambda x: np.clip(x, 0, 6),
        tir=lambda t, x: t.min(t.max(x, 0), 6),
        torch=lambda f, x: f.relu6(x),
        spelled=(Clip(X, 0.0, 6.0),),
        # below the 6 at which it clips, even where a result errs by half
        undo=partial(odd_part, below=4.0),
        integers=True,
    ),
    Activation(
        "silu",
        numpy=lambda x: np.maximum(x, -1e4) * sigmoid(x),
        # exp(100) is infinite, and -100 / inf is -0
        tir=lambda t, x: _from(t, x, -100.0) / (1.0 + t.exp(-_from(t, x, -100.0))),
        torch=lambda f, x: f.silu(x),
        spelled=(op("nn.silu", X), op("multiply", X, op("sigmoid", X))),
        undo=odd_part,
    ),
    Activation(
        "hard_swish",
        numpy=lambda x: np.maximum(x, -3) * np.clip(x + 3, 0, 6) / 6,
        tir=lambda t, x: _from(t, x, -3.0) * (t.min(_from(t, x, -3.0) + 3.0, 6.0) * (1 / 6)),
        torch=lambda f, x: f.hardswish(x),
        spelled=(
            *(op("multiply", X, hard) for hard in _HARD),
            op("divide", op("multiply", X, _UP), 6.0),
            op("multiply", op("multiply", X, _UP), 1 / 6),
        ),
        undo=odd_part,  # v * ((v + 3) + (3 - v)) / 6, and v beyond 3
    ),
    Activation(
        "hard_sigmoid",
        numpy=lambda x: np.clip(x + 3, 0, 6) / 6,
        tir=lambda t, x: (t.Select(x > 3.0, 3.0, _from(t, x, -3.0)) + 3.0) * (1 / 6),
        torch=lambda f, x: f.hardsigmoid(x),
        spelled=_HARD,
        undo=_undo_hard_sigmoid,
    ),
    Activation(
        "leaky_relu",
        parameters=("slope",),
        numpy=_numpy_leaky,
        tir=lambda t, x, slope: t.Select(x < 0.0, x * slope, x),
        torch=lambda f, x, slope: f.leaky_relu(x, slope),
        spelled=(op("nn.leakyrelu", X, alpha=Param("slope")),),
        undo=_undo_leaky,
    ),
    Activation(
        "prelu",  # of one slope for all channels
        parameters=("slope",),
        numpy=_numpy_leaky,
        tir=lambda t, x, slope: t.Select(x < 0.0, x * slope, x),
        torch=lambda f, x, slope: f.leaky_relu(x, slope),
        spelled=(
            op("where", *_GREATER),
            op("where", *_LESS),
            op("nn.prelu", X, Param("slope")),
        ),
        undo=_undo_leaky,
    ),
    Activation(
        "sigmoid",
        numpy=sigmoid,
        tir=lambda t, x: 1.0 / (1.0 + t.exp(-x)),
        torch=lambda f, x: x.sigmoid(),
        spelled=(op("sigmoid", X),),
        undo=_undo_sigmoid,
    ),
    Activation(
        "gelu",
        numpy=lambda x: np.maximum(x, -1e4) * (1 + erf(x * math.sqrt(0.5))) / 2,
        # erf is -1 there
        tir=lambda t, x: (
            _from(t, x, -10.0) * (0.5 + 0.5 * t.erf(_from(t, x, -10.0) * math.sqrt(0.5)))
        ),
        torch=lambda f, x: f.gelu(x),
        spelled=(
            op("nn.gelu", X),
            *(op("multiply", op("multiply", X, phi), 0.5) for phi in _PHI),
            *(op("divide", op("multiply", X, phi), 2.0) for phi in _PHI),
            *(op("multiply", half, phi) for half in _HALVES for phi in _PHI),
            *(op("multiply", X, op("multiply", phi, 0.5)) for phi in _PHI),
        ),
        undo=odd_part,
    ),
)
ACTIVATIONS = {activation.name: activation for activation in _TABLE}
