"""``wgmma`` against float64, in all shapes, and the rules for its registers.

Operands are laid out here by the PTX ISA's formulas, one element at a time: in shared memory by
those of :mod:`.test_numerics`, in registers by those of "Register Fragments" of wgmma.mma_async.
"""

# Kernels are TVMScript: its parser gives names and annotations their meaning.
# pyright: reportUnboundVariable=false
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

import itertools
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout, operand_type, variants
from tvm.script import tirx as T

from mlsys_gpu import sim
from mlsys_gpu.sim.program import Unsupported

from . import warps
from .fixtures import hopper_attention
from .sources import module_from
from .test_numerics import k_major_byte, mn_major_byte

TYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", n) for n in range(5)]
MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # swizzle width to the descriptor's field
B_AT = 8192  # where operand B begins in shared memory


# ----------------------------------------------------------------------- registers (PTX ISA)


@cache
def places_of_d(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of D's elements, ``[128, n / 2]``, by thread of the warpgroup."""
    rows, columns = (np.empty((128, n // 2), np.int64) for _ in range(2))
    for thread, i in itertools.product(range(128), range(n // 2)):
        warp, lane = divmod(thread, 32)
        rows[thread, i] = 16 * warp + lane // 4 + (8 if i % 4 >= 2 else 0)
        columns[thread, i] = 8 * (i // 4) + 2 * (lane % 4) + i % 2
    return rows, columns


@cache
def places_of_a() -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of A's eight elements a thread, for one k16 step."""
    rows, columns = (np.empty((128, 8), np.int64) for _ in range(2))
    for thread, i in itertools.product(range(128), range(8)):
        warp, lane = divmod(thread, 32)
        group, within = divmod(lane, 4)
        rows[thread, i] = 16 * warp + (group if i < 2 or 4 <= i < 6 else group + 8)
        columns[thread, i] = 2 * within + i % 2 + (8 if i >= 4 else 0)
    return rows, columns


def fragments_of_a(matrix: np.ndarray) -> np.ndarray:
    """A [64, K] as registers, ``[128, K / 4]`` words."""
    rows, columns = places_of_a()
    steps = [matrix[rows, columns + k] for k in range(0, matrix.shape[1], 16)]
    return np.ascontiguousarray(np.concatenate(steps, axis=1)).view(np.uint32)


# --------------------------------------------------------------------- shared memory (PTX ISA)


def laid_out(image: np.ndarray, base: int, matrix: np.ndarray, width: int, transposed: bool):
    """Write an operand ``[rows, K]`` into the image; its descriptors, one for each k16 step."""
    rows, depth = matrix.shape
    elements = image.view(matrix.dtype)
    found = []
    for step in range(depth // 16):
        if transposed and width:
            leading, stride = 8 * width * (depth // 8), 8 * width
            start = base + step * 2 * stride
        elif transposed:
            leading, stride = 128 * (rows // 8), 128
            start = base + step * 2 * leading
        elif width:  # a tile is as many steps as a row of the swizzle holds
            leading, stride = 16, 8 * width
            tile, within = divmod(step, width // 32)
            start = base + tile * rows * width + 32 * within
        else:
            leading, stride, start = 128, 256, base + step * 32 * rows
        place = mn_major_byte if transposed else k_major_byte
        for row, k in itertools.product(range(rows), range(16)):
            at = place(row, k, start, leading, stride, width)
            elements[at // 2] = matrix[row, 16 * step + k]
        found.append(
            (1024 + start) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | MODES[width] << 62
        )
    return found


BODY = """
X, F, C, D = w.machine.pointers
for i in range({chunks}): st_shared(w, SB + 16 * w.tid + 2048 * i, ld_global(w, X + 16 * w.tid + 2048 * i, 4, 4), 4, 4)
fence_proxy_async(w)
await cta_sync(w)
place = 4 * ({regs} * w.tid[:, None] + np.arange({regs}))
acc = fresh({regs}, {kind!r})
acc[:] = ld_global(w, C + place, 4, 1).view(acc.dtype)
a = ld_global(w, F + 4 * ({words} * w.tid[:, None] + np.arange({words})), 4, 1)
A, B = {a}, {b}
wgmma_fence(w)
for k in range({steps}): wgmma_mma(w, ((acc, 0, {regs}),), (({source}, B[k], k > 0 or {accumulate}),), {n}, {dtype!r}, {ta}, {tb}, {sign}, {half})
wgmma_commit(w)
await wgmma_wait(w, 0)
wgmma_touch(w, acc, False, 'acc')
st_global(w, D + place, acc.view(np.uint32), 4, 1)
"""  # noqa: E501


def multiply(
    a,
    b,
    c,
    *,
    dtype="float16",
    half=False,
    registers=False,
    ta=0,
    tb=0,
    sign=1,
    width=128,
    accumulate=True,
    **schedule,
):
    """The simulator's ``(+-) A @ B.T (+ C)`` for A [64, K], B [n, K] and C [64, n]."""
    n, depth = b.shape
    across, along = (depth, n) if tb else (n, depth)  # along the contiguous direction
    atom = width or 16
    size = B_AT + (2 * along + atom - 1) // atom * atom * across
    image = np.zeros((size + 2047) // 2048 * 2048, np.uint8)
    kind = TYPES[dtype]
    descriptors_a = laid_out(image, 0, a.astype(kind), width, bool(ta))
    descriptors_b = laid_out(image, B_AT, b.astype(kind), width, bool(tb))
    rows, columns = places_of_d(n)
    into: Any = np.float16 if half else np.float32
    C = np.ascontiguousarray(c[rows, columns].astype(into)).view(np.uint32)
    D = np.zeros_like(C)
    F = fragments_of_a(a.astype(kind))
    if registers:
        image[:B_AT] = 0xAB  # nothing of A there
    body = BODY.format(
        chunks=image.size // 2048,
        regs=C.shape[1],
        kind="uint32" if half else "float32",
        words=F.shape[1],
        a=descriptors_a,
        b=descriptors_b,
        steps=depth // 16,
        source="((a, 4 * k, 4),)" if registers else "A[k]",
        accumulate=accumulate,
        n=n,
        dtype=dtype,
        ta=ta,
        tb=tb,
        sign=sign,
        half=half,
    )
    tensors = [("X", image.view(np.uint32)), ("F", F), ("C", C), ("D", D)]
    report = warps.run(body, threads=128, shared=image.size, tensors=tensors, **schedule)
    assert not report.findings, report
    result = np.full((64, n), np.nan, into)
    result[rows, columns] = D.view(into)
    return result.astype(np.float64)


def numbers(kind: str, n: int, depth: int, seed: int, dtype: str = "float16"):
    """A [64, depth], B [n, depth] and C [64, n] of some kind, as float64."""
    rng = np.random.default_rng(seed)
    shapes = ((64, depth), (n, depth), (64, n))
    if kind == "whole":
        a, b, c = (rng.integers(-8, 9, shape) for shape in shapes)
    elif kind == "normal":
        a, b, c = (rng.standard_normal(shape) for shape in shapes)
    elif kind == "denormal":
        tiny = 2.0**-24 if dtype == "float16" else 2.0**-133
        a, b = rng.integers(-9, 10, shapes[0]) * tiny, rng.integers(1, 9, shapes[1]) * 1024.0
        c = np.zeros(shapes[2])
    else:
        pool = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -2.0, 3.5])
        odds = [0.01, 0.01, 0.01, 0.15, 0.12, 0.3, 0.2, 0.2]
        a, b = (rng.choice(pool, shape, p=odds) for shape in shapes[:2])
        c = rng.choice(pool, shapes[2], p=odds)
    a, b = (x.astype(TYPES[dtype]).astype(np.float64) for x in (a, b))
    return a, b, c.astype(np.float32).astype(np.float64)


FORMS = list(itertools.product(("float16", "bfloat16"), (False, True), (0, 1), (0, 1)))


@pytest.mark.parametrize("n", range(8, 264, 8))
def test_all_shapes(n):
    """Every N, each with other formats, transpositions, swizzles, signs and places of A."""
    case = n // 8
    a, b, c = numbers("whole", n, 32, seed=n)
    for turn in range(2):
        dtype, registers, ta, tb = FORMS[(2 * case + 5 * turn) % len(FORMS)]
        sign, width = (1, -1)[(case + turn) % 2], (128, 64, 32, 0)[(case // 2 + turn) % 4]
        accumulate = (case // 3 + turn) % 2 == 0
        d = multiply(
            a,
            b,
            c,
            dtype=dtype,
            registers=registers,
            ta=0 if registers else ta,
            tb=tb,
            sign=sign,
            width=width,
            accumulate=accumulate,
        )
        assert np.array_equal(d, sign * (a @ b.T) + (c if accumulate else 0))


@pytest.mark.parametrize("width", [128, 64, 32, 0])
@pytest.mark.parametrize(("dtype", "registers", "ta", "tb"), [f for f in FORMS if not f[1] or f[2]])
def test_all_forms(dtype, registers, ta, tb, width):
    a, b, c = numbers("whole", 40, 64, seed=1)
    ta = 0 if registers else ta
    d = multiply(a, b, c, dtype=dtype, registers=registers, ta=ta, tb=tb, width=width)
    assert np.array_equal(d, a @ b.T + c)


@pytest.mark.parametrize("kind", ["normal", "denormal", "special"])
@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_denormal_and_special_numbers(dtype, registers, kind):
    a, b, c = numbers(kind, 48, 32, seed=2, dtype=dtype)
    d = multiply(a, b, c, dtype=dtype, registers=registers)
    with np.errstate(invalid="ignore"):
        exact = a @ b.T + c
        size = np.abs(a) @ np.abs(b.T) + np.abs(c)
    if kind == "normal":
        assert (np.abs(d - exact) <= 48 * 2.0**-24 * size).all()
    else:
        assert np.array_equal(d, exact.astype(np.float32).astype(np.float64), equal_nan=True)
    if kind == "special":
        assert np.isnan(d).any()
        assert np.isinf(d).any()
        assert np.isfinite(d).any()
    if kind == "denormal":
        assert len(np.unique(d)) > 100


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("n", [8, 24, 128])
def test_fp16_accumulators_are_rounded_after_each_step(n, registers):
    rng = np.random.default_rng(n)
    a, b = rng.integers(-32, 33, (64, 64)), rng.integers(-32, 33, (n, 64))
    c = rng.integers(-500, 501, (64, n)) * 4  # numbers that fp16 holds
    expected = c.astype(np.float64)
    for k in range(0, 64, 16):  # sums of a step are exact; then one rounding
        expected = (expected + a[:, k : k + 16] @ b[:, k : k + 16].T).astype(np.float16)
        expected = expected.astype(np.float64)
    once = (a @ b.T + c).astype(np.float16).astype(np.float64)
    assert (expected != once).any()
    d = multiply(a, b, c, half=True, registers=registers)
    assert np.array_equal(d, expected)


# ------------------------------------------------------------- every operation, from its TIRx


@pytest.mark.parametrize("acc", ["f32", "f16"])
@pytest.mark.parametrize("registers", [False, True])
def test_the_operations_of_the_dialect(acc, registers):
    """Operands by name from TVM's table: signs, transposition, scale-d, A from a view of fp16."""
    n, regs = 32, 16 if acc == "f32" else 8
    of = "float32" if acc == "f32" else "uint32"
    name = f"wgmma.mma_async.sync.aligned.m64n{n}k16.{acc}.f16.f16"

    def encode(desc, tile, leading):
        at, start = T.address_of(desc), tile.ptr_to([0, 0, 0, 0])
        T.evaluate(T.cuda.wgmma.encode_matrix_descriptor(at, start, leading, 8, 0))

    def issue(acc_r, a_words, desc_a, desc_b, scale):
        a = [a_words[i] for i in (2, 3, 0, 1)] if registers else [desc_a]
        more = (-1, 1, 1) if registers else (1, -1, 1, 1)
        T.evaluate(T.ptx[name](*[acc_r[i] for i in range(regs)], *a, desc_b, scale, *more))

    @T.prim_func
    def kernel(
        A: T.Buffer((16, 64), "float16"),
        F: T.Buffer((128, 8), "float16"),
        B: T.Buffer((16, 32), "float16"),
        C: T.Buffer((128, regs), of),
        scale: T.Buffer((1,), "int32"),
        D: T.Buffer((128, regs), of),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([128])
        # MN-major without swizzle: 16 bytes are 8 rows at one k.
        As = T.alloc_buffer((2, 8, 8, 8), "float16", scope="shared")
        Bs = T.alloc_buffer((2, 4, 8, 8), "float16", scope="shared")
        for i in range(8):
            As[i // 4, (i % 4 * 2 + tid // 64), tid // 8 % 8, tid % 8] = A[
                i // 4 * 8 + tid // 8 % 8, (i % 4 * 2 + tid // 64) * 8 + tid % 8
            ]
        for i in range(4):
            Bs[i // 2, i % 2 * 2 + tid // 64, tid // 8 % 8, tid % 8] = B[
                i // 2 * 8 + tid // 8 % 8, (i % 2 * 2 + tid // 64) * 8 + tid % 8
            ]
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        acc_r = T.alloc_local((regs,), of)
        halves = T.alloc_local((8,), "float16")
        a_words = halves.view("uint32")
        for i in range(regs):
            acc_r[i] = C[tid, i]
        for i in range(8):
            halves[(i + 4) % 8] = F[tid, i]
        desc_a: T.uint64
        desc_b: T.uint64
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(desc_a), As.ptr_to([0, 0, 0, 0]), 64, 8, 0
        )
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(desc_b), Bs.ptr_to([0, 0, 0, 0]), 32, 8, 0
        )
        T.ptx.wgmma.fence.sync.aligned()
        issue(acc_r, a_words, desc_a, desc_b, scale[0] != 0)
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)
        for i in range(regs):
            D[tid, i] = acc_r[i]

    program = sim.compile(kernel, arch="hopper")
    rng = np.random.default_rng(3)
    a, b = rng.integers(-4, 5, (64, 16)), rng.integers(-4, 5, (n, 16))
    c = rng.integers(-99, 100, (64, n))
    into: Any = np.float32 if acc == "f32" else np.float16
    rows, columns = places_of_d(n)
    C = np.ascontiguousarray(c[rows, columns].astype(into)).view(of)
    A, B = (
        np.ascontiguousarray(a.T.astype(np.float16)),
        np.ascontiguousarray(b.T.astype(np.float16)),
    )
    F = fragments_of_a(a.astype(np.float16)).view(np.float16)
    for scale in (0, 1):
        D = np.zeros_like(C)
        report = sim.simulate(program, A, F, B, C, np.array([scale], np.int32), D)
        assert not report.findings, report
        result = np.empty((64, n))
        result[rows, columns] = D.view(into)
        assert np.array_equal(result, scale * c - a @ b.T)


def test_accumulators_and_fragments_in_any_registers():
    """Accumulators backwards and in two arrays; fragments in scalars, expressions, at run time."""
    name = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16"

    @T.prim_func
    def kernel(
        F: T.Buffer((128, 4), "uint32"),
        B: T.Buffer((16, 16), "float16"),
        which: T.Buffer((1,), "int32"),
        D: T.Buffer((128, 8), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([128])
        Bs = T.alloc_buffer((2, 2, 8, 8), "float16", scope="shared")
        for i in range(2):
            Bs[i, tid // 64, tid // 8 % 8, tid % 8] = B[
                i * 8 + tid // 8 % 8, tid // 64 * 8 + tid % 8
            ]
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        back = T.alloc_local((6,), "float32")
        two = T.alloc_local((3, 2), "float32")
        parts = T.alloc_local((6,), "uint32")
        at: T.int32 = which[0]
        a0: T.uint32 = F[tid, 0]
        parts[at + 1] = F[tid, 1]
        parts[at + 2] = F[tid, 2]
        for i in T.unroll(6):
            back[i] = T.float32(1)
            if i < 3:
                two[i, 0] = T.float32(1)
                two[i, 1] = T.float32(77)
        desc: T.uint64
        T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc), Bs.ptr_to([0, 0, 0, 0]), 8, 16, 0)
        T.ptx.wgmma.fence.sync.aligned()
        T.evaluate(
            T.ptx[name](
                *[back[5 - i] for i in range(4)],
                *[two[i, 0] for i in range(3)],
                back[0],
                *[a0, parts[at + 1], parts[at + 2], F[tid, 3] ^ T.uint32(0x80008000)],
                *[desc, T.bool(True), 1, 1, 0],
            )
        )
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)
        for i in T.unroll(4):
            D[tid, i] = back[5 - i]
        for i in T.unroll(3):
            D[tid, 4 + i] = two[i, 0] + T.float32(1000) * (two[i, 1] - T.float32(77))
        D[tid, 7] = back[0] + T.float32(1000) * (back[1] - T.float32(1))

    rng = np.random.default_rng(4)
    a, b = rng.integers(-4, 5, (64, 16)), rng.integers(-4, 5, (16, 16))
    F = fragments_of_a(a.astype(np.float16))
    rows, columns = places_of_d(16)
    D = np.zeros((128, 8), np.float32)
    inputs = [F, b.astype(np.float16), np.array([1], np.int32), D]
    report = sim.simulate(kernel, *inputs, arch="hopper")
    assert not report.findings, report
    signed = a.copy()
    part = places_of_a()
    signed[part[0][:, 6:], part[1][:, 6:]] *= -1  # the fourth register is negated
    assert np.array_equal(D, (signed @ b.T + 1)[rows, columns])


# ------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_is_right_and_silent(dtype):
    """S by wgmma SS, P packed in registers, O by wgmma RS with V transposed: two in flight."""
    program = sim.compile(hopper_attention.build(128, 192, dtype=dtype))
    for schedule, seed in SCHEDULES:
        Q, K, V, O = hopper_attention.arrays(128, 192, seed=5)
        if dtype == "bfloat16":
            Q, K, V, O = (x.astype(ml_dtypes.bfloat16) for x in (Q, K, V, O))
        held = [x.view(np.uint16) if dtype == "bfloat16" else x for x in (Q, K, V, O)]
        report = sim.simulate(program, *held, schedule=schedule, schedule_seed=seed)
        assert not report.findings, report
        q, k, v, o = (x.astype(np.float64) for x in (Q, K, V, O))
        scores = q @ k.T / 8
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        unit = 2.0**-11 if dtype == "float16" else 2.0**-8
        assert (np.abs(o - weights @ v) <= 2 * unit * (weights @ np.abs(v)) + 1e-6).all()
        assert np.abs(o).max() > 0.2
    assert report.counters["mma_instructions"] == 2 * 3 * (4 + 4)


# ------------------------------------------------------------------- rules for the registers

#: Two accumulators in one array, A from registers; the rules are about registers, not arrays.
CORRECT = """
from tvm.script import tirx as T

KIND = "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16"
WIDE = "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16"


def rs(kind, acc, first, count, a, at, desc, scale):
    regs, words = [acc[first + i] for i in range(count)], [a[at + i] for i in range(4)]
    T.evaluate(T.ptx[kind](*regs, *words, desc, T.bool(scale), 1, 1, 0))


def build():
    @T.prim_func
    def kernel(F: T.Buffer((128, 8), "uint32"), B: T.Buffer((32, 16), "float16"),
               D: T.Buffer((128, 16), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([4])
        tid = T.thread_id([128])
        Bs = T.alloc_buffer((2, 4, 8, 8), "float16", scope="shared")
        for i in range(4):
            Bs[i // 2, i % 2 * 2 + tid // 64, tid // 8 % 8, tid % 8] = B[
                i % 2 * 16 + tid // 64 * 8 + tid // 8 % 8, i // 2 * 8 + tid % 8]
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        acc = T.alloc_local((16,), "float32")
        wide = T.alloc_local((16,), "float32")
        a = T.alloc_local((8,), "uint32")
        for i in range(8):
            a[i] = F[tid, i]
        for i in range(16):
            wide[i] = T.float32(0)
        desc: T.uint64
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(desc), Bs.ptr_to([0, 0, 0, 0]), 32, 8, 0)
        T.ptx.wgmma.fence.sync.aligned()
        rs(KIND, acc, 0, 8, a, 0, desc, False)  # first
        T.ptx.wgmma.commit_group.sync.aligned()
        rs(KIND, acc, 8, 8, a, 4, desc, False)  # second
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(1)
        for i in range(8):
            acc[i] = acc[i] + T.float32(1)
        for i in range(4):
            a[i] = a[i] ^ T.uint32(0x80008000)
        T.ptx.wgmma.fence.sync.aligned()  # between
        rs(KIND, acc, 0, 8, a, 0, desc, True)  # third
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)
        T.ptx.wgmma.fence.sync.aligned()  # for another shape
        rs(WIDE, wide, 0, 16, a, 0, desc, False)  # fourth
        T.ptx.wgmma.commit_group.sync.aligned()
        T.ptx.wgmma.wait_group.sync.aligned(0)
        for i in range(16):
            D[tid, i] = acc[i] + wide[i]

    return kernel
"""


def inputs():
    rng = np.random.default_rng(6)
    a, b = rng.integers(-4, 5, (2, 64, 16)), rng.integers(-4, 5, (32, 16))
    F = np.concatenate([fragments_of_a(x.astype(np.float16)) for x in a], axis=1)
    return a, b, F, b.astype(np.float16)


def test_the_correct_kernel_is_silent_and_right(tmp_path):
    program = sim.compile(module_from(tmp_path / "kernel.py", CORRECT).build(), arch="hopper")
    a, b, F, B = inputs()
    near, far = places_of_d(16), places_of_d(32)
    first, second = np.ones((64, 16)), a[1] @ b[:16].T  # the first and third product cancel
    expected = np.concatenate([first[near], second[near]], axis=1) - (a[0] @ b.T)[far]
    for schedule, seed in SCHEDULES:
        D = np.zeros((128, 16), np.float32)
        report = sim.simulate(program, F, B, D, schedule=schedule, schedule_seed=seed)
        assert not report.findings, report
        assert np.array_equal(D, expected)


WAIT_1 = "        T.ptx.wgmma.wait_group.sync.aligned(1)\n"
FENCE = "        T.ptx.wgmma.fence.sync.aligned()  # between\n"
FAULTS: dict[str, Any] = {
    # name: changes, code, how the line begins, what the message says, how the other line begins
    "wait one too large": (
        [(WAIT_1, WAIT_1.replace("1)", "2)"))],
        "wgmma-in-flight",
        "acc[i] = acc[i] + T.float32(1)",
        "reads acc[0]",
        "rs(KIND, acc, 0, 8, a, 0, desc, False)",
    ),
    "the accumulators of the group that is still under way": (
        [("acc[i] = acc[i] + T.float32(1)", "acc[i + 8] = acc[i] + T.float32(1)")],
        "wgmma-in-flight",
        "acc[i + 8] = acc[i] + T.float32(1)",
        "writes acc[8]",
        "rs(KIND, acc, 8, 8, a, 4, desc, False)",
    ),
    "fragments of the group that is still under way": (
        [("a[i] = a[i] ^ T", "a[i + 4] = a[i] ^ T")],
        "wgmma-in-flight",
        "a[i + 4] = a[i] ^",
        "writes a[4] while the wgmma at kernel.py:",
        "rs(KIND, acc, 8, 8, a, 4, desc, False)",
    ),
    "one register of a fragment": (
        [("for i in range(4):\n            a[i] = a[i]", "if True:\n            a[5] = a[0]")],
        "wgmma-in-flight",
        "a[5] = a[0] ^",
        "fragments of A",
        "rs(KIND, acc, 8, 8, a, 4, desc, False)",
    ),
    "no fence behind writes of both": (
        [(FENCE, "")],
        "wgmma-fence",
        "rs(KIND, acc, 0, 8, a, 0, desc, True)",
        "whose accumulators its threads have accessed since the last wgmma.fence",
        "",
    ),
    "no fence behind a read of accumulators": (
        [
            (FENCE, ""),
            ("acc[i] = acc[i] + T.float32(1)", "D[tid, i] = acc[i]"),
            ("        for i in range(4):\n            a[i] = a[i] ^ T.uint32(0x80008000)\n", ""),
        ],
        "wgmma-fence",
        "rs(KIND, acc, 0, 8, a, 0, desc, True)",
        "whose accumulators",
        "",
    ),
    "no fence behind writes of fragments": (
        [
            (FENCE, ""),
            ("        for i in range(8):\n            acc[i] = acc[i] + T.float32(1)\n", ""),
        ],
        "wgmma-fence",
        "rs(KIND, acc, 0, 8, a, 0, desc, True)",
        "whose fragments of A its threads have accessed",
        "",
    ),
    "no fence at all": (
        [
            ("        T.ptx.wgmma.fence.sync.aligned()\n        rs(KIND", "        rs(KIND"),
            (FENCE, ""),
            ("        T.ptx.wgmma.fence.sync.aligned()  # for another shape\n", ""),
        ],
        "wgmma-fence",
        "rs(KIND, acc, 0, 8, a, 0, desc, False)",
        "first wgmma without a wgmma.fence",
        "",
    ),
    "another shape on the same accumulators": (
        [
            ("        T.ptx.wgmma.fence.sync.aligned()  # for another shape\n", ""),
            ("rs(WIDE, wide,", "rs(WIDE, acc,"),
        ],
        "wgmma-fence",
        "rs(WIDE, acc, 0, 16,",
        "another shape",
        "rs(KIND, acc, 0, 8, a, 0, desc, True)",
    ),
    "accumulators in flight as fragments": (
        [
            ("desc: T.uint64\n", "words = acc.view('uint32')\n        desc: T.uint64\n"),
            ("rs(KIND, acc, 0, 8, a, 0, desc, True)", "rs(KIND, acc, 0, 8, words, 8, desc, True)"),
        ],
        "wgmma-in-flight",
        "rs(KIND, acc, 0, 8, words, 8, desc, True)",
        "whose fragments of A are accumulators of the wgmma",
        "rs(KIND, acc, 8, 8, a, 4, desc, False)",
    ),
    "a product that nothing reads": (
        [
            ("acc[i] = acc[i] + T.float32(1)", "wide[i] = T.float32(1)"),
            ("acc, 0, 8, a, 0, desc, True)", "acc, 0, 8, a, 0, desc, False)  # again"),
        ],
        "discarded-product",
        "rs(KIND, acc, 0, 8, a, 0, desc, False)  # again",
        "overwrites a product",
        "rs(KIND, acc, 0, 8, a, 0, desc, False)  # first",
    ),
    "accumulators that nothing has written": (
        [("acc, 8, 8, a, 4, desc, False)", "acc, 8, 8, a, 4, desc, True)")],
        "uninitialised-read",
        "rs(KIND, acc, 8, 8, a, 4, desc, True)",
        "adds to accumulator registers that nothing has written",
        "",
    ),
    "fragments that nothing has written": (
        [("for i in range(8):\n            a[i] = F", "for i in range(7):\n            a[i] = F")],
        "uninitialised-read",
        "rs(KIND, acc, 8, 8, a, 4, desc, False)",
        "reads operand A from registers",
        "",
    ),
    "registers past the end": (
        [("rs(KIND, acc, 8, 8,", "rs(KIND, acc, 9, 8,")],
        "out-of-bounds",
        "rs(KIND, acc, 9, 8,",
        "registers 9 to 16 of an array that has 16",
        "",
    ),
    "no wait at the end": (
        [
            ("desc, False)  # fourth", "desc, False)"),
            (
                "        T.ptx.wgmma.commit_group.sync.aligned()\n"
                "        T.ptx.wgmma.wait_group.sync.aligned(0)\n        for i in range(16):\n"
                "            D[tid, i] = acc[i] + wide[i]",
                "        for i in range(16):\n            D[tid, i] = acc[i]",
            ),
        ],
        "in-flight-at-exit",
        "",
        "exits with wgmma instructions",
        "",
    ),
    "B overwritten while a product reads it": (
        [(WAIT_1, WAIT_1 + "        Bs[0, 0, 0, 0] = T.float16(1)\n")],
        "race-smem",
        "Bs[0, 0, 0, 0] = T.float16(1)",
        "does not wait for the tensor core",
        "rs(KIND, acc, 8, 8, a, 4, desc, False)",
    ),
    "half of a warp": (
        [("        rs(WIDE", "        if tid % 32 < 16:\n            rs(WIDE")],
        "divergent-collective",
        "rs(WIDE",
        "16 of the warp's 32 threads",
        "",
    ),
    "three of four warps": (
        [("        rs(WIDE", "        if warp != 2:\n            rs(WIDE")],
        "deadlock",
        "",
        "never issued",
        "",
    ),
    "another scale in one warp": (
        [("first, count, a, at, desc, scale):", "first, count, a, at, desc, scale, warp=0):"),
         ("T.bool(scale), 1", "T.And(T.bool(scale), warp != 1), 1"),
         ("a, 0, desc, True)", "a, 0, desc, True, warp)")],
        "divergent-collective",
        "rs(KIND, acc, 0, 8, a, 0, desc, True, warp)",
        "different wgmma instructions",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, tmp_path):
    changes, code, line, message, other = FAULTS[name]
    text = CORRECT
    for find, replace in changes:
        assert text.count(find) == 1, find
        text = text.replace(find, replace)
    program = sim.compile(module_from(tmp_path / "kernel.py", text).build(), arch="hopper")
    source = text.splitlines()
    _, _, F, B = inputs()
    for schedule, seed in SCHEDULES:
        D = np.zeros((128, 16), np.float32)
        report = sim.simulate(program, F, B, D, schedule=schedule, schedule_seed=seed)
        finding = report.findings[0]
        assert finding.code == code, report
        assert message in finding.message, report
        if finding.location is not None:
            assert finding.location.text == source[finding.location.line - 1]
            assert finding.location.text.strip().startswith(line), report
        assert finding.fix
        if other:
            assert any(place.text.strip().startswith(other) for _, place in finding.related)
        assert len(report.findings) <= 5, report


def test_a_barrier_between_two_steps_of_a_chain():
    """The second step's operand arrives after the first step's issue: the two are not one read."""
    body = """
    for i in range(4): st_shared(w, SB + 16 * w.tid + 2048 * i, 0, 4, 4)
    fence_proxy_async(w)
    await cta_sync(w)
    acc = fresh(4, "float32")
    a = np.zeros((32, 4), np.uint32)
    b = (SB & 0x3FFFF) >> 4 | 8 << 16 | 8 << 32
    wgmma_fence(w)
    wgmma_mma(w, ((acc, 0, 4),), ((((a, 0, 4),), b, False),), 8, "float16", 0, 0, 1)
    st_shared(w, SB + 4096 + 16 * w.tid, 0, 4, 4)
    fence_proxy_async(w)
    await cta_sync(w)
    wgmma_mma(w, ((acc, 0, 4),), ((((a, 0, 4),), b + 256, True),), 8, "float16", 0, 0, 1)
    wgmma_commit(w)
    await wgmma_wait(w, 0)
    """
    for schedule, seed in SCHEDULES:
        report = warps.run(body, threads=128, shared=8192, schedule=schedule, seed=seed)
        assert not report.findings, report


def test_other_readings_of_the_isa_are_silent_too(tmp_path):
    program = sim.compile(hopper_attention.build(64, 128))
    for schedule, seed in SCHEDULES:
        arrays = hopper_attention.arrays(64, 128)
        report = sim.simulate(
            program,
            *arrays,
            schedule=schedule,
            schedule_seed=seed,
            readings={"wgmma-wait": "warp"},
        )
        assert not report.findings, report


# --------------------------------------------------------------------------------------- refusals


def refused_forms() -> list[Any]:
    """One spelling of each wgmma of TVM's table that is not modelled."""
    modelled = ("wgmma_f16", "wgmma_bf16", "wgmma_fence", "wgmma_commit", "wgmma_wait")
    found = []
    for name, entry in TABLE.items():
        if name.startswith("wgmma") and not name.startswith(modelled):
            tokens = variants(entry)[0]
            spelling = ".".join([entry.mnemonic or name, *[t for t in tokens if t]])
            found.append(pytest.param(entry, tokens, spelling, id=name))
    return found


def test_the_table_has_forms_to_refuse():
    names = {param.id for param in refused_forms()}
    assert {"wgmma_tf32_ss", "wgmma_fp8_rs", "wgmma_int_ss", "wgmma_b1_rs"} <= names


@pytest.mark.parametrize(("entry", "tokens", "spelling"), refused_forms())
def test_what_is_not_modelled_is_refused_by_name(entry, tokens, spelling):
    form = mods(entry, tokens)

    def call(whole, single, desc):
        operands = []
        for slot, _, lanes in operand_layout(entry, form):
            for i in range(lanes):
                if slot.kind == "imm":
                    operands.append(int(slot.choices[-1]))
                elif operand_type(slot, form) == "u64":
                    operands.append(desc)
                elif operand_type(slot, form) == "pred":
                    operands.append(T.bool(True))
                else:
                    operands.append((single if operand_type(slot, form) == "f32" else whole)[i])
        return T.evaluate(T.ptx[spelling](*operands))

    @T.prim_func
    def kernel(X: T.Buffer((128,), "uint32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([128])
        whole = T.alloc_local((16,), "uint32")
        single = T.alloc_local((16,), "float32")
        desc: T.uint64 = T.uint64(0)
        call(whole, single, desc)
        X[tid] = T.uint32(0)

    with pytest.raises(Unsupported, match=spelling.replace(".", r"\.")):
        sim.compile(kernel, arch="hopper")
