"""Control flow in which the lanes of a warp part: against plain Python, thread after thread."""
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import sim

from . import random_kernels
from .sources import module_from

N = 64
I = np.arange(N, dtype=np.int32)
CASES = {}


def case(build):
    """Register ``build() -> (kernel, inputs, expected)``; the output is the last parameter."""
    CASES[build.__name__] = build
    return build


def ints(seed, *shape, low=-1000, high=1000):
    rng = np.random.default_rng(seed)
    return rng.integers(low, high, shape or (N,), endpoint=True).astype(np.int32)


def each(function, *arrays):
    """What ``function`` returns for the elements of the arrays at each thread's place."""
    rows = zip(*(a.tolist() for a in arrays), strict=True)
    return np.array([function(*row) for row in rows], np.int32)


# ------------------------------------------------------------------------ break and continue


@case
def break_behind_which_lanes_go_on():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        for i in T.serial(10):
            y = y + 1
            if X[tid] > 5 * i:
                if X[tid] % 2 == 1:
                    y = y + 100
                    break
                y = y + 1000
            y = y + 10000
        Y[tid] = y + 7

    def thread(x):
        y = 0
        for i in range(10):
            y += 1
            if x > 5 * i:
                if x % 2 == 1:
                    y += 100
                    break
                y += 1000
            y += 10000
        return y + 7

    X = ints(1, low=0, high=60)
    return kernel, [X], each(thread, X)


@case
def continue_that_skips_a_store():
    @T.prim_func
    def kernel(X: T.Buffer((N, 8), "int32"), Y: T.Buffer((N, 8), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        for i in T.serial(8):
            Y[tid, i] = -1
            if X[tid, i] < 0:
                continue
            Y[tid, i] = X[tid, i] // 2

    X = ints(2, N, 8)
    return kernel, [X], np.where(X < 0, -1, X // 2)


@case
def break_of_an_inner_loop_goes_on_in_the_outer_one():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        for i in T.serial(4):
            for j in T.serial(6):
                if j * i > X[tid]:
                    break
                if j == i:
                    continue
                y = y + 1
            y = y + 100
        Y[tid] = y

    def thread(x):
        y = 0
        for i in range(4):
            for j in range(6):
                if j * i > x:
                    break
                if j == i:
                    continue
                y += 1
            y += 100
        return y

    X = ints(3, low=0, high=15)
    return kernel, [X], each(thread, X)


@case
def one_lane_that_leaves_a_loop_of_all():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        for i in T.serial(6):
            if tid == 37:
                for j in T.serial(6):
                    y = y + 10
                    if j == 2:
                        break
                if i == X[37] % 4:
                    break
                y = y + 1000
            y = y + 1
        Y[tid] = y

    X = ints(4, low=0, high=15)
    expected = np.full(N, 6, np.int32)
    rounds = X[37] % 4
    expected[37] = 1031 * rounds + 30
    return kernel, [X], expected


# ------------------------------------------------------------------------------------- loops


@case
def bounds_of_each_lane():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), V: T.Buffer((16,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        for i in T.serial(X[tid] % 5, X[tid] % 16):
            y = y + V[i] * i
            for j in T.serial(i % 3):
                y = y + j + 1
        Y[tid] = y

    X, V = ints(5, low=0, high=300), ints(6, 16)

    def thread(x):
        inner = [0, 1, 3]
        return sum(int(V[i]) * i + inner[i % 3] for i in range(x % 5, x % 16))

    return kernel, [X, V], each(thread, X)


@case
def loop_whose_end_moves_while_it_runs():
    """C++ compares with the end that the variables give then."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        n: T.int32 = X[tid]
        for i in T.serial(n):
            y = y + 1
            n = n - 1
        m: T.int32 = 9
        for i in T.serial(m):
            m = m - 2
            y = y + 100
        Y[tid] = y

    def thread(x):
        y = i = 0
        while i < x:
            y, x, i = y + 1, x - 1, i + 1
        return y + 300

    X = ints(7, low=-2, high=30)
    return kernel, [X], each(thread, X)


@case
def while_loops_of_each_lane_with_memory():
    """A linked list walked by each thread, and a count of what it meets on the way."""

    @T.prim_func
    def kernel(
        Next: T.Buffer((N,), "int32"), V: T.Buffer((N,), "int32"), Y: T.Buffer((N, 2), "int32")
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        at: T.int32 = tid
        total: T.int32 = 0
        steps: T.int32 = 0
        while Next[at] >= 0:
            left: T.int32 = V[at] % 4
            while left > 0:
                total = total + V[(at + left) % N]
                left = left - 1
                if total > 5000:
                    break
            at = Next[at]
            steps = steps + 1
        Y[tid, 0] = total
        Y[tid, 1] = steps

    Next = np.where(I % 7 == 0, -1, I - 1).astype(np.int32)
    V = ints(8, low=0, high=900)

    def thread(tid):
        at, total, steps = tid, 0, 0
        while Next[at] >= 0:
            left = int(V[at]) % 4
            while left > 0:
                total += int(V[(at + left) % N])
                left -= 1
                if total > 5000:
                    break
            at = int(Next[at])
            steps += 1
        return total, steps

    return kernel, [Next, V], each(thread, I)


@case
def condition_that_indexes_registers():
    """What a while loop's condition computes must be computed for every round."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((8,), "int32")
        for i in T.serial(8):
            r[i] = i - 5
        at: T.int32 = 0
        while r[at] < 1:
            at = at + 1
        Y[tid] = X[tid] + at

    X = ints(9)
    return kernel, [X], X + 6


# ------------------------------------------------------------------------------------ return


@case
def lanes_that_return_early():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid] = -5
        if X[tid] < 0:
            T.thread_return()
        y: T.int32 = 0
        for i in T.serial(5):
            if X[tid] % 10 == i:
                Y[tid] = y
                T.thread_return()
            y = y + X[tid]
        Y[tid] = y + 1

    def thread(x):
        if x < 0:
            return -5
        return x * (x % 10) if x % 10 < 5 else 5 * x + 1

    X = ints(10)
    return kernel, [X], each(thread, X)


@case
def barrier_behind_an_early_return():
    """Threads that have returned are not waited for."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        S = T.alloc_shared((N,), "int32")
        if tid >= 40:
            T.thread_return()
        S[tid] = X[tid]
        T.cuda.cta_sync()
        Y[tid] = S[39 - tid]

    X = ints(11)
    expected = np.full(N, 99, np.int32)
    expected[:40] = X[39::-1]
    return kernel, [X], expected


@case
def one_lane_that_returns():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([2])
        tid = T.thread_id([N])
        y: T.int32 = 1
        if T.cuda.elect_sync():
            for i in T.serial(4):
                y = y + X[tid]
                if i == 2:
                    Y[tid] = y
                    T.thread_return()
        y = y + 1
        if T.cuda.elect_sync():
            y = y + 10
        Y[tid] = y

    X = ints(12)
    expected = np.full(N, 2, np.int32)
    expected[::32] = 3 * X[::32] + 1
    expected[1::32] = 12
    return kernel, [X], expected


# ----------------------------------------------------------------------------- guarded reads


@case
def conditions_that_guard_a_register_out_of_range():
    """C evaluates what stands behind ``&&``, ``||`` and ``?:`` only where it counts."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 4), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        r = T.alloc_local((4,), "int32")
        for i in T.serial(4):
            r[i] = X[tid] + i
        n: T.int32 = X[6]  # 7: the same for all threads
        Y[tid, 0] = T.if_then_else(n < 4 and r[n] > 0, 1, 0)
        Y[tid, 1] = T.if_then_else(n >= 4 or r[n] > 0, 1, 0)
        Y[tid, 2] = T.if_then_else(n < 4, r[n], 7) + T.if_then_else(n >= 4, X[tid], r[n])
        Y[tid, 3] = 0
        if X[tid] < 4 and r[X[tid]] % 4 == 0:
            Y[tid, 3] = 1

    X = I % 7 + 1
    wanted = [0 * X, 0 * X + 1, 7 + X, (X < 4) & (2 * X % 4 == 0)]
    return kernel, [X], np.stack(wanted, axis=1).astype(np.int32)


@case
def conditions_that_guard_memory_out_of_range():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 3), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        at: T.int32 = tid
        while at < N and X[at] != 7:
            at = at + 1
        Y[tid, 0] = at
        n: T.int32 = X[6] * 10
        y: T.int32 = 0
        for i in T.serial(8):
            if n + i < N and X[n + i] > 0:
                y = y + 1
            if n - 20 + i * 4 < N and X[n - 20 + i * 4] > 2:
                y = y + 10
        Y[tid, 1] = y
        z: T.int32 = 0
        for i in T.serial(4):
            if tid * 4 + i < 37:
                z = z + X[tid * 4 + i]
        Y[tid, 2] = z + T.if_then_else(tid < 60, X[tid + 4], X[0])

    X = I % 7 + 1

    def thread(tid):
        at = next((k for k in range(tid, N) if X[k] == 7), N)
        y = sum(10 for i in range(8) if 50 + 4 * i < N and X[50 + 4 * i] > 2)
        z = sum(int(X[k]) for k in range(4 * tid, min(4 * tid + 4, 37)))
        return at, y, z + int(X[tid + 4] if tid < 60 else X[0])

    return kernel, [X], each(thread, I)


# -------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("schedule", ["lazy", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_against_plain_python(name, schedule):
    kernel, inputs, expected = CASES[name]()
    out = np.full(expected.shape, 99, expected.dtype)
    report = sim.simulate(kernel, *[x.copy() for x in inputs], out, schedule=schedule)
    assert not report.findings, report
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("seed", range(8))
def test_random_kernels_whose_lanes_part(seed, dtype, tmp_path):
    script, python = random_kernels.source(seed, dtype, parting=True)
    X = ints(seed, low=-300, high=300)
    Y = np.full((N, 8), 99, np.int32)
    kernel = module_from(tmp_path / "kernel.py", script).kernel
    report = sim.simulate(kernel, X.copy(), Y)
    assert not report.findings, report
    np.testing.assert_array_equal(Y, np.array(random_kernels.expected(python, X)))


HEAD = """
from tvm.script import tirx as T

@T.prim_func
def kernel(X: T.Buffer((64,), "int32"), Y: T.Buffer((64,), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([64])
    y: T.int32 = 0
"""


def nested_loops(count, parting):
    """Loops inside each other, of which four run twice and one as often as a lane says."""
    once = "(X[tid] + 6) // 7" if parting else "X[7]"
    names = ", ".join(f"i{i}" for i in range(count))
    extents = ["2" if i % (count // 4) == 0 and i < count - 1 else once for i in range(count)]
    extents[3] = "X[tid] % 3 + 1" if parting else "X[2]"
    text = f"    for {names} in T.grid({', '.join(extents)}):\n        y = y + 1 + i0\n"
    X = I % 7 + 1
    twice = extents.count("2")
    times = 2 ** (twice - 1) * (X % 3 + 1 if parting else 0 * X + 3)
    return text, X, 3 * times


def nested_branches(count, parting):
    """Branches inside each other; all lanes meet in the innermost."""
    who = "tid" if parting else "0"
    text = ""
    for i in range(count):
        text += "    " * (i + 1) + f"if X[{who}] != {100 + i}:\n"
        text += "    " * (i + 2) + f"y = y + {i}\n"
    text += "    " * (count + 1) + "T.cuda.cta_sync()\n"
    return text, I % 7, 0 * I + count * (count - 1) // 2


def long_chain(count, parting):
    """A chain of ``elif``, as long as a table of cases may be."""
    who = "tid" if parting else "9"
    text = ""
    for i in range(count):
        text += f"    {'elif' if i else 'if'} X[{who}] == {i}:\n        y = {i * i % 97}\n"
    X = (I * 5 % 160).astype(np.int32)
    at = X if parting else 0 * X + X[9]
    return text + "    else:\n        y = -1\n", X, np.where(at < count, at * at % 97, -1)


def many_exits(count, parting):
    """Statements of a branch one after the other, behind each of which some lanes may be gone."""
    text = "    for k in T.serial(3):\n        if X[tid] > 1:\n"
    for i in range(count):
        text += f"            if X[tid] + k == {i}:\n                continue\n"
        text += f"            y = y + {i}\n"
    X = I % 7 if parting else 0 * I + 4
    upto = lambda x: x * (x - 1) // 2  # noqa: E731
    return text, X, np.where(X > 1, upto(X) + upto(X + 1) + upto(X + 2), 0)


@pytest.mark.parametrize("parting", [False, True])
@pytest.mark.parametrize(
    ("text_of", "count"),
    [(nested_loops, 28), (nested_branches, 90), (long_chain, 150), (many_exits, 120)],
)
def test_deeper_than_python_compiles(text_of, count, parting, tmp_path):
    """CPython takes 20 loops inside each other, and 100 levels of indentation."""
    text, X, expected = text_of(count, parting)
    kernel = module_from(tmp_path / "kernel.py", HEAD + text + "    Y[tid] = y\n").kernel
    for schedule in ("lazy", "eager"):
        Y = np.full(N, 99, np.int32)
        report = sim.simulate(kernel, X.astype(np.int32), Y, schedule=schedule)
        assert not report.findings, report
        np.testing.assert_array_equal(Y, expected)


def test_barrier_in_a_block_that_is_a_function_of_its_own(tmp_path):
    """Its deadlock is found, and its line is the barrier's."""
    text, _, _ = nested_branches(90, parting=True)
    text = text.replace("T.cuda.cta_sync()", "T.ptx.bar.sync(1, 64)")
    kernel = module_from(tmp_path / "kernel.py", HEAD + text + "    Y[tid] = y\n").kernel
    X = np.where(I < 32, 0, 100).astype(np.int32)  # the second warp does not come
    found = finding(kernel, X, np.zeros(N, np.int32))
    assert found.code == "deadlock"
    assert "bar.sync" in found.location.text


def running(value, X, tid, count):
    """An expression of ``count`` terms, each of which needs the one before."""
    for i in range(count):
        value = (value ^ X[(tid + i) % N]) + (tid & i)
    return value


@pytest.mark.parametrize("count", [150, 500])
def test_expression_of_many_terms(count):
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid] = running(X[tid], X, tid, count)

    X, Y = ints(31), np.zeros(N, np.int32)
    report = sim.simulate(kernel, X, Y)
    assert not report.findings, report
    np.testing.assert_array_equal(Y, running(X, X, I, count))


def finding(kernel, *arrays):
    (only,) = sim.simulate(kernel, *arrays).findings
    return only


def test_barrier_that_lanes_miss_which_have_left_the_loop():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        for i in T.serial(3):
            if X[tid] == i:
                break
            T.cuda.cta_sync()
        Y[tid] = 1

    found = finding(kernel, I % 32 % 5, np.zeros(N, np.int32))
    assert found.code == "divergent-collective"
    assert found.location.text.strip() == "T.cuda.cta_sync()"
    assert "25 of the warp's 32" in found.message  # lanes 0, 5, …, 30 have left


def test_loop_that_never_ends_for_one_lane():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        y: T.int32 = 0
        while y != X[tid]:
            y = y + 2
            if y > 100:
                y = 1
        Y[tid] = y

    X = np.full(N, 8, np.int32)
    X[11] = -3
    assert finding(kernel, X, np.zeros(N, np.int32)).code == "deadlock"
