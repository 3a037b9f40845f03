"""Rows for synchronisation: mbarriers, CTA, named and cluster barriers, votes, shuffles, fences."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _active, _collective, whole_warp
from mlsys_gpu.sim.frontend.families_math import _integer, _store, as_bits
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import FLOATS, Value

ALL_LANES = "4294967295"


def _test(value: Value) -> str:
    """A predicate operand (a register that holds 0 or 1) as a condition."""
    return value.code if value.dtype == "bool" else f"({value.code} != 0)"


def _members(t: Any, what: str, mask: Value, waits: bool = True) -> None:
    """The lanes that a warp-wide operation names must be those that execute it.

    ``waits``: lanes that have exited need not, as the ISA says of shuffles, votes, matches and
    reductions, and not of ``elect.sync`` and ``bar.warp.sync``.
    """
    t.mark()
    if mask.code in (ALL_LANES, "-1"):
        whole_warp(t, what, mask, waits=waits)
    else:
        t.emit(f"members(w, {mask.code}, {what!r}{_lanes(t)})")


def _lanes(t: Any) -> str:
    """The mask argument of an operation across lanes: of one lane, where one lane runs."""
    if t.context.lane is not None:
        return f", mask=(w.lanes == {t.context.lane})"
    return t.mask()


def _one_lane_of(t: Any, value: Value) -> Value:
    """A value of all lanes, as code that one lane runs sees it."""
    if t.context.lane is None or not value.lane:
        return value
    return Value(t.pick(value.code, value.dtype), value.dtype)


# ------------------------------------------------------------------------------------ mbarriers


@row("ptx.mbarrier_init")
def mbarrier_init(t: Any, call: Any) -> None:
    if call.mods.get("layout") == "layout::v1":
        raise t.refuse("mbarrier.init with layout::v1")
    address, count = t.expr(call.one("addr")), t.expr(call.one("count"))
    t.mark()
    threads = _active(t) or ", mask=w.present"
    t.emit(f"mbarrier_init(w, {address.code}, {count.code}{threads})")


@row("ptx.mbarrier_inval")
def mbarrier_inval(t: Any, call: Any) -> None:
    address = t.expr(call.one("addr"))
    t.mark()
    t.emit(f"mbarrier_inval(w, {address.code}{_active(t)})")


_ARRIVALS = [
    f"ptx.mbarrier_{kind}{form}"
    for kind in ("arrive", "arrive_drop")
    for form in ("", "_nocount", "_expect_tx", "_no_complete", "_no_complete_sink")
]
_STATES = [
    f"ptx.mbarrier_{kind}{form}_state"
    for kind in ("arrive", "arrive_drop")
    for form in ("", "_count", "_expect_tx")
]


@row(*_ARRIVALS, *_STATES, result="lane")
def mbarrier_arrive(t: Any, call: Any) -> None:
    """``mbarrier.arrive`` and ``arrive_drop``: with a count, with bytes, and with the state."""
    operands = dict(call.operands)
    target = operands.pop("state", None)
    address, *rest = (t.expr(v[0]) for v in operands.values())
    count, tx = "1", "None"
    if rest:
        count, tx = (count, rest[0].code) if "expect_tx" in call.name else (rest[0].code, tx)
    how = ""
    if call.mods.get("sem") == "relaxed":
        how += ', sem="relaxed"'
    if call.mods.get("scope"):
        how += f', scope="{call.mods["scope"]}"'
    if call.mods["action"] == "arrive_drop":
        how += ", drop=True"
    if call.mods.get("nocomplete"):
        how += ", complete=False"
    t.mark()
    arguments = f"w, {address.code}, {count}, {tx}{_active(t)}{how}"
    if target is None:
        t.emit(f"mbarrier_arrive({arguments})")
        return
    name = t.fresh("state")
    t.emit(f"{name} = mbarrier_arrive_state({arguments})")
    _store(t, target[0], Value(name, "uint64", t.context.lane is None))


@row("ptx.mbarrier_pending_count", vectorizable=True)
def mbarrier_pending_count(t: Any, call: Any) -> None:
    state = t.expr(call.one("state"))
    code = f"mbarrier_pending_count({as_bits(t, state, 'int64').code})"
    _store(t, call.one("count"), Value(code, "uint32", state.lane, state.loop))


@row("ptx.mbarrier_expect_tx", "ptx.mbarrier_complete_tx")
def mbarrier_tx(t: Any, call: Any) -> None:
    address, tx = t.expr(call.one("addr")), t.expr(call.one("tx_count"))
    t.mark()
    t.emit(f"mbarrier_{call.mods['action']}(w, {address.code}, {tx.code}{_active(t)})")


def _asks_per_lane(facts: Any, call: Any, region: int | None) -> bool:
    """A look at an mbarrier differs between lanes where they look at different ones."""
    return facts.lane(call.args[1], region)


@row("cuda.mbarrier_wait", "cuda.mbarrier_wait_acquire_cluster")
def mbarrier_wait_loop(t: Any, call: Any) -> None:
    address, parity = t.expr(call.args[0]), t.expr(call.args[1])
    if not address.lane:
        t.blocking(f"mbarrier_wait(w, {address.code}, {parity.code}{t.mask()})")
        return
    t.mark()
    place, phase = t.fresh("a"), t.fresh("p")
    asked = f"mbarrier_waits(w, {address.code}, {parity.code}{_active(t)})"
    t.emit(f"for {place}, {phase} in {asked}:")
    with t.block():
        t.blocking(f"mbarrier_wait(w, {place}, {phase})")


@row(
    "ptx.mbarrier_test_wait_parity",
    "ptx.mbarrier_try_wait_parity",
    "ptx.mbarrier_try_wait_parity_no_hint",
    "ptx.mbarrier_test_wait",
    "ptx.mbarrier_try_wait",
    "ptx.mbarrier_try_wait_hint",
    result=_asks_per_lane,
)
def mbarrier_poll(t: Any, call: Any) -> None:
    """One look at an mbarrier's phase, by parity or by an arrival's state.

    ``try_wait`` that finds nothing lets others run; for how long it would sleep is not modelled.
    """
    if call.mods.get("phase_type") == "phase_type::conditional":
        raise t.refuse("mbarrier waits with phase_type::conditional")
    address = t.expr(call.one("addr"))
    by_parity = "phase" in call.operands
    phase = t.expr(call.one("phase" if by_parity else "state"))
    relaxed = ", relaxed=True" if call.mods.get("sem") == "relaxed" else ""
    name, threads = t.fresh("done"), _active(t)
    if by_parity:
        code = f"mbarrier_test(w, {address.code}, {phase.code}{threads}{relaxed})"
    else:
        state = as_bits(t, phase, "int64").code
        code = f"mbarrier_test_state(w, {address.code}, {state}{threads}{relaxed})"
    if phase.lane and not address.lane:
        code = f"all_lanes({code}{threads})"
    t.mark()
    t.emit(f"{name} = {code}")
    lane = address.lane
    if call.mods["action"] == "try_wait":
        t.emit(f"if not {f'np.all({name})' if lane else name}: yield None")
    found = Value(name, "bool", lane) if lane else Value(f"int({name})", "uint32")
    _store(t, call.one("wait_complete"), t.cast(found, "uint32"))


# -------------------------------------------------------------------- CTA and named barriers


@row("cuda.cta_sync")
def cta_sync(t: Any, call: Any) -> None:
    _collective(t, "the CTA barrier")
    t.blocking(f"cta_sync(w{t.mask()})")


@row("tvm_storage_sync")
def storage_sync(t: Any, call: Any) -> None:
    """TVM's own barrier: of the warp, or (for shared memory) of the CTA."""
    scope = str(call.args[0].value)
    if scope == "warp":
        whole_warp(t, "__syncwarp")
        t.emit("warp_sync(w)")
    elif scope.startswith("shared"):
        cta_sync(t, call)
    else:
        raise t.refuse(f"tvm_storage_sync of {scope} memory")


@row("cuda.warpgroup_sync")
def warpgroup_sync(t: Any, call: Any) -> None:
    _collective(t, "a named barrier")
    t.blocking(f"bar_sync(w, {t.expr(call.args[0]).code}, 128{t.mask()})")


@row("ptx.bar_sync", "ptx.barrier_sync", "ptx.bar_sync_count", "ptx.barrier_sync_count")
def bar_sync(t: Any, call: Any) -> None:
    barrier = t.expr(call.one("a")).code
    count = t.expr(call.one("b")).code if "b" in call.operands else "None"
    _collective(t, "a named barrier")
    t.blocking(f"bar_sync(w, {barrier}, {count}{t.mask()})")


@row("ptx.bar_arrive", "ptx.barrier_arrive")
def bar_arrive(t: Any, call: Any) -> None:
    barrier, count = t.expr(call.one("a")).code, t.expr(call.one("b")).code
    _collective(t, "a named barrier")
    t.mark()
    t.emit(f"bar_arrive(w, {barrier}, {count}{t.mask()})")


def _reduction(t: Any, how: str, barrier: str, count: str, predicate: Value) -> Value:
    _collective(t, "a named barrier")
    t.blocking(f'bar_red(w, "{how}", {barrier}, {count}, {_test(predicate)}{t.mask()})')
    name = t.fresh("red")
    t.emit(f"{name} = bar_result(w)")
    return Value(name, "uint32")


@row(
    *(
        f"ptx.{family}_red_{what}{count}"
        for family in ("bar", "barrier")
        for what in ("popc", "pred")
        for count in ("", "_count")
    ),
    result="uniform",
)
def bar_red(t: Any, call: Any) -> None:
    barrier, predicate = t.expr(call.one("a")).code, t.expr(call.one("c"))
    count = t.expr(call.one("b")).code if "b" in call.operands else "None"
    _store(t, call.one("d"), _reduction(t, call.mods["op"], barrier, count, predicate))


@row("cuda.syncthreads_and", "cuda.syncthreads_or", result="uniform")
def syncthreads_red(t: Any, call: Any) -> Value:
    how = str(call.op.name).rsplit("_", 1)[1]
    found = _reduction(t, how, "0", "None", t.expr(call.args[0]))
    return Value(found.code, str(call.ty))


# --------------------------------------------------------------------------- cluster barriers


@row("cuda.cluster_sync")
def cluster_sync(t: Any, call: Any) -> None:
    _collective(t, "the cluster barrier")
    t.blocking(f"cluster_sync(w{t.mask()})")


@row("ptx.barrier_cluster_arrive")
def barrier_cluster(t: Any, call: Any) -> None:
    _collective(t, "the cluster barrier")
    t.mark()
    t.emit(f"cluster_arrive(w, {call.mods.get('sem') != 'relaxed'}{t.mask()})")


@row("ptx.barrier_cluster_wait")
def barrier_cluster_wait(t: Any, call: Any) -> None:
    _collective(t, "the cluster barrier")
    t.blocking(f"cluster_wait(w{t.mask()})")


# ------------------------------------------------------------------------ distributed addresses


@row("ptx.mapa", "ptx.mapa_u32", "ptx.mapa_u64_raw", "ptx.mapa_u64_shared", vectorizable=True)
def mapa(t: Any, call: Any) -> None:
    """``mapa``: the address of the same shared variable in another CTA of the cluster."""
    target, address, rank = call.operands.values()
    where, of = t.expr(address[0]), t.expr(rank[0])
    lane, loop = where.lane or of.lane, where.loop or of.loop
    code = f"mapa(w, {where.code}, {of.code}{t.mask()})"
    buffer = t.buffer_of(target[0].source)
    t.mark()
    t.store_register(buffer, target[0].indices[0], Value(code, buffer.dtype, lane, loop))


@row("ptx.getctarank", "ptx.getctarank_generic", vectorizable=True)
def getctarank(t: Any, call: Any) -> None:
    """``getctarank``: the rank of the CTA whose shared memory an address lies in."""
    where = t.expr(call.one("a"))
    code = f"({where.code} >> 24 & 0xFF)"
    _store(t, call.one("d"), Value(code, "uint32", where.lane, where.loop))


_WINDOWS = {
    "const": "False",
    "local": "False",
    "shared::cluster": "({0} >> 40 == 1)",
    "shared::cta": "({0} >> 24 == 1 << 16 | w.rank)",
    "shared": "({0} >> 24 == 1 << 16 | w.rank)",
    "global": "({0} >> 40 >= 2)",
}


@row("ptx.isspacep", vectorizable=True)
def isspacep(t: Any, call: Any) -> None:
    """``isspacep``: whether a generic address lies in a state space."""
    where, space = t.expr(call.one("a")), call.mods["space"]
    if space not in _WINDOWS:
        raise t.refuse(f"isspacep.{space}")
    code = _WINDOWS[space]
    differs = code != "False"
    found = Value(code.format(where.code), "bool", where.lane and differs, where.loop and differs)
    _store(t, call.one("p"), t.cast(found, "uint32"))


@row("ptx.cvta", "ptx.cvta_generic", vectorizable=True)
def cvta(t: Any, call: Any) -> None:
    """``cvta``: an address of a state space as a generic one, or back (``.to``)."""
    (target,), (source,) = call.operands.values()
    where, space = t.expr(source), call.mods["space"]
    code = where.code
    if space.startswith("shared"):
        code = f"({code} & 0xFFFFFFFF)" if call.mods.get("dir") else f"({code} | 1 << 40)"
    elif space != "global":
        raise t.refuse(f"cvta of {space} addresses")
    buffer = t.buffer_of(target.source)
    t.store_register(buffer, target.indices[0], Value(code, buffer.dtype, where.lane, where.loop))


@row("cuda.sm100_2sm_leader_smem_addr", "cuda.smem_addr_from_uint64", vectorizable=True)
def leader_address(t: Any, call: Any) -> Value:
    """A 32-bit shared address; ``sm100_2sm_leader`` of a pair of CTAs names the even one's."""
    where = t.expr(call.args[0])
    window = "0xFEFFFFFF" if "leader" in str(call.op.name) else "0xFFFFFFFF"
    return Value(f"({where.code} & {window})", "uint32", where.lane, where.loop)


# --------------------------------------------------------------------------- special registers

#: Special registers that all lanes of a warp share.
_SHARED_REGISTERS = {
    "cluster_ctarank": "w.rank",
    "cluster_nctarank": "w.cluster.size",
    "is_explicit_cluster": "int(w.cluster.size > 1)",
    "warpid": "w.id",
    "nwarpid": "64",
    "smid": "smid(w)",
    "nsmid": "nsmid(w)",
    "gridid": "0",
    "clock": "(clock(w) & 0xFFFFFFFF)",
    "clock_hi": "(clock(w) >> 32)",
    "clock64": "clock(w)",
    "globaltimer": "clock(w)",
    "globaltimer_lo": "(clock(w) & 0xFFFFFFFF)",
    "globaltimer_hi": "(clock(w) >> 32)",
}
for _axis, _name in enumerate("xyz"):
    _cta, _shape = f"b{_name}", f"w.cluster.shape[{_axis}]"
    _grid = f'w.machine.program.launch["grid"][{_axis}]'
    _SHARED_REGISTERS |= {
        f"ctaid.{_name}": _cta,
        f"nctaid.{_name}": _grid,
        f"ntid.{_name}": f'w.machine.program.launch["block"][{_axis}]',
        f"clusterid.{_name}": f"({_cta} // {_shape})",
        f"nclusterid.{_name}": f"({_grid} // {_shape})",
        f"cluster_ctaid.{_name}": f"({_cta} % {_shape})",
        f"cluster_nctaid.{_name}": _shape,
    }

#: Special registers that differ between lanes, by the lane's number.
_LANE_REGISTERS = {
    "laneid": "{0}",
    "lanemask_eq": "(1 << {0})",
    "lanemask_le": "((2 << {0}) - 1)",
    "lanemask_lt": "((1 << {0}) - 1)",
    "lanemask_ge": "(0x100000000 - (1 << {0}))",
    "lanemask_gt": "(0x100000000 - (2 << {0}))",
}


def _register_name(call: Any) -> str:
    name = next(str(a.value) for a in call.args if type(a).__name__ == "StringImm")
    return name.removeprefix("%")


def _register_of_lane(facts: Any, call: Any, region: int | None) -> bool:
    name = _register_name(call)
    return region is None and (name in _LANE_REGISTERS or name.startswith("tid."))


@row("cuda.mov_sreg", result=_register_of_lane)
def mov_sreg(t: Any, call: Any) -> Value:
    name, dtype = _register_name(call), str(call.ty)
    if name in _SHARED_REGISTERS:
        return Value(_SHARED_REGISTERS[name], dtype)
    if name in _LANE_REGISTERS:
        lane = t.context.lane
        code = _LANE_REGISTERS[name].format("w.lanes" if lane is None else lane)
        return t.cast(Value(code, "uint32", lane is None), dtype)
    if name.startswith("tid."):
        value = t.thread_axis("threadIdx." + name[-1])
        if value.code == "tid" and t.context.lane is not None:
            return Value(f"(w.tid0 + {t.context.lane})", dtype)
        return _one_lane_of(t, Value(value.code, dtype, True))
    raise t.refuse(f"the special register %{name}")


@row("cuda.clock64", result="uniform")
def clock64(t: Any, call: Any) -> Value:
    """A clock that counts its own readings: deterministic, and no measure of time."""
    return Value("clock(w)", str(call.ty))


@row("cuda.nano_sleep")
def nano_sleep(t: Any, call: Any) -> None:
    """Lets others run; for how long is not modelled."""
    t.emit("yield None")


# ----------------------------------------------------------------------------- lanes of a warp


@row("cuda.elect_sync", result="lane")
def elect_sync(t: Any, call: Any) -> Value:
    whole_warp(t, "elect.sync of all 32 lanes", waits=False)
    if t.context.lane is not None:
        return Value("True", "bool")
    return Value(f"(w.lanes == leader({t.context.mask}))", "bool", True)


@row("ptx.elect_sync", result="lane")
def ptx_elect_sync(t: Any, call: Any) -> None:
    """``elect.sync d|p, membermask``: the lowest of the lanes, and whether this one is it."""
    members = t.expr(call.one("membermask"))
    _members(t, "elect.sync of all 32 lanes", members, waits=False)
    if t.context.lane is not None:
        chosen, elected = Value(str(t.context.lane), "uint32"), Value("1", "uint32")
    else:
        name = t.fresh("leader")
        t.emit(f"{name} = leader({t.context.mask})")
        chosen = Value(name, "uint32")
        elected = t.cast(Value(f"(w.lanes == {name})", "bool", True), "uint32")
    _store(t, call.one("d"), chosen)
    _store(t, call.one("p"), elected)


@row("ptx.mbarrier_check_layout", result="uniform")
def mbarrier_check_layout(t: Any, call: Any) -> None:
    """``mbarrier.check_layout``: all mbarriers here have ``.layout::v0``."""
    _store(t, call.one("matches"), Value(str(int(call.mods["layout"] == "layout::v0")), "uint32"))


@row("ptx.activemask", "cuda.__activemask", "tvm_warp_activemask", result="uniform")
def activemask(t: Any, call: Any) -> Value | None:
    if t.context.lane is not None:
        code = f"(1 << {t.context.lane})"
    else:
        code = f"active_lanes(w{t.mask()})"
    value = Value(code, "uint32")
    if not hasattr(call, "operands"):
        return value
    _store(t, call.one("d"), value)
    return None


@row("cuda.warp_sync")
def warp_sync(t: Any, call: Any) -> None:
    whole_warp(t, "__syncwarp")
    t.emit("warp_sync(w)")


@row("ptx.bar_warp_sync")
def bar_warp_sync(t: Any, call: Any) -> None:
    mask = t.expr(call.one("membermask"))
    _members(t, "bar.warp.sync of all 32 lanes", mask, waits=False)
    t.emit(f"warp_sync(w{t.mask()})")


@row("cuda.any_sync", result="uniform")
def any_sync(t: Any, call: Any) -> Value:
    members, value = t.expr(call.args[0]), t.expr(call.args[-1])
    _members(t, "a vote of all 32 lanes", members)
    return Value(f'vote(w, "any", {_test(value)}{_lanes(t)})', str(call.ty))


@row("cuda.ballot_sync", result="uniform")
def ballot_sync(t: Any, call: Any) -> Value:
    members, value = t.expr(call.args[0]), t.expr(call.args[-1])
    _members(t, "a ballot of all 32 lanes", members)
    return Value(f'vote(w, "ballot", {_test(value)}{_lanes(t)})', str(call.ty))


@row("ptx.vote_sync", "ptx.vote_sync_ballot", result="uniform")
def vote(t: Any, call: Any) -> None:
    predicate, members = t.expr(call.one("a")), t.expr(call.one("membermask"))
    mode = call.mods["mode"]
    _members(
        t, "a ballot of all 32 lanes" if mode == "ballot" else "a vote of all 32 lanes", members
    )
    code = f'vote(w, "{mode}", {_test(predicate)}{_lanes(t)})'
    _store(t, call.one("d"), Value(code, "uint32"))


@row("ptx.match_any_sync", "ptx.match_all_sync", "ptx.match_all_sync_p", result="lane")
def match(t: Any, call: Any) -> None:
    """``match.sync``: which lanes hold the same value; for ``.all``, whether all of them do."""
    value, members = t.expr(call.one("a")), t.expr(call.one("membermask"))
    _members(t, "a match of all 32 lanes", members)
    bits = as_bits(t, value, "uint" + call.mods["type"][1:]).code
    name, lane = t.fresh("match"), t.context.lane is None
    t.emit(f'{name} = match(w, "{call.mods["mode"]}", {bits}{_lanes(t)})')
    lane = lane and call.mods["mode"] == "any"
    _store(t, call.one("d"), Value(name, "uint32", lane))
    if "p" in call.operands:
        _store(t, call.one("p"), Value(f"int({name} != 0)", "uint32"))


@row("ptx.redux_sync", "ptx.redux_sync_bitwise", "ptx.redux_sync_f32", result="uniform")
def redux(t: Any, call: Any) -> None:
    of = call.mods["type"]
    dtype = "float32" if of == "f32" else _integer(of)
    value, members = t.expr(call.one("a")), t.expr(call.one("membermask"))
    _members(t, "a reduction over all 32 lanes", members)
    how = call.mods["op"]
    if dtype == "float32":
        how += ".abs" * bool(call.mods.get("abs")) + ".NaN" * bool(call.mods.get("nan"))
    _store(t, call.one("d"), _reduced(t, how, as_bits(t, value, dtype), dtype))


def _reduced(t: Any, how: str, value: Value, dtype: str) -> Value:
    code = f'redux(w, "{how}", {value.code}{_lanes(t)})'
    if dtype == "int32":
        code = f"wrap({code}, 32, True)"
    return Value(code, dtype)


@row("cuda.reduce_add_sync_u32", "cuda.reduce_min_sync_u32", result="uniform")
def reduce_sync(t: Any, call: Any) -> Value:
    members, value = t.expr(call.args[0]), t.expr(call.args[1])
    _members(t, "a reduction over all 32 lanes", members)
    how = "add" if "add" in str(call.op.name) else "min"
    return _reduced(t, how, as_bits(t, value, "uint32"), "uint32")


# ----------------------------------------------------------------------------------- shuffles


@row("ptx.shfl_sync", "ptx.shfl_sync_p", result="lane")
def shfl(t: Any, call: Any) -> None:
    value = t.carried(call.one("a"))
    b, c, members = (t.expr(call.one(n)) for n in ("b", "c", "membermask"))
    _members(t, "a shuffle of all 32 lanes", members)
    arguments = f'w, "{call.mods["mode"]}", {value.code}, {b.code}, {c.code}{_lanes(t)}'
    if "p" in call.operands:
        name = t.fresh("shfl")
        t.emit(f"{name}, {name}_p = shfl_p({arguments})")
        inside = _one_lane_of(t, Value(f"{name}_p", "bool", True))
        _store(t, call.one("p"), t.cast(inside, "uint32"))
        shuffled = Value(name, value.dtype, True)
    else:
        shuffled = Value(f"shfl({arguments})", value.dtype, True)
    _store(t, call.one("d"), _one_lane_of(t, shuffled))


_SHUFFLE_MODES = {"_up": "up", "_down": "down", "_xor": "bfly"}


@row(
    "tvm_warp_shuffle",
    "tvm_warp_shuffle_up",
    "tvm_warp_shuffle_down",
    "tvm_warp_shuffle_xor",
    result="shuffle",
)
def warp_shuffle(t: Any, call: Any) -> Value:
    name = str(call.op.name)
    return _shuffled(t, call, _SHUFFLE_MODES.get(name[name.rfind("_") :], "idx"))


def _shuffled(t: Any, call: Any, mode: str) -> Value:
    """A shuffle of ``(mask, value, source, width)``; one lane's value where all read the same."""
    members, source, width = (t.expr(call.args[i]) for i in (0, 2, 3))
    value = t.carried(call.args[1])
    _members(t, "a shuffle of all 32 lanes", members)
    if value.uniform:
        return value
    code = f'shuffle(w, {value.code}, {source.code}, "{mode}", {width.code}{_lanes(t)})'
    if mode == "idx" and source.uniform and width.code == "32":
        picked = f"{code}[0]"
        return Value(f"{picked}.item()" if value.dtype not in FLOATS else picked, value.dtype)
    return Value(code, value.dtype, True)


def _shuffle_row(name: str, mode: str) -> None:
    row(name, result="shuffle")(lambda t, call: _shuffled(t, call, mode))


for _name, _mode in {
    "cuda.__shfl_sync": "idx",
    "cuda.__shfl_up_sync": "up",
    "cuda.__shfl_down_sync": "down",
    "cuda.__shfl_xor_sync": "bfly",
}.items():
    _shuffle_row(_name, _mode)


# ------------------------------------------------------------------------------------- fences


@row("ptx.fence")
def fence(t: Any, call: Any) -> None:
    sem, scope = call.mods.get("sem") or "sc", call.mods.get("scope") or call.mods.get("level", "")
    scope = {"gl": "gpu"}.get(scope, scope)
    t.mark()
    t.emit(f'fence_memory(w, "{sem}", "{scope}")')


@row("cuda.thread_fence")
def thread_fence(t: Any, call: Any) -> None:
    t.mark()
    t.emit('fence_memory(w, "sc", "gpu")')


@row("ptx.fence_mbarrier_init")
def fence_mbarrier_init(t: Any, call: Any) -> None:
    t.emit("fence_mbarrier_init(w)")


@row("ptx.fence_proxy")
def fence_proxy(t: Any, call: Any) -> None:
    """``fence.proxy.async`` for one state space or all; ``.alias`` has nothing to do here, where
    one address is the only name of its bytes."""
    if call.mods["proxykind"] == "async":
        t.mark()
        t.emit(f"fence_proxy_async(w{t.mask()})")


@row("ptx.fence_proxy_tensormap_release", "ptx.fence_proxy_tensormap_acquire")
def fence_proxy_tensormap(t: Any, call: Any) -> None:
    """Orders changes of tensor maps in memory; there are none (tensormap.replace is refused)."""


# ------------------------------------------------------------------------- grids, and debugging


@row("ptx.griddepcontrol")
def griddepcontrol(t: Any, call: Any) -> None:
    """``griddepcontrol``: a launch by itself has no grid to wait for, and none that waits for it
    (PTX ISA, "griddepcontrol": without one both return at once)."""


@row("assume")
def assume(t: Any, call: Any) -> None:
    """A promise to the compiler."""


@row("cuda.trap_when_assert_failed", vectorizable=True)
def trap(t: Any, call: Any) -> None:
    """An assertion of the kernel's author: where it fails, the GPU traps and the kernel dies."""
    value = t.expr(call.args[0])
    if value.code in ("True", "1"):
        return
    t.mark()
    t.emit(f"assertion(w, {_test(value)}{t.mask()})")


@row("cuda.printf")
def printf(t: Any, call: Any) -> None:
    """``printf`` of the active lanes, one after another; the text comes out when the run ends."""
    text, *values = call.args
    arguments = "".join(f"{t.expr(v).code}, " for v in values)
    t.mark()
    t.emit(f"printf(w, {str(text.value)!r}, ({arguments}){_lanes(t)})")
