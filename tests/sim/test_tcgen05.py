"""tcgen05: transfers, products, ordering and lifecycle, each against the ISA's own statement of it.

Warps are written by hand where the machine alone is meant; TIRx kernels where the front half is.
"""
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import sim

from . import warps

SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", n) for n in range(5)]


@pytest.fixture(params=SCHEDULES, ids=lambda s: f"{s[0]}-{s[1]}")
def schedule(request):
    return {"schedule": request.param[0], "seed": request.param[1]}


# ------------------------------------------------------------------------ tcgen05.ld and st

#: Words of 32 bits that ``.shape.x1`` moves in each lane, and registers that it takes.
WIDTH = {"32x32b": (1, 1), "16x64b": (2, 1), "16x128b": (4, 2), "16x256b": (8, 4)}
NUMS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Every shape with every repetition that fits 128 registers (PTX ISA, table of .num by shape).
FORMS = [(shape, n) for shape in WIDTH for n in NUMS if n * WIDTH[shape][1] <= 128]


def place(shape: str, thread: int, register: int, split: int = 0) -> tuple[int, int]:
    """Lane and word of a register, from the matrix fragments' figures of the PTX ISA."""
    t, r = thread, register
    if shape == "32x32b":  # a thread is a lane, its registers are the words in order
        return t, r
    if shape == "16x64b":  # two words a step: of lane i in threads 4i, 4i+2; of 8+i in 4i+1, 4i+3
        return t // 4 + (8 if t % 2 else 0), 2 * r + (1 if t % 4 >= 2 else 0)
    if shape == "16x128b":  # registers 2j and 2j+1: one word of lanes i and 8+i
        return t // 4 + (8 if r % 2 else 0), 4 * (r // 2) + t % 4
    if shape == "16x256b":  # registers 4j to 4j+3: two words of lane i, then two of lane 8+i
        return t // 4 + (8 if r % 4 >= 2 else 0), 8 * (r // 4) + 2 * (t % 4) + r % 2
    return t % 16, r + (split if t >= 16 else 0)  # 16x32bx2: the halves of the warp apart


def registers(shape: str, num: int) -> int:
    return num * WIDTH.get(shape, (1, 1))[1]


FILL = """
if w.id == 0:
    await tcgen05_alloc(w, SB, 512)
await cta_sync(w)
word = (w.tid[:, None] << 16 | np.arange(128)[None, :] | 0x80000000)
for c in range(0, 512, 128):
    tcgen05_st(w, c, (word + c).astype(np.uint32), "32x32b", 128)
tcgen05_wait_st(w)
"""
EMPTY = """
await cta_sync(w)
if w.id == 0: tcgen05_dealloc(w, 0, 512)
"""


def mark(lane: int, column: int) -> int:
    return 0x80000000 | lane << 16 | column


@pytest.mark.parametrize(
    ("shape", "num", "half"),
    [
        (shape, num, half)
        for shape, num in FORMS
        for half in (0, 16)
        if half == 0 or shape[0] == "1"
    ],
)
def test_where_a_load_finds_each_register(shape, num, half):
    count = registers(shape, num)
    column = 512 - num * WIDTH[shape][0]  # the last words, so that one too many is out of bounds
    report = warps.run(
        f"""{FILL}
r = np.zeros((32, {count}), np.uint32)
tcgen05_ld(w, r, (32 * w.id + {half}) << 16 | {column}, "{shape}", {num})
tcgen05_wait_ld(w)
w.machine.counters[str(w.id)] = r
{EMPTY}""",
        threads=128,
    )
    assert not report.findings, report
    expected = np.empty((32, count), np.uint32)
    for warp in range(4):
        for t in range(32):
            for r in range(count):
                lane, word = place(shape, t, r)
                expected[t, r] = mark(32 * warp + half + lane, column + word)
        np.testing.assert_array_equal(report.counters[str(warp)], expected)


@pytest.mark.parametrize("num", NUMS)
def test_loads_whose_halves_lie_apart(num):
    split = 300
    report = warps.run(
        f"""{FILL}
r = np.zeros((32, {num}), np.uint32)
tcgen05_ld(w, r, (32 * w.id + 16) << 16 | 5, "16x32bx2", {num}, split={split})
tcgen05_wait_ld(w)
w.machine.counters[str(w.id)] = r
{EMPTY}""",
        threads=128,
    )
    assert not report.findings, report
    for warp in range(4):
        for t in range(32):
            for r in range(num):
                lane, word = place("16x32bx2", t, r, split)
                held = report.counters[str(warp)][t, r]
                assert held == mark(32 * warp + 16 + lane, 5 + word)


@pytest.mark.parametrize(
    ("shape", "num"),
    [("32x32b", 8), ("16x64b", 4), ("16x128b", 8), ("16x256b", 2), ("16x32bx2", 4)],
)
def test_packing_takes_the_low_halves_of_two_columns(shape, num):
    count = registers(shape, num)
    split = 2 * num if shape == "16x32bx2" else 0
    report = warps.run(
        f"""{FILL}
r = np.zeros((32, {count}), np.uint32)
tcgen05_ld(w, r, (32 * w.id) << 16 | 64, "{shape}", {num}, packed=True, split={split})
tcgen05_wait_ld(w)
w.machine.counters[str(w.id)] = r
{EMPTY}""",
        threads=128,
    )
    assert not report.findings, report
    for t in range(32):
        for r in range(count):
            lane, word = place(shape, t, r)
            first = 64 + 2 * word + (split if shape == "16x32bx2" and t >= 16 else 0)
            low, high = (mark(96 + lane, c) & 0xFFFF for c in (first, first + 1))
            assert report.counters["3"][t, r] == low | high << 16


@pytest.mark.parametrize("unpacked", [False, True])
@pytest.mark.parametrize(
    ("shape", "num"),
    [("32x32b", 16), ("16x64b", 8), ("16x128b", 4), ("16x256b", 4), ("16x32bx2", 8)],
)
def test_where_a_store_puts_each_register(shape, num, unpacked):
    count = registers(shape, num)
    half = 0 if shape == "32x32b" else 16
    split = 40 if shape == "16x32bx2" else 0
    report = warps.run(
        f"""{FILL}
v = (w.lanes[:, None] << 8 | np.arange({count})[None, :]).astype(np.uint32)
v = v | v << np.uint32(16) ^ np.uint32(0x55550000)
at = (32 * w.id + {half}) << 16 | 3
tcgen05_st(w, at, v, "{shape}", {num}, unpacked={unpacked}, split={split})
tcgen05_wait_st(w)
r = np.zeros((32, 128), np.uint32)
tcgen05_ld(w, r, 0, "32x32b", 128)
tcgen05_wait_ld(w)
w.machine.counters[str(w.id)] = r
{EMPTY}""",
        threads=128,
    )
    assert not report.findings, report
    held = report.counters["2"]
    expected = np.array([[mark(64 + i, c) for c in range(128)] for i in range(32)], np.uint32)
    mask = np.uint32(0xFFFFFFFF)
    if unpacked:  # what stands above a 16-bit element is not said
        mask = np.uint32(0xFFFF)
    seen = np.full((32, 128), 0xFFFFFFFF, np.uint32)
    for t in range(32):
        for r in range(count):
            value = (t << 8 | r) | ((t << 8 | r) << 16 ^ 0x55550000)
            lane, word = place(shape, t, r)
            apart = split if shape == "16x32bx2" and t >= 16 else 0
            if unpacked:
                targets = [(2 * word, value & 0xFFFF), (2 * word + 1, value >> 16)]
            else:
                targets = [(word, value)]
            for c, part in targets:
                expected[half + lane, 3 + apart + c] = part
                seen[half + lane, 3 + apart + c] = mask
    np.testing.assert_array_equal(held & seen, expected & seen)


@pytest.mark.parametrize(
    ("shape", "lane", "ok"),
    [("32x32b", 64, True), ("32x32b", 80, False), ("32x32b", 32, False), ("16x64b", 64, True),
     ("16x64b", 80, True), ("16x64b", 72, False), ("16x64b", 48, False), ("16x64b", 16, True)],
)  # fmt: skip
def test_lanes_that_a_warp_can_name(shape, lane, ok):
    report = warps.run(
        f"""{FILL}
if w.id == 2: tcgen05_ld(w, np.zeros((32, 1), np.uint32), {lane} << 16, "{shape}", 1)
tcgen05_wait_ld(w)
{EMPTY}""",
        threads=128,
    )
    assert [f.code for f in report.findings] == ([] if ok else ["tmem-lane-quarter"]), report


def test_a_load_that_runs_past_the_last_column():
    report = warps.run(
        f"""{FILL}
tcgen05_ld(w, np.zeros((32, 4), np.uint32), 505, "16x256b", 1)
{EMPTY}""",
        threads=128,
    )
    assert report.findings[0].code == "tmem-lifetime"
    assert "which do not exist" in report.findings[0].message


def simulate(kernel, *arrays, **options: Any) -> sim.Report:
    return sim.simulate(kernel, *arrays, arch="blackwell", **options)


ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
DEALLOC = "tcgen05.dealloc.cta_group::1.sync.aligned.b32"
ST, LD = "tcgen05.st.sync.aligned.{}.b32", "tcgen05.ld.sync.aligned.{}.b32"
WAIT_ST, WAIT_LD = "tcgen05.wait::st.sync.aligned", "tcgen05.wait::ld.sync.aligned"


@pytest.mark.parametrize("checks", [True, False])
def test_registers_that_are_not_consecutive(checks):
    """Elements of several arrays and a scalar, in any order; filled at the wait, not before."""

    @T.prim_func
    def kernel(X: T.Buffer((128, 4), "uint32"), Y: T.Buffer((128, 5), "uint32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        box = pool.alloc((1,), "uint32")
        pool.commit()
        if warp == 0:
            T.ptx[ALLOC](box.ptr_to([0]), T.uint32(32))
        T.cuda.cta_sync()
        base: T.uint32 = box[0]
        held = T.alloc_local((4,), "uint32")
        for i in T.unroll(4):
            held[i] = X[tid, i]
        T.ptx[ST.format("32x32b.x4")](base, held[3], held[2], held[1], held[0])
        T.ptx[WAIT_ST]()
        one: T.uint32
        two = T.alloc_local((2,), "uint32")
        far = T.alloc_local((9,), "uint32")
        T.ptx[LD.format("32x32b.x4")](two[1], far[8], one, far[2], base)
        T.ptx[WAIT_LD]()
        Y[tid, 0] = two[1]
        Y[tid, 1] = far[8]
        Y[tid, 2] = one
        Y[tid, 3] = far[2]
        # Scalars are stored and loaded one by one, too.
        T.ptx[ST.format("32x32b.x1")](base + T.uint32(9), one)
        T.ptx[WAIT_ST]()
        T.ptx[LD.format("32x32b.x1")](one, base + T.uint32(9))
        T.ptx[WAIT_LD]()
        Y[tid, 4] = one + T.uint32(1)
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx[DEALLOC](base, T.uint32(32))

    X = np.arange(512, dtype=np.uint32).reshape(128, 4)
    for schedule in ("eager", "lazy"):
        Y = np.zeros((128, 5), np.uint32)
        report = simulate(kernel, X, Y, schedule=schedule, checks=checks)
        assert not report.findings, report
        np.testing.assert_array_equal(Y[:, :4], X[:, ::-1])
        np.testing.assert_array_equal(Y[:, 4], X[:, 1] + 1)


@pytest.mark.parametrize(
    ("form", "extra", "count"),
    [("16x64b.x4", (), 4), ("16x128b.x2", (), 4), ("16x256b.x1", (), 4), ("16x32bx2.x4", (4,), 4),
     ("32x32b.x4.pack::16b", (), 4), ("16x32bx2.x2.pack::16b", (4,), 2)],
)  # fmt: skip
def test_shapes_in_a_kernel(form, extra, count):
    """Eight columns go in as whole lanes and come out in another shape."""

    @T.prim_func
    def kernel(X: T.Buffer((128, 8), "uint32"), Y: T.Buffer((128, count), "uint32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        box = pool.alloc((1,), "uint32")
        pool.commit()
        if warp == 0:
            T.ptx[ALLOC](box.ptr_to([0]), T.uint32(32))
        T.cuda.cta_sync()
        base: T.uint32 = box[0]
        held = T.alloc_local((8,), "uint32")
        for i in T.unroll(8):
            held[i] = X[tid, i]
        T.ptx[ST.format("32x32b.x8")](base, *[held[i] for i in range(8)])
        T.ptx[WAIT_ST]()
        T.ptx[LD.format(form)](*[held[i] for i in range(count)], base, *extra)
        T.ptx[WAIT_LD]()
        for i in T.unroll(count):
            Y[tid, i] = held[i]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx[DEALLOC](base, T.uint32(32))

    X = np.random.default_rng(5).integers(0, 1 << 32, (128, 8), dtype=np.uint32)
    Y = np.zeros((128, count), np.uint32)
    report = simulate(kernel, X, Y)
    assert not report.findings, report
    shape = form.split(".")[0]
    for tid in range(128):
        for r in range(count):
            lane, word = place(shape, tid % 32, r, 0)
            row = X[32 * (tid // 32) + lane]
            apart = extra[0] if extra and tid % 32 >= 16 else 0
            if "pack" in form:
                low, high = row[apart + 2 * word], row[apart + 2 * word + 1]
                expected = int(low) & 0xFFFF | (int(high) & 0xFFFF) << 16
            else:
                expected = row[apart + word]
            assert Y[tid, r] == expected, (tid, r)
