"""A warp's matrix instructions against the PTX ISA's figures, and the rules that they have.

Fragments are built here element by element, from the formulas of the ISA's "Matrix Fragments for
mma.m16n8k16" and "… mma.m16n8k8", "ldmatrix", "stmatrix" and "movmatrix".
"""

# Kernels are TVMScript: its parser gives names and annotations their meaning.
# pyright: reportOperatorIssue=false
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout, operand_type, variants
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout, laneid

from mlsys_gpu import sim
from mlsys_gpu.sim.program import Unsupported

from . import warps
from .sources import module_from

TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
LANES = range(32)


# ---------------------------------------------------------------------- fragments (PTX ISA)


def place_in_a(lane: int, i: int, k: int) -> tuple[int, int]:
    """Row and column of element ai of lane ``lane`` (groupID = lane / 4, thread = lane % 4)."""
    group, thread = lane // 4, lane % 4
    if k == 8:  # a0, a1: row groupID; a2, a3: groupID + 8
        return group + (8 if i >= 2 else 0), 2 * thread + i % 2
    row = group if i < 2 or 4 <= i < 6 else group + 8
    return row, 2 * thread + i % 2 + (8 if i >= 4 else 0)


def place_in_b(lane: int, i: int) -> tuple[int, int]:
    """Row (of K) and column of element bi."""
    return 2 * (lane % 4) + i % 2 + (8 if i >= 2 else 0), lane // 4


def place_in_c(lane: int, i: int) -> tuple[int, int]:
    """Row and column of element ci, and di."""
    return lane // 4 + (0 if i < 2 else 8), 2 * (lane % 4) + i % 2


def fragment(matrix: np.ndarray, place, count: int) -> np.ndarray:
    """``[32, count]`` elements of a matrix, as the lanes hold them."""
    return np.array([[matrix[place(lane, i)] for i in range(count)] for lane in LANES])


def words(elements: np.ndarray) -> np.ndarray:
    """Elements packed into 32-bit registers, the first in the lower half."""
    return np.ascontiguousarray(elements).view(np.uint32)


def matrices(kind: str, dtype: str, k: int, seed: int):
    """A [16, k], B [k, 8] and C [16, 8] (float64) of some kind."""
    rng = np.random.default_rng(seed)
    if kind == "whole":  # small integers: all sums are exact
        a, b, c = (rng.integers(-8, 9, shape) for shape in ((16, k), (k, 8), (16, 8)))
    elif kind == "normal":
        a, b, c = (rng.standard_normal(shape) for shape in ((16, k), (k, 8), (16, 8)))
    elif kind == "denormal":  # of the operands' format, times numbers that bring them back
        tiny = 2.0**-24 if dtype == "f16" else 2.0**-133
        a = rng.integers(-9, 10, (16, k)) * tiny
        b, c = rng.integers(1, 9, (k, 8)) * 1024.0, np.zeros((16, 8))
    else:  # special: infinities, NaN and zeros of both signs among ordinary numbers
        pool = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -2.0, 3.5])
        odds = [0.02, 0.02, 0.02, 0.14, 0.1, 0.3, 0.2, 0.2]
        a, b = (rng.choice(pool, shape, p=odds) for shape in ((16, k), (k, 8)))
        c = rng.choice(pool, (16, 8), p=odds)
    a, b = (x.astype(TYPES[dtype]).astype(np.float64) for x in (a, b))
    return a, b, c


FORMS = [("f16", "f32"), ("f16", "f16"), ("bf16", "f32")]


@cache
def mma_program(k: int, dtype: str, acc: str) -> sim.Program:
    """``D = A @ B + C`` on fragments that the host prepares."""
    name = f"mma.sync.aligned.m16n8k{k}.row.col.{acc}.{dtype}.{dtype}.{acc}"
    na, nb, nc = k // 4, k // 8, 4 if acc == "f32" else 2
    of_c = "float32" if acc == "f32" else "uint32"

    @T.prim_func
    def kernel(
        A: T.Buffer((32, na), "uint32"),
        B: T.Buffer((32, nb), "uint32"),
        C: T.Buffer((32, nc), of_c),
        D: T.Buffer((32, nc), of_c),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        a = T.alloc_local((na,), "uint32")
        b = T.alloc_local((nb,), "uint32")
        c = T.alloc_local((nc,), of_c)
        d = T.alloc_local((nc,), of_c)
        for i in T.unroll(na):
            a[i] = A[tid, i]
        for i in T.unroll(nb):
            b[i] = B[tid, i]
        for i in T.unroll(nc):
            c[i] = C[tid, i]
        T.evaluate(
            T.ptx[name](
                *[d[i] for i in range(nc)],
                *[a[i] for i in range(na)],
                *[b[i] for i in range(nb)],
                *[c[i] for i in range(nc)],
            )
        )
        for i in T.unroll(nc):
            D[tid, i] = d[i]

    return sim.compile(kernel, arch="hopper")


def run_mma(k, dtype, acc, a, b, c):
    """The simulator's D, ``[16, 8]``."""
    kind = TYPES[dtype]
    into: Any = np.float32 if acc == "f32" else np.float16
    A = words(fragment(a.astype(kind), lambda lane, i: place_in_a(lane, i, k), k // 2))
    B = words(fragment(b.astype(kind), place_in_b, k // 4))
    C = fragment(c.astype(into), place_in_c, 4)
    C = C if acc == "f32" else words(C)
    D = np.full_like(C, 7)
    report = sim.simulate(mma_program(k, dtype, acc), A, B, C, D)
    assert not report.findings, report
    elements = D if acc == "f32" else D.view(np.float16)
    result = np.empty((16, 8), into)
    for lane in LANES:
        for i in range(4):
            result[place_in_c(lane, i)] = elements[lane, i]
    return result


@pytest.mark.parametrize("kind", ["whole", "normal", "denormal", "special"])
@pytest.mark.parametrize(("dtype", "acc"), FORMS)
@pytest.mark.parametrize("k", [8, 16])
def test_mma_sync(k, dtype, acc, kind):
    a, b, c = matrices(kind, dtype, k, seed=k)
    into: Any = np.float32 if acc == "f32" else np.float16
    c = c.astype(into).astype(np.float64)
    d = run_mma(k, dtype, acc, a, b, c).astype(np.float64)
    with np.errstate(invalid="ignore"):
        exact = a @ b + c
        size = np.abs(a) @ np.abs(b) + np.abs(c)
    if kind == "normal":
        bound = size * k * 2.0**-24 + (np.abs(exact) * 2.0**-11 if acc == "f16" else 0)
        assert (np.abs(d - exact) <= bound).all()
        assert np.abs(exact).max() > 1
    else:
        assert np.array_equal(d, exact.astype(into).astype(np.float64), equal_nan=True)
    if kind == "special":
        assert np.isnan(d).any()
        assert np.isinf(d).any()
        assert np.isfinite(d).any()
    if kind == "denormal":
        assert len(np.unique(d)) > 10


def test_fp16_results_overflow_to_infinity_and_round_once():
    a, b, c = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    a[0, :2], b[0, 0], b[1, 0] = 256.0, 256.0, -17.0 / 256  # 65519: just below where it overflows
    a[1, 0], b[0, 1] = 256.0, 256.0
    c[2, 2] = 2048.0
    a[2, :], b[:, 2] = 1.0, 2.0**-3  # sixteen times what would be lost one by one
    d = run_mma(16, "f16", "f16", a, b, c)
    assert d[0, 0] == 65504
    assert d[1, 1] == np.inf
    assert d[2, 2] == 2050


# ---------------------------------------------------- loops that become slices; any registers


def gemm_fragments(n: int, seed: int):
    rng = np.random.default_rng(seed)
    A, B = rng.integers(-4, 5, (16, 32)), rng.integers(-4, 5, (n, 32))
    return A.astype(np.float16), B.astype(np.float16)


def test_a_loop_over_columns_and_one_over_k():
    """The inner loop becomes a slice of eight products; the outer one carries the accumulators."""
    n = 64

    @T.prim_func
    def kernel(
        A: T.Buffer((16, 32), "float16"),
        B: T.Buffer((n, 32), "float16"),
        D: T.Buffer((16, n), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        As = T.alloc_buffer((16, 32), "float16", scope="shared")
        Bs = T.alloc_buffer((n, 32), "float16", scope="shared")
        for i in range(16):
            As[i, tid] = A[i, tid]
        for i in range(n):
            Bs[i, tid] = B[i, tid]
        T.cuda.cta_sync()
        a = T.alloc_local((4,), "uint32")
        b = T.alloc_local((n // 4,), "uint32")
        c = T.alloc_local((n // 2,), "float32")
        for i in range(n // 2):
            c[i] = T.float32(0)
        for k in range(2):
            T.ptx.ldmatrix.sync.aligned.m8n8.x4.shared.b16(
                a[0], a[1], a[2], a[3], As.ptr_to([tid % 16, 16 * k + 8 * (tid // 16)])
            )
            for j in range(n // 8):
                T.ptx.ldmatrix.sync.aligned.m8n8.x2.shared.b16(
                    b[2 * j],
                    b[2 * j + 1],
                    Bs.ptr_to([8 * j + tid % 8, 16 * k + 8 * (tid // 8 % 2)]),
                )
            for j in range(n // 8):
                T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(
                    c[4 * j],
                    c[4 * j + 1],
                    c[4 * j + 2],
                    c[4 * j + 3],
                    a[0],
                    a[1],
                    a[2],
                    a[3],
                    b[2 * j],
                    b[2 * j + 1],
                    c[4 * j],
                    c[4 * j + 1],
                    c[4 * j + 2],
                    c[4 * j + 3],
                )
        for i in range(n // 2):
            D[tid // 4 + 8 * (i % 4 // 2), 8 * (i // 4) + 2 * (tid % 4) + i % 2] = c[i]

    program = sim.compile(kernel, arch="hopper")
    assert program.source.count("loop=8") == 2  # the loads of B, and the products
    A, B = gemm_fragments(n, 3)
    for schedule in ("eager", "lazy"):
        D = np.full((16, n), np.nan, np.float32)
        report = sim.simulate(program, A, B, D, schedule=schedule)
        assert not report.findings, report
        assert np.array_equal(D, A.astype(np.float64) @ B.astype(np.float64).T)
    assert report.counters["mma_sync_instructions"] == 2 * n // 8
    assert report.counters["mma_flop"] == 2 * 16 * n * 32


def test_each_turn_with_its_own_a():
    """A slice in which all three operands differ from turn to turn, and one whose B is constant."""

    @T.prim_func
    def kernel(
        A: T.Buffer((32, 16), "uint32"),
        B: T.Buffer((32, 8), "uint32"),
        D: T.Buffer((32, 32), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        a = T.alloc_local((16,), "uint32")
        b = T.alloc_local((8,), "uint32")
        d = T.alloc_local((32,), "float32")
        for i in range(16):
            a[i] = A[tid, i]
        for i in range(8):
            b[i] = B[tid, i]
        for j in range(4):
            T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(
                d[4 * j],
                d[4 * j + 1],
                d[4 * j + 2],
                d[4 * j + 3],
                a[4 * j],
                a[4 * j + 1],
                a[4 * j + 2],
                a[4 * j + 3],
                b[2 * j],
                b[2 * j + 1],
                T.float32(0),
                T.float32(0),
                T.float32(0),
                T.float32(0),
            )
        for j in range(4):
            T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(
                d[4 * j + 16],
                d[4 * j + 17],
                d[4 * j + 18],
                d[4 * j + 19],
                a[4 * j],
                a[4 * j + 1],
                a[4 * j + 2],
                a[4 * j + 3],
                b[0],
                b[1],
                d[4 * j],
                d[4 * j + 1],
                d[4 * j + 2],
                d[4 * j + 3],
            )
        for i in range(32):
            D[tid, i] = d[i]

    program = sim.compile(kernel, arch="hopper")
    assert program.source.count("loop=4") == 2
    rng = np.random.default_rng(4)
    a, b = rng.integers(-4, 5, (4, 16, 16)), rng.integers(-4, 5, (4, 16, 8))
    A = np.concatenate(
        [words(fragment(x.astype(np.float16), lambda l, i: place_in_a(l, i, 16), 8)) for x in a], 1
    )
    B = np.concatenate([words(fragment(x.astype(np.float16), place_in_b, 4)) for x in b], 1)
    D = np.full((32, 32), np.nan, np.float32)
    report = sim.simulate(program, A, B, D)
    assert not report.findings, report
    expected = [x @ y for x, y in zip(a, b, strict=True)]
    expected += [x @ b[0] + c for x, c in zip(a, expected, strict=True)]
    for j, matrix in enumerate(expected):
        assert np.array_equal(D[:, 4 * j : 4 * j + 4], fragment(matrix, place_in_c, 4))


def test_tile_primitives_of_tirx():
    """Copies that become ldmatrix and stmatrix, and a gemm that becomes mma.sync."""
    Mt, Nt, Kt = 2, 4, 3
    M, N, K = 16 * Mt, 8 * Nt, 16 * Kt
    of_a = TileLayout(S[(Mt, 2, 8, Kt, 2, 4, 2) : (8 * Kt, 2, 4 @ laneid, 8, 4, 1 @ laneid, 1)])
    of_b = TileLayout(S[(Kt, 2, 4, 2, Nt, 8) : (4 * Nt, 2, 1 @ laneid, 1, 4, 4 @ laneid)])
    of_d = TileLayout(S[(Mt, 2, 8, Nt, 4, 2) : (4 * Nt, 2, 4 @ laneid, 4, 1 @ laneid, 1)])
    REGS = M * N // 32

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((K, N), "float16"),
        C: T.Buffer((M, N), "float32"),
        D: T.Buffer((M, N), "float16"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        As = T.alloc_buffer((M, K), "float16", scope="shared")
        Bs = T.alloc_buffer((K, N), "float16", scope="shared")
        Ds = T.alloc_buffer((M, N), "float16", scope="shared")
        Tx.warp.copy(As[:, :], A[:, :])
        Tx.warp.copy(Bs[:, :], B[:, :])
        T.cuda.warp_sync()
        a = T.alloc_buffer((M, K), "float16", scope="local", layout=of_a)
        b = T.alloc_buffer((K, N), "float16", scope="local", layout=of_b)
        c = T.alloc_buffer((M, N), "float32", scope="local", layout=of_d)
        d = T.alloc_buffer((M, N), "float32", scope="local", layout=of_d)
        out = T.alloc_buffer((M, N), "float16", scope="local", layout=of_d)
        Tx.warp.copy(a[:, :], As[:, :])
        Tx.warp.copy(b[:, :], Bs[:, :])
        Tx.warp.copy(c[:, :], C[:, :])
        Tx.warp.gemm(d[:, :], a[:, :], b[:, :], c[:, :], alpha=1.0, beta=1.0)
        Tx.cast(out.local(REGS)[:], d.local(REGS)[:])
        Tx.warp.copy(Ds[:, :], out[:, :])
        T.cuda.warp_sync()
        Tx.warp.copy(D[:, :], Ds[:, :])

    program = sim.compile(kernel, arch="hopper")
    counts = [program.source.count(f"{name}(") for name in ("ldmatrix", "stmatrix", "mma_sync")]
    assert counts == [Mt * Kt + Kt * Nt // 2, Mt * Nt // 2, Mt * Nt * Kt]
    assert "d_regs" not in program.source  # names that lowering leaves over and nothing reads
    rng = np.random.default_rng(10)
    A, B = rng.integers(-4, 5, (M, K)), rng.integers(-4, 5, (K, N))
    C, D = rng.integers(-4, 5, (M, N)).astype(np.float32), np.full((M, N), np.nan, np.float16)
    report = sim.simulate(program, A.astype(np.float16), B.astype(np.float16), C, D)
    assert not report.findings, report
    assert np.array_equal(D, A @ B + C)


def test_registers_from_anywhere():
    """Operands in scalars, views of 16-bit arrays, other orders, and expressions; D over C."""

    @T.prim_func
    def kernel(
        A: T.Buffer((32, 8), "float16"),
        B: T.Buffer((32, 2), "uint32"),
        C: T.Buffer((32, 4), "float32"),
        D: T.Buffer((32, 4), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        halves = T.alloc_local((8,), "float16")
        a = halves.view("uint32")
        for i in range(8):
            halves[i] = A[tid, i]
        b0: T.uint32 = B[tid, 0]
        c = T.alloc_local((8,), "float32")
        last: T.float32 = C[tid, 3]
        for i in range(3):
            c[2 * i + 1] = C[tid, i]
        T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(
            c[1],
            c[3],
            c[5],
            last,
            a[0],
            a[1],
            a[2],
            a[3],
            b0,
            B[tid, 1] ^ T.uint32(0x80008000),
            c[1],
            c[3],
            c[5],
            last,
        )
        for i in range(3):
            D[tid, i] = c[2 * i + 1]
        D[tid, 3] = last

    rng = np.random.default_rng(5)
    a, b = rng.integers(-4, 5, (16, 16)), rng.integers(-4, 5, (16, 8))
    c = rng.integers(-4, 5, (16, 8))
    A = fragment(a.astype(np.float16), lambda lane, i: place_in_a(lane, i, 16), 8)
    B = words(fragment(b.astype(np.float16), place_in_b, 4))
    D = np.full((32, 4), np.nan, np.float32)
    C = fragment(c.astype(np.float32), place_in_c, 4)
    report = sim.simulate(kernel, A, B, C, D, arch="hopper")
    assert not report.findings, report
    b[8:] *= -1  # the second register of B is negated
    assert np.array_equal(D, fragment(a @ b + c, place_in_c, 4))


# ------------------------------------------------------------------- ldmatrix, stmatrix, movmatrix

ROWS = 64  # rows of 16 bytes in the image that lanes address


def rows_of_image(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """An image of 64 rows of eight 16-bit elements, and a row for each lane, all different."""
    rng = np.random.default_rng(seed)
    image = rng.permutation(ROWS * 8).astype(np.uint16).reshape(ROWS, 8)
    return image, rng.permutation(ROWS)[:32].astype(np.int32)


def loaded(image: np.ndarray, rows: np.ndarray, i: int, lane: int, trans: bool) -> int:
    """Register ri of a lane: row lane / 4, elements 2 (lane % 4) and the next; of the transposed
    matrix with .trans. Lane 8i + j addresses row j of matrix i."""
    matrix = image[rows[8 * i : 8 * i + 8]]
    if trans:
        matrix = matrix.T
    low, high = matrix[lane // 4, 2 * (lane % 4)], matrix[lane // 4, 2 * (lane % 4) + 1]
    return int(low) | int(high) << 16


def address_in(space: str):
    """``address(tile, …, row)``: where a row begins, as ``space`` wants it (generic: 64 bits)."""

    def address(tile, *row):
        pointer = tile.ptr_to([*row, 0])
        return pointer if space else T.reinterpret("uint64", pointer)

    return address


@pytest.mark.parametrize("space", ["", ".shared", ".shared::cta"])
@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix(trans, space):
    form = f"{'.trans' if trans else ''}{space}.b16"
    address = address_in(space)

    @T.prim_func
    def kernel(
        X: T.Buffer((ROWS, 8), "uint16"),
        R: T.Buffer((32,), "int32"),
        D: T.Buffer((32, 7), "uint32"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        tile = T.alloc_buffer((ROWS, 8), "uint16", scope="shared")
        for i in range(ROWS // 32):
            for j in range(8):
                tile[32 * i + tid, j] = X[32 * i + tid, j]
        T.cuda.cta_sync()
        r = T.alloc_local((7,), "uint32")
        row: T.int32 = R[tid]
        at = T.meta_var(address(tile, row))
        # The addresses of lanes 8 and up (16 and up) do not count.
        few = T.meta_var(address(tile, T.if_then_else(tid < 8, row, 0 - 5000)))
        half = T.meta_var(address(tile, T.if_then_else(tid < 16, row, 12345)))
        T.evaluate(T.ptx[f"ldmatrix.sync.aligned.m8n8.x1{form}"](r[0], few))
        T.evaluate(T.ptx[f"ldmatrix.sync.aligned.m8n8.x2{form}"](r[1], r[2], half))
        T.evaluate(T.ptx[f"ldmatrix.sync.aligned.m8n8.x4{form}"](r[3], r[4], r[6], r[5], at))
        for i in range(7):
            D[tid, i] = r[i]

    image, rows = rows_of_image(6)
    D = np.zeros((32, 7), np.uint32)
    report = sim.simulate(kernel, image, rows, D, arch="hopper")
    assert not report.findings, report
    matrix = [0, 0, 1, 0, 1, 3, 2]  # which matrix each register belongs to
    for lane in LANES:
        for register, i in enumerate(matrix):
            assert D[lane, register] == loaded(image, rows, i, lane, trans)


@pytest.mark.parametrize("space", ["", ".shared"])
@pytest.mark.parametrize("trans", [False, True])
def test_stmatrix(trans, space):
    form = f"{'.trans' if trans else ''}{space}.b16"
    address = address_in(space)

    @T.prim_func
    def kernel(
        W: T.Buffer((32, 7), "uint32"),
        R: T.Buffer((32,), "int32"),
        D: T.Buffer((3, ROWS, 8), "uint16"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        tile = T.alloc_buffer((3, ROWS, 8), "uint16", scope="shared")
        for n in range(3):
            for i in range(ROWS // 32):
                for j in range(8):
                    tile[n, 32 * i + tid, j] = T.uint16(9999)
        T.cuda.warp_sync()
        r = T.alloc_local((7,), "uint32")
        for i in range(7):
            r[i] = W[tid, i]
        row: T.int32 = R[tid]
        T.evaluate(T.ptx[f"stmatrix.sync.aligned.m8n8.x1{form}"](address(tile, 0, row), r[0]))
        T.evaluate(T.ptx[f"stmatrix.sync.aligned.m8n8.x2{form}"](address(tile, 1, row), r[1], r[2]))
        T.evaluate(
            T.ptx[f"stmatrix.sync.aligned.m8n8.x4{form}"](
                address(tile, 2, row), r[3], r[4], r[6], r[5]
            )
        )
        T.cuda.warp_sync()
        for n in range(3):
            for i in range(ROWS // 32):
                for j in range(8):
                    D[n, 32 * i + tid, j] = tile[n, 32 * i + tid, j]

    _, rows = rows_of_image(7)
    rng = np.random.default_rng(7)
    W = rng.integers(0, 2**32, (32, 7), dtype=np.uint32)
    D = np.zeros((3, ROWS, 8), np.uint16)
    report = sim.simulate(kernel, W, rows, D, arch="hopper")
    assert not report.findings, report
    matrix = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 3), (2, 2)]
    touched = np.zeros((3, ROWS), bool)
    for register, (n, i) in enumerate(matrix):
        touched[n, rows[8 * i : 8 * i + 8]] = True
        for lane in LANES:
            assert loaded(D[n], rows, i, lane, trans) == W[lane, register]
    assert (D[~touched] == 9999).all()


def test_matrix_loads_and_stores_in_slices():
    """Four turns of a loop at once, then back transposed: the tile is transposed block by block."""

    @T.prim_func
    def kernel(X: T.Buffer((64, 32), "float16"), D: T.Buffer((64, 32), "float16")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        tile = T.alloc_buffer((64, 32), "float16", scope="shared")
        out = T.alloc_buffer((64, 32), "float16", scope="shared")
        for i in range(64):
            tile[i, tid] = X[i, tid]
        T.cuda.warp_sync()
        r = T.alloc_local((16,), "uint32")
        for j in range(8):
            T.ptx.ldmatrix.sync.aligned.m8n8.x2.shared.b16(
                r[2 * j], r[2 * j + 1], tile.ptr_to([8 * j + tid % 8, 8 * (tid // 8 % 2)])
            )
        for j in range(8):
            T.ptx.stmatrix.sync.aligned.m8n8.x2.trans.shared.b16(
                out.ptr_to([8 * j + tid % 8, 8 * (tid // 8 % 2)]), r[2 * j], r[2 * j + 1]
            )
        for j in range(8):
            T.ptx.ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16(
                r[2 * j], r[2 * j + 1], tile.ptr_to([8 * j + tid % 8, 16 + 8 * (tid // 8 % 2)])
            )
        for j in range(8):
            T.ptx.stmatrix.sync.aligned.m8n8.x2.shared.b16(
                out.ptr_to([8 * j + tid % 8, 16 + 8 * (tid // 8 % 2)]), r[2 * j], r[2 * j + 1]
            )
        T.cuda.warp_sync()
        for i in range(64):
            D[i, tid] = out[i, tid]

    program = sim.compile(kernel, arch="hopper")
    assert program.source.count("loop=8") == 4
    X = np.arange(64 * 32).astype(np.float16).reshape(64, 32)
    D = np.zeros_like(X)
    report = sim.simulate(program, X, D)
    assert not report.findings, report
    assert report.counters["shared_load_bytes"] == 2 * 8 * 16 * 16 + 64 * 32 * 2
    blocks = X.reshape(8, 8, 4, 8).transpose(0, 3, 2, 1).reshape(64, 32)
    assert np.array_equal(D, blocks)


def test_movmatrix():
    @T.prim_func
    def kernel(X: T.Buffer((32, 3), "uint32"), D: T.Buffer((32, 3), "uint32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        a = T.alloc_local((3,), "uint32")
        for i in range(3):
            a[i] = X[tid, i]
        for i in range(2):
            T.ptx.movmatrix.sync.aligned.m8n8.trans.b16(a[i], a[i])
        T.ptx.movmatrix.sync.aligned.m8n8.trans.b16(a[2], a[2] + T.uint32(1))
        for i in range(3):
            D[tid, i] = a[i]

    rng = np.random.default_rng(8)
    X = rng.integers(0, 2**16, (3, 8, 8)).astype(np.uint16)
    fragments = np.stack(
        [words(fragment(x, lambda l, i: (l // 4, 2 * (l % 4) + i), 2))[:, 0] for x in X], 1
    )
    fragments[:, 2] -= 1
    D = np.zeros((32, 3), np.uint32)
    report = sim.simulate(kernel, fragments, D, arch="hopper")
    assert not report.findings, report
    for j in range(3):
        expected = words(fragment(X[j].T, lambda l, i: (l // 4, 2 * (l % 4) + i), 2))[:, 0]
        assert np.array_equal(D[:, j], expected)


# ----------------------------------------------------------------------------------------- rules

SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", n) for n in range(5)]

#: A tile through shared memory: written by all lanes, loaded as matrices, multiplied, stored.
CORRECT = """
from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout, operand_type, variants
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout, laneid


def build():
    @T.prim_func
    def kernel(X: T.Buffer((2, 16, 16), "float16"), D: T.Buffer((2, 16, 16), "float16")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([64])
        lane = T.meta_var(tid % 32)
        tile = T.alloc_buffer((2, 24, 16), "float16", scope="shared")
        for i in range(8):
            tile[warp, 2 * i + lane // 16, lane % 16] = X[warp, 2 * i + lane // 16, lane % 16]
        T.cuda.warp_sync()
        a = T.alloc_local((4,), "uint32")
        c = T.alloc_local((8,), "float32")
        p = T.alloc_local((4,), "uint32")
        at = tile.ptr_to([warp, lane % 16, 8 * (lane // 16)])
        T.ptx.ldmatrix.sync.aligned.m8n8.x4.shared.b16(a[0], a[1], a[2], a[3], at)
        for i in range(8):
            c[i] = T.float32(0)
        T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(
            c[0], c[1], c[2], c[3], a[0], a[1], a[2], a[3], a[0], a[2], c[0], c[1], c[2], c[3]
        )
        T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(
            c[4], c[5], c[6], c[7], a[0], a[1], a[2], a[3], a[1], a[3], c[4], c[5], c[6], c[7]
        )
        for i in range(4):
            T.ptx["cvt.rn.f16x2.f32"](p[i], c[2 * i + 1], c[2 * i])
        T.cuda.warp_sync()
        T.ptx.stmatrix.sync.aligned.m8n8.x4.shared.b16(at, p[0], p[1], p[2], p[3])
        T.cuda.warp_sync()
        for i in range(8):
            D[warp, 2 * i + lane // 16, lane % 16] = tile[warp, 2 * i + lane // 16, lane % 16]

    return kernel
"""


def program_of(text: str, folder) -> sim.Program:
    return sim.compile(module_from(folder / "kernel.py", text).build(), arch="hopper")


def inputs():
    X = np.random.default_rng(9).integers(-3, 4, (2, 16, 16)).astype(np.float16)
    return X, np.full((2, 16, 16), np.nan, np.float16)


def test_the_correct_kernel_is_silent_and_right(tmp_path):
    program = program_of(CORRECT, tmp_path)
    for schedule, seed in SCHEDULES:
        X, D = inputs()
        report = sim.simulate(program, X, D, schedule=schedule, schedule_seed=seed)
        assert not report.findings, report
        exact = X.astype(np.float64) @ X.astype(np.float64).transpose(0, 2, 1)
        assert np.array_equal(D, exact.astype(np.float16))


LDMATRIX = "T.ptx.ldmatrix.sync.aligned.m8n8.x4.shared.b16("
STMATRIX = "T.ptx.stmatrix.sync.aligned.m8n8.x4.shared.b16("
FAULTS = {
    "load before the lanes have met": (
        "        T.cuda.warp_sync()\n        a = T.alloc_local",
        "        a = T.alloc_local",
        "race-smem",
        LDMATRIX,
        "tile[warp, 2 * i + lane // 16, lane % 16] = X",
    ),
    "store before the lanes have met": (
        f"        T.cuda.warp_sync()\n        {STMATRIX}at,",
        f"        {STMATRIX}tile.ptr_to([warp, 15 - lane % 16, 8 * (lane // 16)]),",
        "race-smem",
        STMATRIX,
        LDMATRIX,
    ),
    "read before the lanes have met": (
        "p[3])\n        T.cuda.warp_sync()\n",
        "p[3])\n",
        "race-smem",
        "D[warp, 2 * i",
        STMATRIX,
    ),
    "rows of the other warp": (
        "a[3], at)",
        "a[3], tile.ptr_to([0, lane % 16, 8 * (lane // 16)]))",
        "race-smem",
        "",
        "",
    ),
    "a row that nothing has written": (
        "at = tile.ptr_to([warp, lane % 16,",
        "at = tile.ptr_to([warp, lane % 16 + 1,",
        "uninitialised-read",
        LDMATRIX,
        "",
    ),
    "a row past the end": (
        "at = tile.ptr_to([warp, lane % 16,",
        "at = tile.ptr_to([1, 9 + lane % 16,",
        "out-of-bounds",
        LDMATRIX,
        "",
    ),
    "half a row off": (
        "8 * (lane // 16)])",
        "4 * (lane // 16)])",
        "misaligned",
        LDMATRIX,
        "",
    ),
    "accumulators that nothing has cleared": (
        "for i in range(8):\n            c[i] = T.float32(0)",
        "for i in range(4):\n            c[i] = T.float32(0)",
        "uninitialised-read",
        "T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(",
        "",
    ),
    "a fragment that nothing has loaded": (
        "a[0], a[1], a[2], a[3], a[1], a[3],",
        "p[0], p[1], p[2], p[3], a[1], a[3],",
        "uninitialised-read",
        "T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(",
        "",
    ),
    "half a warp multiplies": (
        "        T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(\n            c[0]",
        "        if lane < 16:\n         T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(\n"
        "            c[0]",
        "divergent-collective",
        "T.ptx.mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32(",
        "",
    ),
    "half a warp loads": (
        f"        {LDMATRIX}",
        f"        if lane < 16:\n         {LDMATRIX}",
        "divergent-collective",
        LDMATRIX,
        "",
    ),
    "one lane stores": (
        f"        {STMATRIX}",
        f"        if lane == 3:\n         {STMATRIX}",
        "divergent-collective",
        STMATRIX,
        "",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, tmp_path):
    find, replace, code, line, other = FAULTS[name]
    assert CORRECT.count(find) == 1
    text = CORRECT.replace(find, replace)
    program = program_of(text, tmp_path)
    source = text.splitlines()
    for schedule, seed in SCHEDULES:
        report = sim.simulate(program, *inputs(), schedule=schedule, schedule_seed=seed)
        finding = report.findings[0]
        assert finding.code == code, report
        assert source[finding.location.line - 1] == finding.location.text
        assert finding.location.text.strip().startswith(line), report
        assert finding.fix
        if other:
            assert any(place.text.strip().startswith(other) for _, place in finding.related)


def test_rows_of_another_cta_are_not_ldmatrixs():
    body = """
    st_shared(w, SB + 16 * w.lanes, 0, 4, 4)
    other = SB ^ (1 << 24)
    ldmatrix(w, other + 16 * w.lanes, 4, False, False)
    """
    report = warps.run(body, cluster=(2, 1, 1), grid=(2, 1, 1))
    finding = warps.only(report)
    assert (finding.code, finding.location.line) == ("out-of-bounds", 3)
    assert "shared memory of CTA rank 1" in finding.message


@pytest.mark.parametrize(
    ("call", "code", "words_"),
    [
        ("ldmatrix(w, w.machine.pointers[0] + 16 * w.lanes, 4, False, True)", "out", "generic"),
        ("stmatrix(w, SB + 16 * w.lanes + 768, [0] * 4, 4, False, False)", "out", "1024 bytes"),
        ("stmatrix(w, SB + 8, [1, 2, 3, 4], 4, False, False)", "mis", "stmatrix row of 16 bytes"),
        ("stmatrix(w, SB, w.lanes[:, None], 1, False, False)", "race", "store different values"),
    ],
)
def test_matrix_rows_out_of_place(call, code, words_):
    tensor = ("X", np.zeros(256, np.float32))
    finding = warps.only(warps.run(call, tensors=[tensor]))
    assert finding.code.startswith(code)
    assert words_ in finding.message


def test_a_lane_may_read_what_it_stored_itself():
    """Word (r, c) of a row is lane 4r + c's: without .trans each reads back what it wrote."""
    own = """
    stmatrix(w, SB + 16 * w.lanes, w.lanes[:, None] + np.arange(4), 4, False, False)
    ldmatrix(w, SB + 16 * w.lanes, 4, False, False)
    """
    assert not warps.run(own).findings
    other = own.replace("ldmatrix(w, SB + 16 * w.lanes,", "ldmatrix(w, SB + 16 * (w.lanes ^ 1),")
    finding = warps.only(warps.run(other))
    assert (finding.code, finding.location.line) == ("race-smem", 2)


# --------------------------------------------------------------------------------------- refusals


def modelled(name: str, form: dict[str, str]) -> bool:
    if name in ("mma", "mma_f16acc"):
        return form["atype"] in TYPES and form["shape"] in ("m16n8k8", "m16n8k16")
    return name in ("ldmatrix", "stmatrix", "movmatrix")


def refused_forms() -> list[Any]:
    """One spelling of each entry of TVM's table that is not modelled, and of each type of mma."""
    found: dict[tuple, Any] = {}
    for name, entry in TABLE.items():
        if not name.startswith(("mma", "ldmatrix", "stmatrix", "movmatrix")):
            continue
        for tokens in variants(entry):
            form = mods(entry, tokens)
            if not modelled(name, form):
                kind = (name, form.get("atype") if name.startswith("mma") else None)
                spelling = ".".join([entry.mnemonic or name, *[t for t in tokens if t]])
                found.setdefault(kind, pytest.param(entry, tokens, spelling, id=spelling))
    return list(found.values())


def test_the_table_has_forms_to_refuse():
    assert len(refused_forms()) > 20


@pytest.mark.parametrize(("entry", "tokens", "spelling"), refused_forms())
def test_what_is_not_modelled_is_refused_by_name(entry, tokens, spelling):
    form = mods(entry, tokens)

    def call(registers, tile):
        operands = []
        for slot, _, lanes in operand_layout(entry, form):
            of = operand_type(slot, form) if slot.kind == "reg" else ""
            for i in range(lanes):
                if slot.kind == "imm":
                    operands.append(int(slot.choices[0]))
                elif slot.kind == "addr":
                    operands.append(tile.ptr_to([0]))
                else:
                    operands.append(registers[{"f32": 1, "f64": 2}.get(of, 0)][i])
        return T.evaluate(T.ptx[spelling](*operands))

    @T.prim_func
    def kernel(X: T.Buffer((32,), "uint32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        tile = T.alloc_buffer((1024,), "uint32", scope="shared")
        whole = T.alloc_local((16,), "uint32")
        single = T.alloc_local((16,), "float32")
        double = T.alloc_local((16,), "float64")
        call((whole, single, double), tile)
        X[tid] = T.uint32(0)

    with pytest.raises(Unsupported, match=spelling.replace(".", r"\.")):
        sim.compile(kernel, arch="hopper")
