"""Synchronisation through memory: atomics, release and acquire, fences, and CTAs side by side."""

# Kernels are TVMScript: its parser gives names and annotations their meaning.
# pyright: reportUnboundVariable=false, reportInvalidTypeForm=false

from __future__ import annotations

import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import sim

from .sources import module_from

SCHEDULES = [
    {"schedule": "eager"},
    {"schedule": "lazy"},
    *({"schedule": "seeded", "schedule_seed": seed} for seed in range(5)),
]


def codes(report):
    return {f.code for f in report.findings}


def line_of(kernel_file: str, report, text: str) -> bool:
    """Whether a finding stands at a line that holds ``text``."""
    return any(f.location is not None and text in f.location.text for f in report.findings)


# ------------------------------------------------------------------------------------ numbers


INTEGERS = [
    ("and", "b32", "uint32"), ("or", "b32", "uint32"), ("xor", "b64", "uint64"),
    ("add", "u32", "uint32"), ("add", "u64", "uint64"), ("min", "s32", "int32"),
    ("max", "s64", "int64"), ("min", "u32", "uint32"), ("inc", "u32", "uint32"),
    ("dec", "u32", "uint32"),
]  # fmt: skip


def step(op: str, held: int, value: int, bits: int) -> int:
    """One atomic by the words of the ISA, on Python integers."""
    if op == "inc":
        return 0 if held >= value else held + 1
    if op == "dec":
        return value if held == 0 or held > value else held - 1
    if op in ("min", "max"):
        return {"min": min, "max": max}[op](held, value)
    result = {"and": held & value, "or": held | value, "xor": held ^ value, "add": held + value}[op]
    return result & ((1 << bits) - 1)


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("op", "kind", "dtype"), INTEGERS)
def test_integer_atomics_leave_what_one_after_the_other_leaves(op, kind, dtype, space):
    """16 places, each met by two lanes of each of two warps; the old values chain up."""
    there, here = f"atom.global.{op}.{kind}", f"atom.shared.{op}.{kind}"

    @T.prim_func
    def in_global(C: T.Buffer((16,), dtype), V: T.Buffer((64,), dtype), D: T.Buffer((64,), dtype)):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([64])
        old = T.alloc_local((1,), dtype)
        T.ptx[there](old[0], C.ptr_to([tid % 16]), V[tid])
        D[tid] = old[0]

    @T.prim_func
    def in_shared(C: T.Buffer((16,), dtype), V: T.Buffer((64,), dtype), D: T.Buffer((64,), dtype)):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([64])
        old = T.alloc_local((1,), dtype)
        pool = T.SMEMPool()
        s = pool.alloc((16,), dtype)
        pool.commit()
        if tid < 16:
            s[tid] = C[tid]
        T.cuda.cta_sync()
        T.ptx[here](old[0], T.cuda.cvta_generic_to_shared(s.ptr_to([tid % 16])), V[tid])
        D[tid] = old[0]
        T.cuda.cta_sync()
        if tid < 16:
            C[tid] = s[tid]

    rng = np.random.default_rng(7)
    bits = np.dtype(dtype).itemsize * 8
    low, high = np.iinfo(dtype).min // 2, np.iinfo(dtype).max // 2
    c = rng.integers(low, high, 16, dtype=dtype)
    v = rng.integers(low, high, 64, dtype=dtype)
    if op in ("inc", "dec"):
        c, v = (x % 7 for x in (c, v))
    for schedule in SCHEDULES[:4]:
        held, old = c.copy(), np.zeros(64, dtype)
        kernel = in_global if space == "global" else in_shared
        report = sim.simulate(kernel, held, v, old, arch="hopper", **schedule)
        assert not report.findings
        for place in range(16):
            lanes = [i for i in range(64) if i % 16 == place]
            orders = []  # some order of the four atomics explains all that was returned
            from itertools import permutations

            for order in permutations(lanes):
                now, seen = int(c[place]), {}
                for lane in order:
                    seen[lane] = now
                    now = step(op, now, int(v[lane]), bits)
                    if dtype.startswith("int") and op == "add":
                        now = (now + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
                orders.append(now == held[place] and all(seen[i] == old[i] for i in lanes))
            assert any(orders), (op, dtype, place)


def test_floating_point_atomics_round_once_and_flush_in_global_memory():
    @T.prim_func
    def kernel(
        F: T.Buffer((32,), "float32"),
        G: T.Buffer((32,), "float32"),
        H: T.Buffer((64,), "float16"),
        X: T.Buffer((32,), "float32"),
        Y: T.Buffer((32,), "uint32"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((32,), "float32")
        pool.commit()
        s[tid] = F[tid]
        T.cuda.warp_sync()
        T.ptx["red.global.add.f32"](F.ptr_to([tid]), X[tid])
        T.ptx["red.shared.add.f32"](T.cuda.cvta_generic_to_shared(s.ptr_to([tid])), X[tid])
        G[tid] = s[tid]
        T.ptx["red.global.add.noftz.f16x2"](H.ptr_to([2 * tid]), Y[tid])

    rng = np.random.default_rng(1)
    f = rng.standard_normal(32).astype(np.float32)
    x = rng.standard_normal(32).astype(np.float32)
    f[:4] = [1e-39, np.inf, -0.0, 3e38]
    x[:4] = [2e-39, -np.inf, -0.0, 3e38]
    h = rng.standard_normal(64).astype(np.float16)
    y = (rng.standard_normal(64) * 100).astype(np.float16)
    start, pairs = f.copy(), h.copy()
    g = np.zeros(32, np.float32)
    report = sim.simulate(kernel, f, g, h, x, y.view(np.uint32), arch="hopper")
    assert not report.findings
    with np.errstate(all="ignore"):
        exact = start.astype(np.float64) + x
        np.testing.assert_array_equal(g, exact.astype(np.float32))  # shared keeps subnormals
        flushed = exact.astype(np.float32)
        flushed[0] = 0
        np.testing.assert_array_equal(f, flushed)
        wanted = (pairs.astype(np.float64) + y.astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(h, wanted)


def test_compare_and_swap_and_exchange():
    """A lock-free maximum by compare-and-swap, over four CTAs."""

    @T.prim_func
    def kernel(
        M: T.Buffer((1,), "uint32"), V: T.Buffer((128,), "uint32"), E: T.Buffer((1,), "uint32")
    ):
        T.device_entry()
        cta = T.cta_id([4])
        tid = T.thread_id([32])
        seen: T.uint32
        old: T.uint32
        if tid == 0:
            for i in T.serial(32):
                T.ptx["ld.relaxed.gpu.global.u32"](seen, M.ptr_to([0]))
                while seen < V[cta * 32 + i]:
                    T.ptx["atom.relaxed.gpu.global.cas.b32"](
                        old, M.ptr_to([0]), seen, V[cta * 32 + i]
                    )
                    seen = old
            T.ptx["atom.relaxed.gpu.global.exch.b32"](old, E.ptr_to([0]), T.uint32(cta + 1))

    v = np.random.default_rng(3).integers(0, 1 << 32, 128, dtype=np.uint32)
    for schedule in SCHEDULES:
        m, e = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
        report = sim.simulate(kernel, m, v, e, arch="hopper", **schedule)
        assert not report.findings
        assert m[0] == v.max()
        assert 1 <= e[0] <= 4


# --------------------------------------------------------------------------- between two CTAs


def handover(store: str, load: str, *, before: str = "", behind: str = "", first: int = 1):
    """CTA ``first`` writes 32 words and raises a flag; the other waits for it and copies them."""
    writer = "\n            ".join(filter(None, [before, store]))
    source = f"""
@T.prim_func
def kernel(W: T.Buffer((32,), "uint32"), F: T.Buffer((1,), "uint32"), D: T.Buffer((32,), "uint32")):
    T.device_entry()
    cta = T.cta_id([2])
    tid = T.thread_id([32])
    flag: T.uint32
    if cta == {first}:
        W[tid] = T.uint32(7) * tid
        T.cuda.warp_sync()
        if tid == 0:
            {writer}
    else:
        flag = T.uint32(0)
        while flag == T.uint32(0):
            {load}
        {behind or "T.cuda.warp_sync()"}
        D[tid] = W[tid]
"""
    return source


def build(source: str, tmp_path):
    text = "from tvm.script import tirx as T\n" + source
    return module_from(tmp_path / "kernel.py", text).kernel


RED = 'T.ptx["red.{}.global.add.u32"](F.ptr_to([0]), T.uint32(1))'
ST = 'T.ptx["st.{}.global.u32"](F.ptr_to([0]), T.uint32(1))'
LD = 'T.ptx["ld.{}.global.u32"](flag, F.ptr_to([0]))'
FENCE = "T.cuda.thread_fence()"
CTA_FENCE = 'T.ptx["fence.acq_rel.cta"]()'


@pytest.mark.parametrize("first", [0, 1])  # in the second case CTA 0 waits for a later one
@pytest.mark.parametrize(
    ("store", "load", "before", "behind"),
    [
        (RED.format("release.gpu"), LD.format("acquire.gpu"), "", ""),
        (ST.format("release.gpu"), LD.format("acquire.sys"), "", ""),
        (RED.format("relaxed.gpu"), LD.format("acquire.gpu"), FENCE, ""),
        (RED.format("release.gpu"), LD.format("relaxed.gpu"), "", FENCE),
        (ST.format("volatile"), LD.format("volatile"), FENCE, FENCE),
        (RED.format("relaxed.gpu"), LD.format("relaxed.gpu"), 'T.ptx["fence.sc.gpu"]()', FENCE),
    ],
)
def test_a_handover_through_a_flag_is_silent(store, load, before, behind, first, tmp_path):
    kernel = build(handover(store, load, before=before, behind=behind, first=first), tmp_path)
    for schedule in SCHEDULES:
        w, f, d = (np.zeros(n, np.uint32) for n in (32, 1, 32))
        report = sim.simulate(kernel, w, f, d, arch="hopper", **schedule)
        assert not report.findings, report
        np.testing.assert_array_equal(d, 7 * np.arange(32))


@pytest.mark.parametrize(
    ("store", "load", "before", "behind"),
    [
        (RED.format("relaxed.gpu"), LD.format("acquire.gpu"), "", ""),  # no release
        (RED.format("release.gpu"), LD.format("relaxed.gpu"), "", ""),  # no acquire
        (RED.format("release.cta"), LD.format("acquire.gpu"), "", ""),  # a scope too small
        (RED.format("release.gpu"), LD.format("acquire.cta"), "", ""),
        (ST.format("volatile"), LD.format("volatile"), CTA_FENCE, FENCE),
        (ST.format("volatile"), LD.format("volatile"), FENCE, ""),
    ],
)
def test_a_handover_that_lacks_one_side_is_a_race(store, load, before, behind, tmp_path):
    kernel = build(handover(store, load, before=before, behind=behind), tmp_path)
    for schedule in SCHEDULES:
        w, f, d = (np.zeros(n, np.uint32) for n in (32, 1, 32))
        report = sim.simulate(kernel, w, f, d, arch="hopper", **schedule)
        assert codes(report) == {"race-global"}, report
        (finding,) = report.findings
        assert finding.location.text.strip() == "D[tid] = W[tid]"
        assert "W[tid] = " in finding.related[0][1].text
        assert "CTA (0, 0)" in finding.message
        assert "CTA (1, 0)" in finding.message


def test_a_plain_flag_is_a_race_of_its_own(tmp_path):
    kernel = build(handover("F[0] = T.uint32(1)", "flag = F[0]"), tmp_path)
    w, f, d = (np.zeros(n, np.uint32) for n in (32, 1, 32))
    report = sim.simulate(kernel, w, f, d, arch="hopper")
    assert codes(report) == {"race-global"}
    assert any("flag = F[0]" in f.location.text for f in report.findings)


# ------------------------------------------------------------------------- all CTAs of a grid


def two_phases(barrier: str, tmp_path):
    """Each of 8 CTAs writes 64 words, meets the others, and reads its neighbour's."""
    return build(
        f"""
@T.prim_func
def kernel(
    W: T.Buffer((512,), "uint32"), C: T.Buffer((1,), "uint32"), D: T.Buffer((512,), "uint32")
):
    T.device_entry()
    cta = T.cta_id([8])
    tid = T.thread_id([64])
    seen: T.uint32
    W[cta * 64 + tid] = T.uint32(cta * 1000 + tid)
    {barrier}
    D[cta * 64 + tid] = W[(cta + 1) % 8 * 64 + tid]
""",
        tmp_path,
    )


COUNTER = """T.cuda.cta_sync()
    if tid == 0:
        T.ptx["red.release.gpu.global.add.u32"](C.ptr_to([0]), T.uint32(1))
        seen = T.uint32(0)
        while seen < T.uint32(8):
            T.ptx["ld.acquire.gpu.global.u32"](seen, C.ptr_to([0]))
    T.cuda.cta_sync()"""
#: Every thread fences, then one counts: the fence covers what the barrier hands on.
FENCED = COUNTER.replace("T.cuda.cta_sync()\n", "T.cuda.thread_fence()\n    T.cuda.cta_sync()\n", 1)
FENCED = FENCED.replace("red.release", "red.relaxed")


@pytest.mark.parametrize("barrier", [COUNTER, FENCED, "T.cuda.grid_sync()"])
def test_a_barrier_of_the_whole_grid(barrier, tmp_path):
    kernel = two_phases(barrier, tmp_path)
    wanted = np.array([(i // 64 + 1) % 8 * 1000 + i % 64 for i in range(512)])
    for schedule in SCHEDULES:
        w, c, d = (np.zeros(n, np.uint32) for n in (512, 1, 512))
        report = sim.simulate(kernel, w, c, d, arch="hopper", **schedule)
        assert not report.findings, report
        np.testing.assert_array_equal(d, wanted)


@pytest.mark.parametrize(
    "barrier",
    [
        "T.cuda.cta_sync()",
        COUNTER.replace("release", "relaxed"),
        COUNTER.replace("seen < T.uint32(8)", "seen < T.uint32(7)"),
        COUNTER.replace("acquire.gpu", "acquire.cta"),
    ],
)
def test_a_grid_barrier_that_holds_too_little_back(barrier, tmp_path):
    kernel = two_phases(barrier, tmp_path)
    for schedule in SCHEDULES:
        w, c, d = (np.zeros(n, np.uint32) for n in (512, 1, 512))
        report = sim.simulate(kernel, w, c, d, arch="hopper", **schedule)
        assert codes(report) == {"race-global"}, report


def test_ctas_that_wait_for_more_than_the_gpu_holds():
    @T.prim_func
    def kernel(C: T.Buffer((1,), "uint32"), D: T.Buffer((400,), "uint32")):
        T.device_entry()
        cta = T.cta_id([400])
        tid = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((50_000,), "uint32")  # one CTA fills an SM
        pool.commit()
        seen: T.uint32
        if tid == 0:
            s[0] = T.uint32(cta)
            T.ptx["red.release.gpu.global.add.u32"](C.ptr_to([0]), T.uint32(1))
            seen = T.uint32(0)
            while seen < T.uint32(400):
                T.ptx["ld.acquire.gpu.global.u32"](seen, C.ptr_to([0]))
            D[cta] = s[0]

    c, d = np.zeros(1, np.uint32), np.zeros(400, np.uint32)
    report = sim.simulate(kernel, c, d, arch="hopper", checks=False)
    assert codes(report) == {"deadlock"}
    (finding,) = report.findings
    assert "268 clusters of the grid cannot start" in finding.message  # 400 - 132 SMs
    assert "ld.acquire.gpu" in finding.location.text or "while" in finding.location.text
    assert not report.completed
    assert c[0] == 132


def test_a_dynamic_scheduler_hands_every_tile_out_once():
    @T.prim_func
    def kernel(
        C: T.Buffer((1,), "int32"), D: T.Buffer((40, 32), "int32"), N: T.Buffer((6,), "int32")
    ):
        T.device_entry()
        cta = T.cta_id([6])
        tid = T.thread_id([32])
        tile: T.int32
        mine: T.int32
        count: T.int32 = 0
        tile = 0
        while tile < 40:
            if tid == 0:
                T.ptx["atom.relaxed.gpu.global.add.s32"](mine, C.ptr_to([0]), 1)
            tile = T.cuda.__shfl_sync(T.uint32(0xFFFFFFFF), mine, 0, 32)
            if tile < 40:
                D[tile, tid] = tile
                count = count + 1
        if tid == 0:
            N[cta] = count

    for schedule in SCHEDULES:
        c, d, n = np.zeros(1, np.int32), np.full((40, 32), -1, np.int32), np.zeros(6, np.int32)
        report = sim.simulate(kernel, c, d, n, arch="hopper", **schedule)
        assert not report.findings, report
        np.testing.assert_array_equal(d, np.broadcast_to(np.arange(40)[:, None], (40, 32)))
        assert n.sum() == 40


# ------------------------------------------------------------------------------ inside a CTA


@pytest.mark.parametrize("ordered", [False, True])
def test_two_warps_of_one_cta_on_global_memory(ordered, tmp_path):
    kernel = build(
        f"""
@T.prim_func
def kernel(W: T.Buffer((64,), "uint32"), D: T.Buffer((64,), "uint32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([64])
    W[tid] = T.uint32(tid)
    {"T.cuda.cta_sync()" if ordered else "T.cuda.warp_sync()"}
    D[tid] = W[63 - tid]
""",
        tmp_path,
    )
    for schedule in SCHEDULES:
        w, d = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
        report = sim.simulate(kernel, w, d, arch="hopper", **schedule)
        if ordered:
            assert not report.findings, report
            np.testing.assert_array_equal(d, np.arange(64)[::-1])
        else:
            assert codes(report) == {"race-global"}
            (finding,) = report.findings
            assert "of the same CTA" in finding.message
            assert {finding.location.line, finding.related[0][1].line} == {8, 10}


def test_a_read_that_a_later_write_does_not_wait_for(tmp_path):
    kernel = build(
        """
@T.prim_func
def kernel(W: T.Buffer((32,), "uint32"), D: T.Buffer((32,), "uint32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([64])
    if tid < 32:
        D[tid] = W[tid]
    else:
        W[tid - 32] = T.uint32(1)
""",
        tmp_path,
    )
    for schedule in SCHEDULES:
        w, d = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
        report = sim.simulate(kernel, w, d, arch="hopper", **schedule)
        assert codes(report) == {"race-global"}, schedule


@pytest.mark.parametrize("ordered", [False, True])
def test_a_flag_in_shared_memory(ordered, tmp_path):
    """st.release and ld.acquire on shared memory order two warps; relaxed ones do not."""
    store, load = ("release.cta", "acquire.cta") if ordered else ("relaxed.cta", "relaxed.cta")
    kernel = build(
        f"""
@T.prim_func
def kernel(D: T.Buffer((32,), "uint32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([64])
    pool = T.SMEMPool()
    s = pool.alloc((33,), "uint32")
    pool.commit()
    flag: T.uint32
    at = T.cuda.cvta_generic_to_shared(s.ptr_to([32]))
    if tid == 0:
        s[32] = T.uint32(0)
    T.cuda.cta_sync()
    if tid < 32:
        s[tid] = T.uint32(tid)
        T.cuda.warp_sync()
        if tid == 0:
            T.ptx["st.{store}.shared.u32"](at, T.uint32(1))
    else:
        flag = T.uint32(0)
        while flag == T.uint32(0):
            T.ptx["ld.{load}.shared.u32"](flag, at)
        D[tid - 32] = s[tid - 32]
""",
        tmp_path,
    )
    for schedule in SCHEDULES:
        d = np.zeros(32, np.uint32)
        report = sim.simulate(kernel, d, arch="hopper", **schedule)
        assert codes(report) == (set() if ordered else {"race-smem"}), report
        np.testing.assert_array_equal(d, np.arange(32))


# ------------------------------------------------------------------------------------ engines


@pytest.mark.parametrize("fenced", [False, True])
def test_a_bulk_copy_of_what_threads_wrote_needs_a_proxy_fence(fenced, tmp_path):
    kernel = build(
        f"""
@T.prim_func
def kernel(W: T.Buffer((32,), "uint32"), D: T.Buffer((32,), "uint32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([32])
    pool = T.SMEMPool()
    s = pool.alloc((32,), "uint32", align=128)
    bar = pool.alloc((1,), "uint64", align=8)
    pool.commit()
    at = T.cuda.cvta_generic_to_shared(bar.ptr_to([0]))
    if tid == 0:
        T.ptx["mbarrier.init.shared.b64"](at, T.uint32(1))
    W[tid] = T.uint32(tid)
    {"T.ptx['fence.proxy.async']()" if fenced else ""}
    T.cuda.cta_sync()
    if tid == 0:
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](at, T.uint32(128))
        T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](
            T.cuda.cvta_generic_to_shared(s.ptr_to([0])), W.ptr_to([0]), T.uint32(128), at
        )
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    D[tid] = s[tid]
""",
        tmp_path,
    )
    for schedule in SCHEDULES:
        w, d = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
        report = sim.simulate(kernel, w, d, arch="hopper", **schedule)
        assert codes(report) == (set() if fenced else {"missing-proxy-fence"}), report
        np.testing.assert_array_equal(d, np.arange(32))


def remote(send: str, wait: str):
    """Each CTA of a pair sends 32 words to the other and reads what it has been sent."""
    return f"""
@T.prim_func
def kernel(D: T.Buffer((2, 32), "uint32")):
    T.device_entry()
    cbx = T.cta_id_in_cluster([2])
    cta = T.cta_id([2])
    tid = T.thread_id([32])
    pool = T.SMEMPool()
    s = pool.alloc((32,), "uint32", align=16)
    bar = pool.alloc((1,), "uint64", align=8)
    pool.commit()
    there: T.uint32
    done: T.uint32
    s[tid] = T.uint32(1000) * tid
    at = T.cuda.cvta_generic_to_shared(bar.ptr_to([0]))
    if tid == 0:
        T.ptx["mbarrier.init.shared.b64"](at, T.uint32(1))
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](at, T.uint32(128))
    T.cuda.cluster_sync()
    T.ptx["mapa.shared::cluster.u32"](
        there, T.cuda.cvta_generic_to_shared(s.ptr_to([tid])), T.uint32(1 - cbx)
    )
    T.ptx["mapa.shared::cluster.u32"](done, at, T.uint32(1 - cbx))
    {send}
    {wait}
    D[cbx, tid] = s[tid]
    T.cuda.cluster_sync()
"""


STORE = (
    'T.ptx["st_async.shared::cluster.mbarrier::complete_tx::bytes.u32"]'
    "(there, T.uint32(cbx) * T.uint32(100) + tid, done)"
)
REDUCE = (
    'T.ptx["red_async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32"]'
    "(there, T.uint32(cbx) * T.uint32(100) + tid, done)"
)
WAIT = "T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)"


@pytest.mark.parametrize("schedule", SCHEDULES[:4])
@pytest.mark.parametrize("how", ["store", "reduce"])
def test_stores_and_reductions_to_the_other_cta(how, schedule, tmp_path):
    kernel = build(remote(STORE if how == "store" else REDUCE, WAIT), tmp_path)
    d = np.zeros((2, 32), np.uint32)
    report = sim.simulate(kernel, d, arch="hopper", **schedule)
    assert not report.findings, report
    sent = np.array([[100], [0]]) + np.arange(32)
    np.testing.assert_array_equal(d, sent + (1000 * np.arange(32) if how == "reduce" else 0))


@pytest.mark.parametrize("schedule", SCHEDULES[:3])
def test_a_remote_store_that_nobody_waits_for(schedule, tmp_path):
    kernel = build(remote(STORE, "T.cuda.warp_sync()"), tmp_path)
    report = sim.simulate(kernel, np.zeros((2, 32), np.uint32), arch="hopper", **schedule)
    assert codes(report) == {"race-smem"}
    lines = [p.text for f in report.findings for p in (f.location, *(q for _, q in f.related))]
    assert any("D[cbx, tid] = s[tid]" in line for line in lines)
    assert any("st_async" in line for line in lines)
