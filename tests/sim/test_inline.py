"""Inline CUDA functions with Python equivalents of the reader's."""
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

import ml_dtypes
import numpy as np
import pytest
from tvm.script import tirx as T

from mlsys_gpu import sim
from mlsys_gpu.sim.machine.inline import FUNCTIONS

N = 64
CUBE = "__device__ float cube_of_mine(float x) { return x * x * x; }"
MIX = "__device__ int mix_of_mine(int a, int b) { return a * 3 + b; }"


@T.prim_func
def kernel(
    X: T.Buffer((N,), "float32"), I: T.Buffer((N,), "int32"),
    Y: T.Buffer((N,), "float32"), J: T.Buffer((N, 2), "int32"),
):  # fmt: skip
    T.device_entry()
    cta = T.cta_id([1])
    tid = T.thread_id([N])
    if tid % 3 != 1:
        Y[tid] = T.cuda.func_call("cube_of_mine", X[tid], source_code=CUBE, return_type="float32")
    J[tid, 0] = T.cuda.func_call("mix_of_mine", I[tid], tid, source_code=MIX, return_type="int32")
    J[tid, 1] = T.cuda.func_call("mix_of_mine", I[0], 7, source_code=MIX, return_type="int32")


@pytest.fixture
def registry():
    before = dict(FUNCTIONS)
    yield
    FUNCTIONS.clear()
    FUNCTIONS.update(before)


def arrays():
    rng = np.random.default_rng(1)
    x = rng.standard_normal(N).astype(np.float32)
    i = rng.integers(-(2**31), 2**31, N).astype(np.int32)
    return x, i, np.zeros(N, np.float32), np.zeros((N, 2), np.int32)


def test_functions_that_are_registered(registry):
    """In each lane's own dtype, so that integers wrap as C's do on the hardware."""
    seen = []

    @sim.inline("cube_of_mine")
    def cube(x):
        seen.append(x.dtype)
        return x * x * x

    @sim.inline("mix_of_mine")
    def mix(a, b):
        with np.errstate(over="ignore"):
            return a * np.int32(3) + b

    x, i, y, j = arrays()
    report = sim.simulate(kernel, x, i, y, j)
    assert not report.findings, report
    inside = np.arange(N) % 3 != 1
    np.testing.assert_array_equal(y, np.where(inside, x * x * x, 0))
    wide = i.astype(np.int64) * 3
    np.testing.assert_array_equal(j[:, 0], (wide + np.arange(N)).astype(np.int32))
    np.testing.assert_array_equal(j[:, 1], np.full(N, wide[0] + 7).astype(np.int32))
    assert set(seen) == {np.dtype(np.float32)}


def test_functions_that_are_not(registry):
    with pytest.raises(sim.Unsupported, match=r"cube_of_mine, .*sim\.inline registers one"):
        sim.simulate(kernel, *arrays())


def test_bfloat16_comes_as_float32(registry):
    source = "__device__ __nv_bfloat16 half_of_mine(__nv_bfloat16 x) { return x; }"

    @T.prim_func
    def halves(X: T.Buffer((32,), "bfloat16"), Y: T.Buffer((32,), "bfloat16")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        Y[tid] = T.cuda.func_call(
            "half_of_mine", X[tid], source_code=source, return_type="bfloat16"
        )

    @sim.inline("half_of_mine")
    def half(x):
        assert x.dtype == np.float32
        return x / 2

    x = np.arange(32).astype(ml_dtypes.bfloat16)
    y = np.zeros(32, ml_dtypes.bfloat16)
    assert not sim.simulate(halves, x, y).findings
    np.testing.assert_array_equal(y.astype(float), np.arange(32) / 2)
