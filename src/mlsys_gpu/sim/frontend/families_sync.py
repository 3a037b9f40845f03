"""Rows for synchronisation: mbarriers, CTA, named and cluster barriers, votes, shuffles, fences."""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.families import _active, _collective, whole_warp
from mlsys_gpu.sim.frontend.families_math import _integer, _sources, _store, as_bits
from mlsys_gpu.sim.frontend.table import row
from mlsys_gpu.sim.frontend.values import FLOATS, Value

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
    whole_warp(t, "a shuffle of all 32 lanes", call.args[0])
    return _shuffled(t, call, _SHUFFLE_MODES.get(name[name.rfind("_") :], "idx"))


def _shuffled(t: Any, call: Any, mode: str) -> Value:
    """A shuffle of ``(mask, value, source, width)``; one lane's value where all read the same."""
    value, source, width = (t.expr(a) for a in call.args[1:4])
    if value.uniform:
        return value
    code = f'shuffle(w, {value.code}, {source.code}, "{mode}", {width.code})'
    if mode == "idx" and source.uniform and width.code == "32":
        picked = f"{code}[0]"
        return Value(f"{picked}.item()" if value.dtype not in FLOATS else picked, value.dtype)
    return Value(code, value.dtype, True)


@row("cuda.elect_sync", result="lane")
def elect_sync(t: Any, call: Any) -> Value:
    if t.context.lane is not None:
        return Value("True", "bool")
    return Value(f"(w.lanes == leader({t.context.mask}))", "bool", True)


@row("cuda.cta_sync")
def cta_sync(t: Any, call: Any) -> None:
    _collective(t, "the CTA barrier")
    t.blocking(f"cta_sync(w{t.mask()})")


@row("cuda.warp_sync")
def warp_sync(t: Any, call: Any) -> None:
    whole_warp(t, "__syncwarp")
    t.emit("warp_sync(w)")


@row("cuda.warpgroup_sync")
def warpgroup_sync(t: Any, call: Any) -> None:
    _collective(t, "a named barrier")
    t.blocking(f"bar_sync(w, {t.expr(call.args[0]).code}, 128{t.mask()})")


@row("cuda.cluster_sync")
def cluster_sync(t: Any, call: Any) -> None:
    _collective(t, "the cluster barrier")
    t.blocking(f"cluster_sync(w{t.mask()})")


@row("cuda.mbarrier_wait", "cuda.mbarrier_wait_acquire_cluster")
def mbarrier_wait_loop(t: Any, call: Any) -> None:
    address, parity = t.expr(call.args[0]), t.expr(call.args[1])
    t.blocking(f"mbarrier_wait(w, {address.code}, {parity.code}{t.mask()})")


@row("cuda.any_sync", result="uniform")
def any_sync(t: Any, call: Any) -> Value:
    whole_warp(t, "a vote of all 32 lanes", call.args[0])
    value = t.expr(call.args[-1])
    return Value(f"int(vote_any(w, {value.code}{t.mask()}))", str(call.ty))


@row("cuda.ballot_sync", result="uniform")
def ballot_sync(t: Any, call: Any) -> Value:
    whole_warp(t, "a ballot of all 32 lanes", call.args[0])
    value = t.expr(call.args[-1])
    return Value(f"ballot(w, {value.code}{t.mask()})", str(call.ty))


def _shuffle_row(name: str, mode: str) -> None:
    row(name, result="shuffle")(lambda t, call: _shuffled(t, call, mode))


for _name, _mode in {
    "cuda.__shfl_sync": "idx",
    "cuda.__shfl_up_sync": "up",
    "cuda.__shfl_down_sync": "down",
    "cuda.__shfl_xor_sync": "bfly",
}.items():
    _shuffle_row(_name, _mode)


# ------------------------------------------------------------------- votes, shuffles, reductions


@row("ptx.vote_sync", result="uniform")
def vote(t: Any, call: Any) -> None:
    target, (predicate, members) = _sources(t, call)
    whole_warp(t, "a vote of all 32 lanes", members)
    mode = call.mods["mode"]
    if mode == "uni":
        raise t.refuse("vote.sync.uni")
    test = predicate.code if predicate.dtype == "bool" else f"({predicate.code} != 0)"
    _store(t, target, Value(f"int(vote_{mode}(w, {test}{t.mask()}))", "uint32"))


@row("ptx.vote_sync_ballot", result="uniform")
def ballot(t: Any, call: Any) -> None:
    target, (predicate, members) = _sources(t, call)
    whole_warp(t, "a ballot of all 32 lanes", members)
    test = predicate.code if predicate.dtype == "bool" else f"({predicate.code} != 0)"
    _store(t, target, Value(f"ballot(w, {test}{t.mask()})", "uint32"))


@row("ptx.shfl_sync", result="lane")
def shfl(t: Any, call: Any) -> None:
    target, (value, b, c, members) = _sources(t, call)
    whole_warp(t, "a shuffle of all 32 lanes", members)
    code = f'shfl(w, "{call.mods["mode"]}", {value.code}, {b.code}, {c.code})'
    _store(t, target, Value(code, value.dtype, True))


@row("ptx.redux_sync", "ptx.redux_sync_bitwise", "ptx.redux_sync_f32", result="uniform")
def redux(t: Any, call: Any) -> None:
    of = call.mods["type"]
    dtype = "float32" if of == "f32" else _integer(of)
    target, (value, members) = _sources(t, call)
    whole_warp(t, "a reduction over all 32 lanes", members)
    code = f'redux(w, "{call.mods["op"]}", {as_bits(t, value, dtype).code}{t.mask()})'
    if dtype == "int32":
        code = f"wrap({code}, 32, True)"
    _store(t, target, Value(code, dtype))


# --------------------------------------------------------------------------------- PTX: fences


@row("ptx.fence", "ptx.fence_acq_rel", "ptx.fence_sc", "ptx.membar", "cuda.thread_fence")
def fence(t: Any, call: Any) -> None:
    """What came before may be published by a relaxed operation behind it."""
    t.emit("fence_release(w)")


@row("ptx.fence_mbarrier_init")
def fence_mbarrier_init(t: Any, call: Any) -> None:
    t.emit("fence_mbarrier_init(w)")


@row("ptx.fence_proxy")
def fence_proxy(t: Any, call: Any) -> None:
    kind = ".".join(v for v in call.mods.values() if v)
    if "async" not in kind:
        raise t.refuse(f"fence.{kind}")
    t.mark()
    t.emit(f"fence_proxy_async(w{t.mask()})")


# ------------------------------------------------------------------------------ PTX: mbarriers


@row("ptx.mbarrier_init")
def mbarrier_init(t: Any, call: Any) -> None:
    address, count = (t.expr(v[0]) for v in list(call.operands.values())[:2])
    t.mark()
    t.emit(f"mbarrier_init(w, {address.code}, {count.code}{t.mask()})")


@row("ptx.mbarrier_inval")
def mbarrier_inval(t: Any, call: Any) -> None:
    address = t.expr(next(iter(call.operands.values()))[0])
    t.mark()
    t.emit(f"mbarrier_inval(w, {address.code}{t.mask()})")


@row("ptx.mbarrier_arrive", "ptx.mbarrier_arrive_nocount", "ptx.mbarrier_arrive_expect_tx")
def mbarrier_arrive(t: Any, call: Any) -> None:
    with t.predicated(call):
        address, *rest = (t.expr(v[0]) for v in call.operands.values())
        extra = rest[0].code if rest else "1"
        t.mark()
        threads = _active(t)
        if "expect_tx" in call.name:
            t.emit(f"mbarrier_arrive(w, {address.code}, 1, {extra}{threads})")
        else:
            t.emit(f"mbarrier_arrive(w, {address.code}, {extra}, None{threads})")


@row("ptx.mbarrier_expect_tx")
def mbarrier_expect_tx(t: Any, call: Any) -> None:
    address, tx = (t.expr(v[0]) for v in list(call.operands.values())[:2])
    t.mark()
    t.emit(f"mbarrier_expect_tx(w, {address.code}, {tx.code}{_active(t)})")


# ---------------------------------------------------------------- PTX: CTA, cluster, distributed


@row(
    "ptx.bar_sync",
    "ptx.barrier_sync",
    "ptx.bar_cta_sync",
    "ptx.barrier_cta_sync",
    "ptx.bar_sync_count",
    "ptx.barrier_sync_count",
)
def bar_sync(t: Any, call: Any) -> None:
    values = [t.expr(v[0]).code for v in call.operands.values()]
    _collective(t, "a named barrier")
    count = values[1] if len(values) > 1 else "None"
    t.blocking(f"bar_sync(w, {values[0]}, {count}{t.mask()})")


@row("ptx.bar_arrive", "ptx.barrier_arrive", "ptx.bar_cta_arrive", "ptx.barrier_cta_arrive")
def bar_arrive(t: Any, call: Any) -> None:
    barrier, count = (t.expr(v[0]).code for v in call.operands.values())
    _collective(t, "a named barrier")
    t.mark()
    t.emit(f"bar_arrive(w, {barrier}, {count}{t.mask()})")


@row("ptx.barrier_cluster_arrive", "ptx.barrier_cluster")
def barrier_cluster(t: Any, call: Any) -> None:
    kinds = set(call.mods.values())
    _collective(t, "the cluster barrier")
    if "wait" in kinds:
        t.blocking(f"cluster_wait(w{t.mask()})")
    else:
        t.mark()
        t.emit(f"cluster_arrive(w, {'relaxed' not in kinds}{t.mask()})")


@row("ptx.barrier_cluster_wait")
def barrier_cluster_wait(t: Any, call: Any) -> None:
    _collective(t, "the cluster barrier")
    t.blocking(f"cluster_wait(w{t.mask()})")


@row("ptx.mapa", "ptx.mapa_u32", "ptx.mapa_u64_raw", "ptx.mapa_u64_shared", vectorizable=True)
def mapa(t: Any, call: Any) -> None:
    """``mapa``: the address of the same shared variable in another CTA of the cluster."""
    target, address, rank = call.operands.values()
    where, of = t.expr(address[0]), t.expr(rank[0])
    lane, loop = where.lane or of.lane, where.loop or of.loop
    code = f"mapa(w, {where.code}, {of.code})"
    buffer = t.buffer_of(target[0].source)
    t.mark()
    t.store_register(buffer, target[0].indices[0], Value(code, buffer.dtype, lane, loop))


_SREGS = {
    "cluster_ctarank": "w.rank",
    "cluster_nctarank": "w.cluster.size",
    "ctaid.x": "bx",
    "ctaid.y": "by",
    "ctaid.z": "bz",
    "clusterid.x": "(bx // w.cluster.shape[0])",
    "clusterid.y": "(by // w.cluster.shape[1])",
    "clusterid.z": "(bz // w.cluster.shape[2])",
    "cluster_ctaid.x": "(bx % w.cluster.shape[0])",
    "cluster_ctaid.y": "(by % w.cluster.shape[1])",
    "cluster_ctaid.z": "(bz % w.cluster.shape[2])",
}


@row("cuda.mov_sreg", result="uniform")
def mov_sreg(t: Any, call: Any) -> Value:
    name = next(str(a.value) for a in call.args if type(a).__name__ == "StringImm")
    name = name.removeprefix("%")
    if name not in _SREGS:
        raise t.refuse(f"the special register %{name}")
    return Value(_SREGS[name], str(call.ty))


# ------------------------------------------------------------------------- PTX: mbarrier polls


@row(
    "ptx.mbarrier_test_wait_parity",
    "ptx.mbarrier_try_wait_parity",
    "ptx.mbarrier_try_wait_parity_no_hint",
    result="uniform",
)
def mbarrier_poll(t: Any, call: Any) -> None:
    """One look at an mbarrier's phase; a loop around it lets others run between looks."""
    target, values = _sources(t, call)
    address, parity = values[0], values[1]
    t.mark()
    code = f"int(mbarrier_test(w, {address.code}, {parity.code}{t.mask()}))"
    _store(t, target, Value(code, "uint32"))
