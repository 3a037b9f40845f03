"""Inline CUDA functions whose Python equivalents a reader has registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import numerics
from mlsys_gpu.sim.machine.core import op
from mlsys_gpu.sim.program import Unsupported

#: Python functions by the names of the inline CUDA functions that they stand for.
FUNCTIONS: dict[str, Callable[..., Any]] = {}


def register(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """See :func:`mlsys_gpu.sim.inline`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[name] = function
        return function

    return decorate


def unregistered(name: str) -> str:
    """What is said where a function has no Python equivalent in this process."""
    return (
        f"the simulator does not model the inline CUDA function {name}, for which no Python "
        "equivalent is registered (mlsys_gpu.sim.inline registers one)"
    )


@op
def inline_call(name: str, dtypes: tuple[str, ...], into: str, *values):
    """What a registered function returns, as registers hold a value of the dtype ``into``."""
    given = []
    for value, dtype in zip(values, dtypes, strict=True):
        if dtype == "bfloat16":
            given.append(numerics.bf16_to_f32(value)[()])
        else:
            given.append(np.asarray(value).astype(numerics.STORAGE[dtype])[()])
    many = any(np.ndim(x) for x in given)
    if name not in FUNCTIONS:
        raise Unsupported(unregistered(name))
    found = np.asarray(FUNCTIONS[name](*given))
    if many:
        found = np.broadcast_to(found, np.broadcast_shapes(*(np.shape(x) for x in given)))
    if into == "bfloat16":
        return numerics.f32_to_bf16(found.astype(np.float32))[()]
    typed = found.astype(numerics.STORAGE[into])
    if typed.dtype.kind in "iu" and into != "uint64":
        return typed.astype(np.int64) if many else int(typed)
    return typed if many else typed[()]
