"""The readable tables: what is read, what a bad line costs, what is found first."""

import json
from dataclasses import replace

import pytest

from tvm_winograd import ConvSpec, Epilogue
from tvm_winograd.choose.select import choose
from tvm_winograd.gpu import Cpu, gpu_for
from tvm_winograd.schedules import KERNELS
from tvm_winograd.schedules.base.kernel import config_dict
from tvm_winograd.schedules.winograd_fused import kernel as winograd_fused
from tvm_winograd.schedules.winograd_staged import kernel as winograd_f4
from tvm_winograd.tables import lookup as logs
from tvm_winograd.tables import store as log_store
from tvm_winograd.tables.store import table_text

SPEC, EPILOGUE = ConvSpec(8, 64, 56, 56, 64), Epilogue(bias=True, relu=True)
HEADER = "gpu,arch,spec,epilogue,kernel,config,us\n"
KERNEL = winograd_fused.KERNEL


def line(us="10.0", gpu="NVIDIA H200", arch="sm_90", config=None, spec=SPEC, kernel=KERNEL.name):
    values = config if config is not None else config_dict(default())
    text = json.dumps(values).replace('"', '""')
    return f'{gpu},{arch},{spec.key()},{EPILOGUE.key()},{kernel},"{text}",{us}\n'


def row(spec=SPEC, config=None, us=10.0, kernel=KERNEL.name, **more):
    values = {"gpu": "NVIDIA H200", "arch": "sm_90", "epilogue": EPILOGUE.key(), **more}
    config = config_dict(config if config is not None else default())
    return logs.Row(spec=spec.key(), kernel=kernel, config=config, us=us, **values)


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


@pytest.mark.parametrize("cut", range(1, 60, 3))
def test_a_row_cut_off_anywhere_is_left_out(tmp_path, cut):
    whole = table_text([row()])
    path = tmp_path / "t.csv"
    path.write_text(whole.rstrip("\n")[:-cut] + "\n" + table_text([row(us=3.0)]).split("\n")[1])
    rows, complaints = logs.read_table(path)
    assert [r.us for r in rows] == [3.0]  # an open quote ends with its line
    assert len(complaints) == 1 and "t.csv:2" in complaints[0]


def test_columns_of_other_versions(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEADER.replace("us\n", "us,colour\n") + line("4").replace("4\n", "4,red\n"))
    (one,), complaints = logs.read_table(path)
    assert not complaints and one.extra == {"colour": "red"}
    assert (one.origin, one.error, one.trials) == ("measured", None, 0)
    path.write_text(table_text([one, row()]))
    again, complaints = logs.read_table(path)
    assert not complaints and [r.extra["colour"] for r in again] == ["red", ""]


def test_a_header_that_is_none(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(line())
    assert logs.read_table(path)[0] == []
    path.write_bytes(b"")
    _, complaints = logs.read_table(path)
    assert "header has no gpu" in complaints[0]


def test_every_column_survives_the_text(tmp_path):
    path = tmp_path / "t.csv"
    one = row(error=3e-7, trials=64, driver="580.1", tvm="0.27", commit="abc+", date="2026-11-30",
              origin="transferred", gpu='a "b", c')  # fmt: skip
    path.write_text(table_text([one]))
    (back,), complaints = logs.read_table(path)
    assert not complaints and back == replace(one, file="t.csv:2")


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
    far_batch = ConvSpec(1, 64, 56, 56, 64)
    unknown_field = {**config_dict(default()), "warp_drive": 9}
    illegal = {**config_dict(default()), "bc": 4096}
    wrong_type = {**config_dict(default()), "bk": "64"}
    configs = [line(config=c) for c in (unknown_field, illegal, wrong_type)]
    rows, complaints = table(line(spec=far_batch), *configs, line(kernel="x"))
    assert not complaints
    assert choose(SPEC, EPILOGUE, gpu_for("sm_90"), rows=rows).source == "default"


def test_a_row_of_another_architecture_is_not_used(table):
    rows, _ = table(line())
    assert choose(SPEC, EPILOGUE, gpu_for("sm_80"), rows=rows).source == "default"


def chosen(rows, spec=SPEC, epilogue=EPILOGUE, arch="sm_90", **options):
    return choose(spec, epilogue, gpu_for(arch), rows=rows, **options)


def test_the_nearest_batch_of_the_same_layer():
    second = KERNEL.configs(SPEC, gpu_for("sm_90"))[1]
    rows = [row(spec=replace(SPEC, n=32)), row(spec=replace(SPEC, n=16), config=second)]
    choice = chosen(rows)
    assert (choice.source, choice.config) == ("log-nearest", second)
    assert "batch 16" in choice.reason
    assert chosen([*rows, row()]).source == "log"
    for other in (replace(SPEC, n=128), replace(SPEC, h=28), replace(SPEC, layout="NHWC")):
        assert chosen([row(spec=other)]).source == "default"


def test_the_nearest_epilogue():
    choice = chosen([row()], epilogue=Epilogue())
    assert choice.source == "log-nearest" and "epilogue bias+relu" in choice.reason


def test_the_nearest_is_checked_again():
    staged = winograd_f4.KERNEL
    near = replace(SPEC, n=16)
    chunks = [c for c in staged.configs(near, gpu_for("sm_90")) if c.chunks > 1]
    unfit = [c for c in chunks if staged.illegal(c, SPEC, gpu_for("sm_90")) is not None]
    assert unfit, "the case needs a config that is legal at one batch only"
    for config in unfit:
        rows = [row(spec=near, kernel=staged.name, config=config)]
        assert chosen(rows).source == "default"


def test_another_gpu_of_the_architecture():
    h100, h200 = row(gpu="NVIDIA H100", us=5.0), row(us=9.0)
    assert "H100" in chosen([h200, h100]).reason  # the compiler knows no GPU: the fastest row
    assert "H200" in chosen([h200, h100], gpu_name="NVIDIA H200").reason
    assert "H100" in chosen([h100], gpu_name="NVIDIA H200").reason
    assert chosen([h100], arch="sm_80").source == "default"


def test_another_cpu_is_another_device():
    cpu = Cpu("znver4", 512, 2)
    kernel = next(k for k in KERNELS if k.name == "direct-cpu")
    config = kernel.configs(SPEC, cpu)[1]
    mine = row(gpu="znver4", arch="cpu", kernel="direct-cpu", config=config)
    assert choose(SPEC, EPILOGUE, cpu, rows=[mine]).source == "log"
    assert choose(SPEC, EPILOGUE, cpu, rows=[replace(mine, gpu="skylake")]).source == "default"


def test_a_wrong_row_is_never_used():
    assert chosen([row(algorithm="winograd-f2", error=2e-3)]).source == "default"
    assert chosen([row(algorithm="winograd-f2", error=float("nan"))]).source == "default"
    assert chosen([row(algorithm="winograd-f2", error=3e-7)]).source == "log"


def test_the_users_folder_before_the_shipped_one(tmp_path):
    second = KERNEL.configs(SPEC, gpu_for("sm_90"))[1]
    log_store.merge(tmp_path / "mine", [row(us=9.0, config=second)])
    log_store.merge(tmp_path / "shipped", [row(us=5.0)])
    rows, complaints = logs.read_places([tmp_path / "mine", tmp_path / "shipped"], "sm_90")
    assert not complaints and chosen(rows).config == second


def test_every_config_survives_the_text():
    for kernel in KERNELS:
        hardware = gpu_for("sm_90") if kernel.target == "cuda" else Cpu("generic", 128, 2)
        for config in kernel.configs(SPEC, hardware):
            text = json.dumps(config_dict(config))
            assert kernel.make_config(json.loads(text)) == config
