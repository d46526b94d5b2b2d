"""ONNX files as Models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..deploy.manifest import sha256
from ..errors import ModelError, UnsupportedError
from .model import IMPORT_ERRORS, Model, Sizes, file_source, make_model, refused, tidy

if TYPE_CHECKING:
    from .onnx_graph import Static


def load_onnx(
    path: Path, batch: int | None = None, given: Mapping[str, Any] | None = None
) -> Model:
    """The network of an .onnx file; parameters are named as its initializers.

    Args:
        batch: replaces the leading dimension of every input; without it a dynamic one becomes 1.
        given: other dynamic sizes (see model.Sizes).
    Raises:
        ModelError: a corrupt file, unsupported operators (all named), dynamic sizes other than
            the batch, a dtype other than float32.
    """
    proto = _read(path)
    from .onnx_checks import check_file, check_outputs
    from .onnx_graph import prepare

    sizes, checked = Sizes(batch, given or {}), check_file(proto, path)
    try:
        prepared = prepare(checked, sizes)
        mod, arrays = _import(prepared, path.name)
    except ModelError as error:
        if batch is not None and _takes_its_own_batch(checked, path.name, given):
            raise ModelError(
                f"batch={batch}: the file fixes its batch inside the graph; export it with a "
                f"dynamic batch ({error})"
            ) from error
        raise
    mod, params = tidy(mod, arrays)
    source = {**file_source("onnx", path), **_external(proto, path), **sizes.described()}
    loaded = make_model(
        path.stem,
        mod,
        params,
        source,
        input_names=[i.name for i in prepared.model.graph.input],
        output_names=[o.name for o in prepared.model.graph.output],
        rebuild=lambda other: load_onnx(path, other, given).mod,
    )
    source["batch"] = loaded.batch
    _check_batch(loaded, batch)
    names = [i.name for i in prepared.model.graph.input]
    return replace(
        loaded,
        original=lambda inputs: _run(proto, dict(zip(names, inputs, strict=True))),
        notes=check_outputs(proto, batch, loaded.outputs),
    )


def _run(proto: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The graph's outputs: by onnxruntime where it is installed and takes the graph, else by
    onnx's own evaluator.

    Raises:
        UnsupportedError: neither can.
    """
    try:
        return _by_onnxruntime(proto, inputs)
    except UnsupportedError as error:
        first = error
    from onnx.reference import ReferenceEvaluator

    from .onnx_reference import corrections, overlooked

    if wrong := overlooked(proto):
        raise UnsupportedError(f"onnx.reference does not look at all of {wrong[0]}; {first}")
    try:
        new_ops = corrections(proto.opset_import)
        outputs = ReferenceEvaluator(proto, new_ops=new_ops).run(None, inputs)
    except Exception as error:  # an operator of its may raise anything
        raise UnsupportedError(
            f"onnx.reference cannot run it ({type(error).__name__}: {error}); {first}"
        ) from error
    return [np.asarray(value) for value in outputs]


def _by_onnxruntime(proto: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs as the file says them, no node rewritten.

    Raises:
        UnsupportedError: it is not installed, or does not take the graph.
    """
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError as error:
        raise UnsupportedError("pip install 'tvm-winograd[verify]' for onnxruntime") from error
    # its errors have no base of their own
    own = [e for e in vars(state).values() if isinstance(e, type) and issubclass(e, Exception)]
    refused: tuple[type[Exception], ...] = (RuntimeError, ValueError, *own)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        model, providers = proto.SerializeToString(), ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(model, options, providers=providers)
        return [np.asarray(value) for value in session.run(None, inputs)]
    except refused as error:
        raise UnsupportedError(f"onnxruntime does not take it: {str(error)[:200]}") from error


def _read(path: Path) -> Any:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise ModelError(
            "reading an .onnx file needs onnx: pip install 'tvm-winograd[onnx]'"
        ) from error
    try:
        proto = onnx.load(path)
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError) as error:
        raise ModelError(f"{path.name} is not a readable ONNX file: {error}") from error
    if not proto.graph.node or not proto.graph.output:
        raise ModelError(f"{path.name} is not a readable ONNX file: it holds no graph")
    return proto


def _import(static: Static, file: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The relax module, and the initializers in the order of its last arguments."""
    from onnx import numpy_helper

    from .onnx_import import import_graph

    try:
        mod = import_graph(static.model, static.constants)
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from error
    except IMPORT_ERRORS as error:
        raise refused(file, error) from error
    mod["main"] = mod["main"].without_attr("params")
    arrays = {i.name: numpy_helper.to_array(i) for i in static.model.graph.initializer}
    return mod, arrays


def _takes_its_own_batch(proto: Any, file: str, given: Mapping[str, Any] | None) -> bool:
    from .onnx_graph import prepare

    try:
        _import(prepare(proto, Sizes(None, given or {})), file)
    except ModelError:
        return False
    return True


def _external(proto: Any, path: Path) -> dict[str, Any]:
    """Digests of the files that hold weights outside the .onnx file."""
    import onnx

    bare = onnx.load(path, load_external_data=False)
    files = {
        entry.value
        for tensor in bare.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    if not files:
        return {}
    return {"external": {name: sha256(path.parent / name) for name in sorted(files)}}


def _check_batch(model: Model, batch: int | None) -> None:
    """A batch frozen inside the graph (a Reshape to a fixed shape) shows at the outputs."""
    wrong = [o for o in model.outputs if batch and o.shape[:1] != (batch,)]
    if wrong:
        raise ModelError(
            f"batch={batch}: output {wrong[0].name!r} has the shape {wrong[0].shape}: the file "
            "fixes its batch inside the graph; export it with a dynamic batch"
        )
