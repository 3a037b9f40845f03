"""Buffers whose elements are no plain numbers: 8-bit floats, short vectors, 128 bits."""
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

import numpy as np
import pytest
import torch
from tvm.script import tirx as T

from mlsys_gpu import sim

N = 256
EIGHT_BITS = {
    "float8_e4m3fn": (torch.float8_e4m3fn, 448.0),
    "float8_e5m2": (torch.float8_e5m2, 57344.0),
}


def silent(kernel, *arrays):
    report = sim.simulate(kernel, *arrays)
    assert report.completed
    assert not report.findings, report


def scaled(dtype):
    @T.prim_func
    def kernel(
        X: T.Buffer((N,), dtype),
        S: T.Buffer((N,), "float32"),
        Y: T.Buffer((N,), dtype),
        Z: T.Buffer((N,), "float16"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N // 2])
        pair = T.alloc_local((2,), dtype)
        tile = T.alloc_shared((N,), dtype)
        for i in T.serial(2):
            pair[i] = X[tid * 2 + i]
        for i in T.serial(2):
            tile[tid * 2 + i] = T.cast(T.cast(pair[i], "float32") * S[tid * 2 + i], dtype)
        T.cuda.cta_sync()
        Y[tid] = tile[tid]
        Y[tid + N // 2] = tile[tid + N // 2]
        if tid == 5:
            Y[tid] = T.cast(T.float32(1.3), dtype)
        if tid == 6:
            Y[tid] = pair[1]
        for i in T.serial(2):
            Z[tid * 2 + i] = T.cast(pair[i], "float16")

    return kernel


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("as_bits", [False, True])
def test_stored_eight_bit_floats(dtype, as_bits):
    """CUDA's constructors of 8-bit floats round to nearest even and saturate; torch does not."""
    kind, largest = EIGHT_BITS[dtype]
    torch.manual_seed(3)
    x, s = torch.randn(N).to(kind), torch.randn(N) * 300
    y, z = torch.zeros(N).to(kind), torch.zeros(N, dtype=torch.float16)
    if as_bits:  # NumPy has no such type: its bits stand for it
        silent(scaled(dtype), *(t.view(torch.uint8).numpy() for t in (x,)), s,
               y.view(torch.uint8).numpy(), z)  # fmt: skip
    else:
        silent(scaled(dtype), x, s, y, z)
    wanted = (x.float() * s).clamp(-largest, largest).to(kind).float()
    wanted[5] = torch.tensor(1.3).to(kind).float()
    wanted[6] = x.float()[13]
    torch.testing.assert_close(y.float(), wanted, rtol=0, atol=0)
    torch.testing.assert_close(z.float(), x.float(), rtol=0, atol=0)


def test_arithmetic_on_eight_bit_floats_is_refused():
    """CUDA has no operators for them."""

    @T.prim_func
    def kernel(X: T.Buffer((N,), "float8_e4m3fn"), Y: T.Buffer((N,), "float8_e4m3fn")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid] = X[tid] * X[tid]

    with pytest.raises(sim.Unsupported, match=r"arithmetic on float8_e4m3fn \(at .*:\d+\)"):
        sim.compile(kernel)


def test_types_that_are_not_modelled_are_named():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "float4_e2m1fn"), Y: T.Buffer((N,), "float4_e2m1fn")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N])
        Y[tid] = X[tid]

    with pytest.raises(sim.Unsupported, match="numbers of the type float4_e2m1fn"):
        sim.compile(kernel)


def test_vectors_as_elements():
    @T.prim_func
    def kernel(
        X: T.Buffer((2 * N,), "uint32"),
        Y: T.Buffer((2 * N,), "float32"),
        F: T.Buffer((2 * N,), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([N // 2])
        fours = T.decl_buffer((N // 2,), "uint32x4", data=X.data, scope="global")
        sums = T.decl_buffer((N // 2,), "float32x4", data=Y.data, scope="global")
        pairs = T.decl_buffer((N,), "float32x2", data=F.data, scope="global")
        tile = T.alloc_shared((N // 2,), "uint32x4")
        held = T.alloc_local((2,), "uint32x4")
        held[0] = fours[tid]
        held[1] = held[0] + held[0]
        tile[tid] = held[1]
        T.cuda.cta_sync()
        other: T.uint32x4 = tile[N // 2 - 1 - tid]
        sums[tid] = T.cast(other, "float32x4")
        if tid % 3 == 1:
            squares = T.alloc_local((2,), "float32x2")
            for i in T.unroll(2):
                squares[i] = pairs[tid * 2 + i] * pairs[tid * 2 + i]
            for i in T.unroll(2):
                pairs[tid * 2 + i] = squares[1 - i]

    x = np.arange(2 * N, dtype=np.uint32)
    y, f = np.zeros(2 * N, np.float32), np.random.default_rng(1).random(2 * N).astype(np.float32)
    wanted = f.reshape(-1, 2, 2).copy()
    wanted[1::3] = (wanted * wanted)[1::3, ::-1]
    silent(kernel, x, y, f)
    np.testing.assert_array_equal(y.reshape(-1, 4), 2 * x.reshape(-1, 4)[::-1])
    np.testing.assert_array_equal(f.reshape(-1, 2, 2), wanted)


def test_registers_seen_as_one_of_128_bits():
    @T.prim_func
    def kernel(X: T.Buffer((512,), "uint32"), Y: T.Buffer((512,), "uint32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([64])
        words = T.alloc_local((8,), "uint32")
        wide = words.view("uint128")
        tile = T.alloc_shared((512,), "uint32")
        for i in T.unroll(2):
            T.ptx.ld.global_.b128(wide[i], T.address_of(X[tid * 8 + 4 * i]))
        for i in T.unroll(8):
            words[i] = words[i] + T.uint32(i)
        for i in T.unroll(2):
            into = T.cuda.cvta_generic_to_shared(T.address_of(tile[tid * 8 + 4 * i]))
            T.ptx.st.shared__cta.b128(into, wide[1 - i])
        T.cuda.cta_sync()
        for i in T.unroll(8):
            Y[tid * 8 + i] = tile[(63 - tid) * 8 + i]

    x = np.random.default_rng(2).integers(0, 1 << 31, 512).astype(np.uint32)
    y = np.zeros(512, np.uint32)
    silent(kernel, x, y)
    sums = x.reshape(64, 2, 4) + np.arange(8, dtype=np.uint32).reshape(2, 4)
    np.testing.assert_array_equal(y.reshape(64, 2, 4), sums[::-1, ::-1])


def test_discard_leaves_nothing_to_rely_on():
    @T.prim_func
    def kernel(X: T.Buffer((N,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        if tid < 2:
            T.ptx.discard.global_.L2(T.address_of(X[tid * 64]))

    x = np.arange(N, dtype=np.int32)
    silent(kernel, x)
    rows = x.reshape(-1, 32)
    np.testing.assert_array_equal(rows[[1, 3, 4, 5, 6, 7]],
                                  np.arange(N).reshape(-1, 32)[[1, 3, 4, 5, 6, 7]])  # fmt: skip
    assert (rows[[0, 2]] != np.arange(N).reshape(-1, 32)[[0, 2]]).all()
