"""Is an artifact right? Each convolution alone, and the network, against float64.

The functions of the artifact itself are called, one by one, on the input that each layer really
gets. Bias and residual are zero, and the activation is undone as its entry in activation.py says
(of a ReLU: f(x) - f(-x), exactly), so the error is that of the bare convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tvm_winograd.schedules import KERNELS

from ..activation import Deployed
from ..codegen.artifact import Artifact
from ..deploy.batch_runner import BatchRunner
from ..deploy.runtime import Runner
from ..errors import InputError, ModelError, UnsupportedError
from ..frontend import Model, load_model
from ..frontend.weights import random_input
from ..passes.pipeline import network_in
from ..shapes import ConvSpec, Epilogue
from ..truth import peers, reference
from ..truth.evaluate import Conv, evaluate
from ..truth.tolerances import IMPORT_RATIO, long_sums, network_ratio, tolerance
from .report import LayerResult, Report

_TURNED = 1e-3  # of the elements of an integer output that may differ
_SEED = 20_261  # of the verification input; not a calibration seed anyone would choose


def load_source(
    artifact: Artifact, model: Any = None, weights: Any = None, trust: bool = False
) -> Model:
    """The model an artifact was compiled from.

    Raises:
        ModelError: the manifest does not say enough, or `model` is another one.
    """
    described = artifact.manifest["model"]
    source = described if isinstance(described, dict) else {"name": described}
    batch = artifact.manifest["inputs"][0]["shape"][0]
    if model is None and source.get("kind") == "builtin":
        model = source["name"]
    if model is None:
        made = f"{source['file']} ({source['kind']})" if "file" in source else described
        raise ModelError(
            f"the artifact was made from {made}; give that model (--model) to verify it"
        )
    asked = artifact.manifest.get("options", {}).get("batch", batch)
    loaded = load_model(
        model,
        batch=None if asked is None else batch,  # the file's own, as it was compiled
        weights=weights,
        seed=source.get("seed", 0),
        trust=trust,
        input_shapes=source.get("input_shapes"),
    ).at_batch(batch)
    for key in ("name", "sha256", "weights"):
        if source.get(key) != loaded.source.get(key):
            raise ModelError(
                f"the artifact was made from another model: {key} is {source.get(key)} there and "
                f"{loaded.source.get(key)} here; give the same model and weights"
            )
    return loaded


def verify(
    artifact: Artifact,
    model: Model,
    *,
    layers: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run every check on this machine's device; of several buckets, on that of the model's batch.

    Args:
        model: what the artifact was compiled from (`load_source`).
        layers: also each convolution alone.
    Raises:
        InputError: the artifact has no bucket for the model's batch.
    """
    runner = artifact.load()
    return _verify(_bucket(runner, model.batch), _truth(artifact), model, layers, progress)


def verify_buckets(
    artifact: Artifact,
    model: Model,
    sizes: Sequence[int] | None = None,
    *,
    layers: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Report]:
    """`verify` for each bucket of an artifact whose batch varies, or those of `sizes`."""
    runner, truth, reports = artifact.load(), _truth(artifact), []
    for size in runner.batches.sizes if sizes is None else sizes:
        progress(f"batch {size}")
        bucket = _bucket(runner, size)
        reports.append(_verify(bucket, truth, model.at_batch(size), layers, progress))
    return reports


def _bucket(runner: Runner | BatchRunner, batch: int) -> Runner:
    if isinstance(runner, Runner):
        return runner
    if batch not in runner.batches.sizes:
        raise InputError(
            f"there is no bucket for a batch of {batch}: there are "
            f"{', '.join(map(str, runner.batches.sizes))}"
        )
    return runner.at(batch)


def _verify(
    runner: Runner, truth: Conv, model: Model, layers: bool, progress: Callable[[str], None]
) -> Report:
    rng = np.random.default_rng(_SEED)
    inputs = [random_input(rng, t.shape, t.dtype) for t in model.inputs]
    missing: list[str] = []
    results: list[LayerResult] = []
    with _noted(missing, "each convolution alone"):
        results = _check_layers(runner, model, inputs, truth, progress) if layers else []
    outputs = _outputs(runner, inputs)
    padding = _padding_unseen(runner, inputs, outputs) if runner.module["batch"] else None
    own = _by_own_framework(model, inputs, outputs, missing, progress)
    convs = [
        (ConvSpec.from_key(layer["spec"]), layer["algorithm"], layer.get("math"))
        for layer in runner.module["layers"]
    ]
    limit, granted = network_ratio(convs), long_sums(convs)
    peer, conv = _peer()
    with _noted(missing, "the network in float64"):
        progress("network in float64")
        want = evaluate(model.mod, model.params, inputs, conv=truth)
        progress("network in direct float32")
        theirs = evaluate(model.mod, model.params, inputs, dtype="float32", conv=conv)
        errors = _worst(outputs, want), peer, _worst(theirs, want)
        imported = None if own is None else _worst(own, want)
        name = runner.module["name"]
        return Report(name, *errors, limit, results, padding, imported, missing, granted)
    return _against_framework(runner.module["name"], outputs, own, results, padding, missing)


@contextmanager
def _noted(missing: list[str], what: str) -> Iterator[None]:
    """What cannot be evaluated is noted as not compared."""
    try:
        yield
    except UnsupportedError as error:
        missing.append(f"{what}: {error}")


def _by_own_framework(
    model: Model,
    inputs: list[np.ndarray],
    outputs: list[np.ndarray],
    missing: list[str],
    progress: Callable[[str], None],
) -> list[np.ndarray] | None:
    """What the model's own framework computes: an importer may misread an operator silently.

    Raises:
        ModelError: outputs of other shapes.
    """
    if model.original is None:
        return None
    progress("network by its own framework")
    with _noted(missing, "the network by its own framework"):
        theirs = model.original(inputs)
        shapes = [a.shape for a in theirs], [a.shape for a in outputs]
        if shapes[0] != shapes[1]:
            raise ModelError(
                f"outputs of {shapes[0]} were imported as {shapes[1]}: an importer's fault"
            )
        return theirs
    return None


def _against_framework(
    name: str,
    outputs: list[np.ndarray],
    own: list[np.ndarray] | None,
    results: list[LayerResult],
    padding: bool | None,
    missing: list[str],
) -> Report:
    """The report of a network that has no float64 truth: it may fail, and is never ok."""
    if own is None:
        return Report(name, 0.0, "nothing", 0.0, 1.0, results, padding, None, missing)
    error = _worst(outputs, own)
    return Report(
        name, error, "its own framework", 0.0, IMPORT_RATIO, results, padding, None, missing
    )


def _outputs(runner: Runner, inputs: list[np.ndarray]) -> list[np.ndarray]:
    got = runner.run(*inputs)
    return list(got) if isinstance(got, tuple) else [got]


def _padding_unseen(runner: Runner, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> bool:
    """Whether fewer images come out with the same bits as in a full batch, NaN lying behind them
    where the bucket is padded."""
    size = runner.module["batch"]
    if size > 1:
        _outputs(runner, [_others(x[1:]) for x in inputs])
    for rows in dict.fromkeys((1, max(size - 1, 1))):
        fewer = _outputs(runner, [x[:rows] for x in inputs])
        if not all(np.array_equal(f, o[:rows]) for f, o in zip(fewer, outputs, strict=True)):
            return False
    return True


def _others(x: np.ndarray) -> np.ndarray:
    """What no result may depend on: NaN, or the images in another order."""
    return np.full_like(x, np.nan) if x.dtype.kind == "f" else np.ascontiguousarray(x[::-1])


def _worst(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    return max(_error(g, w) for g, w in zip(got, want, strict=True))


def _error(got: np.ndarray, want: np.ndarray) -> float:
    """Relative; of integers and truth values the share that differs, of which a few are no error:
    rounding may turn the larger of two nearly equal numbers."""
    if got.dtype.kind == "f":
        return reference.relative_error(got, want)
    share = float(np.mean(got != want))
    return share if share > _TURNED else 0.0


def _truth(artifact: Artifact) -> Conv:
    """The float64 convolution: torch's on the GPU where a GPU is used anyway, else numpy's."""
    if artifact.manifest["target"] == "cuda" and peers.has_torch_cuda():
        return peers.cuda_conv64
    return reference.conv2d


def _peer() -> tuple[str, Any]:
    try:
        peers.torch_conv(ConvSpec(1, 1, 3, 3, 1), np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 3, 3)))
    except UnsupportedError:
        return "numpy direct float32", None
    return "torch direct float32", peers.torch_conv


def _check_layers(
    runner: Any,
    model: Model,
    inputs: list[np.ndarray],
    truth: Conv,
    progress: Callable[[str], None],
) -> list[LayerResult]:
    """Each convolution of the network as it is lowered, on its real input rounded to its dtype."""
    layout = runner.module["layout"]
    if layout is None:
        return []
    mod, params = network_in(model.mod, model.params, layout["chosen"])
    entries = {layer["name"]: layer for layer in runner.module["layers"]}
    results = []

    def on_conv(index: int, name: str, spec: ConvSpec, x: Any, w: Any, y: Any) -> None:
        entry = entries[name]
        progress(f"layer {name}")
        data = x.astype(spec.dtype)
        want = truth(spec, data, w)
        got = bare_convolution(runner, entry, data, w, want)
        error = reference.relative_error(got, want)
        algorithm, math = entry["algorithm"], entry.get("math")  # old artifacts have none
        results.append(LayerResult(name, algorithm, error, tolerance(spec, algorithm, math)))

    evaluate(mod, params, inputs, conv=truth, on_conv=on_conv)
    return results


def bare_convolution(
    runner: Any, layer: dict[str, Any], data: np.ndarray, w: np.ndarray, want: np.ndarray
) -> np.ndarray:
    """The layer's function as deployed, its epilogue undone: no bias, residual or activation.

    Args:
        w: its weights, used only where the network computes them (no packed ones are deployed).
        want: the right result in float64.
    """
    spec, epilogue = ConvSpec.from_key(layer["spec"]), Epilogue.from_key(layer["epilogue"])
    prefix = f"{layer['name']}.packed."
    deployed = [value for name, value in runner.params.items() if name.startswith(prefix)]
    packed = deployed[0] if deployed else _pack(spec, layer, w)
    rest = [np.zeros((spec.k,), spec.acc)] * epilogue.bias
    rest += [np.zeros(spec.output_shape, spec.out_dtype)] * epilogue.residual

    def call(x: np.ndarray) -> np.ndarray:
        given = [x, packed, *rest, *_peaks(x, layer.get("peaks", ()))]
        return runner.call_function(layer["function"], given, spec.output_shape, spec.out_dtype)

    if epilogue.applied is None:
        return call(data)
    scaled = Deployed(lambda scale: call(data * data.dtype.type(scale)), want)
    return epilogue.applied.undo(scaled)


def _peaks(x: np.ndarray, wanted: Sequence[str]) -> list[np.ndarray]:
    """max|x| of each image, as bits, where it is given; zeros to raise where it is written."""
    found = {
        "given": np.abs(x).reshape(len(x), -1).max(1).astype("float32").view("uint32"),
        "written": np.zeros(len(x), "uint32"),
    }
    return [found[name] for name in wanted]


def _pack(spec: ConvSpec, layer: dict[str, Any], w: np.ndarray) -> np.ndarray:
    kernel = next(k for k in KERNELS if k.name == layer["kernel"])
    weights = w.astype(spec.dtype)
    return kernel.pack_weights(weights, spec, kernel.make_config(layer["config"]))
