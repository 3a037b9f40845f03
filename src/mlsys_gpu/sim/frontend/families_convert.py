"""Rows for PTX's conversions between number types (``cvt``)."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend import work
from mlsys_gpu.sim.frontend.families_math import (
    _arguments,
    _result,
    _sources,
    _spelt,
    _store,
    _typed,
    as_bits,
    dtype_of,
)
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import FLOATS, Value


def _flags_of(call: Any) -> str:
    return f"{bool(call.mods.get('relu'))}, {bool(call.mods.get('satfinite'))}"


@row("ptx.cvt", vectorizable=True)
def cvt(t: Any, call: Any) -> None:
    """Conversions; those that C's casts make too (to nearest even, or cut off) are made as such."""
    into, origin = call.mods["dtype"], call.mods["atype"]
    mode = call.mods.get("rnd") or ""
    target, (value,) = _sources(t, call)
    value = as_bits(t, value, dtype_of(origin))
    dtype = dtype_of(into)
    special = any(call.mods.get(m) for m in ("relu", "satfinite", "sat", "ftz"))
    to_float, from_float = dtype in FLOATS, value.dtype in FLOATS
    usual = "rn" if to_float else "rzi"
    wide_enough = to_float or not from_float or (into[1:] in ("32", "64") and origin != "f64")
    if mode in ("", usual) and not special and wide_enough and into != origin:
        _store(t, target, t.cast(value, dtype))
        return
    work.converted(t, into, origin, value)
    ftz, sat = (bool(call.mods.get(m)) for m in ("ftz", "sat"))
    code = f'convert({value.code}, "{into}", "{origin}", "{mode}", {ftz}, {sat}, {_flags_of(call)})'
    _store(t, target, Value(code, dtype, value.lane, value.loop))


@row("ptx.cvt_f16x2_f32", "ptx.cvt_bf16x2_f32", vectorizable=True)
def cvt_pair(t: Any, call: Any) -> None:
    """Two floats packed into 32 bits: ``a`` in the upper half, ``b`` in the lower."""
    target, (high, low) = _sources(t, call)
    name, mode = call.mods["dtype"].removesuffix("x2"), call.mods["rnd"]
    if mode == "rn" and not call.mods.get("relu") and not call.mods.get("satfinite"):
        code = f'pack_pair({_arguments(t, [low, high], "f32")}, "{dtype_of(name)}")'
    else:
        args = _arguments(t, [high, low], "f32")
        code = f'pack_numbers("{name}", "{mode}", {_flags_of(call)}, {args})'
    _result(t, target, code, "b32", [high, low])


@row("ptx.cvt_rs_f16x2_f32", "ptx.cvt_rs_bf16x2_f32", vectorizable=True)
def cvt_random(t: Any, call: Any) -> None:
    target, (high, low, bits) = _sources(t, call)
    name = call.mods["dtype"].removesuffix("x2")
    args = f"{_arguments(t, [high, low], 'f32')}, {_typed(t, bits, 'uint32')}"
    code = f'pack_random("{name}", {_flags_of(call)}, {args})'
    _result(t, target, code, "b32", [high, low, bits])


@row("ptx.cvt_tf32_f32", vectorizable=True)
def cvt_tf32(t: Any, call: Any) -> None:
    target, (value,) = _sources(t, call)
    x = _typed(t, value, "float32")
    _result(
        t, target, f'convert_tf32({x}, "{call.mods["rnd"]}", {_flags_of(call)})', "b32", [value]
    )


def _container(name: str) -> str:
    """The PTX type that holds a packed pair of a narrow format."""
    return "b8" if name == "e2m1" else "b16"


@row("ptx.cvt_f8x2_f32", "ptx.cvt_f6x2_f32", "ptx.cvt_f4x2_f32", "ptx.cvt_ue8m0x2_f32",
     vectorizable=True)  # fmt: skip
def cvt_narrow(t: Any, call: Any) -> None:
    """Two float32 numbers as a pair of a narrow format, ``a`` in the upper half."""
    target, values = _sources(t, call)
    name = call.mods["dtype"].removesuffix("x2")
    args = _arguments(t, values, "f32")
    code = f'pack_numbers("{name}", "{call.mods["rnd"]}", {_flags_of(call)}, {args})'
    _result(t, target, code, _container(name), values)


@row("ptx.cvt_f8x2_fp16x2", "ptx.cvt_f6x2_fp16x2", "ptx.cvt_f4x2_fp16x2",
     "ptx.cvt_ue8m0x2_bf16x2", vectorizable=True)  # fmt: skip
def cvt_narrower(t: Any, call: Any) -> None:
    """A packed pair of 16-bit numbers as a pair of a narrow format."""
    target, (value,) = _sources(t, call)
    name = call.mods["dtype"].removesuffix("x2")
    origin = call.mods["atype"]
    x = _typed(t, value, "uint32")
    code = f'repack_numbers("{name}", "{call.mods["rnd"]}", {_flags_of(call)}, "{origin}", {x})'
    _result(t, target, code, _container(name), [value])


@row("ptx.cvt_f16x2_f8x2", "ptx.cvt_bf16x2_f8x2", "ptx.cvt_f16x2_f6x2", "ptx.cvt_bf16x2_f6x2",
     "ptx.cvt_f16x2_f4x2", "ptx.cvt_bf16x2_f4x2", "ptx.cvt_bf16x2_ue8m0x2",
     vectorizable=True)  # fmt: skip
def cvt_wider(t: Any, call: Any) -> None:
    """A pair of a narrow format as a packed pair of 16-bit numbers, which hold them exactly."""
    if call.mods.get("scaled"):
        raise t.refuse(f"cvt.{_spelt(call)}")
    target, (value, *_) = _sources(t, call)
    name = call.mods["atype"].removesuffix("x2")
    into = call.mods["dtype"].removesuffix("x2")
    x = _typed(t, value, dtype_of(_container(name)))
    code = f'unpack_numbers("{name}", "{into}", {bool(call.mods.get("relu"))}, {x})'
    _result(t, target, code, "b32", [value])
