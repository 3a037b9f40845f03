"""Warps written by hand: programs for the machine alone, without a front half.

A body is Python that each warp runs, with the machine's operations in scope. ``await f(…)`` waits
where ``f`` says so. Line *n* of the body is the source line that findings name.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import run as run_machine
from mlsys_gpu.sim.program import Program
from mlsys_gpu.sim.report import Report

FILE = "warps.txt"


def program(
    body: str,
    *,
    threads: int = 32,
    grid: tuple[int, int, int] = (1, 1, 1),
    cluster: tuple[int, int, int] = (1, 1, 1),
    shared: int = 1024,
    tensors: Sequence[tuple[str, np.ndarray]] = (),
    regions: Sequence[Sequence[Any]] = (),
    maps: Sequence[dict[str, Any]] = (),
) -> Program:
    """The Program of a body; ``tensors`` are its parameters, at ``w.machine.pointers``.

    ``maps``: tensor maps on them, behind them there; what a record leaves out is the plainest.
    """
    lines = textwrap.dedent(body).strip("\n").splitlines()
    source = ["def kernel(w):", "    SB = w.base + 1024"]
    for number, line in enumerate(lines, 1):
        text = line.strip()
        indent = "    " + line[: len(line) - len(line.lstrip())]
        if not text:
            continue
        if not re.match(r"(elif|else|except|finally)\b", text):
            source.append(f"{indent}w.s = {number}")
        waits = re.match(r"await (.*)", text)
        if waits:
            source += [f"{indent}t = {waits[1]}", f"{indent}if t is not None: yield t"]
        else:
            source.append(indent + text)
    source += ["    return", "    yield"]
    return Program(
        name="warps",
        arch="sm_100a",
        source="\n".join(source) + "\n",
        launch={
            "grid": list(grid),
            "block": [threads, 1, 1],
            "cluster": list(cluster),
            "threads": threads,
            "shared_bytes": shared,
        },
        params=[[name, list(array.shape), array.dtype.name] for name, array in tensors],
        arguments=[
            *(["tensor", i, 0] for i in range(len(tensors))),
            *(["map", i] for i in range(len(maps))),
        ],
        maps=[_map(record, tensors) for record in maps],
        sites=[[]] + [[[FILE, n]] for n in range(1, len(lines) + 1)],
        regions=[list(region) for region in regions],
        texts={FILE: {str(n): line for n, line in enumerate(lines, 1)}},
    )


def _map(record: dict[str, Any], tensors: Sequence[tuple[str, np.ndarray]]) -> dict[str, Any]:
    array = tensors[record.get("tensor", 0)][1]
    rank = len(record["box"])
    strides = list(array.strides)[-2::-1] if array.ndim > 1 else []
    plain = {
        "tensor": 0, "offset": 0, "dtype": array.dtype.name, "shape": list(array.shape)[::-1],
        "strides": strides, "steps": [1] * rank, "interleave": 0, "swizzle": 0, "fill": 0,
        "format": -1,
    }  # fmt: skip
    return plain | record


def run(
    body: str,
    schedule: str = "lazy",
    seed: int = 0,
    checks: bool = True,
    readings: dict[str, str] | None = None,
    **launch: Any,
) -> Any:
    """Run a body and return its Report.

    What the body leaves in ``w.machine.counters``, of any type, is the report's ``counters``.
    """
    made = program(body, **launch)
    arrays = [array for _, array in launch.get("tensors", ())]
    return run_machine(made, arrays, schedule=schedule, seed=seed, checks=checks, readings=readings)


def only(report: Report) -> Any:
    """The one finding of a report."""
    assert len(report.findings) == 1, report
    return report.findings[0]
