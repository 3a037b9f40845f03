"""Rows for atomics and reductions on memory, asynchronous remote stores, and grid-wide barriers."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _group, _space, _store_results
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import BYTES, Value

_TYPES = {
    "b16": "uint16", "b32": "uint32", "u32": "uint32", "s32": "int32", "b64": "uint64",
    "u64": "uint64", "s64": "int64", "f16": "float16", "bf16": "bfloat16", "f16x2": "float16",
    "bf16x2": "bfloat16", "f32": "float32", "f64": "float64",
}  # fmt: skip


def _operation(t: Any, call: Any, result: bool) -> None:
    """Emit ``atom`` (with a result) or ``red``."""
    mods = call.mods
    kind = mods["type"]
    if kind not in _TYPES:
        raise t.refuse(f"atomics of type {kind}")
    dtype, how = _TYPES[kind], mods["op"]
    vec = int((mods.get("vec") or "v1")[1:])
    with t.predicated(call):
        address, *values = [n for n in call.operands if n not in ("d", "cache_policy")]
        space = _space(t, call)
        where = t.address_name(t.expr(call.one(address)))
        # a pair of 16-bit floats is two elements of one register
        pairs = kind.endswith("x2")
        size = BYTES[dtype]
        held = size * 2 if pairs else size
        compare = "None"
        sources = call.operands[values[0]]
        if how == "cas":
            compare = _group(t, call.operands[values[0]], size)
            sources = call.operands[values[1]]
        code = _group(t, sources, held)
        if pairs:
            code = f"halves({code}, {len(sources)})"
        count = len(sources) * (2 if pairs else 1)
        if len(sources) != vec:
            raise t.refuse(f"{call.name.removeprefix('tirx.')} of {len(sources)} registers")
        t.note_memory(space, store=True, width=size)
        t.mark()
        flush = not mods.get("noftz")
        text = (
            f'atom(w, "{space}", {where.code}, {code}, "{how}", "{dtype}", {count}, {compare}, '
            f'"{mods.get("sem") or "relaxed"}", "{mods.get("scope") or "gpu"}", {flush}'
            f"{_lanes(t)})"
        )
        if not result:
            t.emit(text)
            return
        if pairs:
            text = f"paired({text}, {len(sources)})"
        one = t.context.lane is not None
        if one and count == 1:
            _store_results(t, call.operands["d"], Value(text, "", False), held)
        else:
            name = t.fresh("old")
            t.emit(f"{name} = {text}")
            if one:
                name = f"{name}[int({t.context.lane})]"
            _store_results(t, call.operands["d"], Value(name, "", not one), held)


def _lanes(t: Any) -> str:
    if t.context.lane is not None:
        return f", lane={t.context.lane}"
    return f", mask={t.context.mask}" if t.context.mask else ""


@row(
    "ptx.atom",
    "ptx.atom_cas",
    "ptx.atom_exch",
    "ptx.atom_half",
    "ptx.atom_vec_half",
    "ptx.atom_vec_f32",
    "ptx.atom_f32_noftz",
    "ptx.atom_vec_f32_noftz",
    result="lane",
)
def atom(t: Any, call: Any) -> None:
    _operation(t, call, True)


@row(
    "ptx.red",
    "ptx.red_half",
    "ptx.red_vec_half",
    "ptx.red_vec_f32",
    "ptx.red_f32_noftz",
    "ptx.red_vec_f32_noftz",
    "ptx.atom_bitbucket",
    "ptx.atom_cas_bitbucket",
    "ptx.atom_exch_bitbucket",
    "ptx.atom_half_bitbucket",
    "ptx.atom_vec_half_bitbucket",
    "ptx.atom_vec_f32_bitbucket",
    "ptx.atom_f32_noftz_bitbucket",
    "ptx.atom_vec_f32_noftz_bitbucket",
)
def red(t: Any, call: Any) -> None:
    _operation(t, call, False)


@row("ptx.st_async", "ptx.st_async_vec", "ptx.red_async")
def st_async(t: Any, call: Any) -> None:
    kind = call.mods["type"]
    if kind not in _TYPES:
        raise t.refuse(f"st.async of type {kind}")
    dtype = _TYPES[kind]
    with t.predicated(call):
        names = list(call.operands)
        address, sources, barrier = (call.operands[n] for n in names[:3])
        where, bar = t.expr(address[0]).code, t.expr(barrier[0]).code
        value = _group(t, sources, BYTES[dtype])
        t.note_memory("shared", store=True, width=BYTES[dtype])
        t.mark()
        t.emit(
            f"st_async(w, {where}, {value}, {bar}, {BYTES[dtype]}, {len(sources)}, "
            f'"{call.mods.get("op") or ""}", "{dtype}"{_lanes(t)})'
        )


def _pointee(t: Any, call: Any, value: Any) -> str:
    dtype = str(value.ty)
    if dtype not in BYTES or dtype == "bool":
        raise t.refuse(f"{call.op.name.removeprefix('tirx.')} of {dtype}")
    return dtype


def _library(t: Any, call: Any, how: str, value: Any, compare: Any) -> Value:
    """``atomicAdd`` and ``atomicCAS``: relaxed, at the GPU's scope, through a generic address."""
    dtype = _pointee(t, call, value)
    where = t.expr(call.args[0])
    other = "None" if compare is None else t.raw(t.expr(compare), dtype)
    code = t.raw(t.expr(value), dtype)
    t.note_memory("generic", store=True, width=BYTES[dtype])
    t.mark()
    name, one = t.fresh("old"), t.context.lane is not None
    t.emit(
        f'{name} = atom(w, "generic", {where.code}, {code}, "{how}", "{dtype}", 1, {other}, '
        f'"relaxed", "gpu", True{_lanes(t)})'
    )
    return t.typed(Value(name, dtype, not one))


@row("cuda.atomic_add", result="lane")
def atomic_add(t: Any, call: Any) -> Value:
    return _library(t, call, "add", call.args[1], None)


@row("cuda.atomic_cas", result="lane")
def atomic_cas(t: Any, call: Any) -> Value:
    return _library(t, call, "cas", call.args[2], call.args[1])


@row("cuda.grid_sync")
def grid_sync(t: Any, call: Any) -> None:
    t.mark()
    ticket = t.fresh("ticket")
    t.emit(f"{ticket} = grid_sync(w)")
    t.emit(f"while not grid_passed(w, {ticket}): yield None")
