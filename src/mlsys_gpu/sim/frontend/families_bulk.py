"""Rows for copies that engines make: TMA, bulk copies, bulk groups, and ``cp.async``."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _active
from mlsys_gpu.sim.frontend.table import row

_TYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "u32": "uint32",
    "s32": "int32", "b32": "uint32", "u64": "uint64", "s64": "int64", "b64": "uint64",
}  # fmt: skip


def _code(t: Any, call: Any, name: str) -> str:
    return t.expr(call.one(name)).code


def _coords(t: Any, call: Any) -> str:
    return "[" + ", ".join(t.expr(c).code for c in call.operands["coords"]) + "]"


def _ranks(t: Any, call: Any) -> str:
    return _code(t, call, "cta_mask") if call.mods.get("multicast") else "None"


def _tile_mode(t: Any, call: Any) -> None:
    mode = call.mods.get("load_mode") or "tile"
    if mode != "tile":
        raise t.refuse(f"cp.async.bulk.tensor in mode {mode}")


@row("ptx.cp_async_bulk_tensor_g2s_cta", "ptx.cp_async_bulk_tensor_g2s_cluster")
def tma_load(t: Any, call: Any) -> None:
    _tile_mode(t, call)
    with t.predicated(call):
        destination, tmap, barrier = (_code(t, call, n) for n in ("dst_mem", "tmap", "mbar"))
        coords, ranks = _coords(t, call), _ranks(t, call)
        t.mark()
        t.emit(f"tma_load(w, {destination}, {tmap}, {coords}, {barrier}, {ranks}{_active(t)})")


@row("ptx.cp_async_bulk_tensor_s2g", "ptx.cp_reduce_async_bulk_tensor")
def tma_store(t: Any, call: Any) -> None:
    _tile_mode(t, call)
    with t.predicated(call):
        tmap, source = _code(t, call, "tmap"), _code(t, call, "src_mem")
        coords, reduce = _coords(t, call), call.mods.get("redop", "")
        t.mark()
        t.emit(f'tma_store(w, {tmap}, {coords}, {source}, "{reduce}"{_active(t)})')


@row(
    "ptx.cp_async_bulk_tensor_prefetch",
    "ptx.cp_async_bulk_prefetch",
    "ptx.prefetch_tensormap",
    "ptx.prefetch",
)
def prefetch(t: Any, call: Any) -> None:
    """Brings data or a tensor map nearer; the simulator has no caches."""


@row("ptx.cp_async_bulk_g2s_cta", "ptx.cp_async_bulk_g2s_cluster", "ptx.cp_async_bulk_s2c")
def bulk_load(t: Any, call: Any) -> None:
    if call.mods.get("ignore_oob"):
        raise t.refuse("cp.async.bulk with ignore_oob")
    with t.predicated(call):
        names = ("dst_mem", "src_mem", "size", "mbar")
        destination, source, size, barrier = (_code(t, call, n) for n in names)
        ranks = _ranks(t, call)
        t.mark()
        t.emit(f"bulk_load(w, {destination}, {source}, {size}, {barrier}, {ranks}{_active(t)})")


@row("ptx.cp_async_bulk_s2g", "ptx.cp_reduce_async_bulk_s2g")
def bulk_store(t: Any, call: Any) -> None:
    if call.mods.get("cp_mask"):
        raise t.refuse("cp.async.bulk with cp_mask")
    with t.predicated(call):
        destination, source, size = (_code(t, call, n) for n in ("dst_mem", "src_mem", "size"))
        reduce, dtype = call.mods.get("redop", ""), _TYPES.get(call.mods.get("type", ""), "")
        t.mark()
        t.emit(f'bulk_store(w, {destination}, {source}, {size}, "{reduce}", "{dtype}"{_active(t)})')


@row("ptx.cp_async_bulk_commit_group")
def bulk_commit(t: Any, call: Any) -> None:
    t.mark()
    t.emit(f"bulk_commit(w{t.mask()})")


@row("ptx.cp_async_bulk_wait_group")
def bulk_wait(t: Any, call: Any) -> None:
    read = bool(call.mods.get("read"))
    t.mark()
    t.emit(f"bulk_wait(w, {_code(t, call, 'group')}, {read}{t.mask()})")


@row(
    "ptx.cp_async_ca",
    "ptx.cp_async_cg",
    "ptx.cp_async_ca_src_size",
    "ptx.cp_async_cg_src_size",
)
def cp_async(t: Any, call: Any) -> None:
    with t.predicated(call):
        destination, source, size = (_code(t, call, n) for n in ("dst_mem", "src_mem", "cp_size"))
        taken = _code(t, call, "src_size") if "src_size" in call.operands else "None"
        t.mark()
        mask = t.mask()
        if t.context.lane is not None:
            mask = f", mask=(w.lanes == {t.context.lane})"
        t.emit(f"cp_async(w, {destination}, {source}, {size}, {taken}{mask})")


@row("ptx.cp_async_commit_group")
def cp_async_commit(t: Any, call: Any) -> None:
    t.mark()
    t.emit("cp_async_commit(w)")


@row("ptx.cp_async_wait_group")
def cp_async_wait(t: Any, call: Any) -> None:
    t.mark()
    t.emit(f"cp_async_wait(w, {_code(t, call, 'group')})")


@row("ptx.cp_async_wait_all")
def cp_async_wait_all(t: Any, call: Any) -> None:
    t.mark()
    t.emit("cp_async_wait_all(w)")
