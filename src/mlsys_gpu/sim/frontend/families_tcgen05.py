"""Rows for tensor memory and its tensor core (``tcgen05``)."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _active, _collective, _group, _mask_kw
from mlsys_gpu.sim.frontend.table import row


def _group_of(call: Any) -> int:
    """1 or 2: the CTAs of a ``cta_group``."""
    return int((call.mods.get("cta_group") or "cta_group::1")[-1])


@row("ptx.tcgen05_alloc")
def tcgen05_alloc(t: Any, call: Any) -> None:
    group = _group_of(call)
    address, columns = (t.expr(v[0]).code for v in call.operands.values())
    _collective(t, "tcgen05.alloc")
    t.mark()
    name = t.fresh("t")
    attempt = f"{name} := tcgen05_alloc(w, {address}, {columns}, {group}{_mask_kw(t)})"
    t.emit(f"while ({attempt}) is not None: yield {name}")


@row("ptx.tcgen05_dealloc")
def tcgen05_dealloc(t: Any, call: Any) -> None:
    group = _group_of(call)
    address, columns = (t.expr(v[0]).code for v in call.operands.values())
    _collective(t, "tcgen05.dealloc")
    t.mark()
    t.emit(f"tcgen05_dealloc(w, {address}, {columns}, {group}{_mask_kw(t)})")


@row("ptx.tcgen05_relinquish_alloc_permit")
def tcgen05_relinquish(t: Any, call: Any) -> None:
    t.mark()
    t.emit(f"tcgen05_relinquish(w, {_group_of(call)}{_mask_kw(t)})")


@row("ptx.tcgen05_mma_ss")
def tcgen05_mma(t: Any, call: Any) -> None:
    group = _group_of(call)
    if call.mods.get("kind") != "kind::f16":
        raise t.refuse(f"tcgen05.mma.{call.mods.get('kind')}")
    with t.predicated(call):
        operands = {k: [t.expr(x) for x in v] for k, v in call.operands.items()}
        names = list(operands)
        d, a, b, idesc = (operands[n][0].code for n in names[:4])
        rest = [v for n in names[4:] for v in operands[n]]
        *lanes, accumulate = rest
        if any(v.code != "0" for v in lanes):
            raise t.refuse("tcgen05.mma with disabled output lanes")
        t.mark()
        t.emit(f"tcgen05_mma(w, {d}, {a}, {b}, {idesc}, {accumulate.code}, {group}{_active(t)})")


@row("ptx.tcgen05_commit", "ptx.tcgen05_commit_multicast")
def tcgen05_commit(t: Any, call: Any) -> None:
    group = _group_of(call)
    with t.predicated(call):
        address, *ranks = (t.expr(v[0]).code for v in call.operands.values())
        t.mark()
        t.emit(f"tcgen05_commit(w, {address}, {group}, {ranks[0] if ranks else None}{_active(t)})")


def _shape_of(t: Any, call: Any) -> int:
    """Columns of a tcgen05.ld or st of shape 32x32b."""
    shape, repeat = call.mods.get("shape", ""), ""
    for value in call.mods.values():
        if value.startswith("x") and value[1:].isdigit():
            repeat = value[1:]
    if shape != "32x32b":
        raise t.refuse(f"tcgen05.ld or st of shape {shape}")
    if any(v.startswith(("pack", "unpack")) for v in call.mods.values()):
        raise t.refuse("tcgen05.ld or st with packing")
    return int(repeat)


@row("ptx.tcgen05_ld", result="lane")
def tcgen05_ld(t: Any, call: Any) -> None:
    count = _shape_of(t, call)
    (_, targets), (_, address) = list(call.operands.items())[:2]
    _collective(t, "tcgen05.ld")
    registers = t.registers(targets)
    if registers is None:
        raise t.refuse("tcgen05.ld into registers that are not consecutive")
    t.touch_registers(registers, True)
    where = t.expr(address[0]).code
    t.mark()
    first, view = registers.first, t.view(registers.root, registers.dtype)
    view = f"{view}[:, {first}:{first} + {count}]"
    t.emit(f'tcgen05_ld(w, {view}, {where}, "32x32b", {count}{_mask_kw(t)})')


@row("ptx.tcgen05_st")
def tcgen05_st(t: Any, call: Any) -> None:
    count = _shape_of(t, call)
    names = list(call.operands)
    address, sources = call.operands[names[0]], call.operands[names[1]]
    _collective(t, "tcgen05.st")
    where = t.expr(address[0]).code
    value = _group(t, sources, 4)
    t.mark()
    if count == 1:
        value = f"np.asarray({value}).reshape(-1, 1)"
    t.emit(f'tcgen05_st(w, {where}, {value}, "32x32b", {count}{_mask_kw(t)})')


@row("ptx.tcgen05_wait")
def tcgen05_wait(t: Any, call: Any) -> None:
    kind = "st" if any("wait::st" in v for v in call.mods.values()) else "ld"
    _collective(t, f"tcgen05.wait::{kind}")
    t.mark()
    t.emit(f"tcgen05_wait_{kind}(w{_mask_kw(t)})")


@row("ptx.tcgen05_fence")
def tcgen05_fence(t: Any, call: Any) -> None:
    """Orders tcgen05 operations around a thread's synchronisation; barriers' clocks carry it."""
