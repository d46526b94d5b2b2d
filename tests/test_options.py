"""One record is the keywords of compile, the command line's options and the manifest's record."""

from __future__ import annotations

import argparse
import inspect

import pytest

from tvm_winograd.choose.options import Limits, Options, Wishes
from tvm_winograd.cli.options import FORMS, add_options, given
from tvm_winograd.compiler import compile as compile_model
from tvm_winograd.errors import UnsupportedError


def parsed(*text: str, record=Options):
    parser = argparse.ArgumentParser()
    add_options(parser, record)
    return given(parser.parse_args(text), record)


def test_nothing_asked_is_the_default():
    assert parsed() == Options() and Options().asked() == {}


def test_every_kind_of_flag():
    options = parsed(
        "--use", "conv1=gemm", "--use", "conv2=direct", "--algorithms", "gemm, direct",
        "--workspace-limit", "64K", "--max-error", "1e-6", "--deterministic", "--no-ptx",
        "--batch", "1-8", "--buckets", "2,8", "--target", "cuda", "--math", "fma",
    )  # fmt: skip
    limits = Limits(("gemm", "direct"), 1e-6, 65536, True, "fma")
    wanted = Options(
        limits=limits, layers={"conv1": "gemm", "conv2": "direct"}, ptx=False, batch=(1, 8),
        buckets=options.buckets, target="cuda",
    )  # fmt: skip
    assert options == wanted and list(options.buckets) == [2, 8]
    assert options.asked() | {"batch": "", "buckets": ""} == {
        "algorithms": "gemm,direct", "max-error": "1e-06", "workspace-limit": "65536",
        "deterministic": "yes", "math": "fma", "use": "conv1=gemm,conv2=direct", "target": "cuda",
        "ptx": "no", "batch": "", "buckets": "",
    }  # fmt: skip


def test_keywords_reach_the_records_inside():
    options = Options().but(math="fma", max_error=1e-6, layout="NHWC")
    assert options.limits == Limits(math="fma", max_error=1e-6) and options.layout == "NHWC"
    both = Options().but(limits=Limits(deterministic=True), math="fma")
    assert both.limits == Limits(deterministic=True, math="fma")
    with pytest.raises(TypeError, match="no option is called bach; there are algorithm, "):
        Options().but(bach=8)
    with pytest.raises(UnsupportedError, match="there are float32, fma"):
        Options().but(math="fp8")


def test_a_record_is_plain(tmp_path):
    record = Options(logs=tmp_path / "tables", batch=(1, 4), configs={"conv1": object}).record()
    assert record["logs"] == "tables" and record["batch"] == [1, 4]
    given = Options(logs=str(tmp_path / "tables"), weights="/some/where/w.npz").record()
    assert (given["logs"], given["weights"]) == ("tables", "w.npz")
    assert record["math"] == "float32" and set(record) == {f.name for f in Options.options()}


def test_compile_documents_each_option_once():
    signature = inspect.signature(compile_model)
    for known in Options.options():
        assert known.metadata["form"] in FORMS
    for name in ("target", "limits", "layout", "cache"):
        assert name in signature.parameters
        assert compile_model.__doc__.count(f"            {name}: ") == 1
    assert Wishes.options is not None and "{options}" not in compile_model.__doc__


def test_compile_refuses_what_is_no_option():
    with pytest.raises(TypeError, match="no option is called bach"):
        compile_model("resnet18", bach=8)
