"""The front half against NumPy: small kernels whose control flow and arithmetic are awkward.

Each case is a TIRx kernel, its inputs, and what NumPy says of its output. What they try: what is
the same for all lanes and what is not, masks of nested branches, values that loops carry, loops
that may become slices and loops that must not, regions that one lane runs, integers and floats.
"""
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import sim

from . import random_kernels
from .sources import module_from

N = 64  # threads of most cases: two warps
I = np.arange(N, dtype=np.int32)
CASES = {}


def case(build):
    """Register ``build() -> (kernel, inputs, expected)``; the output is the last parameter."""
    CASES[build.__name__] = build
    return build


def ints(seed, *shape, low=-1000, high=1000, dtype: Any = np.int32):
    return (
        np.random.default_rng(seed).integers(low, high, shape or (N,), endpoint=True).astype(dtype)
    )


def floats(seed, *shape, dtype: Any = np.float32):
    return np.random.default_rng(seed).standard_normal(shape or (N,)).astype(dtype)


# ------------------------------------------------------------------------------ branches


@case
def branch_changes_its_own_condition():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        x: T.int32 = X[tid]
        if x < 0:
            x = x + 5000
        else:
            x = x - 5000
        Y[tid] = x

    X = ints(1)
    return kernel, [X], np.where(X < 0, X + 5000, X - 5000)


@case
def nested_branches_with_elses():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        x: T.int32 = X[tid]
        y: T.int32 = 0
        if x % 2 == 0:
            x = x // 2
            if x % 2 == 0:
                y = 1
                x = x + 1
            else:
                y = 2
                x = x + 1
        else:
            if x > 0:
                y = 3
                x = 0 - x
            else:
                y = 4
            y = y * 10
        Y[tid] = x * 100 + y

    X = ints(2)
    x, y = X.astype(np.int64), np.zeros(N, np.int64)
    even, half = x % 2 == 0, x // 2
    y = np.where(even, np.where(half % 2 == 0, 1, 2), np.where(x > 0, 30, 40))
    z = np.where(even, half + 1, np.where(x > 0, -x, x))
    return kernel, [X], (z * 100 + y).astype(np.int32)


@case
def uniform_branch_inside_a_divergent_one():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        y: T.int32 = -1
        if X[tid] > 0:
            if warp == 1:
                y = 7
            else:
                y = 8
        Y[tid] = y

    X = ints(3)
    return kernel, [X], np.where(X > 0, np.where(I >= 32, 7, 8), -1).astype(np.int32)


@case
def divergent_branch_inside_a_uniform_one():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        y: T.int32 = 0
        if warp == 0:
            if tid % 3 == 0:
                y = X[tid]
            y = y + 1
        else:
            y = 2 * X[tid]
        Y[tid] = y

    X = ints(4)
    low = np.where(I % 3 == 0, X, 0) + 1
    return kernel, [X], np.where(I < 32, low, 2 * X).astype(np.int32)


@case
def condition_that_guards_its_own_load():
    @T.prim_func
    def kernel(X: T.Buffer((40,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        if tid < 40 and X[tid] > 0:
            y = 1
        if tid >= 40 or X[tid] <= 0:
            y = y + 2
        Y[tid] = y

    X = ints(5, 40)
    padded = np.zeros(N, np.int32)
    padded[:40] = X
    return kernel, [X], np.where((I < 40) & (padded > 0), 1, 2).astype(np.int32)


@case
def choice_that_guards_its_own_load():
    @T.prim_func
    def kernel(X: T.Buffer((40,), "float32"), Y: T.Buffer((N,), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid] = T.if_then_else(tid < 40, X[tid] * T.float32(2), T.float32(-1))

    X = floats(6, 40)
    expected = np.full(N, -1, np.float32)
    expected[:40] = X * 2
    return kernel, [X], expected


@case
def select_of_types():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "float16"), Y: T.Buffer((N,), "float16")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        big = T.meta_var(X[tid] > T.float16(0))
        Y[tid] = T.Select(big, X[tid] + T.float16(1), T.float16(3))

    X = floats(7, dtype=np.float16)
    return kernel, [X], np.where(X > 0, X + np.float16(1), np.float16(3))


@case
def store_under_a_mask_leaves_the_rest():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid] = 5
        if X[tid] > 200:
            Y[tid] = X[tid]

    X = ints(8)
    return kernel, [X], np.where(X > 200, X, 5).astype(np.int32)


@case
def branch_on_a_loaded_value_that_is_the_same():
    """All lanes load one address: uniform in fact, whatever the analysis thinks of it."""

    @T.prim_func
    def kernel(X: T.Buffer((4,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        for i in T.serial(4):
            if X[i] > 0:
                y = y + X[i] * tid
            else:
                y = y - 1
        Y[tid] = y

    X = np.array([3, -2, 7, -5], np.int32)
    return kernel, [X], (10 * I - 2).astype(np.int32)


# ---------------------------------------------------------------------------------- loops


@case
def while_with_a_condition_of_each_lane():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        n: T.int32 = X[tid]
        steps: T.int32 = 0
        while n != 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps = steps + 1
        Y[tid] = steps

    def collatz(n):
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    X = ints(9, low=1, high=300)
    return kernel, [X], np.array([collatz(int(n)) for n in X], np.int32)


@case
def while_inside_a_branch_inside_a_while():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        n: T.int32 = X[tid]
        total: T.int32 = 0
        while n > 0:
            if n % 2 == 1:
                m: T.int32 = n
                while m > 0:
                    total = total + m
                    m = m - 3
            n = n - 1
        Y[tid] = total

    def work(n):
        return sum(sum(range(i, 0, -3)) for i in range(1, n + 1, 2))

    X = ints(10, low=-3, high=12)
    return kernel, [X], np.array([work(int(n)) for n in X], np.int32)


@case
def loop_that_carries_a_value():
    @T.prim_func
    def kernel(X: T.Buffer((N, 8), "float32"), Y: T.Buffer((N,), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        s: T.float32 = 0.0
        for i in T.unroll(8):
            s = s * T.float32(0.5) + X[tid, i]
        Y[tid] = s

    X = floats(11, N, 8)
    s = np.zeros(N, np.float32)
    for i in range(8):
        s = s * np.float32(0.5) + X[:, i]
    return kernel, [X], s


@case
def loop_over_registers_that_may_be_a_slice():
    @T.prim_func
    def kernel(X: T.Buffer((N, 16), "float32"), Y: T.Buffer((N, 16), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((16,), "float32")
        for i in T.unroll(16):
            r[i] = X[tid, i]
        for i in T.unroll(16):
            r[i] = r[i] * r[i] + T.float32(1)
        for i in T.unroll(16):
            Y[tid, i] = r[i]

    X = floats(12, N, 16)
    return kernel, [X], X * X + np.float32(1)


@case
def registers_shifted_by_one():
    """Reads what an earlier iteration wrote: no slice."""

    @T.prim_func
    def kernel(X: T.Buffer((N, 8), "int32"), Y: T.Buffer((N, 8), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((9,), "int32")
        for i in T.serial(9):
            r[i] = 0
        for i in T.serial(8):
            r[i + 1] = r[i] + X[tid, i]
        for i in T.serial(8):
            Y[tid, i] = r[i + 1]

    X = ints(13, N, 8)
    return kernel, [X], np.cumsum(X, axis=1).astype(np.int32)


@case
def registers_shifted_the_other_way():
    """Reads what a later iteration overwrites: the old value counts."""

    @T.prim_func
    def kernel(X: T.Buffer((N, 8), "int32"), Y: T.Buffer((N, 7), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((8,), "int32")
        for i in T.serial(8):
            r[i] = X[tid, i]
        for i in T.serial(7):
            r[i] = r[i + 1] - r[i]
        for i in T.serial(7):
            Y[tid, i] = r[i]

    X = ints(14, N, 8)
    return kernel, [X], np.diff(X, axis=1).astype(np.int32)


@case
def registers_reversed_in_place():
    @T.prim_func
    def kernel(X: T.Buffer((N, 8), "int32"), Y: T.Buffer((N, 8), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((8,), "int32")
        for i in T.serial(8):
            r[i] = X[tid, i]
        for i in T.serial(8):
            r[7 - i] = r[i]
        for i in T.serial(8):
            Y[tid, i] = r[i]

    X = ints(15, N, 8)
    r = X.copy()
    for i in range(8):
        r[:, 7 - i] = r[:, i]
    return kernel, [X], r


@case
def loop_with_two_stores_whose_order_matters():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N, 5), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        for i in T.unroll(4):
            Y[tid, i] = X[tid, i]
            Y[tid, i + 1] = -1

    X = ints(16, N, 4)
    return kernel, [X], np.concatenate([X, np.full((N, 1), -1)], axis=1).astype(np.int32)


@case
def loop_that_stores_and_loads_one_buffer():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N, 5), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = 1
        for i in T.unroll(4):
            Y[tid, i + 1] = Y[tid, i] * 2 + X[tid, i]

    X = ints(17, N, 4, low=0, high=9)
    y = np.ones((N, 5), np.int64)
    for i in range(4):
        y[:, i + 1] = y[:, i] * 2 + X[:, i]
    return kernel, [X], y.astype(np.int32)


@case
def last_value_outlives_the_loop():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        last: T.int32 = 0
        r = T.alloc_local((4,), "int32")
        for i in T.unroll(4):
            last = X[tid, i] + i
            r[i] = last * 2
        Y[tid] = last + r[1]

    X = ints(18, N, 4)
    return kernel, [X], (X[:, 3] + 3 + 2 * (X[:, 1] + 1)).astype(np.int32)


@case
def last_value_outlives_a_loop_under_a_mask():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        last: T.int32 = -7
        if tid % 5 < 2:
            for i in T.unroll(4):
                last = X[tid, i]
        Y[tid] = last

    X = ints(19, N, 4)
    return kernel, [X], np.where(I % 5 < 2, X[:, 3], -7).astype(np.int32)


@case
def array_of_each_lane_written_under_a_mask():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N, 4), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((4,), "int32")
        for i in T.unroll(4):
            r[i] = i
        if X[tid, 0] > 0:
            for i in T.unroll(4):
                r[i] = X[tid, i]
        for i in T.unroll(4):
            Y[tid, i] = r[i]

    X = ints(20, N, 4)
    plain = np.broadcast_to(np.arange(4), (N, 4))
    return kernel, [X], np.where(X[:, :1] > 0, X, plain).astype(np.int32)


@case
def register_index_of_each_lane():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((8,), "int32")
        for i in T.unroll(8):
            r[i] = i * i
        r[X[tid]] = 1000 + tid
        Y[tid] = r[(X[tid] + 1) % 8] + r[X[tid]]

    X = ints(21, low=0, high=7)
    return kernel, [X], (((X + 1) % 8) ** 2 + 1000 + I).astype(np.int32)


@case
def register_index_of_each_lane_under_a_mask():
    """Lanes outside the mask have no valid index."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((4,), "int32")
        for i in T.unroll(4):
            r[i] = 10 * i
        y: T.int32 = -1
        if X[tid] >= 0 and X[tid] < 4:
            r[X[tid]] = r[X[tid]] + tid
            y = r[X[tid]]
        Y[tid] = y

    X = ints(22, low=-3, high=8)
    return kernel, [X], np.where((X >= 0) & (X < 4), 10 * X + I, -1).astype(np.int32)


@case
def loop_bounds_known_at_run_time():
    @T.prim_func
    def kernel(X: T.Buffer((8,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        y: T.int32 = 0
        for i in T.serial(warp, 5 + warp):
            y = y + X[i] * (i + 1)
        Y[tid] = y

    X = ints(23, 8)
    sums = [sum(int(X[i]) * (i + 1) for i in range(w, 5 + 2 * w)) for w in range(2)]
    sums = [sum(int(X[i]) * (i + 1) for i in range(w, 5 + w)) for w in range(2)]
    return kernel, [X], np.repeat(np.array(sums, np.int32), 32)


@case
def loops_in_loops():
    @T.prim_func
    def kernel(X: T.Buffer((N, 6), "int32"), Y: T.Buffer((N, 6), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((6,), "int32")
        for i in T.unroll(2):
            for j in T.unroll(3):
                r[i * 3 + j] = X[tid, i * 3 + j] * (i + 1)
        for j in T.unroll(3):
            for i in T.unroll(2):
                Y[tid, i * 3 + j] = r[i * 3 + j] + j

    X = ints(24, N, 6)
    return kernel, [X], (X * np.repeat([1, 2], 3) + np.tile([0, 1, 2], 2)).astype(np.int32)


@case
def strided_registers():
    @T.prim_func
    def kernel(X: T.Buffer((N, 8), "int32"), Y: T.Buffer((N, 8), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((8,), "int32")
        for i in T.unroll(4):
            r[2 * i] = X[tid, i]
            r[2 * i + 1] = X[tid, i + 4]
        for i in T.unroll(8):
            Y[tid, i] = r[i]

    X = ints(25, N, 8)
    return kernel, [X], np.stack([X[:, :4], X[:, 4:]], axis=2).reshape(N, 8)


@case
def loop_variable_as_a_value():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 5), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        for i in T.unroll(5):
            Y[tid, i] = T.cast(i * i - X[tid], "float32") * T.float32(0.25)

    X = ints(26)
    return kernel, [X], ((np.arange(5) ** 2 - X[:, None]) * 0.25).astype(np.float32)


# ----------------------------------------------------------------- regions that one lane runs


@case
def one_thread_and_then_all():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = X[tid]
        if tid == 37:
            y = y * 2 + 1
            if y > 0:
                y = y + 100
        Y[tid] = y

    X = ints(27)
    y = X.copy()
    y[37] = y[37] * 2 + 1
    y[37] += 100 * (y[37] > 0)
    return kernel, [X], y


@case
def one_lane_of_each_warp():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        tid = T.thread_id([N])
        s: T.int32 = 0
        if lane == 3:
            for i in T.serial(32):
                s = s + X[warp * 32 + i]
        Y[tid] = s

    X = ints(28)
    y = np.zeros(N, np.int32)
    y[3], y[35] = X[:32].sum(), X[32:].sum()
    return kernel, [X], y


@case
def one_lane_with_an_else():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        flag: T.int32 = 1
        y: T.int32 = 0
        if tid == 0 and flag == 1:
            flag = 0
            y = 5
        else:
            y = X[tid] + flag
        Y[tid] = y

    X = ints(29)
    y = X + 1
    y[0] = 5
    return kernel, [X], y


@case
def elected_lane_counts_in_a_loop():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        count: T.int32 = 0
        for i in T.serial(6):
            if T.cuda.elect_sync():
                count = count + i
        Y[tid] = count + X[tid]

    X = ints(30)
    y = X.copy()
    y[[0, 32]] += 15
    return kernel, [X], y


@case
def one_lane_inside_a_divergent_branch():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        if X[tid] > 0:
            if tid % 32 == 4:
                y = 11
            y = y + 1
        Y[tid] = y

    X = ints(31)
    X[4], X[36] = 50, -50
    y = (X > 0).astype(np.int32)
    y[4] = 12
    return kernel, [X], y


# ------------------------------------------------------------------------------ arithmetic


@case
def floor_and_truncated_division():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 4), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.floordiv(X[tid], 7)
        Y[tid, 1] = T.floormod(X[tid], 7)
        Y[tid, 2] = T.truncdiv(X[tid], 7)
        Y[tid, 3] = T.truncmod(X[tid], 7)

    X = ints(32)
    q = np.trunc(X / 7)
    return kernel, [X], np.stack([X // 7, X % 7, q, X - 7 * q], axis=1).astype(np.int32)


@case
def division_by_a_negative_number_and_by_lanes():
    @T.prim_func
    def kernel(
        X: T.Buffer((N,), "int32"), Z: T.Buffer((N,), "int32"), Y: T.Buffer((N, 4), "int32")
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.truncdiv(X[tid], -3)
        Y[tid, 1] = T.truncmod(X[tid], -3)
        Y[tid, 2] = T.truncdiv(X[tid], Z[tid])
        Y[tid, 3] = T.truncmod(X[tid], Z[tid])

    X, Z = ints(33), ints(34, low=-9, high=9)
    Z[Z == 0] = 4
    a, b = np.trunc(X / -3), np.trunc(X / Z)
    return kernel, [X, Z], np.stack([a, X + 3 * a, b, X - Z * b], axis=1).astype(np.int32)


@case
def unsigned_wrap():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "uint32"), Y: T.Buffer((N, 4), "uint32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = X[tid] * T.uint32(2654435761) + T.uint32(12345)
        Y[tid, 1] = X[tid] - T.uint32(4000000000)
        Y[tid, 2] = (X[tid] << T.uint32(7)) ^ (X[tid] >> T.uint32(9))
        Y[tid, 3] = (X[tid] + T.uint32(3)) // T.uint32(10) + T.bitwise_not(X[tid]) % T.uint32(11)

    X = ints(35, low=0, high=2**32 - 1, dtype=np.uint32)
    x = X.astype(object)
    m = 2**32
    rows = [
        x * 2654435761 + 12345,
        x - 4000000000,
        (x * 128) % m ^ (x // 512),
        ((x + 3) % m) // 10 + (m - 1 - x) % 11,
    ]
    return kernel, [X], np.stack([(r % m).astype(np.uint32) for r in rows], axis=1)


@case
def unsigned_64_bits():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "uint64"), Y: T.Buffer((N, 5), "uint64")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = X[tid] * T.uint64(6364136223846793005) + T.uint64(1442695040888963407)
        Y[tid, 1] = X[tid] >> T.uint64(37)
        Y[tid, 2] = (X[tid] << T.uint64(13)) | (X[tid] >> T.uint64(51))
        Y[tid, 3] = X[tid] - T.cast(tid, "uint64") * T.uint64(1000000007)
        Y[tid, 4] = T.cast(T.cast(X[tid], "uint32"), "uint64") + (X[tid] & T.uint64(0xFF))

    X = np.random.default_rng(36).integers(0, 2**64 - 1, N, dtype=np.uint64)
    x, m = X.astype(object), 2**64
    rows = [
        x * 6364136223846793005 + 1442695040888963407,
        x >> 37,
        (x << 13) % m | (x >> 51),
        x - I.astype(object) * 1000000007,
        x % 2**32 + x % 256,
    ]
    return kernel, [X], np.stack([(r % m).astype(np.uint64) for r in rows], axis=1)


@case
def uniform_64_bits():
    @T.prim_func
    def kernel(X: T.Buffer((4,), "uint64"), Y: T.Buffer((4,), "uint64")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        d: T.uint64 = 0
        d = X[0] | (T.uint64(0x3FFF) << T.uint64(32)) | (T.uint64(1) << T.uint64(62))
        for i in T.serial(4):
            if tid == 0:
                Y[i] = d + T.cast(i * 2, "uint64") - T.uint64(1)

    X = np.array([12345, 0, 0, 0], np.uint64)
    d = 12345 | 0x3FFF << 32 | 1 << 62
    return kernel, [X], np.array([d + 2 * i - 1 for i in range(4)], np.uint64)


@case
def signed_shifts_and_bits():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 5), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = X[tid] >> 3
        Y[tid, 1] = X[tid] << 20
        Y[tid, 2] = T.bitwise_not(X[tid])
        Y[tid, 3] = (X[tid] & 0x55) | (tid ^ 3)
        Y[tid, 4] = (X[tid] >> (tid % 8)) & 1

    X = ints(37, low=-(2**31), high=2**31 - 1)
    rows = [X >> 3, X << 20, ~X, (X & 0x55) | (I ^ 3), (X >> (I % 8)) & 1]
    return kernel, [X], np.stack(rows, axis=1).astype(np.int32)


@case
def signed_multiplication_wraps_as_the_hardware_does():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        h: T.int32 = X[tid]
        for i in T.serial(5):
            h = h * 1103515245 + 12345
            h = h ^ (h >> 16)
        Y[tid] = h

    X = ints(38)
    h = X.astype(np.int32)
    for _ in range(5):
        h = (h.astype(np.int64) * 1103515245 + 12345).astype(np.int32)
        h = h ^ (h >> 16)
    return kernel, [X], h


@case
def uniform_multiplication_wraps_too():
    @T.prim_func
    def kernel(X: T.Buffer((1,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((2,), "int32")
        h: T.int32 = X[0]
        for i in T.serial(4):
            h = h * 1664525 + 1013904223
        r[0] = h
        r[1] = tid
        Y[tid] = r[0] ^ r[1]

    X = np.array([77], np.int32)
    h = 77
    for _ in range(4):
        h = (h * 1664525 + 1013904223) & 0xFFFFFFFF
    return kernel, [X], (np.uint32(h).view(np.int32) ^ I).astype(np.int32)


@case
def narrow_integers():
    @T.prim_func
    def kernel(
        X: T.Buffer((N,), "int32"),
        Y: T.Buffer((N, 4), "int32"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.cast(T.cast(X[tid], "int8"), "int32")
        Y[tid, 1] = T.cast(T.cast(X[tid], "uint8"), "int32")
        Y[tid, 2] = T.cast(T.cast(X[tid], "int16"), "int32")
        Y[tid, 3] = T.cast(T.cast(X[tid], "uint16"), "int32")

    X = ints(39, low=-100000, high=100000)
    rows = [X.astype(d).astype(np.int32) for d in (np.int8, np.uint8, np.int16, np.uint16)]
    return kernel, [X], np.stack(rows, axis=1)


@case
def narrow_buffers():
    @T.prim_func
    def kernel(
        X: T.Buffer((N,), "int8"), Z: T.Buffer((N,), "uint16"), Y: T.Buffer((N, 2), "int16")
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.cast(X[tid], "int16") * T.int16(3)
        Y[tid, 1] = T.cast(Z[tid] >> T.uint16(2), "int16")

    X, Z = ints(40, low=-128, high=127, dtype=np.int8), ints(41, low=0, high=65535, dtype=np.uint16)
    return kernel, [X, Z], np.stack([X.astype(np.int16) * 3, (Z >> 2).astype(np.int16)], axis=1)


@case
def local_bytes():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "uint8"), Y: T.Buffer((N, 4), "uint8")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((4,), "uint8")
        for i in T.unroll(4):
            r[i] = X[tid, i] + T.uint8(200)
        for i in T.unroll(4):
            Y[tid, i] = r[i] * T.uint8(3)

    X = ints(42, N, 4, low=0, high=255, dtype=np.uint8)
    return kernel, [X], ((X.astype(np.int64) + 200) % 256 * 3 % 256).astype(np.uint8)


@case
def float_to_integer_saturates():
    @T.prim_func
    def kernel(X: T.Buffer((8,), "float32"), Y: T.Buffer((8, 2), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        if tid < 8:
            Y[tid, 0] = T.cast(X[tid], "int32")
            Y[tid, 1] = T.reinterpret("int32", T.cast(X[tid], "uint32"))

    X = np.array([1.9, -1.9, 3e9, -3e9, np.nan, np.inf, -np.inf, 4.5e9], np.float32)
    signed = [1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31), 2**31 - 1]
    unsigned = [1, 0, 3000000000, 0, 0, 2**32 - 1, 0, 2**32 - 1]
    expected = np.stack(
        [np.array(signed, np.int32), np.array(unsigned, np.uint32).view(np.int32)], 1
    )
    return kernel, [X], expected


@case
def integer_to_float_rounds():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 2), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.cast(X[tid], "float32")
        Y[tid, 1] = T.cast(T.cast(X[tid], "float16"), "float32")

    X = ints(43, low=-(2**31), high=2**31 - 1)
    X[:8] = [2049, 2051, -2049, 65504, 65519, 65520, 16777217, 16777219]
    with np.errstate(over="ignore"):
        half = X.astype(np.float64).astype(np.float16).astype(np.float32)
    return kernel, [X], np.stack([X.astype(np.float32), half], axis=1)


@case
def float_arithmetic_in_its_own_precision():
    @T.prim_func
    def kernel(
        X: T.Buffer((N,), "float16"), Z: T.Buffer((N,), "float16"), Y: T.Buffer((N, 4), "float16")
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = X[tid] + Z[tid]
        Y[tid, 1] = X[tid] * Z[tid]
        Y[tid, 2] = X[tid] / Z[tid]
        Y[tid, 3] = X[tid] - T.float16(0.1)

    X, Z = floats(44, dtype=np.float16), floats(45, dtype=np.float16)
    return kernel, [X, Z], np.stack([X + Z, X * Z, X / Z, X - np.float16(0.1)], axis=1)


@case
def bfloat16_arithmetic_rounds_each_time():
    @T.prim_func
    def kernel(
        X: T.Buffer((N,), "bfloat16"),
        Z: T.Buffer((N,), "bfloat16"),
        Y: T.Buffer((N, 3), "bfloat16"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = X[tid] + Z[tid]
        Y[tid, 1] = X[tid] * Z[tid]
        Y[tid, 2] = T.cast(T.cast(X[tid], "float32") * T.float32(3), "bfloat16")

    import ml_dtypes

    X, Z = (floats(s).astype(ml_dtypes.bfloat16) for s in (46, 47))
    x, z = X.astype(np.float32), Z.astype(np.float32)
    rows = [r.astype(ml_dtypes.bfloat16) for r in (x + z, x * z, x * np.float32(3))]
    return kernel, [X, Z], np.stack(rows, axis=1)


@case
def minimum_and_maximum():
    @T.prim_func
    def kernel(
        X: T.Buffer((N,), "float32"), Z: T.Buffer((N,), "int32"), Y: T.Buffer((N, 4), "float32")
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.max(X[tid], T.float32(0))
        Y[tid, 1] = T.min(X[tid], X[(tid + 1) % N])
        Y[tid, 2] = T.cast(T.min(Z[tid], tid), "float32")
        Y[tid, 3] = T.cast(T.max(Z[tid], -5), "float32")

    X, Z = floats(48), ints(49)
    X[5] = np.nan  # fmax and fmin return the other operand
    rows = [np.fmax(X, 0), np.fmin(X, np.roll(X, -1)), np.minimum(Z, I), np.maximum(Z, -5)]
    return kernel, [X, Z], np.stack(rows, axis=1).astype(np.float32)


@case
def comparisons_and_logic():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        y: T.int32 = 0
        if (X[tid] > 0 and tid != 7) or not (warp == 0):
            y = y + 1
        if not (X[tid] <= -100 or X[tid] >= 100):
            y = y + 2
        if warp == 0 and X[0] == X[0]:
            y = y + 4
        Y[tid] = y

    X = ints(50)
    y = (((X > 0) & (I != 7)) | (I >= 32)) * 1 + (abs(X) < 100) * 2 + (I < 32) * 4
    return kernel, [X], y.astype(np.int32)


@case
def mathematical_functions():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "float32"), Y: T.Buffer((N, 6), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.exp2(X[tid])
        Y[tid, 1] = T.sqrt(T.fabs(X[tid]))
        Y[tid, 2] = T.floor(X[tid])
        Y[tid, 3] = T.ceil(X[tid])
        Y[tid, 4] = T.log2(T.fabs(X[tid]))
        Y[tid, 5] = T.exp(X[tid])

    X = floats(51)
    rows = [np.exp2(X), np.sqrt(abs(X)), np.floor(X), np.ceil(X), np.log2(abs(X)), np.exp(X)]
    return kernel, [X], np.stack(rows, axis=1)


@case
def bits_of_another_type():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "float32"), Y: T.Buffer((N, 2), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.reinterpret("int32", X[tid])
        Y[tid, 1] = T.reinterpret("int32", T.float32(1.5)) + tid

    X = floats(52)
    return kernel, [X], np.stack([X.view(np.int32), 0x3FC00000 + I], axis=1).astype(np.int32)


# --------------------------------------------------------------------- threads and memory


@case
def threads_that_do_not_fill_a_warp():
    @T.prim_func
    def kernel(X: T.Buffer((48,), "int32"), Y: T.Buffer((48,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([48])
        pool = T.SMEMPool()
        line = pool.alloc((48,), "int32")
        pool.commit()
        line[tid] = X[tid]
        T.cuda.cta_sync()
        y: T.int32 = line[47 - tid]
        if tid == 47:
            y = y + 1000
        Y[tid] = y

    X = ints(53, 48)
    y = X[::-1].copy()
    y[47] += 1000
    return kernel, [X], y


@case
def grid_of_two_dimensions():
    @T.prim_func
    def kernel(X: T.Buffer((3, 2, 32), "int32"), Y: T.Buffer((3, 2, 32), "int32")):
        T.device_entry()
        bx, by = T.cta_id([3, 2])
        tid = T.thread_id([32])
        Y[bx, by, tid] = X[2 - bx, by, tid] * 10 + by

    X = ints(54, 3, 2, 32)
    return kernel, [X], (X[::-1] * 10 + np.arange(2)[None, :, None]).astype(np.int32)


@case
def transposition_through_shared_memory():
    @T.prim_func
    def kernel(X: T.Buffer((8, 8), "float16"), Y: T.Buffer((8, 8), "float16")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        tile = pool.alloc((8, 8), "float16")
        pool.commit()
        tile[tid // 8, tid % 8] = X[tid // 8, tid % 8]
        T.cuda.cta_sync()
        Y[tid // 8, tid % 8] = tile[tid % 8, tid // 8]

    X = floats(55, 8, 8, dtype=np.float16)
    return kernel, [X], X.T.copy()


@case
def shared_memory_read_and_written_in_one_loop():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        line = pool.alloc((N,), "int32")
        pool.commit()
        line[tid] = X[tid]
        for i in T.serial(6):
            T.cuda.cta_sync()
            other: T.int32 = 0
            if tid >= (1 << i):
                other = line[tid - (1 << i)]
            T.cuda.cta_sync()
            line[tid] = line[tid] + other
        Y[tid] = line[tid]

    X = ints(56)
    return kernel, [X], np.cumsum(X).astype(np.int32)


@case
def shuffles():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "float32"), Y: T.Buffer((N, 2), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        s: T.float32 = X[tid]
        s = s + T.tvm_warp_shuffle_down(T.uint32(0xFFFFFFFF), s, 16, 32, 32)
        s = s + T.tvm_warp_shuffle_down(T.uint32(0xFFFFFFFF), s, 8, 32, 32)
        Y[tid, 0] = s
        Y[tid, 1] = T.tvm_warp_shuffle(T.uint32(0xFFFFFFFF), X[tid], (tid * 7) % 32, 32, 32)

    X = floats(57)
    lanes = X.reshape(2, 32)

    def down(v, by):
        return np.concatenate([v[:, by:], v[:, 32 - by :]], axis=1)

    s = lanes + down(lanes, 16)
    s = s + down(s, 8)
    picked = lanes[:, (np.arange(32) * 7) % 32]
    return kernel, [X], np.stack([s.reshape(-1), picked.reshape(-1)], axis=1)


@case
def variable_stored_while_all_lanes_agree():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 2), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 5
        Y[tid, 0] = y
        if tid < 3:
            y = X[tid]
        Y[tid, 1] = y + 1

    X = ints(60)
    return (
        kernel,
        [X],
        np.stack([np.full(N, 5), np.where(I < 3, X, 5) + 1], axis=1).astype(np.int32),
    )


@case
def uniform_choice_between_lanes_and_a_number():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 2), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        Y[tid, 0] = T.if_then_else(warp == 0, X[tid], 0)
        Y[tid, 1] = T.Select(warp == 0, -4, tid)

    X = ints(61)
    return (
        kernel,
        [X],
        np.stack([np.where(I < 32, X, 0), np.where(I < 32, -4, I)], 1).astype(np.int32),
    )


@case
def uniform_condition_that_guards_a_load():
    @T.prim_func
    def kernel(X: T.Buffer((32,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        y: T.int32 = 0
        if warp == 0 and X[tid] > 0:
            y = 1
        if warp == 1 or X[tid] > 0:
            y = y + 2
        Y[tid] = y

    X = ints(62, 32)
    low = 3 * (X > 0)
    return kernel, [X], np.concatenate([low, np.full(32, 2)]).astype(np.int32)


@case
def uniform_loop_left_early():
    @T.prim_func
    def kernel(X: T.Buffer((16,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        i: T.int32 = 0
        while i < 16:
            if X[i] < 0:
                break
            y = y + X[i]
            i = i + 1
        Y[tid] = y + tid

    X = np.array([3, 5, 7, -1] + [100] * 12, np.int32)
    return kernel, [X], 15 + I


@case
def slice_with_a_guarded_load():
    @T.prim_func
    def kernel(X: T.Buffer((N, 3), "int32"), Y: T.Buffer((N, 6), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        for i in T.serial(6):
            Y[tid, i] = T.if_then_else(i < 3, X[tid, i % 3], tid)

    X = ints(63, N, 3)
    return kernel, [X], np.concatenate([X, np.repeat(I[:, None], 3, axis=1)], axis=1)


@case
def slice_with_choices():
    @T.prim_func
    def kernel(X: T.Buffer((N, 8), "int32"), Y: T.Buffer((N, 8), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        r = T.alloc_local((8,), "int32")
        for i in T.serial(8):
            r[i] = X[tid, i]
        for i in T.serial(8):
            r[i] = T.Select(r[i] > tid, T.Select(warp == 0, i, r[i]), T.min(r[i], -i))
        for i in T.serial(8):
            Y[tid, i] = T.max(r[i], 0 - 50)

    X = ints(64, N, 8)
    k = np.arange(8)
    inner = np.where((I < 32)[:, None], k, X)
    r = np.where(X > I[:, None], inner, np.minimum(X, -k))
    return kernel, [X], np.maximum(r, -50).astype(np.int32)


@case
def slice_with_two_stores_to_one_place():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N, 5), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        for i in T.serial(4):
            Y[tid, i] = X[tid, i]
            Y[tid, i + 1] = 0 - i

    X = ints(65, N, 4)
    return kernel, [X], np.concatenate([X, np.full((N, 1), -3)], axis=1).astype(np.int32)


@case
def slice_with_two_stores_of_registers():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N, 5), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((4,), "int32")
        for i in T.serial(4):
            r[i] = X[tid, i]
        for i in T.serial(4):
            Y[tid, i] = r[i]
            Y[tid, i + 1] = r[i] + 1000

    X = ints(83, N, 4)
    return kernel, [X], np.concatenate([X, X[:, 3:] + 1000], axis=1).astype(np.int32)


@case
def slice_that_overwrites_what_every_iteration_writes():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 4), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((4,), "int32")
        for i in T.serial(4):
            r[0] = X[tid]
            r[3 - i] = X[tid] + i + 1
        for i in T.serial(4):
            Y[tid, i] = r[i]

    X = ints(84)
    return kernel, [X], (X[:, None] + np.array([4, 3, 2, 1])).astype(np.int32)


@case
def slice_that_loads_through_shared_memory():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N, 4), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        tile = pool.alloc((N, 5), "int32")
        pool.commit()
        tile[tid, 0] = 0
        for i in T.serial(4):
            tile[tid, i + 1] = tile[tid, i] + X[tid, i]
        for i in T.serial(4):
            Y[tid, i] = tile[tid, i + 1]

    X = ints(66, N, 4)
    return kernel, [X], np.cumsum(X, axis=1).astype(np.int32)


@case
def slice_with_every_iteration_at_one_address():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        for i in T.serial(4):
            Y[tid] = X[tid, i] + i

    X = ints(67, N, 4)
    return kernel, [X], X[:, 3] + 3


@case
def slice_under_a_mask():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "int32"), Y: T.Buffer((N, 4), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        last: T.int32 = 9
        for i in T.serial(4):
            Y[tid, i] = -1
        if tid % 3 == 1:
            for i in T.serial(4):
                last = X[tid, i]
                Y[tid, i] = last * 2
        if tid % 2 == 0:
            Y[tid, 0] = last

    X = ints(68, N, 4)
    y = np.where((I % 3 == 1)[:, None], 2 * X, -1)
    last = np.where(I % 3 == 1, X[:, 3], 9)
    y[:, 0] = np.where(I % 2 == 0, last, y[:, 0])
    return kernel, [X], y.astype(np.int32)


@case
def arrays_of_two_dimensions():
    @T.prim_func
    def kernel(X: T.Buffer((N, 6), "float32"), Y: T.Buffer((N, 6), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((2, 3), "float32")
        for i in T.serial(2):
            for j in T.serial(3):
                r[i, j] = X[tid, i * 3 + j]
        for j in T.serial(3):
            r[0, j] = r[0, j] + r[1, 2 - j]
        for i in T.serial(2):
            for j in T.serial(3):
                Y[tid, i * 3 + j] = r[i, j]

    X = floats(69, N, 6)
    r = X.reshape(N, 2, 3).copy()
    r[:, 0] += r[:, 1, ::-1]
    return kernel, [X], r.reshape(N, 6)


@case
def registers_seen_as_another_type():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "float32"), Y: T.Buffer((N, 2), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        half = T.alloc_local((4,), "float16")
        for i in T.serial(4):
            half[i] = T.cast(X[tid, i], "float16")
        word = T.decl_buffer((2,), "int32", data=half.data, scope="local")
        for i in T.serial(2):
            Y[tid, i] = word[i]

    X = floats(70, N, 4)
    return kernel, [X], X.astype(np.float16).view(np.int32)


@case
def unsigned_comparisons():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "uint32"), Y: T.Buffer((N, 3), "uint32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.Select(X[tid] > T.uint32(3000000000), T.uint32(1), T.uint32(0))
        Y[tid, 1] = T.max(X[tid], T.uint32(2147483648))
        Y[tid, 2] = T.min(X[tid] - T.uint32(1), X[tid])

    X = ints(71, low=0, high=2**32 - 1, dtype=np.uint32)
    X[0] = 0
    rows = [X > 3000000000, np.maximum(X, 2147483648), np.minimum(X - np.uint32(1), X)]
    return kernel, [X], np.stack([r.astype(np.uint32) for r in rows], axis=1)


@case
def conversions_across_sign_and_width():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 4), "uint64")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = T.cast(T.cast(X[tid], "uint32"), "uint64")
        Y[tid, 1] = T.cast(X[tid], "uint64") * T.uint64(4294967296)
        Y[tid, 2] = T.cast(X[tid], "uint64") >> T.uint64(60)
        Y[tid, 3] = T.cast(T.cast(T.cast(X[tid], "uint32"), "float32"), "uint64")

    X = ints(72)
    x = X.astype(np.int64)
    u = X.view(np.uint32)
    rows = [u, x << 32, np.where(x < 0, 15, 0), u.astype(np.float32)]
    return kernel, [X], np.stack([r.astype(np.uint64) for r in rows], axis=1)


@case
def signed_64_bits():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int64"), Y: T.Buffer((N, 3), "int64")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid, 0] = X[tid] * T.int64(3) - T.int64(1)
        Y[tid, 1] = X[tid] >> T.int64(5)
        Y[tid, 2] = T.truncdiv(X[tid], T.int64(-7))

    X = np.random.default_rng(73).integers(-(2**60), 2**60, N)
    q = np.array([int(abs(int(x)) // 7) * (1 if x < 0 else -1) for x in X])
    return kernel, [X], np.stack([X * 3 - 1, X >> 5, q], axis=1)


@case
def booleans_as_numbers():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 3), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        Y[tid, 0] = T.cast(X[tid] > 0, "int32") * 3
        Y[tid, 1] = T.cast(T.cast(X[tid] - tid, "bool"), "int32")
        Y[tid, 2] = T.cast(warp == 1, "int32") + T.cast(X[0] > 5, "int32")

    X = ints(74)
    X[9] = 9
    rows = [(X > 0) * 3, X != I, (I >= 32) + int(X[0] > 5)]
    return kernel, [X], np.stack([np.asarray(r).astype(np.int32) for r in rows], axis=1)


@case
def rounding_to_narrow_floats():
    """Ties, overflow, denormals, infinities: the conversions of the hardware."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "float32"), Y: T.Buffer((N,), "float16")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid] = T.cast(X[tid], "float16")

    X = floats(75)
    X[:10] = [2049, 2051, 65504, 65519.9, 65520, -65520, 2**-24, 2**-25, 3 * 2**-25, 1e-8]
    X[10:14] = [np.inf, -np.inf, 6.1e-5, -0.0]
    with np.errstate(over="ignore"):
        return kernel, [X], X.astype(np.float16)


@case
def loop_with_a_step():
    @T.prim_func
    def kernel(X: T.Buffer((16,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        for i in T.serial(1, 16, step=4):
            y = y * 3 + X[i]
        Y[tid] = y

    X = ints(76, 16)
    y = 0
    for i in range(1, 16, 4):
        y = y * 3 + int(X[i])
    return kernel, [X], np.full(N, y, np.int32)


@case
def vector_loop():
    @T.prim_func
    def kernel(X: T.Buffer((N, 4), "float32"), Y: T.Buffer((N, 4), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        for i in T.vectorized(4):
            Y[tid, i] = X[tid, i] * T.float32(2)

    X = floats(77, N, 4)
    return kernel, [X], X * 2


@case
def one_address_for_all_lanes():
    """One of the lanes' stores wins; where all store the same, which one does not matter."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((4,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        Y[warp] = X[warp] + 1
        if tid % 2 == 1:
            Y[2 + warp] = X[5]

    X = ints(78)
    return kernel, [X], np.array([X[0] + 1, X[1] + 1, X[5], X[5]], np.int32)


@case
def shuffles_in_segments():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 3), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        full = T.meta_var(T.uint32(0xFFFFFFFF))
        Y[tid, 0] = T.tvm_warp_shuffle_up(full, X[tid], 3, 8, 32)
        Y[tid, 1] = T.tvm_warp_shuffle_xor(full, X[tid], 5, 32, 32)
        Y[tid, 2] = T.tvm_warp_shuffle(full, X[tid], 2, 16, 32)

    X = ints(79)
    up = np.where(I % 8 >= 3, X[np.maximum(I - 3, 0)], X)
    return kernel, [X], np.stack([up, X[I ^ 5], X[I // 16 * 16 + 2]], axis=1).astype(np.int32)


@case
def cluster_of_two():
    @T.prim_func
    def kernel(X: T.Buffer((4, 32), "int32"), Y: T.Buffer((4, 32), "int32")):
        T.device_entry()
        cluster = T.cluster_id([2])
        rank = T.cta_id_in_cluster([2])
        tid = T.thread_id([32])
        Y[cluster * 2 + rank, tid] = X[cluster * 2 + 1 - rank, tid] + rank

    X = ints(80, 4, 32)
    swapped = X.reshape(2, 2, 32)[:, ::-1] + np.arange(2)[None, :, None]
    return kernel, [X], swapped.reshape(4, 32).astype(np.int32)


@case
def many_ctas_with_bounds_of_their_own():
    @T.prim_func
    def kernel(X: T.Buffer((8, 32), "int32"), Y: T.Buffer((8, 32), "int32")):
        T.device_entry()
        cta = T.cta_id([8])
        tid = T.thread_id([32])
        y: T.int32 = 0
        for i in T.serial(cta):
            y = y + X[i, tid]
        Y[cta, tid] = y

    X = ints(81, 8, 32)
    before = np.cumsum(X, axis=0) - X
    return kernel, [X], before.astype(np.int32)


@case
def one_thread_writes_what_all_read():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "float32"), Y: T.Buffer((N,), "float32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        box = pool.alloc((2,), "float32")
        pool.commit()
        if tid == 40:
            s: T.float32 = 0.0
            for i in T.serial(N):
                s = s + X[i]
            box[1] = s
        T.cuda.cta_sync()
        Y[tid] = X[tid] - box[1]

    X = floats(82)
    s = np.float32(0)
    for x in X:
        s = s + x
    return kernel, [X], X - s


# ------------------------------------------------------------------------------ descriptors


@case
def matrix_descriptor_of_an_address_that_lanes_differ_in():
    """All 64 bits survive: the top ones hold the swizzle mode (PTX ISA, wgmma descriptors)."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "uint64")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        tile = pool.alloc((2, 1024), "uint8", align=1024)
        pool.commit()
        which: T.int32 = X[tid]
        desc: T.uint64 = T.uint64(0)
        T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc), tile.ptr_to([which, 0]), 1, 64, 3)
        Y[tid] = desc

    X = (I % 2).astype(np.int32)
    # Shared memory begins at 1024, behind what the system keeps; 3 is the 128B swizzle: mode 1.
    address = (1024 + 1024 * X.astype(np.uint64)) >> np.uint64(4)
    return kernel, [X], address | np.uint64(1 << 16 | 64 << 32 | 1 << 62)


@pytest.mark.parametrize("checks", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name, checks):
    kernel, inputs, expected = CASES[name]()
    expected = np.ascontiguousarray(expected)
    out = np.full(expected.shape, 99, expected.dtype)
    report = sim.simulate(kernel, *[x.copy() for x in inputs], out, checks=checks)
    assert not report.findings, report
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("seed", range(20))
def test_random_kernels_against_plain_python(seed, dtype, tmp_path):
    script, python = random_kernels.source(seed, dtype)
    X = ints(seed, low=-300, high=300)
    Y = np.full((N, 8), 99, np.int32)
    kernel = module_from(tmp_path / "kernel.py", script).kernel
    report = sim.simulate(kernel, X.copy(), Y)
    assert not report.findings, report
    np.testing.assert_array_equal(Y, np.array(random_kernels.expected(python, X)))
