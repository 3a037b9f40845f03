"""TIRx layouts in NumPy: where each element of a logical tile lies.

A layout is the dictionary that :func:`mlsys_gpu.lowering.layout_facts` makes, so that a Program
carries it and the machine half needs no TVM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def places(layout: dict[str, Any] | None, shape: Sequence[int]) -> dict[str, np.ndarray]:
    """For every axis of a layout the places of all elements of a tile, as arrays of ``shape``.

    ``layout`` None is row-major memory. The axis ``m`` counts elements of the buffer's dtype;
    others are named as in TIRx (``TLane`` and ``TCol`` of tensor memory, ``tid_in_wg``, …).
    Raises ``ValueError`` where the layout does not cover the shape. Source: TVM's TIRx Layout API.
    """
    flat = np.arange(math.prod(shape), dtype=np.int64).reshape(tuple(shape))
    if layout is None:
        return {"m": flat}
    covered = math.prod(extent for extent, _, _ in layout["shard"])
    if covered != flat.size:
        raise ValueError(f"the layout has {covered} elements, the buffer {flat.size}")
    found = {axis: np.full(flat.shape, start) for axis, start in layout["offset"].items()}
    rest = flat
    for extent, stride, axis in reversed(layout["shard"]):
        part, rest = rest % extent * stride, rest // extent
        found[axis] = found[axis] + part if axis in found else part
    if layout["swizzle"] is not None:
        per_element, length, atom, inner = layout["swizzle"]
        memory = found.get("m", np.zeros_like(flat))
        low, units = memory & ((1 << per_element) - 1), memory >> per_element
        bits = (1 << length) - 1
        units = units ^ (units >> atom & bits) if inner else units ^ (units & bits) << atom
        found["m"] = units << per_element | low
    return found


def swizzled(nbytes: int, width: int) -> np.ndarray:
    """Byte addresses of ``nbytes`` consecutive logical bytes under TMA's swizzle of ``width``
    bytes (0, 32, 64 or 128), from a start that the pattern's 8 · ``width`` bytes divide."""
    at = np.arange(nbytes, dtype=np.int64)
    return at ^ (at >> 3 & (width - 16)) if width else at
