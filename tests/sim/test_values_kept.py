"""Values once read stay as they were, and what a launch or a warp may not do is reported."""
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import lowering, sim
from mlsys_gpu.sim.machine import compute

L = np.arange(32)
FULL: Any = 0xFFFFFFFF


def run(kernel, *inputs, dtype: Any = np.float32, codes=()):
    """The output of a kernel of one warp; its findings have exactly the codes ``codes``."""
    out = np.full(32, 77, dtype)
    report = sim.simulate(kernel, *inputs, out, arch="hopper")
    assert [f.code for f in report.findings] == list(codes), str(report)
    return out


def floats():
    return np.random.default_rng(5).standard_normal(32).astype(np.float32)


def test_registers_swap():
    @T.prim_func
    def kernel(A: T.Buffer((32,), "float32"), D: T.Buffer((32,), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        a = T.alloc_local((2,), "float32")
        a[0] = A[tid]
        a[1] = A[31 - tid]
        t: T.let = a[0]
        a[0] = a[1]
        a[1] = t
        D[tid] = a[0] * T.float32(100) + a[1]

    A = floats()
    assert np.array_equal(run(kernel, A), A[::-1] * np.float32(100) + A)


def test_a_bound_value_outlives_an_assignment_to_its_variable():
    @T.prim_func
    def kernel(A: T.Buffer((32,), "int32"), D: T.Buffer((32,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        x: T.int32 = A[tid]
        y: T.let = x
        x = x + 1
        D[tid] = y * 1000 + x

    A = L.astype(np.int32)
    assert np.array_equal(run(kernel, A, dtype=np.int32), A * 1000 + A + 1)


def test_the_running_maximum_of_an_online_softmax():
    @T.prim_func
    def kernel(A: T.Buffer((4, 32), "float32"), D: T.Buffer((32,), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        m = T.alloc_local((1,), "float32")
        l = T.alloc_local((1,), "float32")
        m[0] = A[0, tid]
        l[0] = T.float32(1)
        for i in range(3):
            old: T.let = m[0]
            m[0] = T.max(m[0], A[i + 1, tid])
            l[0] = l[0] * T.exp(old - m[0]) + T.exp(A[i + 1, tid] - m[0])
        D[tid] = l[0]

    A = np.random.default_rng(6).standard_normal((4, 32)).astype(np.float32)
    exact = np.exp(A.astype(np.float64) - A.max(axis=0)).sum(axis=0)
    assert np.allclose(run(kernel, A), exact, rtol=1e-5)


def test_a_loop_stores_to_one_place():
    @T.prim_func
    def kernel(A: T.Buffer((32,), "float32"), D: T.Buffer((32,), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        for i in range(4):
            D[tid] = A[tid] + T.cast(i, "float32")

    A = floats()
    assert np.array_equal(run(kernel, A), A + np.float32(3))


def test_a_table_in_registers_indexed_by_the_lane():
    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        table = T.alloc_local((4,), "int32")
        table[0] = 5
        table[1] = 7
        table[2] = 11
        table[3] = 13
        D[tid] = table[tid % 4]

    assert np.array_equal(run(kernel, dtype=np.int32), np.array([5, 7, 11, 13])[L % 4])


def test_lanes_that_store_to_one_address():
    @T.prim_func
    def kernel(A: T.Buffer((32,), "float32"), D: T.Buffer((32,), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        D[0] = A[tid]

    run(kernel, floats(), codes=["race-global"])
    run(kernel, np.ones(32, np.float32))  # one value: whoever wins, it stays


def test_pairs_of_lanes_that_store_to_one_place():
    @T.prim_func
    def kernel(A: T.Buffer((32,), "float32"), D: T.Buffer((32,), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((32,), "float32")
        pool.commit()
        s[tid // 2] = A[tid]
        T.cuda.cta_sync()
        D[tid] = s[tid // 2]

    run(kernel, floats(), codes=["race-smem"])
    run(kernel, (L // 2).astype(np.float32))


def test_a_shuffle_that_half_the_warp_reaches():
    @T.prim_func
    def kernel(A: T.Buffer((32,), "int32"), D: T.Buffer((32,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        x: T.int32 = A[tid]
        if tid < 16:
            x = T.tvm_warp_shuffle(FULL, x, 20, 32, 32)
        D[tid] = x

    run(kernel, L.astype(np.int32), dtype=np.int32, codes=["divergent-collective"])


@pytest.mark.parametrize("lanes", [16, 1])
def test_a_warp_barrier_that_some_lanes_reach(lanes):
    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        D[tid] = 1
        if tid < lanes:
            T.cuda.warp_sync()

    run(kernel, dtype=np.int32, codes=["divergent-collective"])


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("first", [0, 16])
def test_a_local_that_only_some_lanes_have_written(dtype, first):
    @T.prim_func
    def kernel(D: T.Buffer((32,), dtype)):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        x = T.alloc_local((1,), dtype)
        if tid >= first:
            x[0] = T.cast(1, dtype)
        D[tid] = x[0]

    out = run(kernel, dtype=np.dtype(dtype), codes=["uninitialised-read"] if first else [])
    assert (out[:first] != 0).all()
    assert (out[first:] == 1).all()


def test_an_array_element_that_nothing_has_written():
    @T.prim_func
    def kernel(D: T.Buffer((32,), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        x = T.alloc_local((4,), "float32")
        for i in range(3):
            x[i] = T.float32(1)
        D[tid] = x[0] + x[3]

    run(kernel, codes=["uninitialised-read"])


def test_a_division_by_zero_names_its_line():
    @T.prim_func
    def kernel(A: T.Buffer((32,), "int32"), D: T.Buffer((32,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        D[tid] = T.truncdiv(7, A[0])

    with pytest.raises(ArithmeticError, match=r"divides by zero at .*test_values_kept.py:\d+"):
        run(kernel, np.zeros(32, np.int32), dtype=np.int32)


def test_a_loop_without_an_end(monkeypatch):
    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        x: T.int32 = 1
        while x > 0:
            x = x ^ 2
        D[tid] = x

    monkeypatch.setattr(compute, "MAX_ROUNDS", 1000)
    run(kernel, dtype=np.int32, codes=["deadlock"])


@pytest.mark.parametrize(
    "schedule", [{}, *({"schedule": "seeded", "schedule_seed": s} for s in range(3))]
)
def test_a_warp_that_waits_for_another_by_reading_a_flag(schedule):
    """The reader goes round until the writer has run, under every schedule; it is a race."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([64])
        pool = T.SMEMPool()
        s = pool.alloc((1,), "int32")
        pool.commit()
        if tid == 0:
            s[0] = 0
        T.cuda.cta_sync()
        if tid == 63:
            s[0] = 1
        if tid < 32:
            while s[0] == 0:
                D[tid] = 1
        D[tid] = 2

    out = np.zeros(64, np.int32)
    report = sim.simulate(kernel, out, arch="hopper", **schedule)
    assert {f.code for f in report.findings} == {"race-smem"}
    assert (out == 2).all()


@pytest.mark.parametrize(
    ("threads", "words", "ctas", "said"),
    [
        (2048, 16, 1, "2,048 threads in a CTA; a GPU launches at most 1,024"),
        (32, 100_000, 1, "400,000 bytes of dynamic shared memory in a CTA"),
        (32, 16, 70_000, "70,000 CTAs of the grid along y; a GPU launches at most 65,535"),
    ],
)
def test_a_launch_that_no_gpu_accepts(threads, words, ctas, said):
    @T.prim_func
    def kernel(D: T.Buffer((threads,), "int32")):
        T.device_entry()
        _x, _y = T.cta_id([1, ctas])
        tid = T.thread_id([threads])
        pool = T.SMEMPool()
        s = pool.alloc((words,), "int32")
        pool.commit()
        s[tid % words] = 1
        D[tid] = s[tid % words]

    with pytest.raises(lowering.LoweringError, match=said):
        sim.simulate(kernel, np.zeros(threads, np.int32), arch="hopper")
