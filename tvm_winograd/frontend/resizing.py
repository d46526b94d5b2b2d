"""One way to resize maps, for every frontend: which pixels are read is decided here.

TVM reads pixels input / output apart, divides by output - 1 with align_corners, and knows fewer
coordinate modes than ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

Emit = Callable[[Any], Any]


@dataclass(frozen=True)
class Resize:
    """What is read for an output pixel; names as in relax.image.resize2d."""

    method: str  # nearest_neighbor, linear, cubic
    coordinates: str  # half_pixel, align_corners, asymmetric, ...
    rounding: str = ""  # of nearest_neighbor
    cubic_alpha: float = -0.75
    cubic_exclude: bool = False

    def resized(self, emit: Emit, x: Any, size: Sequence[int]) -> Any:
        """x (n, c, h, w) with the height and width `size`."""
        given = [int(dim) for dim in x.ty.shape.values][2:]
        if list(size) == given and self.coordinates != "asymmetric":
            return x
        if self.coordinates == "align_corners":
            return self._corners(emit, x, given, list(size))
        return self._plain(emit, x, size)

    def _corners(self, emit: Emit, x: Any, given: list[int], size: list[int]) -> Any:
        """An axis that becomes one pixel long keeps its first pixel."""
        single = [i for i in range(2) if size[i] == 1]
        if not single:
            return self._plain(emit, x, size)
        axes, ones = [i + 2 for i in single], [1] * len(single)
        x = emit(relax.op.strided_slice(x, axes, [0] * len(axes), ones))
        other = [i for i in range(2) if size[i] != 1 and size[i] != given[i]]
        if not other:
            return x
        # the other axis alone: as the width of a map whose height stays, which another mode keeps
        (axis,) = other
        where = np.arange(size[axis]) * (given[axis] - 1) / (size[axis] - 1)
        return self._gathered(emit, x, axis + 2, where)

    def _gathered(self, emit: Emit, x: Any, axis: int, where: np.ndarray) -> Any:
        """Between the two pixels around each of the coordinates `where` of an axis."""
        low = np.floor(where).astype("int64")
        high = np.minimum(low + 1, int(x.ty.shape.values[axis]) - 1)
        shape = [-1 if i == axis else 1 for i in range(4)]
        part = (where - low).astype("float32").reshape(shape)
        if self.method != "linear":
            low, part = np.floor(where + 0.5).astype("int64"), part * 0
        first, second = (emit(relax.op.take(x, relax.const(i, "int64"), axis)) for i in (low, high))
        scaled = [
            emit(relax.op.multiply(first, relax.const(1 - part, "float32"))),
            emit(relax.op.multiply(second, relax.const(part, "float32"))),
        ]
        return emit(relax.op.add(*scaled))

    def _plain(self, emit: Emit, x: Any, size: Sequence[int]) -> Any:
        return emit(
            relax.op.image.resize2d(
                x,
                tuple(size),
                layout="NCHW",
                method=self.method,
                coordinate_transformation_mode=self.coordinates,
                rounding_method=self.rounding,
                cubic_alpha=self.cubic_alpha,
                cubic_exclude=int(self.cubic_exclude),
            )
        )

    def along_all(self, emit: Emit, x: Any, size: Sequence[int]) -> Any:
        """x (n, c, ...) of 1, 2 or 3 spatial axes with the sizes `size`: one axis does not see
        the others, so axes are folded together and resized two at a time."""
        n, c, *given = (int(dim) for dim in x.ty.shape.values)
        if len(given) == 2:
            return self.resized(emit, x, size)
        if len(given) == 1:
            x = emit(relax.op.reshape(x, [n, c, given[0], 1]))
            x = self._one_axis(emit, x, size[0])
            return emit(relax.op.reshape(x, [n, c, size[0]]))
        depth, height, width = given
        x = emit(relax.op.reshape(x, [n, c, depth, height * width]))
        x = self._one_axis(emit, x, size[0])
        x = emit(relax.op.reshape(x, [n, c * size[0], height, width]))
        x = self.resized(emit, x, size[1:])
        return emit(relax.op.reshape(x, [n, c, *size]))

    def _one_axis(self, emit: Emit, x: Any, height: int) -> Any:
        """(n, c, h, w) with another height; the width is not resized."""
        width = int(x.ty.shape.values[3])
        if width == 1 and self.coordinates == "align_corners":
            given = int(x.ty.shape.values[2])
            where = np.arange(height) * (given - 1) / max(height - 1, 1)
            return self._gathered(emit, x, 2, where)
        return self.resized(emit, x, [height, width])


def torch_linear(corners: bool) -> Resize:
    """As torch.nn.functional.interpolate with mode bilinear."""
    return Resize("linear", "align_corners" if corners else "half_pixel")


def torch_cubic(corners: bool) -> Resize:
    return replace(torch_linear(corners), method="cubic")


NEAREST = Resize("nearest_neighbor", "asymmetric", "floor")
