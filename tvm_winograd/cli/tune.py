"""tvm-winograd tune MODEL|SHAPES"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, UnsupportedError
from .common import MODEL_HELP, add_model_options, input_shapes_of, print_json, print_table

if TYPE_CHECKING:
    from ..gpu import Hardware
    from ..tuning.loop import Outcome
    from ..tuning.tasks import Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subject",
        metavar="MODEL|SHAPES",
        nargs="+",
        help=f"{MODEL_HELP}; or convolutions, SPEC[:EPILOGUE], as `show` and tables write them",
    )
    add_model_options(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of tables")
    parser.add_argument(
        "--trials", type=int, default=64, help="configs measured per convolution (default 64)"
    )
    parser.add_argument("--per-batch", type=int, default=16, help=argparse.SUPPRESS)
    parser.add_argument("--mock", action="store_true", help="made-up times, no device: for tests")
    parser.add_argument("--mock-seconds", type=float, default=0.0, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    from ..conv import hardware_for
    from ..measure import provenance
    from ..tuning.loop import Settings, tune
    from ..tuning.progress import Shown
    from ..tuning.runner import LocalRunner, MockRunner, Runner

    if args.trials < 1 or args.per_batch < 1:
        raise InputError(f"--trials {args.trials}: a positive number is needed")
    hardware = hardware_for(args.target, args.arch)
    made = provenance.collect(hardware, mock=args.mock)
    tasks = _tasks(args, hardware)
    runner: Runner = MockRunner(args.mock_seconds) if args.mock else LocalRunner(hardware)
    out, settings = Path(args.out), Settings(args.trials, args.per_batch)
    try:
        with Shown() as watcher:
            outcomes = tune(tasks, hardware, runner, made, out, settings, watcher)
    finally:
        runner.close()
    if args.json:
        print_json({"gpu": made.gpu, "out": str(out), "tasks": [o.as_dict() for o in outcomes]})
    else:
        _print(outcomes)
    return 0 if all(o.best for o in outcomes) else 1


def _tasks(args: argparse.Namespace, hardware: Hardware) -> list[Task]:
    from ..choose.select import candidates
    from ..frontend import load_model
    from ..tuning.tasks import is_shape, model_tasks, shape_tasks

    if len(args.subject) > 1 or is_shape(args.subject[0]):
        tasks = shape_tasks(args.subject, args.batch)
    else:
        model = load_model(
            args.subject[0],
            batch=args.batch,
            weights=args.weights,
            trust=args.trust,
            input_shapes=input_shapes_of(args),
        )
        tasks = model_tasks(model, hardware)
    tunable = [
        task
        for task in tasks
        if any(k.schedule for k in candidates(task.spec, task.epilogue, hardware)[0])
    ]
    if not tunable:
        raise UnsupportedError(
            f"no kernel of ours with configs to choose from computes these on {hardware.arch}"
        )
    return tunable


def _print(outcomes: list[Outcome]) -> None:
    rows = [_row(outcome) for outcome in outcomes]
    columns = ["convolution", "epilogue", "kernel", "us", "default", "measured", "failed"]
    print_table(f"{len(rows)} convolutions", columns, rows)


def _row(outcome: Outcome) -> list[Any]:
    best, default = outcome.best, outcome.default_us
    return [
        outcome.spec,
        outcome.epilogue,
        best.kernel if best else "none",
        f"{best.us:.1f}" if best else "",
        f"{default:.1f}" if default else "",
        f"{outcome.measured} + {outcome.resumed}",
        ", ".join(f"{count} {reason}" for reason, count in outcome.failures.items()),
    ]
