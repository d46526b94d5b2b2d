"""The readable tables: what is read, what a bad line costs, what is found first."""

import json

import pytest
from tvm_winograd.schedules import KERNELS, winograd_fused
from tvm_winograd.schedules.kernel import config_dict

from tvm_winograd import ConvSpec, Epilogue, logs
from tvm_winograd.gpu import gpu_for
from tvm_winograd.select import choose

SPEC, EPILOGUE = ConvSpec(8, 64, 56, 56, 64), Epilogue(bias=True, relu=True)
HEADER = "gpu,arch,spec,epilogue,kernel,config,us\n"
KERNEL = winograd_fused.KERNEL


def line(us="10.0", gpu="NVIDIA H200", arch="sm_90", config=None, spec=SPEC, kernel=KERNEL.name):
    values = config if config is not None else config_dict(default())
    text = json.dumps(values).replace('"', '""')
    return f'{gpu},{arch},{spec.key()},{EPILOGUE.key()},{kernel},"{text}",{us}\n'


def default():
    return KERNEL.configs(SPEC, gpu_for("sm_90"))[0]


@pytest.fixture
def table(tmp_path):
    def write(*lines):
        folder = tmp_path / "sm_90"
        folder.mkdir(exist_ok=True)
        (folder / "t.csv").write_text(HEADER + "".join(lines))
        return logs.read_folder(tmp_path, "sm_90")

    return write


def test_a_corrupt_line_costs_that_line_only(table):
    rows, complaints = table(
        line(us="11"), line(us="-1"), "half a li", "\n", line(config=[1]), line(us="x"), line()
    )
    assert [r.us for r in rows] == [11.0, 10.0]
    assert len(complaints) == 4
    assert all("t.csv:" in c and "left out" in c for c in complaints)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "sm_90").mkdir()
    (tmp_path / "sm_90" / "t.csv").write_bytes(
        HEADER.encode() + b"\xff\xfe\x00\n" + line().encode()
    )
    rows, complaints = logs.read_folder(tmp_path, "sm_90")
    assert len(rows) == 1 and len(complaints) == 1


def test_same_gpu_first_then_fastest(table):
    rows, _ = table(line("5", gpu="NVIDIA H100"), line("9"), line("7"))
    found = logs.lookup(rows, SPEC, EPILOGUE, "NVIDIA H200")
    assert [r.us for r in found] == [7.0, 9.0, 5.0]


def test_choice_from_a_log(table):
    rows, _ = table(line("7.5"))
    choice = choose(SPEC, EPILOGUE, gpu_for("sm_90"), rows=rows)
    assert (choice.source, choice.config) == ("log", default())
    assert "7.5 us on NVIDIA H200 (t.csv:2)" in choice.reason


def test_rows_that_do_not_fit_are_passed_by(table):
    other_batch = ConvSpec(4, 64, 56, 56, 64)
    unknown_field = {**config_dict(default()), "warp_drive": 9}
    illegal = {**config_dict(default()), "bc": 4096}
    wrong_type = {**config_dict(default()), "bk": "64"}
    configs = [line(config=c) for c in (unknown_field, illegal, wrong_type)]
    rows, complaints = table(line(spec=other_batch), *configs, line(kernel="x"))
    assert not complaints
    assert choose(SPEC, EPILOGUE, gpu_for("sm_90"), rows=rows).source == "default"


def test_a_row_of_another_architecture_is_not_used(table):
    rows, _ = table(line())
    assert choose(SPEC, EPILOGUE, gpu_for("sm_80"), rows=rows).source == "default"


def test_every_config_survives_the_text():
    for kernel in KERNELS:
        from tvm_winograd.gpu import Cpu

        hardware = gpu_for("sm_90") if kernel.target == "cuda" else Cpu("generic", 128, 2)
        for config in kernel.configs(SPEC, hardware):
            text = json.dumps(config_dict(config))
            assert kernel.make_config(json.loads(text)) == config
