"""Every way to write a clip becomes one operator that computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tvm_winograd.ir.bindings import op_name
from tvm_winograd.passes.merge_clips import merge_clips
from tvm_winograd.truth.evaluate import evaluate

op = relax.op
SHAPE = (2, 3, 4)


def number(value, *shape):
    return relax.const(np.full(shape, value, "float32"))


def network(body):
    """main(x) of `body(emit, x)`."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, x))
        builder.emit_func_output(out)
    return builder.get()


def operators(mod):
    return [op_name(b.value).removeprefix("relax.") for b in mod["main"].body.blocks[0].bindings]


def above(e, x, limit, other=None):
    """ONNX's upper bound, as it is imported"""
    beyond = e(op.greater(x, number(limit)))
    return op.where(beyond, number(limit if other is None else other), x)


def below(e, x, limit):
    return op.where(e(op.less(x, number(limit))), number(limit), x)


SIX = {
    "relu6": lambda e, x: op.nn.relu6(x),
    "clip": lambda e, x: op.clip(x, 0, 6),
    "max-min": lambda e, x: op.minimum(e(op.maximum(x, number(0))), number(6, 1)),
    "min-max": lambda e, x: op.maximum(number(0), e(op.minimum(number(6), x))),
    "relu-clip": lambda e, x: op.clip(e(op.nn.relu(x)), float("-inf"), 6),
    "onnx": lambda e, x: above(e, e(op.nn.relu(x)), 6),
    "comparisons": lambda e, x: above(e, e(below(e, x, 0)), 6),
    "twice": lambda e, x: op.nn.relu(e(op.clip(e(op.clip(x, -3, 7)), -1, 6))),
}


@pytest.mark.parametrize("name", SIX)
def test_relu6_is_one_clip(name):
    check(SIX[name], ["clip"])


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (lambda e, x: op.clip(x, 0, float("inf")), ["nn.relu"]),
        (lambda e, x: op.maximum(e(op.maximum(x, number(-1))), number(0)), ["nn.relu"]),
        (lambda e, x: op.clip(x, float("-inf"), 2), ["minimum"]),
        (lambda e, x: op.nn.relu(e(op.clip(x, -5, -2))), ["clip"]),  # always 0
        # not the same number; not the value compared; a comparison that somebody else reads
        (lambda e, x: above(e, x, 6, other=5), ["greater", "where"]),
        (
            lambda e, x: op.where(e(op.greater(x, number(6))), number(6), e(op.abs(x))),
            ["greater", "abs", "where"],
        ),
        (
            lambda e, x: (lambda c: op.where(c, e(op.where(c, number(6), x)), x))(
                e(op.greater(x, number(6)))
            ),
            ["greater", "where", "where"],
        ),
        # what is read in between stays
        (
            lambda e, x: (lambda y: op.add(e(op.clip(y, -1, 6)), y))(e(op.nn.relu(x))),
            ["nn.relu", "clip", "add"],
        ),
        # bounds that differ from element to element, or broadcast
        (lambda e, x: op.minimum(x, relax.const(np.arange(4, dtype="float32"))), ["minimum"]),
        (lambda e, x: op.maximum(x, number(0, 1, 1, 1, 1)), ["maximum"]),
    ],
)
def test_other_chains(body, want):
    check(body, want)


def check(body, want):
    mod = network(body)
    merged = merge_clips(mod)
    relax.analysis.well_formed(merged)
    assert operators(merged) == want
    x = np.random.default_rng(0).standard_normal(SHAPE) * 8
    got, expected = (evaluate(m, {}, [x])[0] for m in (merged, mod))
    np.testing.assert_array_equal(got, expected)


def test_integers_are_left_alone():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "int32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            low = builder.emit(op.maximum(x, relax.const(0, "int32")))
            out = builder.emit_output(op.minimum(low, relax.const(6, "int32")))
        builder.emit_func_output(out)
    assert operators(merge_clips(builder.get())) == ["maximum", "minimum"]
