"""Malformed inputs: an error that names the value and the rule, or the right result where legal.

``pytest tests/test_malformed.py -s`` prints what each of them leads to.
"""

# Kernels are TVMScript: its parser gives names and annotations their meaning.
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm.script import tirx as T

import mlsys_gpu as mg
from mlsys_gpu import sim
from mlsys_gpu.sim import Unsupported

M, N, K = 128, 128, 64


@T.prim_func
def scale(X: T.Buffer((4, 32), "float32"), Y: T.Buffer((4, 32), "float32")):
    T.device_entry()
    row = T.cta_id([4])
    tid = T.thread_id([32])
    Y[row, tid] = X[row, tid] * T.float32(2)


@T.prim_func
def on_the_host(X: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        X[i] = T.float32(0)


@T.prim_func
def with_inline_cuda(X: T.Buffer((32,), "int32")):
    T.device_entry()
    _cta = T.cta_id([1])
    tid = T.thread_id([32])
    X[tid] = T.cuda.func_call(
        "my_secret_function",
        X[tid],
        source_code="__device__ int my_secret_function(int x) { return x; }",
        return_type="int32",
    )


def arrays():
    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    return x, np.full((4, 32), np.nan, np.float32)


def gemm():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, K)).astype(np.float16) for rows in (M, N))
    return mg.gemm.step(3, arch="hopper").build(M, N, K), a, b, np.full((M, N), np.nan, np.float16)


def odd(array: np.ndarray) -> np.ndarray:
    """The same values, one element behind a 16-byte boundary."""
    room = np.empty(array.size + 64, array.dtype)
    first = -room.ctypes.data // array.itemsize % (16 // array.itemsize) + 1
    held = room[first : first + array.size].reshape(array.shape)
    held[...] = array
    assert held.ctypes.data % 16
    return held


def frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


X, Y = arrays()
NUMBER: Any = {"arch": 90}
REFUSED = {
    "wrong dtype": (lambda: mg.simulate(scale, X.astype(np.float64), Y), ValueError,
                    ("X", "float64", "float32")),
    "float16 where bfloat16 is due": (
        lambda: mg.simulate(
            mg.gemm.step(3, arch="hopper").build(M, N, K, dtype="bfloat16"), *gemm()[1:]
        ), ValueError, ("A", "float16", "bfloat16")),
    "wrong shape": (lambda: mg.simulate(scale, X[:3], Y), ValueError,
                    ("X", "(3, 32)", "(4, 32)")),
    "wrong rank": (lambda: mg.simulate(scale, X.reshape(-1), Y), ValueError,
                   ("X", "(128,)", "(4, 32)")),
    "another device": (lambda: mg.simulate(scale, torch.empty((4, 32), device="meta"), Y),
                       ValueError, ("X", "meta", "CPU")),
    "non-contiguous": (lambda: mg.simulate(scale, np.asfortranarray(X), Y), ValueError,
                       ("X", "not contiguous", "row-major")),
    "every second row": (lambda: mg.simulate(scale, np.zeros((8, 32), np.float32)[::2], Y),
                         ValueError, ("X", "not contiguous")),
    "read-only output": (lambda: mg.simulate(scale, X, frozen(Y.copy())), ValueError,
                         ("Y", "read-only")),
    "zero-size": (lambda: mg.simulate(scale, np.zeros((0, 32), np.float32), Y), ValueError,
                  ("X", "(0, 32)", "no elements")),
    "a list": (lambda: mg.simulate(scale, X.tolist(), Y), ValueError, ("X", "list", "NumPy")),
    "an array too few": (lambda: mg.simulate(scale, X), ValueError, ("2", "X, Y", "1")),
    "byte-swapped": (lambda: mg.simulate(scale, X.astype(">f4"), Y), ValueError,
                     ("X", "byte-swapped")),
    "host function missing": (lambda: mg.simulate(on_the_host, np.zeros(4, np.float32)),
                              ValueError, ("on_the_host", "T.device_entry()")),
    "two functions": (
        lambda: mg.simulate(tvm.IRModule({"a": scale, "b": scale}), X, Y), (ValueError, TypeError),
        ("IRModule", "PrimFunc")),
    "no kernel at all": (lambda: mg.simulate(lambda x: x, X, Y), (ValueError, TypeError),
                         ("PrimFunc", "function")),
    "a string for a kernel": (lambda: sim.simulate("x", X, Y), ValueError, ("PrimFunc", "str")),
    "a string to compile": (lambda: sim.compile("x"), ValueError, ("PrimFunc", "str")),
    "two functions to compile": (lambda: sim.compile(tvm.IRModule({"a": scale, "b": scale})),
                                 ValueError, ("IRModule", "2 functions")),
    "a number for an architecture": (lambda: sim.simulate(scale, X, Y, **NUMBER), ValueError,
                                     ("90", "hopper", "sm_")),
    "the same from above": (lambda: mg.simulate(scale, X, Y, **NUMBER), ValueError,
                            ("90", "hopper", "sm_")),
    "another architecture than the kernel's": (
        lambda: mg.simulate(*gemm(), arch="sm_80"), ValueError,
        ("gemm_hopper_step3", "sm_90a", "'sm_80'")),
    "another architecture than the program's": (
        lambda: sim.simulate(sim.compile(scale, "hopper"), X, Y, arch="blackwell"), ValueError,
        ("scale", "sm_90a", "'blackwell'")),
    "unknown inline CUDA": (lambda: mg.simulate(with_inline_cuda, np.zeros(32, np.int32)),
                            Unsupported, ("my_secret_function", "test_malformed.py:")),
    "an unknown schedule": (lambda: mg.simulate(scale, X, Y.copy(), schedule="fast"), ValueError,
                            ("'fast'", "eager, lazy, seeded")),
    "a negative seed": (
        lambda: mg.simulate(scale, X, Y.copy(), schedule="seeded", schedule_seed=-1), ValueError,
        ("schedule_seed", "-1")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_value_and_rule(name):
    call, error, words = REFUSED[name]
    before = X.copy(), Y.copy()
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert len(text) < 600, "a page of text is no clear error"
    np.testing.assert_array_equal(X, before[0])  # and nothing is lost
    np.testing.assert_array_equal(Y, before[1])
    print(f"\n{name}: {type(caught.value).__name__}: {text}")


def test_misaligned_arrays_are_legal_in_host_memory():
    """The simulator copies them to aligned memory, as a copy to the GPU would."""
    kernel, a, b, d = gemm()
    wanted = d.copy()
    assert mg.simulate(kernel, a, b, wanted).ok
    got = odd(d)
    assert mg.simulate(kernel, odd(a), odd(b), got).ok
    np.testing.assert_array_equal(got, wanted)
    assert np.isfinite(got).all()


def test_nan_and_infinity_in_the_inputs_reach_the_outputs_that_they_belong_to():
    kernel, a, b, d = gemm()
    a[5, 7], b[3, 0], a[9, 1] = np.nan, np.inf, -np.inf
    report = mg.simulate(kernel, a, b, d)
    assert report.ok, report
    with np.errstate(all="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(np.isnan(d), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(d), np.isinf(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(d[finite], wanted[finite], rtol=2e-3, atol=2e-3)


def test_a_row_of_a_larger_array_is_legal():
    x, y = np.zeros((3, 4, 32), np.float32), np.zeros((3, 4, 32), np.float32)
    x[1] = np.arange(128).reshape(4, 32)
    assert mg.simulate(scale, x[1], y[1]).ok
    np.testing.assert_array_equal(y[1], 2 * x[1])
    assert not y[[0, 2]].any()
