"""What kernels take: open shapes, numbers, raw pointers, tensor maps that a caller encodes."""
# pyright: reportInvalidTypeForm=false
# (The annotations of kernels are TVMScript's.)

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm.script import tirx as T

import mlsys_gpu as mg
from mlsys_gpu import lowering, sim, tensormap
from mlsys_gpu.parameters import ArgumentError

# -------------------------------------------------------------------------- shapes and numbers


@T.prim_func
def scaled(a: T.handle, b: T.handle, n: T.int32, scale: T.float32, add: T.int64, keep: T.bool):
    m = T.int32()
    A = T.match_buffer(a, (m, n), "float32")
    B = T.match_buffer(b, (2 * m, n), "float32")
    T.device_entry()
    row = T.cta_id([m])
    tid = T.thread_id([64])
    if tid < n:
        B[2 * row, tid] = A[row, tid] * scale + T.cast(add, "float32")
        if keep:
            B[2 * row + 1, tid] = A[row, tid]


@pytest.mark.parametrize("m", [1, 3, 70])
@pytest.mark.parametrize("n", [1, 33, 64])
def test_one_program_for_all_shapes(m, n):
    A = np.random.default_rng(m).standard_normal((m, n)).astype(np.float32)
    B = np.full((2 * m, n), -1, np.float32)
    report = sim.simulate(scaled, A, B, n, 0.3, 7, m % 2 == 0)
    assert report.ok, str(report)
    assert report.launch["grid"] == [m, 1, 1]
    np.testing.assert_array_equal(B[::2], A * np.float32(0.3) + np.float32(7))
    np.testing.assert_array_equal(B[1::2], A if m % 2 == 0 else np.full_like(A, -1))


def test_numbers_come_as_pythons_or_numpys():
    A, B = np.ones((2, 4), np.float32), np.zeros((4, 4), np.float32)
    kinds = [
        (4, 2, 1, False),
        (np.int64(4), np.float64(2), np.int8(1), np.bool_(False)),
        (np.array(4), np.float16(2), np.uint16(1), 0),
    ]
    for values in kinds:
        B[...] = 0
        for entry in (mg.simulate, mg.run, sim.simulate):
            report: Any = entry(scaled, A, B, *values)
            assert report.ok
            np.testing.assert_array_equal(B[::2], 3)


A, B = np.ones((2, 4), np.float32), np.zeros((4, 4), np.float32)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((A, B, 5, 1.0, 1, True), r"A has shape \(2, 4\), but the kernel takes \(m, n\), here "
         r"\(2, 5\) \(n = 5 from an argument\)"),
        ((A, B[:3], 4, 1.0, 1, True), r"B has shape \(3, 4\).*\(\(2 \* m\), n\), here \(4, 4\) "
         r"\(m = 2 from A.shape\[0\]\)"),
        ((A.ravel(), B, 4, 1.0, 1, True), r"A has shape \(8,\), but the kernel takes \(m, n\)"),
        ((A, B, 4.5, 1.0, 1, True), "n is 4.5, but must be an integer"),
        ((A, B, "4", 1.0, 1, True), "n is a str, but must be a number"),
        ((A, B, None, 1.0, 1, True), "n is None, but must be a number"),
        ((A, B, 1 << 31, 1.0, 1, True), "n is 2147483648, which int32 cannot hold"),
        ((A, B, 4, A, 1, True), r"scale is an array of shape \(2, 4\), but must be a number"),
        ((A, None, 4, 1.0, 1, True), "B is (None|a NoneType), but (must be an array|kernels take)"),
        ((A, B, 4, 1.0, 1), r"takes 6 arguments \(A, B, n, scale, add, keep\)"),
        ((A[:0], B[:0], 4, 1.0, 1, True), "the grid has 0 CTAs along x"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("entry", [mg.simulate, sim.simulate])
def test_what_does_not_fit_is_named(entry, arguments, said):
    with pytest.raises(ArgumentError, match=said):
        entry(scaled, *arguments)


def test_an_empty_array_where_the_shape_is_open():
    @T.prim_func
    def count(x: T.handle, Y: T.Buffer((32,), "int32")):
        n = T.int32()
        T.match_buffer(x, (n,), "float16")
        T.device_entry()
        _cta = T.cta_id([1])
        tid = T.thread_id([32])
        Y[tid] = n

    Y = np.zeros(32, np.int32)
    assert mg.simulate(count, np.zeros(0, np.float16), Y).ok
    np.testing.assert_array_equal(Y, 0)
    assert mg.simulate(count, np.zeros(9, np.float16), Y).ok
    np.testing.assert_array_equal(Y, 9)


def test_uniform_numbers_stay_exact():
    """64-bit integers and float32 values reach the kernel bit for bit."""

    @T.prim_func
    def give(X: T.Buffer((32,), "int64"), Y: T.Buffer((32,), "float32"), a: T.int64, b: T.float32):
        T.device_entry()
        _cta = T.cta_id([1])
        tid = T.thread_id([32])
        X[tid] = a + T.cast(tid, "int64")
        Y[tid] = b

    X, Y = np.zeros(32, np.int64), np.zeros(32, np.float32)
    big = -(1 << 62) + 12345
    assert mg.simulate(give, X, Y, big, 0.1).ok
    np.testing.assert_array_equal(X, big + np.arange(32))
    np.testing.assert_array_equal(Y, np.float32(0.1))


# ------------------------------------------------------------------------ pointers and aliasing


def test_raw_pointers():
    @T.prim_func
    def add(x: T.handle("float32"), y: T.handle("float32")):
        T.device_entry()
        _cta = T.cta_id([1])
        tid = T.thread_id([32])
        X = T.decl_buffer((64,), "float32", data=x)
        Y = T.decl_buffer((32,), "float32", data=y)
        Y[tid] = X[tid] + X[tid + 32]

    x, y = np.arange(64, dtype=np.float32), np.zeros(32, np.float32)
    assert mg.simulate(add, x, y).ok
    np.testing.assert_array_equal(y, x[:32] + x[32:])
    report = mg.simulate(add, None, y)
    assert [f.code for f in report.findings] == ["out-of-bounds"]


def test_arrays_that_share_memory_are_one_tensor():
    @T.prim_func
    def shift(X: T.Buffer((64,), "int32"), Y: T.Buffer((32,), "int32")):
        T.device_entry()
        _cta = T.cta_id([1])
        tid = T.thread_id([32])
        Y[tid] = Y[tid] + 100
        X[tid] = X[tid + 32] + 1

    whole = np.arange(64, dtype=np.int32)
    assert sim.simulate(shift, whole, whole[32:]).ok
    np.testing.assert_array_equal(whole[32:], np.arange(32, 64) + 100)
    np.testing.assert_array_equal(whole[:32], np.arange(32, 64) + 101)
    part = np.arange(64, dtype=np.int32)
    views = part[:64], part[32:]
    assert sim.simulate(shift, *views).ok
    np.testing.assert_array_equal(part, whole)


def test_shared_memory_goes_by_what_the_kernel_writes():
    @T.prim_func
    def spread(X: T.Buffer((4, 32), "float32"), Y: T.Buffer((128,), "float32"), last: T.int32):
        T.device_entry()
        row = T.cta_id([4])
        tid = T.thread_id([32])
        if row < last:
            Y[row * 32 + tid] = X[(row + 1) % 4, tid] + T.float32(1)

    x = np.zeros((4, 32), np.float32)
    report = mg.simulate(spread, x, x.reshape(-1), 4)
    assert "wrote Y: 128 of 128 elements" in str(report)
    # that another CTA reads what one writes is seen through both names
    assert [f.code for f in report.findings] == ["race-global"]
    assert "tensor Y" in str(report)
    assert "X" not in report.findings[0].message
    assert mg.simulate(spread, np.zeros_like(x), x.reshape(-1), 4).ok


def test_reads_of_a_tensor_behind_a_number_meet_its_writes():
    @T.prim_func
    def turned(n: T.int32, Y: T.Buffer((4, 32), "float32")):
        T.device_entry()
        row = T.cta_id([4])
        tid = T.thread_id([32])
        Y[row, tid] = Y[(row + n) % 4, tid] + T.float32(1)

    assert mg.simulate(turned, 0, np.zeros((4, 32), np.float32)).ok
    report = mg.simulate(turned, 1, np.zeros((4, 32), np.float32))
    assert [f.code for f in report.findings] == ["race-global"]


# ------------------------------------------------------------------------------- tensor maps

LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
TILE = (16, 32)


@T.prim_func
def tile(src: T.TensorMap(), dst: T.TensorMap(), row: T.int32, column: T.int32):
    T.device_entry()
    _cta = T.cta_id([1])
    tid = T.thread_id([32])
    pool = T.SMEMPool()
    s = pool.alloc(TILE, "float16", align=128)
    bar = pool.alloc((1,), "uint64", align=8)
    pool.commit()
    if tid == 0:
        T.ptx.mbarrier.init.shared.b64(T.cuda.cvta_generic_to_shared(T.address_of(bar[0])), 1)
        T.ptx.fence.mbarrier_init.release.cluster()
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(
            T.cuda.cvta_generic_to_shared(T.address_of(bar[0])), TILE[0] * TILE[1] * 2
        )
        T.ptx[LOAD](
            T.address_of(s[0, 0]),
            T.address_of(src),
            column,
            row,
            T.cuda.cvta_generic_to_shared(T.address_of(bar[0])),
        )
        T.cuda.mbarrier_wait(T.cuda.cvta_generic_to_shared(T.address_of(bar[0])), 0)
        T.ptx[STORE](T.address_of(dst), column, row, T.address_of(s[0, 0]))
        T.ptx.cp.async_.bulk.commit_group()
        T.ptx.cp.async_.bulk.wait_group(0)


def matrices(dtype=np.float16):
    source = np.arange(48 * 64).reshape(48, 64).astype(dtype)
    return source, np.full((48, 64), -1, dtype)


def moved(source, row, column):
    expected = np.full_like(source, -1)
    expected[row : row + 16, column : column + 32] = source[row : row + 16, column : column + 32]
    return expected


@pytest.mark.parametrize("place", [(0, 0), (16, 32), (40, 40)])
def test_a_map_on_an_array(place):
    source, out = matrices()
    maps = [mg.TensorMap(x, box=(32, 16)) for x in (source, out)]
    report = mg.simulate(tile, *maps, *place)
    assert report.ok, str(report)
    np.testing.assert_array_equal(out, moved(source, *place))


def test_a_map_with_its_own_shape_and_strides():
    """Columns 32 to 63 of every second row, as a matrix of its own."""
    source, out = matrices()
    half = mg.TensorMap(source[:, 32:], box=(32, 16), shape=(32, 24), strides=(2 * 64 * 2,))
    report = mg.simulate(tile, half, mg.TensorMap(out, box=(32, 16)), 4, 0)
    assert report.ok, str(report)
    np.testing.assert_array_equal(out[4:20, :32], source[8:40:2, 32:])


_STORAGE = []


def encode(tensor, box, **change):
    """As host code for GPUs does it: storage, and TVM's encoder on the data pointer."""
    storage = ctypes.create_string_buffer(192)
    pointer = ctypes.c_void_p((ctypes.addressof(storage) + 63) // 64 * 64)
    rows, columns = tensor.shape
    fields = {"shape": (columns, rows), "strides": (columns * 2,), "codes": (0, 0, 2, 0)} | change
    tvm.get_global_func("runtime.cuTensorMapEncodeTiled")(
        pointer, "float16", 2, ctypes.c_void_p(tensor.ctypes.data), *fields["shape"],
        *fields["strides"], *box, 1, 1, *fields["codes"],
    )  # fmt: skip
    _STORAGE.append(storage)
    return pointer


def test_host_code_that_encodes_maps_runs_unchanged():
    source, out = matrices()
    with tensormap.host_encoding():
        pointers = [encode(x, (32, 16)) for x in (source, out)]
        report = mg.simulate(tile, *pointers, 8, 16)
    assert report.ok, str(report)
    np.testing.assert_array_equal(out, moved(source, 8, 16))
    assert {"source", "out"} & set(report.coverage)  # by the names that the caller has for them
    copied = [np.frombuffer(ctypes.string_at(p, 128), np.uint8) for p in pointers]
    out[...] = -1
    assert mg.simulate(tile, *copied, 0, 0).ok
    np.testing.assert_array_equal(out, moved(source, 0, 0))


def test_maps_keep_their_arrays_alive():
    def build():
        source, out = matrices()
        return [encode(x, (32, 16)) for x in (source, out)]

    with tensormap.host_encoding():
        pointers = build()
        _others = [np.full((48, 64), 7, np.float16) for _ in range(8)]
        source, out = (tensormap.decode(p).memory.owner for p in pointers)
        assert mg.simulate(tile, *pointers, 0, 0).ok
        np.testing.assert_array_equal(out, moved(source, 0, 0))


def test_a_tensor_and_a_map_on_it_are_one():
    @T.prim_func
    def both(X: T.Buffer((16, 32), "float16"), m: T.TensorMap(), Y: T.Buffer((16, 32), "float16")):
        T.device_entry()
        _cta = T.cta_id([1])
        tid = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((16, 32), "float16", align=128)
        pool.commit()
        for i in T.serial(16):
            s[i, tid] = X[i, tid] + T.float16(1)
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.warp_sync()
        if tid == 0:
            T.ptx[STORE](T.address_of(m), 0, 0, T.address_of(s[0, 0]))
            T.ptx.cp.async_.bulk.commit_group()
            T.ptx.cp.async_.bulk.wait_group(0)
        T.cuda.warp_sync()
        for i in T.serial(16):
            Y[i, tid] = X[i, tid]

    x = np.arange(512).reshape(16, 32).astype(np.float16)
    before, y = x.copy(), np.zeros_like(x)
    mg.simulate(both, x, mg.TensorMap(x, box=(32, 16)), y)
    np.testing.assert_array_equal(x, before + 1)
    np.testing.assert_array_equal(y, before + 1)


RULES = [
    ({"box": (32, 16), "dtype": "float4"}, "float4 have no tensor map data type"),
    ({"box": (8,) * 6, "shape": (8,) * 6, "strides": (16,) * 5}, "6 dimensions; a tensor map has"),
    ({"box": (32,)}, "1 box sizes for 2 dimensions; there must be 2"),
    ({"box": (32, 16), "strides": (2 * 64 + 8,)}, "stride of dimension 1 is 136 bytes"),
    ({"box": (32, 257)}, "box has 257 elements along dimension 1; it has 1 to 256"),
    ({"box": (32, 0)}, "box has 0 elements along dimension 1"),
    ({"box": (12, 16)}, "inner dimension is 24 bytes; it must be a multiple of 16"),
    ({"box": (64, 16), "swizzle": "64B"}, "inner dimension is 128 bytes, and this swizzle takes"),
    ({"box": (32, 16), "element_strides": (1, 9)}, "element stride of dimension 1 is 9"),
    ({"box": (32, 16), "interleave": "16B"}, "at least 3 dimensions"),
    ({"box": (32, 16), "swizzle": "256B"}, "swizzle is one of none, 32B"),
    ({"box": (32, 16), "swizzle": 9}, "swizzle code is 9"),
    ({"box": (32, 16), "dtype": "int16", "oob_fill": "nan"}, "int16 cannot be NaN"),
    ({"box": (32, 16), "shape": (64, 49)}, "reaches 6272 bytes .*the array holds 6144"),
]


@pytest.mark.parametrize(("fields", "said"), RULES, ids=[said for _, said in RULES])
def test_the_drivers_rules(fields, said):
    source, _ = matrices()
    with pytest.raises(ArgumentError, match=said):
        mg.TensorMap(source, **fields)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (None, "NumPy array or a torch tensor, not None"),
        ([[1, 2]], "not a list"),
        (np.float16(1), "not a float16"),
        ("x", "not a str"),
        (np.ndarray, "not a type"),
        (np.zeros((0, 64), np.float16), r"its shape \(0, 64\) has the size 0; each"),
        (torch.zeros((16, 0), dtype=torch.float16), r"its shape \(16, 0\) has the size 0"),
        (torch.zeros((16, 64), device="meta"), "strided tensor on meta"),
        (torch.zeros((16, 64)).to_sparse(), "torch.sparse_coo tensor on cpu"),
    ],
)
def test_what_no_map_is_made_of(array, said):
    with pytest.raises(ArgumentError, match=said):
        mg.TensorMap(array, box=(64, 16))


@pytest.mark.parametrize("what", ["box", "shape", "strides", "element_strides"])
@pytest.mark.parametrize(
    "value", [64, "64", b"64", (64.0, 16), (True, 16), ("64", 16), (None,), np.ones(2), {64: 16}]
)
def test_sizes_are_tuples_of_integers(what, value):
    source, _ = matrices()
    with pytest.raises(ArgumentError, match=f"^{what} is a tuple of integers, not .*[61N]"):
        mg.TensorMap(source, **{"box": (32, 16), what: value})


@pytest.mark.parametrize(
    "box", [[32, 16], np.array([32, 16]), (np.int8(32), 16), torch.Size([32, 16])]
)
def test_sizes_in_other_forms(box):
    assert mg.TensorMap(matrices()[0], box=box).record["box"] == [32, 16]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"swizzle": None}, "swizzle is one of none, .*, or the driver's code, not None"),
        ({"swizzle": True}, "or the driver's code, not True"),
        ({"interleave": 1.0}, "interleave is one of none, .*, not 1.0"),
        ({"oob_fill": ["nan"]}, r"oob_fill is one of zeros, nan, or .*, not \['nan'\]"),
        ({"l2_promotion": "512B"}, "l2_promotion is one of none, 64B, .*, not '512B'"),
        ({"l2_promotion": 9}, "L2 promotion code is 9; the driver has 0 to 3"),
        ({"dtype": np.float16}, "dtype is a name, such as 'float16', not <class"),
        ({"element_strides": ()}, "0 element strides for 2 dimensions"),
    ],
)
def test_options_of_a_map(option, said):
    with pytest.raises(ArgumentError, match=said):
        mg.TensorMap(matrices()[0], box=(32, 16), **option)


def test_a_map_that_starts_at_an_odd_address():
    source, _ = matrices()
    start = (-source.ctypes.data) % 16 // 2 + 3
    with pytest.raises(ArgumentError, match="which 16 does not divide"):
        mg.TensorMap(source.reshape(-1)[start:], box=(32,))


def test_what_is_no_map_is_refused():
    source, out = matrices()
    made = mg.TensorMap(out, box=(32, 16))
    for entry in (mg.simulate, sim.simulate):
        with pytest.raises(ArgumentError, match=r"src is None, but must be a tensor map"):
            entry(tile, None, made, 0, 0)
        with pytest.raises(ArgumentError, match=r"must be a tensor map: an mlsys_gpu.TensorMap"):
            entry(tile, ctypes.c_void_p(0x1000), made, 0, 0)
        with pytest.raises(ArgumentError, match="must be a tensor map"):
            entry(tile, source, made, 0, 0)
    with tensormap.host_encoding(), pytest.raises(Exception, match="takes 15 arguments, got"):
        encode(source, (32, 16, 1, 1, 1))
    with tensormap.host_encoding(), pytest.raises(Exception, match="TFLOAT32 are not modelled"):
        encode(source, (32, 16), codes=(0, 0, 2, 0, 11))


def test_a_machine_without_a_driver_gets_an_encoder():
    lowering.lower(tile)
    assert tvm.get_global_func("runtime.cuTensorMapEncodeTiled", allow_missing=True) is not None


@T.prim_func
def rows(x: T.handle, y: T.handle, row: T.int32):
    n = T.int32()
    X = T.match_buffer(x, (n, 64), "float16")
    Y = T.match_buffer(y, (n, 64), "float16")
    source: T.let[T.TensorMap()] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed(
        "runtime.cuTensorMapEncodeTiled", source, "float16", 2, X.data,
        64, n, 128, 32, 16, 1, 1, 0, 0, 0, 0,
    )  # fmt: skip
    target: T.let[T.TensorMap()] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed(
        "runtime.cuTensorMapEncodeTiled", target, "float16", 2, Y.data,
        64, n, 128, 32, 16, 1, 1, 0, 0, 0, 0,
    )  # fmt: skip
    T.device_entry()
    _cta = T.cta_id([1])
    tid = T.thread_id([32])
    pool = T.SMEMPool()
    s = pool.alloc(TILE, "float16", align=128)
    bar = pool.alloc((1,), "uint64", align=8)
    pool.commit()
    if tid == 0:
        T.ptx.mbarrier.init.shared.b64(T.cuda.cvta_generic_to_shared(T.address_of(bar[0])), 1)
        T.ptx.fence.mbarrier_init.release.cluster()
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(
            T.cuda.cvta_generic_to_shared(T.address_of(bar[0])), TILE[0] * TILE[1] * 2
        )
        T.ptx[LOAD](
            T.address_of(s[0, 0]),
            T.address_of(source),
            0,
            row,
            T.cuda.cvta_generic_to_shared(T.address_of(bar[0])),
        )
        T.cuda.mbarrier_wait(T.cuda.cvta_generic_to_shared(T.address_of(bar[0])), 0)
        T.ptx[STORE](T.address_of(target), 0, row, T.address_of(s[0, 0]))
        T.ptx.cp.async_.bulk.commit_group()
        T.ptx.cp.async_.bulk.wait_group(0)


@pytest.mark.parametrize(("n", "row"), [(16, 0), (48, 16), (20, 8)])
def test_maps_that_the_host_function_encodes_on_an_open_shape(n, row):
    source = np.arange(n * 64).reshape(n, 64).astype(np.float16)
    out = np.full_like(source, -1)
    report = mg.simulate(rows, source, out, row)
    assert report.ok, str(report)
    np.testing.assert_array_equal(out, moved(source, row, 0))


def test_a_host_map_that_breaks_a_rule():
    with pytest.raises(ArgumentError, match="no tensor map of X: dimension 1 has 0 elements"):
        mg.simulate(rows, np.zeros((0, 64), np.float16), np.zeros((0, 64), np.float16), 0)
