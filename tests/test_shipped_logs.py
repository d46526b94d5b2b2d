"""The tables that ship: every row still means something, and networks find theirs."""

import pytest

from tvm_winograd.check import inspect
from tvm_winograd.choose.options import Limits, Wishes
from tvm_winograd.frontend import load_model
from tvm_winograd.gpu import gpu_for
from tvm_winograd.tables import lookup as logs
from tvm_winograd.tuning.check import problem_of

ROWS, COMPLAINTS = logs.read_folder(logs.shipped_folder())
MEASURED = [row for row in ROWS if row.origin == "measured"]
# `logs check --compile` builds them all; test_tuning_records schedules them all
KERNELS = list({(r.gpu, r.kernel, str(r.config)): r for r in MEASURED}.values())
RESNET = ((64, 56), (128, 28), (256, 14), (512, 7))
VGG = ((3, 224, 64), (64, 224, 64), (64, 112, 128), (128, 112, 128), (128, 56, 256),
       (256, 56, 256), (256, 28, 512), (512, 28, 512), (512, 14, 512))  # fmt: skip


def test_every_line_is_read():
    assert not COMPLAINTS and len(MEASURED) > 50


def test_a_row_says_where_it_comes_from():
    for row in ROWS:
        assert row.gpu and row.driver and row.tvm and row.date and row.commit, row
        assert row.error is not None and row.trials > 0, row


@pytest.mark.parametrize("row", KERNELS, ids=lambda r: f"{r.spec}-{r.kernel}-{r.gpu}")
def test_a_row_builds(row):
    assert problem_of(row, compile=True) is None


def test_a_transferred_row_has_a_measured_one():
    """So that what is measured is all there is to build."""
    built = {(r.gpu, r.spec, r.kernel, str(r.config)) for r in MEASURED}
    for row in ROWS:
        assert (row.gpu, row.spec, row.kernel, str(row.config)) in built


def test_the_promised_shapes_are_there():
    specs = {logs.spec_of(row.spec) for row in MEASURED}
    have = {(s.n, s.c, s.h, s.k) for s in specs}
    want = {(n, c, h, c) for n in (1, 8, 32, 64, 96, 128) for c, h in RESNET}
    want |= {(n, *layer) for n in (1, 32) for layer in VGG}
    assert want <= have


@pytest.mark.parametrize(("name", "batch"), [("resnet18", 32), ("resnet34", 1), ("resnet50", 128)])
def test_networks_find_their_rows(name, batch):
    wishes = Wishes(limits=Limits(math="fma"))
    layers = inspect.layers_of(load_model(name, batch=batch), gpu_for("sm_90"), wishes)
    sources = [x.choice.source for x in layers if (x.spec.r, x.spec.stride) == (3, 1)]
    assert sources and set(sources) == {"log"}
