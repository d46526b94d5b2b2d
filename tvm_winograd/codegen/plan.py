"""A scheduled network as TVM's virtual machine runs it: memory planned, kernels in a CUDA graph.

The graph holds every kernel between the first, which reads the caller's input, and the last, which
writes a new output: all that uses planned memory and parameters only. TVM captures it on the first
call and replays it afterwards, with the addresses of that call: planned memory stays where it is,
and so must the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CAPTURED = "_cuda_graph_capture"  # how TVM ends the name of a function that it captures


@dataclass(frozen=True)
class Graph:
    """What a network's CUDA graphs hold; in calls of PrimFuncs, of which one may be many kernels.

    One graph is the rule: each further use of an input, and each further output, begins another.
    """

    regions: int
    captured: int  # calls inside
    launched: int  # calls outside


@dataclass(frozen=True)
class Plan:
    """A network whose Relax functions are lowered, as `build.build` takes it.

    Attributes:
        planned_bytes: memory for activations and workspaces together, shared by all layers;
            parameters, inputs and outputs come on top.
        graph: None without CUDA graphs.
    """

    mod: Any
    planned_bytes: int
    graph: Graph | None = None


def plan_network(mod: Any, target: Any, *, cuda_graph: bool = False) -> Plan:
    """Lowers the Relax functions of `mod`, legalised and scheduled, for the virtual machine.

    Args:
        cuda_graph: capture what can be captured; for a CUDA target.
    """
    import tvm

    config = {"relax.backend.use_cuda_graph": cuda_graph}
    with target, tvm.transform.PassContext(opt_level=3, config=config):
        planned = tvm.transform.Sequential(_planning_passes())(mod)
        captured = tvm.relax.transform.RewriteCUDAGraph()(planned)
        final = tvm.transform.Sequential(_lowering_passes())(captured)
    return Plan(final, planned_bytes(planned), _graph(captured) if cuda_graph else None)


def _planning_passes() -> list[Any]:
    from tvm import relax

    return [
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
    ]


def _lowering_passes() -> list[Any]:
    from tvm import relax

    return [
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]


def _calls(func: Any) -> list[Any]:
    """Every call of a Relax function's body."""
    from tvm import relax

    found: list[Any] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call):
            found.append(expr)

    relax.analysis.post_order_visit(func, visit)
    return found


def _relax_calls(mod: Any) -> dict[str, list[Any]]:
    from tvm import relax

    funcs = mod.functions_items()
    return {g.name_hint: _calls(f) for g, f in funcs if isinstance(f, relax.Function)}


def planned_bytes(mod: Any) -> int:
    """Of a module behind StaticPlanBlockMemory: its storages together."""
    import tvm

    alloc = tvm.ir.Op.get("relax.memory.alloc_storage")
    calls = [call for calls in _relax_calls(mod).values() for call in calls]
    return sum(int(call.args[0].values[0]) for call in calls if call.op == alloc)


def _graph(mod: Any) -> Graph:
    import tvm

    counts = {
        name: sum(isinstance(call.op, tvm.ir.GlobalVar) for call in calls)
        for name, calls in _relax_calls(mod).items()
    }
    inside = [count for name, count in counts.items() if _CAPTURED in name]
    return Graph(len(inside), sum(inside), sum(counts.values()) - sum(inside))
