"""tcgen05: transfers, products, ordering and lifecycle, each against the ISA's own statement of it.

Warps are written by hand where the machine alone is meant; TIRx kernels where the front half is.
"""
# pyright: reportInvalidTypeForm=false, reportUnboundVariable=false
# (The annotations are TVMScript's.)

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import sim
from mlsys_gpu.sim.machine import descriptors, tcgen05

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
    held: Any = report.counters
    for warp in range(4):
        for t in range(32):
            for r in range(num):
                lane, word = place("16x32bx2", t, r, split)
                assert held[str(warp)][t, r] == mark(32 * warp + 16 + lane, 5 + word)


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
            held: Any = report.counters["3"]
            assert held[t, r] == low | high << 16


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
    held: Any = report.counters["2"]
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


# ------------------------------------------------------------------------------ tcgen05.mma

D_AT, A_AT = 64, 352  # columns of D and of A in tensor memory

PRODUCT = """
A, B, T, STEPS, GROUP = *w.machine.pointers, {steps}, {group}
if w.id == 0:
    mbarrier_init(w, SB, 1)
    while (t := tcgen05_alloc(w, SB + 8, 512, GROUP)) is not None: yield t
await cluster_sync(w)
if w.id == 0:
    for size, source, to in (({a_bytes}, A, SB + 1024), ({b_bytes}, B, SB + 33792)):
        at = 16 * (w.lanes[:, None] + 32 * np.arange(size // 512)[None, :])
        st_shared(w, to + at, ld_global(w, source + size * w.rank + at, 4, 4), 4, 4)
for c in range(0, 512, 128):
    row = T + 2048 * (128 * w.rank + w.tid[:, None]) + 4 * (c + np.arange(128)[None, :])
    tcgen05_st(w, c, ld_global(w, row, 4, 1), "32x32b", 128)
tcgen05_wait_st(w)
fence_proxy_async(w)
tcgen05_fence_before(w)
await cluster_sync(w)
tcgen05_fence_after(w)
if w.rank == 0 and w.id == 0:
    for i in range(STEPS):
        a = {a_at} + 8 * i if {ts} else {a_desc} + (SB + 1024 + {a_step} * i >> 4)
        b = {b_desc} + (SB + 33792 + {b_step} * i >> 4)
        tcgen05_mma(w, {d_at}, a, b, {idesc}, {accumulate} or i > 0, GROUP, True, {ts}, {off})
    tcgen05_commit(w, SB, GROUP, 3 if GROUP == 2 else None, mask=True)
await mbarrier_wait(w, SB, 0)
tcgen05_fence_after(w)
out = np.zeros((32, 512), np.uint32)
for c in range(0, 512, 128):
    tcgen05_ld(w, out[:, c : c + 128], c, "32x32b", 128)
tcgen05_wait_ld(w)
w.machine.counters[f"{{w.rank}}.{{w.id}}"] = out
tcgen05_fence_before(w)
await cluster_sync(w)
tcgen05_fence_after(w)
if w.id == 0: tcgen05_dealloc(w, 0, 512, GROUP)
"""


def bits_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """16-bit patterns of small numbers, which both formats hold exactly."""
    if dtype == "float16":
        return values.astype(np.float16).view(np.uint16)
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def smem_image(bits: np.ndarray, transposed: bool) -> tuple[bytes, int, int, int]:
    """An operand ``[rows, k]`` as core matrices without swizzle, with leading and stride offsets.

    K-major: core matrices of 8 rows by 16 bytes, a K chunk of all rows after the other. MN-major:
    chunks of 8 rows of one k, 8 k to a core matrix (PTX ISA, canonical layouts). The third number
    is how far a step of 16 along K advances. All in bytes.
    """
    rows, k = bits.shape
    if not transposed:
        image = bits.reshape(rows // 8, 8, k // 8, 8).transpose(2, 0, 1, 3)
    else:
        image = bits.reshape(rows // 8, 8, k // 8, 8).transpose(2, 0, 3, 1)
    padding = bytes(-image.nbytes % 512)  # a warp copies 512 bytes at a time
    return image.tobytes() + padding, 16 * rows, 128, 2 * 16 * rows


def d_lanes(m: int, group: int, lane: int = 0) -> list[tuple[np.ndarray, slice]]:
    """For each half of D's columns the lanes of a CTA's rows, and which half of N it is."""
    rows = np.arange(m // group)
    if (m, group) == (64, 1):  # Layout F
        return [(rows // 16 * 32 + rows % 16 + lane, slice(None))]
    if (m, group) == (128, 2):  # Layout B
        return [(rows, slice(0, 1)), (rows + 64, slice(1, 2))]
    return [(rows, slice(None))]


def run_product(
    m=128, n=32, steps=2, group=1, ts=False, dtype="float16", d="float32", ta=False, tb=False,
    na=False, nb=False, accumulate=False, off=(), lane=0,
    change: Mapping[str, str] = MappingProxyType({}), **options: Any,
) -> Any:  # fmt: skip
    """Run one product; ``change`` are replacements in its body, each of a text that occurs once.

    Returns tensor memory afterwards and as it must be, ``[CTAs, 128, 512]``; with ``change`` the
    report.
    """
    rng = np.random.default_rng(m + n + steps)
    k, rows = 16 * steps, m // group
    a = rng.integers(-4, 4, (m, k), endpoint=True).astype(np.float64)
    b = rng.integers(-4, 4, (n, k), endpoint=True).astype(np.float64)
    before = rng.integers(0, 1 << 32, (group, 128, 512), dtype=np.uint64).astype(np.uint32)
    d0 = rng.integers(-50, 50, (m, n)).astype(np.float64)

    expected = (-1) ** (na + nb) * a @ b.T + (d0 if accumulate else 0)
    after = before.copy()
    mask = np.uint32(0xFFFFFFFF if d == "float32" else 0xFFFF)

    def pattern(values):
        if d == "float32":
            return values.astype(np.float32).view(np.uint32)
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)

    for cta in range(group):
        own = slice(rows * cta, rows * cta + rows)
        if ts:  # pairs of elements; in Layout B's form both halves of the lanes hold the rows
            words = bits_of(a[own], dtype).reshape(rows, k // 2, 2).astype(np.uint32)
            words = words[..., 0] | words[..., 1] << 16
            for lanes, _ in d_lanes(m, group, lane):
                before[cta, lanes, A_AT : A_AT + 8 * steps] = words
                after[cta, lanes, A_AT : A_AT + 8 * steps] = words
        halves = d_lanes(m, group, lane)
        width = n // len(halves)
        for i, (lanes, _) in enumerate(halves):
            part = slice(width * i, width * i + width)
            to = slice(D_AT, D_AT + width)
            before[cta, lanes, to] = before[cta, lanes, to] & ~mask | pattern(d0[own, part])
            after[cta, lanes, to] = before[cta, lanes, to]
            for row, at in enumerate(lanes):
                word = off[4 * cta + at // 32] if off else 0
                if not word >> (at % 32) & 1:
                    after[cta, at, to] = pattern(expected[own, part][row])
    images_a = [smem_image(bits_of(a[rows * i : rows * (i + 1)], dtype), ta) for i in range(group)]
    share = n // group
    parts = [b[share * i : share * (i + 1)] for i in range(group)]
    images_b = [smem_image(bits_of(part, dtype), tb) for part in parts]
    idesc = (
        (d == "float32") << 4 | (dtype == "bfloat16") << 7 | (dtype == "bfloat16") << 10
        | na << 13 | nb << 14 | ta << 15 | tb << 16 | n >> 3 << 17 | m >> 4 << 24
    )  # fmt: skip

    def descriptor(image):
        return 1 << 46 | image[1] >> 4 << 16 | image[2] >> 4 << 32

    body = PRODUCT.format(
        steps=steps, group=group, ts=ts, accumulate=accumulate, off=off, idesc=idesc,
        a_bytes=len(images_a[0][0]), b_bytes=len(images_b[0][0]),
        a_desc=descriptor(images_a[0]), b_desc=descriptor(images_b[0]),
        a_step=images_a[0][3], b_step=images_b[0][3],
        d_at=lane << 16 | D_AT, a_at=lane << 16 | A_AT,
    )  # fmt: skip
    for old, new in change.items():
        assert body.count(old) == 1, old
        body = body.replace(old, new)
    tensors = [
        ("A", np.frombuffer(b"".join(i[0] for i in images_a), np.uint32).copy()),
        ("B", np.frombuffer(b"".join(i[0] for i in images_b), np.uint32).copy()),
        ("T", before.reshape(-1, 512)),
    ]
    report = warps.run(
        body, threads=128, shared=1 << 16, grid=(group, 1, 1), cluster=(group, 1, 1),
        tensors=tensors, **options,
    )  # fmt: skip
    if change:
        return report
    assert not report.findings, report
    held = np.array(
        [[report.counters[f"{cta}.{warp}"] for warp in range(4)] for cta in range(group)]
    ).reshape(group, 128, 512)
    if d == "float16":  # what stands above a 16-bit element is not said
        for cta in range(group):
            for lanes, _ in d_lanes(m, group, lane):
                for words in (held, after):
                    words[cta, lanes, D_AT : D_AT + n] &= 0xFFFF
    return held, after


SHAPES = [(128, 1), (64, 1), (256, 2), (128, 2)]


@pytest.mark.parametrize("ts", [False, True], ids=["ss", "ts"])
@pytest.mark.parametrize(("m", "group"), SHAPES)
def test_products_and_where_they_lie(m, group, ts, schedule):
    held, expected = run_product(m, 48 if m > 64 else 24, 3, group, ts, **schedule)
    np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize("ts", [False, True], ids=["ss", "ts"])
@pytest.mark.parametrize(("m", "group"), SHAPES)
@pytest.mark.parametrize(
    ("dtype", "d", "accumulate"),
    [("bfloat16", "float32", True), ("float16", "float16", False), ("float16", "float16", True)],
)
def test_formats_and_accumulation(m, group, ts, dtype, d, accumulate):
    held, expected = run_product(
        m, 32, 2, group, ts, dtype=dtype, d=d, accumulate=accumulate, schedule="lazy"
    )
    np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize(
    ("ts", "flags"),
    [
        (False, {"ta": True}),
        (False, {"tb": True, "na": True}),
        (False, {"ta": True, "tb": True, "nb": True}),
        (True, {"tb": True, "na": True}),
        (True, {"na": True, "nb": True}),
    ],
)
@pytest.mark.parametrize(("m", "group"), SHAPES)
def test_transposed_and_negated_operands(m, group, ts, flags):
    held, expected = run_product(m, 32, 2, group, ts, **flags, schedule="eager")
    np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize("d", ["float32", "float16"])
@pytest.mark.parametrize("ts", [False, True], ids=["ss", "ts"])
@pytest.mark.parametrize(("m", "group"), SHAPES)
def test_lanes_that_are_off_keep_what_they_hold(m, group, ts, d):
    off = (0x80000001, 0xFFFFFFFF, 0, 0x0F0F0F0F, 7, 0, 0xFFFF0000, 0x55555555)[: 4 * group]
    held, expected = run_product(m, 32, 2, group, ts, off=off, d=d, accumulate=True)
    np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize("ts", [False, True], ids=["ss", "ts"])
def test_sixty_four_rows_in_the_upper_lanes(ts):
    held, expected = run_product(64, 16, 2, 1, ts, lane=16)
    np.testing.assert_array_equal(held, expected)


def test_a_half_accumulator_is_rounded_after_each_step():
    """2048 + 1 + 1 in float16: each sum is a tie that goes back to 2048."""
    a = np.zeros((128, 48), np.float64)
    a[:, 0], a[:, 16], a[:, 32] = 64, 1, 1
    b = np.zeros((8, 48))
    b[:, 0], b[:, 16], b[:, 32] = 32, 1, 1
    place = tcgen05.Place(descriptors.instruction(8 << 24 | 1 << 17), 1, 0)
    tmem = tcgen05.Tmem(False)
    tcgen05._multiply(tmem, place, a.astype(np.float32), b.astype(np.float32), False, "float16")
    assert (tmem.data[:, :8] & 0xFFFF == 0x6800).all()  # 2048


def line_of(text: str) -> int:
    """The line of :data:`PRODUCT` that holds a text, as findings number it."""
    (line,) = [i for i, x in enumerate(PRODUCT.strip("\n").splitlines(), 1) if text in x]
    return line


STORE = '    tcgen05_st(w, c, ld_global(w, row, 4, 1), "32x32b", 128)\n'


@pytest.mark.parametrize(("m", "group"), SHAPES)
def test_a_store_of_a_that_is_not_waited_for(m, group, schedule):
    report = run_product(
        m, 32, 2, group, ts=True, change={"tcgen05_wait_st(w)\n": "pass\n"}, **schedule
    )
    finding = report.findings[0]
    assert finding.code == "missing-tcgen05-wait", report
    assert finding.location.line == line_of(STORE.strip())
    assert line_of("tcgen05_mma(") in {p.line for f in report.findings for _, p in f.related}
    assert "has not waited for this tcgen05.st" in finding.message


OVERWRITE = """await mbarrier_wait(w, SB, 0)
tcgen05_fence_after(w)
tcgen05_st(w, 352, np.zeros((32, 1), np.uint32), "32x32b", 1)
tcgen05_wait_st(w)
"""


@pytest.mark.parametrize(("m", "group"), SHAPES)
def test_a_may_be_overwritten_once_it_has_been_read(m, group, schedule):
    wait = {"await mbarrier_wait(w, SB, 0)\n": OVERWRITE}
    report = run_product(m, 32, 2, group, ts=True, change=wait, **schedule)
    assert not report.findings, report


@pytest.mark.parametrize(("m", "group"), SHAPES)
def test_a_that_is_overwritten_while_it_is_read(m, group, schedule):
    lines = OVERWRITE.splitlines(keepends=True)
    early = {lines[0]: "".join([*lines[1:], lines[0]])}
    report = run_product(m, 32, 2, group, ts=True, change=early, **schedule)
    finding = report.findings[0]
    assert finding.code == "race-tmem", report
    assert finding.location.line == line_of("await mbarrier_wait") + 1
    assert [place.line for _, place in finding.related] == [line_of("tcgen05_mma(")]
    assert "which reads it" in finding.message


@pytest.mark.parametrize(
    ("options", "old", "new", "code", "words"),
    [
        ({"ts": True}, "a = 352", "a = 16 << 16 | 352", "misaligned", "all lanes from 0 on"),
        ({"m": 64, "ts": True}, "a = 352", "a = 16 << 16 | 352", "descriptor", "different lanes"),
        ({"ts": True, "ta": True}, "a = 352", "a = 352", "descriptor", "K-major"),
        ({"ts": True}, "a = 352", "a = 504", "tmem-lifetime", "which do not exist"),
        ({"d": "float16", "dtype": "bfloat16"}, "i > 0", "i > 0", "descriptor", "F16 accumulator"),
        ({}, "GROUP, True", "GROUP, w.lanes < 2", "divergent-collective", "2 threads"),
    ],
)
def test_products_that_the_tensor_core_cannot_take(options, old, new, code, words):
    report = run_product(**options, change={old: new})
    assert report.findings[0].code == code, report
    assert words in report.findings[0].message


# ------------------------------------------------------------------------------ fences

#: The fences of PRODUCT, in order, each with what it stands by.
BEFORE_MMA = "fence_proxy_async(w)\ntcgen05_fence_before(w)\n"
AFTER_SYNC = "await cluster_sync(w)\ntcgen05_fence_after(w)\nif w.rank == 0"
AFTER_COMMIT = "await mbarrier_wait(w, SB, 0)\ntcgen05_fence_after(w)\n"
BEFORE_FREE = "= out\ntcgen05_fence_before(w)\n"
AFTER_FREE = "tcgen05_fence_after(w)\nif w.id == 0: tcgen05_dealloc"
FENCES = (BEFORE_MMA, AFTER_SYNC, AFTER_COMMIT, BEFORE_FREE, AFTER_FREE)


def without(*places: str) -> dict[str, str]:
    """Changes that take fences away; lines keep their numbers."""
    return {
        place: place.replace("tcgen05_fence_before(w)", "pass").replace(
            "tcgen05_fence_after(w)", "pass"
        )
        for place in places
    }


@pytest.mark.parametrize(
    ("gone", "line", "other", "words"),
    [
        (BEFORE_MMA, STORE.strip(), "tcgen05_mma(", "without a tcgen05.fence::before"),
        (AFTER_SYNC, "tcgen05_mma(", STORE.strip(), "no tcgen05.fence::after"),
        (AFTER_COMMIT, "tcgen05_ld(w, out", "tcgen05_mma(", "no tcgen05.fence::after"),
        (BEFORE_FREE, "tcgen05_ld(w, out", "tcgen05_dealloc(", "without a tcgen05.fence::before"),
    ],
    ids=["before-mma", "after-sync", "after-commit", "before-free"],
)
@pytest.mark.parametrize(("m", "group"), [(128, 1), (256, 2)])
def test_a_fence_that_is_gone(m, group, gone, line, other, words, schedule):
    report = run_product(m, 32, 2, group, ts=True, change=without(gone), **schedule)
    finding = report.findings[0]
    assert (finding.code, finding.severity) == ("missing-tcgen05-fence", "warning"), report
    assert finding.location.line == line_of(line)
    assert line_of(other) in [place.line for _, place in finding.related]
    assert words in finding.message
    assert report.ok
    assert {f.location.line for f in report.findings} == {line_of(line)}, report
    assert "tcgen05-fence" in report.readings


def test_a_fence_that_nothing_needs(schedule):
    """tcgen05.dealloc is no asynchronous operation: the fence behind the barrier orders nothing."""
    report = run_product(ts=True, change=without(AFTER_FREE), **schedule)
    assert not report.findings, report


@pytest.mark.parametrize(("reading", "found"), [("kernel", 0), ("acquire", 0), ("isa", 3)])
def test_a_kernel_without_any_fence(reading, found, schedule):
    report = run_product(
        ts=True, change=without(*FENCES), readings={"tcgen05-fence": reading}, **schedule
    )
    assert len(report.findings) == found, report
    assert {f.code for f in report.findings} <= {"missing-tcgen05-fence"}
    assert report.ok


def test_the_only_fence_before_a_barrier_with_one_behind_it(schedule):
    """No other before_thread_sync in the kernel, and yet the one behind the barrier asks for it."""
    report = run_product(change=without(BEFORE_MMA, BEFORE_FREE), **schedule)
    assert {f.code for f in report.findings} == {"missing-tcgen05-fence"}, report
    lines = {f.location.line for f in report.findings}
    assert lines == {line_of(STORE.strip()), line_of("tcgen05_ld(w, out")}


RELAXED = "while not mbarrier_test(w, SB, 0, relaxed=True): yield None\n"


def test_a_relaxed_wait_with_a_fence_behind_it(schedule):
    """The ISA's canonical pattern: try_wait.relaxed, then the fence, then tcgen05.ld."""
    report = run_product(change={"await mbarrier_wait(w, SB, 0)\n": RELAXED}, **schedule)
    assert not report.findings, report


@pytest.mark.parametrize("fences", [True, False])
def test_a_relaxed_wait_without_one(fences, schedule):
    gone = FENCES[2:3] if fences else FENCES
    change = without(*gone)
    change[AFTER_COMMIT] = change[AFTER_COMMIT].replace("await mbarrier_wait(w, SB, 0)\n", RELAXED)
    report = run_product(change=change, **schedule)
    finding = report.findings[0]
    assert (finding.code, finding.severity) == ("missing-tcgen05-fence", "error"), report
    assert finding.location.line == line_of("tcgen05_ld(w, out")
    assert "behind a relaxed wait" in finding.message
    assert line_of("await mbarrier_wait") in [place.line for _, place in finding.related]
    assert not report.ok


# --------------------------------------------------------------- waits for loads and stores

#: Warp 0 loads columns that warp 1 overwrites once it is told to.
SLOT = """
if w.id == 0:
    mbarrier_init(w, SB, 1)
    await tcgen05_alloc(w, SB + 8, 32)
await cta_sync(w)
at = int(ld_shared(w, SB + 8, 4, 1))
if w.id % 4 == 0:
    if w.id == 0:
        tcgen05_st(w, at, np.full((32, 4), 7, np.uint32), "32x32b", 4)
        tcgen05_wait_st(w)
        r = fresh(4, "uint32")
        tcgen05_ld(w, r, at, "32x32b", 4)
        {read}
        mbarrier_arrive(w, SB, 1, mask=True)
        {later}
    if w.id == 4:
        await mbarrier_wait(w, SB, 0)
        tcgen05_st(w, at, np.full((32, 4), 8, np.uint32), "32x32b", 4)
        tcgen05_wait_st(w)
await cta_sync(w)
if w.id == 0: tcgen05_dealloc(w, at, 32)
"""
USE = 'tcgen05_touch(w, r, False); w.machine.counters["r"] = int(r[5, 3])'


def run_slot(read="pass", later="pass", **schedule):
    return warps.run(SLOT.format(read=read, later=later), threads=160, **schedule)


def slot_line(text: str) -> int:
    (line,) = [i for i, x in enumerate(SLOT.strip("\n").splitlines(), 1) if text in x]
    return line


def test_a_load_that_is_waited_for_before_its_columns_go_on(schedule):
    report = run_slot("tcgen05_wait_ld(w)", USE, **schedule)
    assert not report.findings, report
    assert report.counters["r"] == 7


@pytest.mark.parametrize(
    ("read", "later"),
    [("pass", "tcgen05_wait_ld(w); " + USE), (USE, "tcgen05_wait_ld(w)"), ("pass", "pass")],
    ids=["waits too late", "uses and waits too late", "never waits"],
)
def test_columns_go_on_before_the_load_is_waited_for(read, later, schedule):
    report = run_slot(read, later, **schedule)
    finding = report.findings[0]
    assert (finding.code, finding.severity) == ("missing-tcgen05-wait", "error"), report
    assert finding.location.line == slot_line("tcgen05_ld(")
    assert [p.line for _, p in finding.related] == [slot_line("np.full((32, 4), 8")]
    assert "wait::ld" in finding.fix
    if "counters" in read + later:
        assert report.counters["r"] == 7 or schedule["schedule"] != "eager"


def test_a_use_is_a_wait_where_a_kernel_has_no_others(schedule):
    """A true dependency on the registers, in a kernel that relies on it everywhere."""
    report = run_slot(USE, **schedule)
    assert not report.findings, report
    assert report.counters["r"] == 7
    strict = run_slot(USE, readings={"tcgen05-ld": "wait"}, **schedule)
    assert [f.code for f in strict.findings] == ["tcgen05-in-flight"]
    assert strict.findings[0].location.line == slot_line("tcgen05_ld(") + 1


def test_the_same_threads_load_behind_its_store(schedule):
    body = """
    await tcgen05_alloc(w, SB, 32)
    at = int(ld_shared(w, SB, 4, 1))
    tcgen05_st(w, at, np.full((32, 1), 3, np.float32), "32x32b", 1)
    {}
    r = fresh(1, "float32")
    tcgen05_ld(w, r, at, "32x32b", 1)
    tcgen05_wait_ld(w)
    tcgen05_wait_st(w)
    tcgen05_dealloc(w, at, 32)
    """
    report = warps.run(body.format("tcgen05_wait_st(w)"), **schedule)
    assert not report.findings, report
    report = warps.run(body.format("pass"), **schedule)
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("missing-tcgen05-wait", 3)
    assert [p.line for _, p in finding.related] == [6]
    assert "wait::st" in finding.fix


# --------------------------------------------------------------------------- life of columns


def test_columns_that_are_never_allocated(schedule):
    body = """
    tcgen05_st(w, 0, np.zeros((32, 1), np.uint32), "32x32b", 1)
    """
    finding = warps.only(warps.run(body, **schedule))
    assert (finding.code, finding.location.line) == ("tmem-lifetime", 1)
    assert "columns 0 to 0, which are not allocated" in finding.message


def test_columns_that_have_been_given_back(schedule):
    body = """
    await tcgen05_alloc(w, SB, 32)
    at = int(ld_shared(w, SB, 4, 1))
    tcgen05_dealloc(w, at, 32)
    tcgen05_st(w, at, np.zeros((32, 1), np.uint32), "32x32b", 1)
    """
    finding = warps.only(warps.run(body, **schedule))
    assert (finding.code, finding.location.line) == ("tmem-lifetime", 4)
    assert "not allocated any more: warps.txt:3 gave them back" in finding.message
    assert [place.line for _, place in finding.related] == [3]


def test_an_address_that_is_read_before_it_is_written(schedule):
    body = """
    if w.id == 0:
        await tcgen05_alloc(w, SB, 32)
    {}
    at = int(ld_shared(w, SB, 4, 1))
    await cta_sync(w)
    if w.id == 0: tcgen05_dealloc(w, at, 32)
    """
    assert not warps.run(body.format("await cta_sync(w)"), threads=64, **schedule).findings
    finding = warps.run(body.format("pass"), threads=64, **schedule).findings[0]
    assert (finding.code, finding.location.line) == ("race-smem", 4)
    assert [place.line for _, place in finding.related] == [2]


def test_two_allocations_of_which_the_second_cannot_succeed(schedule):
    body = """
    await tcgen05_alloc(w, SB, 512)
    while (t := tcgen05_alloc(w, SB + 8, 256)) is not None: yield t
    """
    finding = warps.run(body, **schedule).findings[0]
    assert (finding.code, finding.location.line) == ("tmem-lifetime", 2)
    assert "256 columns can never succeed: columns 0-511 (warp 0) are held" in finding.message
    assert [place.line for _, place in finding.related] == [1]


def test_an_allocation_that_waits_for_another_to_end(schedule):
    body = """
    if w.id == 0:
        mbarrier_init(w, SB, 1)
        await tcgen05_alloc(w, SB + 8, 512)
    await cta_sync(w)
    if w.id == 1:
        while (t := tcgen05_alloc(w, SB + 16, 256)) is not None: yield t
        tcgen05_dealloc(w, int(ld_shared(w, SB + 16, 4, 1)), 256)
    if w.id == 0:
        tcgen05_dealloc(w, int(ld_shared(w, SB + 8, 4, 1)), 512)
    """
    report = warps.run(body, threads=64, **schedule)
    assert not report.findings, report


def test_allocations_that_grow(schedule):
    body = """
    await tcgen05_alloc(w, SB, 64)
    await tcgen05_alloc(w, SB + 8, {})
    tcgen05_dealloc(w, int(ld_shared(w, SB, 4, 1)), 64)
    tcgen05_dealloc(w, int(ld_shared(w, SB + 8, 4, 1)), {})
    """
    assert not warps.run(body.format(64, 64), **schedule).findings
    finding = warps.only(warps.run(body.format(128, 128), **schedule))
    assert (finding.code, finding.location.line) == ("tmem-lifetime", 2)
    assert [place.line for _, place in finding.related] == [1]


# ------------------------------------------------------------------------------ pairs of CTAs

CLUSTER: dict[str, Any] = {"grid": (2, 1, 1), "cluster": (2, 1, 1), "threads": 128}
PAIR = """
if w.id == 0:
    while (t := tcgen05_alloc(w, SB, 64, 2)) is not None: yield t
await cta_sync(w)
at = int(ld_shared(w, SB, 4, 1))
tcgen05_st(w, at, np.zeros((32, 1), np.uint32), "32x32b", 1)
tcgen05_wait_st(w)
await cluster_sync(w)
if w.id == 0: tcgen05_dealloc(w, at, 64, 2)
"""


def test_a_pair_gives_its_columns_back_behind_a_cluster_barrier(schedule):
    report = warps.run(PAIR, **CLUSTER, **schedule)
    assert not report.findings, report


def test_a_pair_gives_its_columns_back_behind_a_cta_barrier(schedule):
    body = PAIR.replace("await cluster_sync(w)", "await cta_sync(w)")
    report = warps.run(body, **CLUSTER, **schedule)
    finding = report.findings[0]
    assert (finding.code, finding.location.line) == ("cta-group", 8), report
    assert {f.code for f in report.findings} == {"cta-group"}
    assert "cluster barrier" in finding.fix


def test_a_dealloc_before_the_peers_allocation_is_complete(schedule):
    body = """
    if w.id == 0:
        while (t := tcgen05_alloc(w, SB, 64, 2)) is not None: yield t
        at = int(ld_shared(w, SB, 4, 1))
        {}
        tcgen05_dealloc(w, at, 64, 2)
    """
    one = {**CLUSTER, "threads": 32}
    assert not warps.run(body.format("await cluster_sync(w)"), **one, **schedule).findings
    report = warps.run(body.format("pass"), **one, **schedule)
    finding = report.findings[0]
    assert (finding.code, finding.location.line) == ("cta-group", 5)
    assert "does not wait for the tcgen05.alloc of CTA rank" in finding.message


def test_a_pair_that_asks_for_different_numbers_of_columns(schedule):
    body = """
    while (t := tcgen05_alloc(w, SB, 64 << w.rank, 2)) is not None: yield t
    """
    finding = warps.run(body, **{**CLUSTER, "threads": 32}, **schedule).findings[0]
    assert (finding.code, finding.location.line) == ("cta-group", 1)
    assert "the two allocate together" in finding.message


def test_half_a_pair(schedule):
    body = "while (t := tcgen05_alloc(w, SB, 64, 2)) is not None: yield t"
    finding = warps.run(body, **schedule).findings[0]
    assert finding.code == "cta-group"
    assert "without a pair" in finding.message


def test_a_pair_of_which_one_never_allocates(schedule):
    body = """
    if w.rank == 0:
        while (t := tcgen05_alloc(w, SB, 64, 2)) is not None: yield t
    """
    finding = warps.run(body, **{**CLUSTER, "threads": 32}, **schedule).findings[0]
    assert (finding.code, finding.location.line) == ("deadlock", 2)
    assert "for a warp of the peer, CTA rank 1, to allocate too" in finding.message


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (
            {"SB, GROUP, 3 if GROUP == 2 else None": "SB, 2, 1"},
            "tcgen05_commit(",
            "does not cover the tcgen05.mma",
        ),
        ({"tcgen05_dealloc(w, 0, 512, GROUP)": "tcgen05_dealloc(w, 0, 512, 2)"},
         "tcgen05_dealloc(", "all tcgen05 instructions of a kernel must have the same"),
    ],
)  # fmt: skip
def test_groups_that_do_not_go_together(change, line, words, schedule):
    finding = run_product(change=change, **schedule).findings[0]
    assert (finding.code, finding.location.line) == ("cta-group", line_of(line))
    assert words in finding.message
    assert finding.related


def test_a_commit_for_one_of_the_pair_alone(schedule):
    """The other CTA waits for ever: the barrier in its own shared memory gets no arrival."""
    change = {"3 if GROUP == 2 else None": "1 if GROUP == 2 else None"}
    finding = run_product(256, 32, 2, 2, change=change, **schedule).findings[0]
    assert (finding.code, finding.location.line) == ("deadlock", line_of("await mbarrier_wait"))


def test_a_product_behind_a_cta_barrier_alone(schedule):
    """A barrier shows that the MMAs were issued, and not that they are done."""
    change = {"await mbarrier_wait(w, SB, 0)\n": "await cluster_sync(w)\n"}
    for m, group in SHAPES:
        finding = run_product(m, 32, 2, group, change=change, **schedule).findings[0]
        assert finding.code == "missing-commit"
        assert finding.location.line == line_of("tcgen05_ld(w, out")
        assert [p.line for _, p in finding.related] == [line_of("tcgen05_mma(")]


def test_a_peer_that_exits_before_the_product_is_done(schedule):
    """The other CTA of the pair must not have exited (PTX ISA, "Issue Granularity")."""
    gone = "if w.rank == 1: return\nawait mbarrier_wait(w, SB, 0)\n"
    change = {"await mbarrier_wait(w, SB, 0)\n": gone}
    report = run_product(256, 32, 2, 2, change=change, **schedule)
    codes = {f.code for f in report.findings}
    assert "cluster-exit" in codes, report


def test_a_first_product_that_accumulates(schedule):
    change = {STORE: "    pass\n", "i > 0": "True"}
    finding = run_product(change=change, **schedule).findings[0]
    assert (finding.code, finding.location.line) == ("uninitialised-read", line_of("tcgen05_mma("))
    assert "hold nothing yet" in finding.message


def test_a_product_that_overwrites_an_unread_one(schedule):
    change = {"False or i > 0": "False"}
    finding = run_product(change=change, **schedule).findings[0]
    assert (finding.code, finding.location.line) == ("discarded-product", line_of("tcgen05_mma("))


# ------------------------------------------------------------------- kernels, and refusals

MMA_TS = "tcgen05.mma.cta_group::1.kind::f16"
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"


@pytest.mark.parametrize("off", [0, 0x0000FFFF], ids=["all lanes", "some lanes off"])
def test_a_kernel_with_a_in_tensor_memory(off):
    """Threads store A and the old D; one k16 step adds to D; lanes that are off keep theirs."""
    idesc = 1 << 4 | 16 >> 3 << 17 | 128 >> 4 << 24

    @T.prim_func
    def kernel(
        A: T.Buffer((128, 8), "uint32"),
        B: T.Buffer((16, 16), "float16"),
        D: T.Buffer((128, 16), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        box = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        Bs = pool.alloc((256,), "float16", align=1024)
        pool.commit()
        if warp == 0:
            T.ptx[ALLOC](box.ptr_to([0]), T.uint32(32))
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
        if tid < 16:  # two chunks of 8 values along K, each 16 rows of 16 bytes
            for k in T.serial(16):
                Bs[k // 8 * 128 + tid * 8 + k % 8] = B[tid, k]
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        base: T.uint32 = box[0]
        held = T.alloc_local((8,), "uint32")
        acc = T.alloc_local((16,), "float32")
        for i in T.unroll(8):
            held[i] = A[tid, i]
        for i in T.unroll(16):
            acc[i] = D[tid, i]
        T.ptx[ST.format("32x32b.x8")](base + T.uint32(16), *[held[i] for i in range(8)])
        T.ptx[ST.format("32x32b.x16")](base, *[acc[i] for i in range(16)])
        T.ptx[WAIT_ST]()
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        if warp == 0:
            if T.cuda.elect_sync():
                desc: T.uint64
                T.cuda.tcgen05.encode_matrix_descriptor(
                    T.address_of(desc), Bs.ptr_to([0]), 16, 8, 0
                )
                T.ptx[MMA_TS](
                    base,
                    base + T.uint32(16),
                    desc,
                    T.uint32(idesc),
                    T.uint32(off),
                    T.uint32(0),
                    T.uint32(0),
                    T.uint32(0),
                    T.ptx.pred(T.bool(True)),
                )
                T.ptx[COMMIT](bar.ptr_to([0]))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        T.ptx.tcgen05.fence__after_thread_sync()
        T.ptx[LD.format("32x32b.x16")](*[acc[i] for i in range(16)], base)
        T.ptx[WAIT_LD]()
        for i in T.unroll(16):
            D[tid, i] = acc[i]
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx[DEALLOC](base, T.uint32(32))

    rng = np.random.default_rng(8)
    a = rng.integers(-4, 4, (128, 16), endpoint=True).astype(np.float16)
    b = rng.integers(-4, 4, (16, 16), endpoint=True).astype(np.float16)
    before = rng.integers(-9, 9, (128, 16)).astype(np.float32)
    expected = before + a.astype(np.float32) @ b.astype(np.float32).T
    if off:
        expected[:16] = before[:16]
    for schedule in ("eager", "lazy"):
        out = before.copy()
        report = simulate(kernel, a.view(np.uint32).copy(), b, out, schedule=schedule)
        assert not report.findings, report
        np.testing.assert_array_equal(out, expected)


def test_what_is_left_for_later_has_no_row():
    """Nothing of tcgen05 is accepted that the machine does not do: it is refused by its name."""
    from tvm.backend.cuda.ptx.table import TABLE

    from mlsys_gpu.sim.frontend import table

    table.load()
    known = {name for name in TABLE if "tcgen05" in name and "tirx.ptx." + name in table.ROWS}
    assert known == {
        "tcgen05_alloc", "tcgen05_dealloc", "tcgen05_relinquish_alloc_permit", "tcgen05_ld",
        "tcgen05_ld_split", "tcgen05_st", "tcgen05_st_split", "tcgen05_wait", "tcgen05_mma_ss",
        "tcgen05_mma_ts", "tcgen05_fence", "tcgen05_commit", "tcgen05_commit_multicast",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "words"),
    [("kind::tf32", "tcgen05.mma.kind::tf32"), ("kind::f8f6f4", "tcgen05.mma.kind::f8f6f4"),
     ("kind::i8", "tcgen05.mma.kind::i8"), ("kind::f16.collector::a::fill", "")],
)  # fmt: skip
def test_kinds_of_products(kind, words):
    """Other kinds than f16 are refused by name; where A is kept is a hint."""
    name = f"tcgen05.mma.cta_group::1.{kind}"

    @T.prim_func
    def kernel(X: T.Buffer((32,), "uint32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        X[tid] = T.uint32(1)
        if X[0] == T.uint32(7):
            if T.cuda.elect_sync():
                T.ptx[name](
                    T.uint32(0), T.uint64(0), T.uint64(0), T.uint32(0), T.uint32(0), T.uint32(0),
                    T.uint32(0), T.uint32(0), T.ptx.pred(T.bool(True)),
                )  # fmt: skip

    if words:
        with pytest.raises(sim.Unsupported, match=words):
            sim.compile(kernel, arch="blackwell")
    else:
        sim.compile(kernel, arch="blackwell")
