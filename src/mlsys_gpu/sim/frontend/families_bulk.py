"""Rows for copies that engines make: TMA, bulk copies, bulk groups, and ``cp.async``."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _active
from mlsys_gpu.sim.frontend.families_math import _store
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import Value

_TYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "u32": "uint32",
    "s32": "int32", "b32": "uint32", "u64": "uint64", "s64": "int64", "b64": "uint64",
}  # fmt: skip


def _code(t: Any, call: Any, name: str) -> str:
    return t.expr(call.one(name)).code


def _issuer(t: Any) -> str:
    """The mask argument of an operation that each thread issues for itself: its lane, or a mask."""
    if t.context.lane is not None:
        return f", mask={t.context.lane}"
    return t.mask()


def _coords(t: Any, call: Any) -> str:
    return "[" + ", ".join(t.expr(c).code for c in call.operands["coords"]) + "]"


def _ranks(t: Any, call: Any) -> str:
    return _code(t, call, "cta_mask") if call.mods.get("multicast") else "None"


def _weak(t: Any, call: Any) -> None:
    """Bulk copies are weak accesses, unless they are told otherwise."""
    if call.mods.get("sem") == "relaxed" and call.mods.get("type") == "b128":
        raise t.refuse("cp.async.bulk.relaxed")


@row("ptx.cp_async_bulk_tensor_g2s_cta", "ptx.cp_async_bulk_tensor_g2s_cluster")
def tma_load(t: Any, call: Any) -> None:
    destination, tmap, barrier = (_code(t, call, n) for n in ("dst_mem", "tmap", "mbar"))
    coords, ranks = _coords(t, call), _ranks(t, call)
    how = ""
    if call.mods.get("cta_group") == "cta_group::2":
        how += ", pair=True"
    if call.mods.get("load_mode") == "tile::gather4":
        how += ", rows=True"
    t.mark()
    t.emit(f"tma_load(w, {destination}, {tmap}, {coords}, {barrier}, {ranks}{_issuer(t)}{how})")


@row("ptx.cp_async_bulk_tensor_s2g", "ptx.cp_reduce_async_bulk_tensor")
def tma_store(t: Any, call: Any) -> None:
    tmap, source = _code(t, call, "tmap"), _code(t, call, "src_mem")
    coords, reduce = _coords(t, call), call.mods.get("redop", "")
    rows = ", rows=True" if call.mods.get("load_mode") == "tile::scatter4" else ""
    t.mark()
    t.emit(f'tma_store(w, {tmap}, {coords}, {source}, "{reduce}"{_issuer(t)}{rows})')


@row(
    "ptx.cp_async_bulk_tensor_prefetch",
    "ptx.cp_async_bulk_tensor_prefetch_evict_last",
    "ptx.cp_async_bulk_prefetch",
    "ptx.cp_async_bulk_prefetch_evict_last",
    "ptx.prefetch",
    "ptx.prefetch_valid_addr",
    "ptx.prefetchu",
    "ptx.applypriority",
    "ptx.applypriority_async_bulk",
    "ptx.applypriority_async_bulk_tensor",
)
def prefetch(t: Any, call: Any) -> None:
    """Brings data or a tensor map nearer, or keeps it there; the simulator has no caches."""


@row("ptx.discard")
def discard(t: Any, call: Any) -> None:
    """A weak write of 128 bytes that nobody may rely on ("discard", PTX ISA)."""
    where = t.address_name(t.expr(call.one("addr")))
    t.note_memory("global", store=True, width=16)
    t.mark()
    poison = 'np.full(2, int(poison("uint64")), dtype=np.uint64)'
    for at in range(0, 128, 16):
        t.emit(f"st_global(w, {where.code} + {at}, {poison}, 8, 2{t.mask(where)})")


@row(
    "ptx.createpolicy_range",
    "ptx.createpolicy_fractional",
    "ptx.createpolicy_fraction",
    "ptx.createpolicy_cvt",
    result="uniform",
)
def createpolicy(t: Any, call: Any) -> None:
    """An opaque cache policy, which only cache hints use."""
    _store(t, call.one("cache_policy"), Value("0", "uint64"))


@row("ptx.cp_async_bulk_g2s_cta", "ptx.cp_async_bulk_g2s_cluster")
def bulk_load(t: Any, call: Any) -> None:
    _weak(t, call)
    if call.mods.get("ignore_oob"):
        raise t.refuse("cp.async.bulk with ignore_oob")
    names = ("dst_mem", "src_mem", "size", "mbar")
    destination, source, size, barrier = (_code(t, call, n) for n in names)
    ranks = _ranks(t, call)
    t.mark()
    t.emit(f"bulk_load(w, {destination}, {source}, {size}, {barrier}, {ranks}{_issuer(t)})")


@row("ptx.cp_async_bulk_s2c", "ptx.cp_reduce_async_bulk_s2c")
def bulk_send(t: Any, call: Any) -> None:
    _weak(t, call)
    names = ("dst_mem", "src_mem", "size", "mbar")
    destination, source, size, barrier = (_code(t, call, n) for n in names)
    how = ""
    if call.mods.get("redop"):
        how = f', "{call.mods["redop"]}", "{_TYPES[call.mods["type"]]}"'
    t.mark()
    t.emit(f"bulk_send(w, {destination}, {source}, {size}, {barrier}{how}{_issuer(t)})")


@row(
    "ptx.cp_async_bulk_s2g",
    "ptx.cp_reduce_async_bulk_s2g",
    "ptx.cp_reduce_async_bulk_s2g_f32_noftz",
)
def bulk_store(t: Any, call: Any) -> None:
    _weak(t, call)
    destination, source, size = (_code(t, call, n) for n in ("dst_mem", "src_mem", "size"))
    reduce, dtype = call.mods.get("redop", ""), _TYPES.get(call.mods.get("type", ""), "")
    how = ""
    if call.mods.get("noftz"):
        how += ", flush=False"
    if call.mods.get("cp_mask"):
        how += f", kept={_code(t, call, 'byte_mask')}"
    t.mark()
    arguments = f'w, {destination}, {source}, {size}, "{reduce}", "{dtype}"{_issuer(t)}{how}'
    t.emit(f"bulk_store({arguments})")


@row("ptx.st_bulk")
def st_bulk(t: Any, call: Any) -> None:
    """``st.bulk``: a thread writes zeros to a run of shared memory."""
    where, size = t.expr(call.one("addr")), t.expr(call.one("size"))
    t.note_memory("shared", store=True, width=8)
    t.mark()
    t.emit(f"st_bulk(w, {where.code}, {size.code}{_issuer(t)})")


@row("ptx.cp_async_bulk_commit_group")
def bulk_commit(t: Any, call: Any) -> None:
    t.mark()
    t.emit(f"bulk_commit(w{_issuer(t)})")


@row("ptx.cp_async_bulk_wait_group")
def bulk_wait(t: Any, call: Any) -> None:
    read = bool(call.mods.get("read"))
    t.mark()
    t.emit(f"bulk_wait(w, {_code(t, call, 'group')}, {read}{_issuer(t)})")


# ------------------------------------------------------------------------------------- cp.async


@row(
    *(
        f"ptx.cp_async_{cache}{form}"
        for cache in ("ca", "cg")
        for form in ("", "_src_size", "_ignore_src")
    )
)
def cp_async(t: Any, call: Any) -> None:
    destination, source, size = (_code(t, call, n) for n in ("dst_mem", "src_mem", "cp_size"))
    taken = _code(t, call, "src_size") if "src_size" in call.operands else "None"
    ignored = _code(t, call, "ignore_src") if "ignore_src" in call.operands else "None"
    mask = t.mask()
    if t.context.lane is not None:
        mask = f", mask=(w.lanes == {t.context.lane})"
    t.mark()
    t.emit(f"cp_async(w, {destination}, {source}, {size}, {taken}, {ignored}{mask})")


@row("ptx.cp_async_commit_group")
def cp_async_commit(t: Any, call: Any) -> None:
    t.mark()
    t.emit(f"cp_async_commit(w{t.mask()})")


@row("ptx.cp_async_wait_group")
def cp_async_wait(t: Any, call: Any) -> None:
    t.mark()
    t.emit(f"cp_async_wait(w, {_code(t, call, 'group')}{t.mask()})")


@row("ptx.cp_async_wait_all")
def cp_async_wait_all(t: Any, call: Any) -> None:
    t.mark()
    t.emit(f"cp_async_wait_all(w{t.mask()})")


@row("ptx.cp_async_mbarrier_arrive")
def cp_async_mbarrier_arrive(t: Any, call: Any) -> None:
    address, counted = _code(t, call, "addr"), bool(call.mods.get("noinc"))
    t.mark()
    t.emit(f"cp_async_mbarrier_arrive(w, {address}, {counted}{_active(t)})")
