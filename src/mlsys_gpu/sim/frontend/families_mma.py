"""Rows for a warp's matrix instructions: ``mma.sync``, ``ldmatrix``, ``stmatrix``, ``movmatrix``.

Shapes and formats that are not modelled (tf32, fp8, int8, fp64, sparse, m8n8k4, 8-bit matrices) are
refused by name.
"""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _group, _store_results, whole_warp
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import Value

_INPUTS = {"f16": "float16", "bf16": "bfloat16"}


def _fragment(t: Any, sources: list[Any]) -> str:
    """Source of a fragment's registers as words, with a last axis."""
    code = _group(t, sources, 4)
    return code if len(sources) > 1 else f"np.asarray({code}, dtype=np.uint32)[..., None]"


def _loop(t: Any) -> str:
    return f", loop={t.slice.extent}" if t.slice is not None else ""


@row("ptx.mma", "ptx.mma_f16acc", result="lane", vectorizable=True)
def mma_sync(t: Any, call: Any) -> None:
    mods = call.mods
    k = {"m16n8k8": 8, "m16n8k16": 16}.get(mods["shape"])
    dtype = _INPUTS.get(mods["atype"])
    if k is None or dtype is None or mods["atype"] != mods["btype"]:
        raise t.refuse(".".join(["mma", *[v for v in mods.values() if v]]))
    whole_warp(t, "mma.sync")
    a, b, c = (_fragment(t, call.operands[name]) for name in "abc")
    t.mark()
    half = mods["dtype"] == "f16"
    code = f'mma_sync(w, {a}, {b}, {c}, {k}, "{dtype}", {half}{_loop(t)})'
    _store_results(t, call.operands["d"], Value(code, "", True, t.slice is not None), 4)


@row("ptx.ldmatrix", result="lane", vectorizable=True)
def ldmatrix(t: Any, call: Any) -> None:
    where, form = _matrices(t, call, store=False)
    one = "[..., 0]" if len(call.operands["r"]) == 1 else ""
    code = f"ldmatrix(w, {where.code}, {form}{_loop(t)}){one}"
    _store_results(t, call.operands["r"], Value(code, "", True, t.slice is not None), 4)


@row("ptx.stmatrix", vectorizable=True)
def stmatrix(t: Any, call: Any) -> None:
    words = _fragment(t, call.operands["r"])
    where, form = _matrices(t, call, store=True)
    t.emit(f"stmatrix(w, {where.code}, {words}, {form}{_loop(t)})")


def _matrices(t: Any, call: Any, store: bool) -> tuple[Value, str]:
    """The address of a matrix load or store, and its further arguments."""
    whole_warp(t, "stmatrix" if store else "ldmatrix")
    where = t.address_name(t.expr(call.one("p")))
    generic = not call.mods.get("space")
    t.note_memory("generic" if generic else "shared", store=store, width=16)
    t.mark()
    count = int(call.mods["num"][1:])
    return where, f"{count}, {bool(call.mods.get('trans'))}, {generic}"


@row("ptx.movmatrix", result="lane", vectorizable=True)
def movmatrix(t: Any, call: Any) -> None:
    whole_warp(t, "movmatrix")
    words = t.expr(call.one("a"))
    code = f"movmatrix(w, {t.raw(words, words.dtype)}{_loop(t)})"
    _store_results(t, call.operands["d"], Value(code, "", True, t.slice is not None), 4)
