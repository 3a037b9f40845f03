"""The back half: runs a :class:`~mlsys_gpu.sim.program.Program` with NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_gpu.sim.arguments import bind
from mlsys_gpu.sim.machine import (  # noqa: F401
    access,
    arith,
    async_copies,
    atomics,
    barriers,
    bulk,
    clc,
    compute,
    convert,
    inline,
    integers,
    lanes,
    memory,
    mma,
    order,
    registers,
    rendezvous,
    tcgen05,
    wgmma,
)
from mlsys_gpu.sim.machine.clocks import BARRIERS
from mlsys_gpu.sim.machine.core import OPS, READINGS, MoreBarriers, execute
from mlsys_gpu.sim.machine.formats import STORED
from mlsys_gpu.sim.machine.numerics import STORAGE
from mlsys_gpu.sim.program import Program
from mlsys_gpu.sim.report import Report

__all__ = ["OPS", "READINGS", "SCHEDULES", "run"]

SCHEDULES = ("eager", "lazy", "seeded")


def check_options(schedule: Any, seed: Any, readings: Any) -> None:
    """Raise ``ValueError`` for an option of a run that is none, naming it and what it may be."""
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule is one of {', '.join(SCHEDULES)}, not {schedule!r}")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"schedule_seed is a non-negative integer, not {seed!r}")
    if readings is not None and not isinstance(readings, dict):
        raise ValueError(f"readings is a dict, as {{'wgmma-wait': 'warp'}}, not {readings!r}")
    for rule, choice in (readings or {}).items():
        if choice not in READINGS.get(rule, ()):
            known = "; ".join(f"{name}: {', '.join(r)}" for name, r in READINGS.items())
            raise ValueError(f"no reading {rule}={choice!r}; there are {known}")


def run(
    program: Program,
    arrays: Any,
    *,
    schedule: str,
    seed: int,
    checks: bool,
    readings: dict[str, str] | None = None,
    watch: Any = None,
    timing: Any = None,
) -> Report:
    """Run ``program`` on host arrays, in place. ``watch``: a debugger, told of what happens.
    ``timing``: makes a recorder (:mod:`.recording`), for a timed run.

    Raises ``ValueError`` or ``TypeError`` where an array does not fit its parameter, before
    anything runs; the message names the parameter, what it takes and what it was given.
    """
    check_options(schedule, seed, readings)
    called = (program, list(arrays), readings)
    program, arrays = bind(program, arrays)
    if len(arrays) != len(program.params):
        names = ", ".join(name for name, _, _ in program.params)
        raise TypeError(
            f"{program.name} takes {len(program.params)} tensors ({names}), {len(arrays)} given"
        )
    hosts = [host_array(array, *param) for array, param in zip(arrays, program.params, strict=True)]
    # for mbarriers in the clocks; a debugger's run cannot begin anew
    room = BARRIERS if watch is None else 16 * BARRIERS
    while True:
        tensors = [
            memory.Tensor(i, name, host, np.dtype(STORAGE[dtype]).itemsize, shape, program.grain)
            for i, (host, (name, shape, dtype)) in enumerate(
                zip(hosts, program.params, strict=True)
            )
        ]
        try:
            report = execute(
                program, tensors, schedule, seed, checks, readings, watch, room, timing
            )
            break
        except MoreBarriers:
            room *= 2
    report._again = called
    for host, tensor in zip(hosts, tensors, strict=True):
        if tensor.written:
            if not host.flags.writeable:
                raise ValueError(f"{tensor.name} is an output, and its array is read-only")
            flat = host.reshape(-1).view(np.uint8)
            flat[:] = tensor.data[: tensor.nbytes]
    return report


def host_array(array: Any, name: str, shape, dtype: str) -> np.ndarray:
    """A NumPy view of a host array (NumPy, or torch on the CPU), in the storage of ``dtype``."""
    if dtype not in STORAGE:
        raise TypeError(f"{name} has dtype {dtype}, which the simulator does not store")
    storage = np.dtype(STORAGE[dtype])
    if type(array).__module__.split(".")[0] == "torch":
        if array.device.type != "cpu":
            raise ValueError(
                f"{name} lies on {array.device}: the simulator takes CPU tensors ({name}.cpu())"
            )
        given = str(array.dtype).removeprefix("torch.")
        if given != dtype:
            raise TypeError(f"{name} is {given}; the kernel takes {dtype}")
        if not array.is_contiguous():
            raise ValueError(f"{name} is not contiguous: pass {name}.contiguous()")
        import torch

        view = array.detach()
        bits = {"bfloat16": torch.int16, **dict.fromkeys(STORED, torch.uint8)}.get(dtype)
        host = (view if bits is None else view.view(bits)).numpy().view(storage)
    elif isinstance(array, np.ndarray):
        given = array.dtype.name
        if given != dtype and not (storage.name == given and dtype in ("bfloat16", *STORED)):
            raise TypeError(f"{name} is {given}; the kernel takes {dtype}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not C-contiguous: pass np.ascontiguousarray({name})")
        host = array.view(storage) if given != storage.name else array
    else:
        raise TypeError(
            f"{name} is a {type(array).__name__}; the simulator takes NumPy arrays and torch "
            "tensors"
        )
    if tuple(host.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(host.shape)}; the kernel takes {tuple(shape)}")
    return host
