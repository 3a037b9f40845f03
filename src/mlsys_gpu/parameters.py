"""What a kernel takes: tensors, scalars, tensor maps and raw pointers, and the values they get.

A dimension that a kernel leaves open is an expression in the names of its symbolic dimensions and
scalar parameters (``m``, ``2 * n``): Python source, so that it can lie in a file beside a
translated kernel. Values for the names come from the arguments of a call. Nothing here needs TVM.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

#: ``Param.dtype`` of a tensor map, and of a pointer to something whose extent is not declared.
TENSOR_MAP, POINTER = "tensormap", "handle"


class ArgumentError(ValueError):
    """An argument that the kernel cannot take; the sentence names the value and the rule."""


@dataclass(frozen=True)
class Param:
    """One kernel parameter.

    ``shape``: for a tensor in global memory its elements, each a number or an expression in the
    names of symbolic dimensions; None for everything else. ``dtype``: as TVM spells it
    (``float16``, ``bfloat16``, …), or :data:`TENSOR_MAP`, or :data:`POINTER`. ``workspace``: a
    tensor of the kernel's own, which holds zeros when a launch starts and when it has ended; who
    launches need not know of it.
    """

    name: str
    shape: tuple[int | str, ...] | None
    dtype: str
    workspace: bool = False

    @property
    def kind(self) -> str:
        """``tensor``, ``map``, ``pointer`` or ``scalar``."""
        if self.shape is not None:
            return "tensor"
        return {TENSOR_MAP: "map", POINTER: "pointer"}.get(self.dtype, "scalar")

    @property
    def symbolic(self) -> bool:
        """Whether the shape depends on the call."""
        return any(isinstance(d, str) for d in self.shape or ())


# ------------------------------------------------------------------------------------- expressions


def truncated(a: int, b: int) -> int:
    """C's integer division."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def wrapped(value: Any, bits: int, signed: bool) -> int:
    """A number as an integer of ``bits`` bits."""
    value = int(value) & ((1 << bits) - 1)
    return value - (1 << bits) if signed and value >> (bits - 1) else value


@lru_cache(maxsize=4096)
def _compiled(source: str) -> Any:
    return compile(source, "<host expression>", "eval")


def evaluate(expression: Any, values: dict[str, Any]) -> Any:
    """The value of an expression (a number is its own)."""
    if not isinstance(expression, str):
        return expression
    import numpy as np

    functions = {
        "__builtins__": {}, "min": min, "max": max, "abs": abs, "bool": bool,
        "truncated": truncated, "wrapped": wrapped, "float32": np.float32, "float64": np.float64,
        "float16": np.float16,
    }  # fmt: skip
    return eval(_compiled(expression), functions, values)


def names(expression: Any) -> tuple[str, ...]:
    """Names that an expression needs values for."""
    if not isinstance(expression, str):
        return ()
    known = ("min", "max", "abs", "bool", "truncated", "wrapped", "float16", "float32", "float64")
    return tuple(n for n in _compiled(expression).co_names if n not in known)


# ------------------------------------------------------------------------------------------ values


def scalar(value: Any, dtype: str, label: str) -> Any:
    """A scalar argument as its dtype: a Python int or bool, or a NumPy float.

    Takes Python's and NumPy's numbers and arrays of no dimension.

    Raises:
        ArgumentError: no number, a fraction for an integer, or a number out of range.
    """
    import numpy as np

    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise ArgumentError(f"{label} is {_what(value)}, but must be a number ({dtype})")
    if dtype.startswith("float"):
        return getattr(np, dtype)(value)
    if dtype == "bfloat16":
        from mlsys_gpu.sim.machine.numerics import f32_to_bf16

        return f32_to_bf16(np.float32(value))
    if not isinstance(value, numbers.Integral):
        raise ArgumentError(f"{label} is {value!r}, but must be an integer ({dtype})")
    whole = int(value)
    if dtype == "bool":
        return bool(whole)
    signed, bits = dtype.startswith("int"), int(dtype.lstrip("uint"))
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    if not low <= whole <= high:
        raise ArgumentError(f"{label} is {whole}, which {dtype} cannot hold ({low} to {high})")
    return whole


def _what(value: Any) -> str:
    if value is None:
        return "None"
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def match(
    params: Sequence[Param], shapes: Sequence[tuple[int, ...] | None], scalars: dict[str, Any]
) -> dict[str, int]:
    """Values of all symbolic dimensions, from the arrays' shapes; scalar parameters are in it too.

    ``shapes`` holds one shape for each parameter (None where it is no tensor).

    Raises:
        ArgumentError: a rank or a size that does not fit, naming where the expected one came from.
    """
    values: dict[str, Any] = dict(scalars)
    origin = dict.fromkeys(scalars, "an argument")
    for param, shape in zip(params, shapes, strict=True):
        if param.shape is None or shape is None:
            continue
        if len(shape) != len(param.shape):
            raise ArgumentError(_misfit(param, shape, values))
        for i, (dim, size) in enumerate(zip(param.shape, shape, strict=True)):
            if isinstance(dim, str) and dim.isidentifier() and dim not in values:
                values[dim], origin[dim] = int(size), f"{param.name}.shape[{i}]"
    for param, shape in zip(params, shapes, strict=True):
        if param.shape is None or shape is None:
            continue
        for dim, size in zip(param.shape, shape, strict=True):
            unknown = [n for n in names(dim) if n not in values]
            if unknown:
                raise ArgumentError(
                    f"{param.name} has the dimension {dim}, and no argument gives {unknown[0]}"
                )
            if evaluate(dim, values) != size:
                why = [f"{n} = {values[n]} from {origin[n]}" for n in names(dim)]
                raise ArgumentError(_misfit(param, shape, values, why))
    return values


def _misfit(
    param: Param, shape: tuple[int, ...], values: dict[str, Any], why: Sequence[str] = ()
) -> str:
    wanted = param.shape or ()
    known = [evaluate(d, values) if all(n in values for n in names(d)) else d for d in wanted]
    text = f"{param.name} has shape {shape_text(shape)}, but the kernel "
    text += "takes " if param.symbolic else "is built for "
    text += shape_text(wanted)
    if param.symbolic and list(wanted) != known:
        text += f", here {shape_text(known)}"
    return text + (f" ({', '.join(why)})" if why else "")


def shape_text(shape: Sequence[Any]) -> str:
    """A shape as Python prints a tuple, expressions without quotes."""
    inner = ", ".join(str(d) for d in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def within_limits(launch: dict[str, Any]) -> None:
    """Refuse a launch that no GPU of compute capability 9.0 or 10.0 accepts.

    ``launch``: ``grid``, ``block`` and ``cluster`` (x, y, z), ``shared_bytes``; sizes that are
    expressions are left to the call. Source: CUDA C++ Programming Guide, "Technical Specifications
    per Compute Capability"; 16 is the largest cluster, beyond the portable 8.

    Raises:
        ArgumentError: the first limit that is passed.
    """
    grid, block, cluster = launch["grid"], launch["block"], launch["cluster"]
    for what, size, most in (
        ("threads in a CTA", math.prod(block), 1024),
        ("threads of a CTA along z", block[2], 64),
        ("bytes of dynamic shared memory in a CTA", launch["shared_bytes"], 227 * 1024),
        ("CTAs in a cluster", math.prod(cluster), 16),
        ("CTAs of the grid along x", grid[0], (1 << 31) - 1),
        ("CTAs of the grid along y", grid[1], 65535),
        ("CTAs of the grid along z", grid[2], 65535),
    ):
        if not isinstance(size, str) and size > most:
            raise ArgumentError(f"the kernel has {size:,} {what}; a GPU launches at most {most:,}")
    for axis, extent, of in zip("xyz", grid, cluster, strict=True):
        if isinstance(extent, str):
            continue
        if extent < 1:
            raise ArgumentError(f"the grid has {extent} CTAs along {axis}; a launch needs one")
        if extent % of:
            raise ArgumentError(
                f"the grid has {extent} CTAs along {axis}, which clusters of {of} do not divide"
            )
