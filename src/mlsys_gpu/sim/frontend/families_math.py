"""Rows for PTX arithmetic: conversions between float formats."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import Value

_PAIRS = {"f16x2": "float16", "bf16x2": "bfloat16"}


@row("ptx.cvt_f16x2_f32", "ptx.cvt_bf16x2_f32")
def cvt_pair(t: Any, call: Any) -> None:
    """Two floats packed into 32 bits: ``a`` in the upper half, ``b`` in the lower."""
    if call.mods.get("rnd") != "rn" or call.mods.get("relu") or call.mods.get("satfinite"):
        raise t.refuse(f"cvt with {'.'.join(v for v in call.mods.values() if v)}")
    target, high, low = (v[0] for v in call.operands.values())
    a, b = t.expr(high), t.expr(low)
    dtype = _PAIRS[call.mods["dtype"]]
    lane, loop = a.lane or b.lane, a.loop or b.loop
    buffer = t.buffer_of(target.source)
    code = f'pack_pair({b.code}, {a.code}, "{dtype}")'
    t.store_register(buffer, target.indices[0], Value(code, buffer.dtype, lane, loop))
