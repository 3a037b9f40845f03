"""Rows for tensor memory and its tensor core (``tcgen05``)."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _active, _collective, _group, _mask_kw
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import BYTES, Registers


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


@row("ptx.tcgen05_mma_ss", "ptx.tcgen05_mma_ts")
def tcgen05_mma(t: Any, call: Any) -> None:
    """Both forms; where A is kept in the collector buffer is a hint without effect."""
    group = _group_of(call)
    if call.mods.get("kind") != "kind::f16":
        raise t.refuse(f"tcgen05.mma.{call.mods.get('kind')}")
    with t.predicated(call):
        operands = {k: [t.expr(x) for x in v] for k, v in call.operands.items()}
        in_tmem = "a_tmem" in operands
        d, b, idesc, accumulate = (
            operands[n][0].code for n in ("d_tmem", "b_desc", "idesc", "enable_input_d")
        )
        a = operands["a_tmem" if in_tmem else "a_desc"][0].code
        lanes = [v.code for v in operands["disable_output_lane"]]
        extra = ", a_in_tmem=True" if in_tmem else ""
        if any(code != "0" for code in lanes):
            extra += f", off=({', '.join(lanes)})"
        t.mark()
        t.emit(f"tcgen05_mma(w, {d}, {a}, {b}, {idesc}, {accumulate}, {group}{_active(t)}{extra})")


@row("ptx.tcgen05_commit", "ptx.tcgen05_commit_multicast")
def tcgen05_commit(t: Any, call: Any) -> None:
    group = _group_of(call)
    with t.predicated(call):
        address, *ranks = (t.expr(v[0]).code for v in call.operands.values())
        t.mark()
        t.emit(f"tcgen05_commit(w, {address}, {group}, {ranks[0] if ranks else None}{_active(t)})")


def _transfer(call: Any) -> str:
    """The arguments of a tcgen05.ld or st: shape, repetition, packing and split of the halves."""
    shape, num = call.mods["shape"], int(call.mods["num"][1:])
    code = f'"{shape}", {num}'
    if call.mods.get("pack") or call.mods.get("unpack"):
        code += ", packed=True" if "pack" in call.mods else ", unpacked=True"
    if "imm_half_splitoff" in call.operands:
        code += f", split={int(call.one('imm_half_splitoff').value)}"
    return code


def _runs(t: Any, targets: list[Any]) -> list[tuple[Registers, int]]:
    """Registers that an instruction fills, as runs of consecutive ones, each with its length."""
    runs: list[list[Any]] = []
    for target in targets:
        if runs and t.registers([*runs[-1], target]) is not None:
            runs[-1].append(target)
        else:
            runs.append([target])
    found = []
    for run in runs:
        registers = t.registers(run)
        if registers is None or BYTES[registers.dtype] != 4:
            raise t.refuse("tcgen05.ld into registers whose index differs between lanes")
        found.append((registers, len(run)))
    return found


@row("ptx.tcgen05_ld", "ptx.tcgen05_ld_split", result="lane")
def tcgen05_ld(t: Any, call: Any) -> None:
    targets = call.operands["r"]
    _collective(t, "tcgen05.ld")
    whole = t.registers(targets)
    runs = [(whole, len(targets))] if whole is not None else _runs(t, targets)
    views = []
    for registers, count in runs:
        t.touch_registers(registers, True)
        view = t.view(registers.root, registers.dtype)
        views.append(f"{view}[:, {registers.first}:{registers.first} + {count}]")
    where = t.expr(call.one("taddr")).code
    t.mark()
    view = views[0] if len(views) == 1 else f"[{', '.join(views)}]"
    t.emit(f"tcgen05_ld(w, {view}, {where}, {_transfer(call)}{_mask_kw(t)})")
    for registers, _ in runs:
        t.unsettle(registers.root)
        t.fill(registers)


@row("ptx.tcgen05_st", "ptx.tcgen05_st_split")
def tcgen05_st(t: Any, call: Any) -> None:
    sources = call.operands["r"]
    _collective(t, "tcgen05.st")
    where = t.expr(call.one("taddr")).code
    value = _group(t, sources, 4)
    t.mark()
    if len(sources) == 1:
        value = f"np.asarray({value}).reshape(-1, 1)"
    t.emit(f"tcgen05_st(w, {where}, {value}, {_transfer(call)}{_mask_kw(t)})")


@row("ptx.tcgen05_wait")
def tcgen05_wait(t: Any, call: Any) -> None:
    kind = "st" if any("wait::st" in v for v in call.mods.values()) else "ld"
    _collective(t, f"tcgen05.wait::{kind}")
    t.mark()
    t.emit(f"tcgen05_wait_{kind}(w{_mask_kw(t)})")


@row("ptx.tcgen05_fence")
def tcgen05_fence(t: Any, call: Any) -> None:
    """Orders tcgen05 operations around a thread's synchronisation."""
    before = call.mods["action"].endswith("before_thread_sync")
    t.emit(f"tcgen05_fence_{'before' if before else 'after'}(w)")
