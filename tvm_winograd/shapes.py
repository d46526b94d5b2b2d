"""ConvSpec, the one description of a convolution, and Epilogue, what is fused behind it."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

from .activation import Applied, parse
from .errors import SpecError

LAYOUTS = ("NCHW", "NHWC", "CHWN")
# storage dtype -> (accumulation dtype, output dtype)
DTYPES = {
    "float32": ("float32", "float32"),
    "float16": ("float32", "float16"),
    "bfloat16": ("float32", "bfloat16"),
    "int8": ("int32", "int32"),
}
_ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4}

_SIZES = ("n", "c", "h", "w", "k", "r", "s", "groups")
_PAIRS = ("stride", "dilation")  # one integer for both axes, or (height, width)

_FORMS = {
    "padding": "one integer, or (top, left, bottom, right),",
    **dict.fromkeys(_PAIRS, "an integer, or (height, width),"),
}
_KEY_EXAMPLE = "n1c64h56w56k64r3s3_st1_p1.1.1.1_d1_g1_float32_NCHW"
_KEY = re.compile(
    r"n(?P<n>\d+)c(?P<c>\d+)h(?P<h>\d+)w(?P<w>\d+)k(?P<k>\d+)r(?P<r>\d+)s(?P<s>\d+)"
    r"_st(?P<stride>\d+(\.\d+)?)_p(?P<padding>\d+\.\d+\.\d+\.\d+)_d(?P<dilation>\d+(\.\d+)?)"
    r"_g(?P<groups>\d+)_(?P<dtype>[a-z0-9]+)_(?P<layout>[A-Z]+)"
)


@dataclass(frozen=True)
class ConvSpec:
    """A 2-d convolution with static shapes. Weights are always (k, c/groups, r, s).

    Sizes are in elements; `padding` is (top, left, bottom, right); `stride` and `dilation` are one
    integer for both axes, or (height, width) where those differ; `layout` holds for input, output
    and residual alike.

    Raises:
        SpecError: at construction, for values no convolution can have.
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int = 3
    s: int = 3
    stride: int | tuple[int, int] = 1
    padding: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilation: int | tuple[int, int] = 1
    groups: int = 1
    dtype: str = "float32"
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        for name in _SIZES:
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        for name in _PAIRS:
            object.__setattr__(self, name, _one_or_two(name, getattr(self, name)))
        given: Any = self.padding
        pads = given if isinstance(given, list | tuple) else (given,) * 4
        object.__setattr__(self, "padding", tuple(_integer("padding", v) for v in pads))
        self._check_values()
        if self.oh < 1 or self.ow < 1:
            raise SpecError(
                f"the output would be empty: {self.oh}x{self.ow} from a {self.h}x{self.w} map, "
                f"{self.r}x{self.s} filter, padding {self.padding}, dilation {self.dilation}; "
                "enlarge the map or the padding"
            )

    def _check_values(self) -> None:
        for name in (*_SIZES, *_PAIRS):
            value = getattr(self, name)
            if min(value if isinstance(value, tuple) else (value,)) < 1:
                raise SpecError(f"{name}={value!r}: a positive integer is needed")
        if len(self.padding) != 4 or min(self.padding) < 0:
            raise SpecError(
                f"padding={self.padding}: four non-negative integers (top, left, bottom, right) "
                "are needed"
            )
        if self.c % self.groups or self.k % self.groups:
            raise SpecError(f"groups={self.groups} must divide c={self.c} and k={self.k}")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise SpecError(f"dtype={self.dtype!r}: supported are {', '.join(DTYPES)}")
        if self.layout not in LAYOUTS:
            raise SpecError(f"layout={self.layout!r}: supported are {', '.join(LAYOUTS)}")

    @property
    def strides(self) -> tuple[int, int]:
        """(height, width)."""
        return self.stride if isinstance(self.stride, tuple) else (self.stride, self.stride)

    @property
    def dilations(self) -> tuple[int, int]:
        """(height, width)."""
        return self.dilation if isinstance(self.dilation, tuple) else (self.dilation, self.dilation)

    @property
    def oh(self) -> int:
        top, _, bottom, _ = self.padding
        return _outputs(self.h + top + bottom, self.r, self.strides[0], self.dilations[0])

    @property
    def ow(self) -> int:
        _, left, _, right = self.padding
        return _outputs(self.w + left + right, self.s, self.strides[1], self.dilations[1])

    @property
    def acc(self) -> str:
        """Accumulation dtype."""
        return DTYPES[self.dtype][0]

    @property
    def out_dtype(self) -> str:
        return DTYPES[self.dtype][1]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self._in_layout(self.n, self.c, self.h, self.w)

    @property
    def output_shape(self) -> tuple[int, ...]:
        return self._in_layout(self.n, self.k, self.oh, self.ow)

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return (self.k, self.c // self.groups, self.r, self.s)

    @property
    def flops(self) -> int:
        """FLOPs of the direct convolution (a multiply-add counts 2)."""
        return 2 * self.n * self.k * self.oh * self.ow * (self.c // self.groups) * self.r * self.s

    @property
    def bytes(self) -> int:
        """Compulsory traffic: input, weights and output once each."""
        size, out = _ITEMSIZE[self.dtype], _ITEMSIZE[self.out_dtype]
        weights = self.k * (self.c // self.groups) * self.r * self.s
        moved = self.n * self.c * self.h * self.w + weights
        return size * moved + out * self.n * self.k * self.oh * self.ow

    def key(self) -> str:
        """Stable text, e.g. `n1c64h56w56k64r3s3_st1_p1.1.1.1_d1_g1_float32_NCHW`; strides that
        differ are `_st2.1`, dilations `_d1.2`."""
        pads, stride, dilation = map(_dotted, (self.padding, self.stride, self.dilation))
        return (
            f"n{self.n}c{self.c}h{self.h}w{self.w}k{self.k}r{self.r}s{self.s}_st{stride}"
            f"_p{pads}_d{dilation}_g{self.groups}_{self.dtype}_{self.layout}"
        )

    @classmethod
    def from_key(cls, key: str) -> ConvSpec:
        """The inverse of `key`."""
        found = _KEY.fullmatch(key)
        if found is None:
            raise SpecError(f"spec key {key!r}: the form is that of {_KEY_EXAMPLE}")
        values: dict[str, Any] = {
            name: text if name in ("dtype", "layout") else _undotted(text)
            for name, text in found.groupdict().items()
        }
        return cls(**values)

    def _in_layout(self, n: int, c: int, h: int, w: int) -> tuple[int, ...]:
        sizes = {"N": n, "C": c, "H": h, "W": w}
        return tuple(sizes[axis] for axis in self.layout)


def _outputs(size: int, taps: int, stride: int, dilation: int) -> int:
    """Outputs along an axis of `size` elements, padding included."""
    return (size - dilation * (taps - 1) - 1) // stride + 1


def _dotted(value: int | tuple[int, ...]) -> str:
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _undotted(text: str) -> int | tuple[int, ...]:
    parts = tuple(map(int, text.split(".")))
    return parts[0] if len(parts) == 1 else parts


def _one_or_two(name: str, value: Any) -> int | tuple[int, int]:
    """One integer, or two where they differ."""
    if not isinstance(value, list | tuple):
        return _integer(name, value)
    if len(value) != 2:
        raise SpecError(f"{name}={value!r}: one integer, or (height, width), is needed")
    height, width = (_integer(name, v) for v in value)
    return height if height == width else (height, width)


def _integer(name: str, value: Any) -> int:
    """`value`, maybe numpy's, as an int; a bool or float is refused, not rounded."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise SpecError(f"{name}={value!r}: {_FORMS.get(name, 'an integer')} is needed") from None


@dataclass(frozen=True, init=False)
class Epilogue:
    """What is fused into the store, in this order: + bias(k), + residual(output shape), activation.

    `activation` is text of activation.py's table, e.g. `silu` or `leaky_relu(0.1)`, in the
    spelling of `activation.Applied.text`.

    Raises:
        SpecError: at construction, for an unknown activation, or for two of them.
    """

    bias: bool = False
    residual: bool = False
    activation: str | None = None

    def __init__(
        self,
        bias: bool = False,
        residual: bool = False,
        relu: bool = False,
        relu6: bool = False,
        *,
        activation: str | None = None,
    ) -> None:
        """`relu` and `relu6` are short for activation="relu" and activation="relu6"."""
        named = ["relu"] * bool(relu) + ["relu6"] * bool(relu6)
        if activation is not None:
            named.append(parse(activation).text)
        if len(set(named)) > 1:
            raise SpecError(
                f"an epilogue ends in one activation, not in both {' and '.join(named)}: drop one"
            )
        object.__setattr__(self, "bias", bool(bias))
        object.__setattr__(self, "residual", bool(residual))
        object.__setattr__(self, "activation", named[0] if named else None)

    @property
    def relu(self) -> bool:
        """Whether it ends in max(v, 0)."""
        return self.activation == "relu"

    @property
    def relu6(self) -> bool:
        """Whether it ends in min(max(v, 0), 6)."""
        return self.activation == "relu6"

    @property
    def applied(self) -> Applied | None:
        """The activation."""
        return parse(self.activation) if self.activation else None

    def unfit(self, spec: ConvSpec) -> str | None:
        """None, or the reason why it cannot stand behind a convolution."""
        applied = self.applied
        if spec.acc != "float32" and applied and not applied.activation.integers:
            return f"{self.activation} is of floating values; {spec.dtype} gives {spec.out_dtype}"
        return None

    def key(self) -> str:
        """Stable text, e.g. `bias+residual+relu`, or `none`."""
        names = ["bias"] * self.bias + ["residual"] * self.residual
        return "+".join(names + [self.activation] * bool(self.activation)) or "none"  # type: ignore[list-item]

    @classmethod
    def from_key(cls, key: str) -> Epilogue:
        """The inverse of `key`."""
        names = [] if key == "none" else key.split("+")
        known = [name for name in ("bias", "residual") if name in names]
        rest = [name for name in names if name not in known]
        if len(rest) > 1:
            raise SpecError(
                f"epilogue {key!r}: it ends in one activation, not in both {' and '.join(rest)}; "
                "parts are bias, residual and an activation, joined by '+'"
            )
        flags = {name: True for name in known}
        try:
            return cls(**flags, activation=rest[0] if rest else None)
        except SpecError as error:
            raise SpecError(f"epilogue {key!r}: {error}") from error
