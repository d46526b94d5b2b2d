"""Which operations become part of a convolution's epilogue."""

import pytest
from tvm import relax

from tvm_winograd.passes.group_convs import COMPOSITE, find_groups, group_convs


def tensor(*shape):
    return relax.TensorType(shape, "float32")


def network(body, residual_input=False):
    """main(x, w, b[, r]) of `body(builder, x, w, b, r)`."""
    builder = relax.BlockBuilder()
    x, w = relax.Var("x", tensor(1, 8, 9, 9)), relax.Var("w", tensor(8, 8, 3, 3))
    b, r = relax.Var("b", tensor(1, 8, 1, 1)), relax.Var("r", tensor(1, 8, 9, 9))
    with builder.function("main", [x, w, b, r], attrs={"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(body(builder, x, w, b, r))
        builder.emit_func_output(out)
    return builder.get()


def conv(x, w):
    return relax.op.nn.conv2d(x, w, padding=1)


@pytest.mark.parametrize(
    ("body", "epilogue"),
    [
        (lambda e, x, w, b, r: conv(x, w), "none"),
        (lambda e, x, w, b, r: relax.op.add(e.emit(conv(x, w)), b), "bias"),
        (lambda e, x, w, b, r: relax.op.add(r, e.emit(conv(x, w))), "residual"),
        (
            lambda e, x, w, b, r: relax.op.nn.relu(
                e.emit(relax.op.add(e.emit(relax.op.add(e.emit(conv(x, w)), b)), r))
            ),
            "bias+residual+relu",
        ),
        (
            lambda e, x, w, b, r: relax.op.clip(
                e.emit(relax.op.add(e.emit(conv(x, w)), b)), 0.0, 6.0
            ),
            "bias+relu6",
        ),
        (lambda e, x, w, b, r: relax.op.clip(e.emit(conv(x, w)), 0, 5), "none"),
        # relu ends the chain; a second residual does not fit either
        (
            lambda e, x, w, b, r: relax.op.add(e.emit(relax.op.nn.relu(e.emit(conv(x, w)))), r),
            "relu",
        ),
        (
            lambda e, x, w, b, r: relax.op.add(e.emit(relax.op.add(e.emit(conv(x, w)), r)), r),
            "residual",
        ),
    ],
)
def test_epilogue_of_one_convolution(body, epilogue):
    mod = network(body)
    (group,) = find_groups(mod["main"])
    assert group.epilogue.key() == epilogue
    grouped = relax.transform.DeadCodeElimination()(group_convs(mod))
    relax.analysis.well_formed(grouped)
    composites = [
        f for f in grouped.functions.values() if f.attrs and f.attrs.get("Composite") == COMPOSITE
    ]
    assert [f.attrs["epilogue"] for f in composites] == [epilogue]


def test_a_value_with_two_readers_stays_visible():
    def body(e, x, w, b, r):
        y = e.emit(conv(x, w))
        return relax.op.add(e.emit(relax.op.nn.relu(y)), y)

    (group,) = find_groups(network(body)["main"])
    assert group.epilogue.key() == "none"


def test_adding_a_convolution_to_itself_is_no_residual():
    def body(e, x, w, b, r):
        y = e.emit(conv(x, w))
        return relax.op.add(y, y)

    (group,) = find_groups(network(body)["main"])
    assert group.epilogue.key() == "none"


def test_of_two_convolutions_that_meet_the_first_takes_the_residual():
    def body(e, x, w, b, r):
        main = e.emit(relax.op.add(e.emit(conv(x, w)), b))
        side = e.emit(conv(x, w))
        return relax.op.nn.relu(e.emit(relax.op.add(main, side)))

    mod = network(body)
    first, second = find_groups(mod["main"])
    assert (first.epilogue.key(), second.epilogue.key()) == ("bias+residual+relu", "none")
    grouped = relax.transform.DeadCodeElimination()(group_convs(mod))
    relax.analysis.well_formed(grouped)
    calls = [b.value for b in grouped["main"].body.blocks[0].bindings]
    assert len(calls) == 2


def test_a_bias_of_another_width_is_no_bias():
    builder = relax.BlockBuilder()
    x, w = relax.Var("x", tensor(1, 8, 9, 9)), relax.Var("w", tensor(8, 8, 3, 3))
    per_column = relax.Var("b", tensor(9))
    with builder.function("main", [x, w, per_column], attrs={"num_input": 1}):
        with builder.dataflow():
            out = builder.emit_output(relax.op.add(builder.emit(conv(x, w)), per_column))
        builder.emit_func_output(out)
    (group,) = find_groups(builder.get()["main"])
    assert group.epilogue.key() == "none"
