"""Rows for a warpgroup's matrix products (``wgmma``)."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _collective, _mask_kw
from mlsys_gpu.sim.frontend.table import row


@row("ptx.wgmma_fence")
def wgmma_fence(t: Any, call: Any) -> None:
    _collective(t, "wgmma.fence")
    t.mark()
    t.emit(f"wgmma_fence(w{_mask_kw(t)})")


@row("ptx.wgmma_commit_group")
def wgmma_commit_group(t: Any, call: Any) -> None:
    _collective(t, "wgmma.commit_group")
    t.mark()
    t.emit(f"wgmma_commit(w{_mask_kw(t)})")


@row("ptx.wgmma_wait_group")
def wgmma_wait_group(t: Any, call: Any) -> None:
    _collective(t, "wgmma.wait_group")
    count = t.expr(next(iter(call.operands.values()))[0]).code
    t.blocking(f"wgmma_wait(w, {count}{_mask_kw(t)})")


@row("ptx.wgmma_f16_ss", "ptx.wgmma_bf16_ss", result="lane")
def wgmma_mma(t: Any, call: Any) -> None:
    _collective(t, "wgmma.mma_async")
    n = int(call.mods["shape"].split("n")[1].split("k")[0])
    dtype = "float16" if call.mods["atype"] == "f16" else "bfloat16"
    registers = t.registers(call.operands["d"])
    if registers is None:
        raise t.refuse("wgmma accumulators in registers that are not consecutive")
    a, b, scale = (t.expr(call.one(k)).code for k in ("a_desc", "b_desc", "scale_d"))
    sign = int(call.one("scale_a").value) * int(call.one("scale_b").value)
    ta, tb = int(call.one("trans_a").value), int(call.one("trans_b").value)
    t.mark()
    t.emit(
        f"wgmma_mma(w, {registers.root.name}, {registers.first}, {a}, {b}, {scale}, {n}, "
        f'"{dtype}", {ta}, {tb}, {sign}{_mask_kw(t)})'
    )
