"""True-fp32 3x3 convolutions on this GPU: ours beside cuDNN (through torch, TF32 off), one run.

    python benchmarks/conv_fp32.py [--batch 128] [--json rows.json]

Correctness first (float64 on the GPU, outputs poisoned), then medians of CUDA-event timings of
back-to-back launches, L2 warm. Our filter transform is done once, outside the time, and so is
whatever cuDNN prepares; our input and output transforms are inside. Needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess

import torch
import tvm_ffi

import tvm_winograd
from tvm_winograd import ConvSpec
from tvm_winograd.tolerances import tolerance

LAYERS = ((64, 56), (128, 28), (256, 14), (512, 7))  # C = K, map: the 3x3 layers of ResNets


def arrays(spec: ConvSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Zero-mean x and w on the GPU."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(spec.input_shape, device="cuda", generator=generator)
    w = torch.randn(spec.weight_shape, device="cuda", generator=generator)
    return x, w / (9 * spec.c) ** 0.5


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


def median_us(call, warmup: int = 20, repeats: int = 50, inner: int = 10) -> tuple[float, float]:
    """(median, spread of the middle half) in microseconds per call, launches back to back."""
    for _ in range(warmup):
        call()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / inner)
    quarters = statistics.quantiles(times, n=4)
    return statistics.median(times), quarters[2] - quarters[0]


def ours(spec: ConvSpec, arch: str, x: torch.Tensor, w: torch.Tensor):
    """(name, call, output) of our kernel with its shipped default config."""
    compiled = tvm_winograd.conv2d(spec, "cuda", arch, "winograd-f2")
    packed = compiled.pack(w.contiguous())
    out = torch.full(spec.output_shape, float("nan"), device="cuda")
    function = compiled.executable["conv"]
    x_tvm, out_tvm = tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(out)
    name = f"{compiled.choice.kernel.name} ({compiled.choice.source})"
    return name, lambda: function(x_tvm, packed, out_tvm), lambda: out


def cudnn(spec: ConvSpec, x: torch.Tensor, w: torch.Tensor):
    """(name, call, output) of torch's cuDNN convolution, its fastest fp32 algorithm."""
    result = []

    def call() -> None:
        result[:] = [torch.nn.functional.conv2d(x, w, padding=1)]

    name = f"cuDNN {torch.backends.cudnn.version()} through torch, benchmark mode"
    return name, call, lambda: result[0]


def measure(spec: ConvSpec, arch: str) -> list[dict]:
    x, w = arrays(spec)
    want = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    rows = []
    for name, call, output in (ours(spec, arch, x, w), cudnn(spec, x, w)):
        call()
        torch.cuda.synchronize()
        error = relative_error(output(), want)
        limit = tolerance(spec, "winograd-f2")
        if not error <= limit and name.startswith("winograd"):
            raise SystemExit(f"{spec.key()}: {name} is wrong: relative error {error:.2e}")
        us, spread = median_us(call)
        row = {"spec": spec.key(), "provider": name, "us": us, "spread_us": spread}
        rows.append({**row, "tflops_direct": spec.flops / us / 1e6, "error": error})
    return rows


def conditions(arch: str) -> dict:
    query = "--query-gpu=driver_version,clocks.max.sm"
    driver = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(),
        "arch": arch,
        "driver": driver,
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "tvm_winograd": tvm_winograd.__version__,
        "timing": "CUDA events, medians, back to back, L2 warm, filter transform outside",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    major, minor = torch.cuda.get_device_capability()
    arch = f"sm_{major}{minor}"
    head, rows = conditions(arch), []
    with tvm_ffi.use_torch_stream(torch.cuda.stream(torch.cuda.current_stream())):
        for c, size in LAYERS:
            rows += measure(ConvSpec(args.batch, c, size, size, c), arch)
    print(json.dumps(head))
    for row in rows:
        c_map = row["spec"].split("k")[0]
        print(f"{c_map:18} {row['us']:8.1f} us  {row['error']:.1e}  {row['provider']}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"conditions": head, "rows": rows}, file, indent=2)


if __name__ == "__main__":
    main()
