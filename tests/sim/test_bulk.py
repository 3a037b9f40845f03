"""Bulk copies against models of their own: TMA boxes, swizzles, reductions, groups, ``cp.async``.

The model of a box goes element by element. Element (e0, e1, …) of the box is the tensor's at
``start + e * step``; it lies at its linear place in shared memory, whose 16-byte chunks the swizzle
exchanges: chunk c of the 128-byte line l becomes chunk ``c ^ l % (swizzle / 16)`` (PTX ISA,
"Tensor Swizzling Modes").
"""

# Kernels are TVMScript: its parser gives names and annotations their meaning.
# pyright: reportUnboundVariable=false
# pyright: reportInvalidTypeForm=false
# (The annotations are TVMScript's.)

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T

import mlsys_gpu as mg
from mlsys_gpu import sim
from mlsys_gpu.sim.machine import run as run_machine

from . import warps
from .warps import only

SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", n) for n in range(4)]
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
DTYPES: list[Any] = [np.uint8, np.float16, np.int32, np.float32, np.uint64]
NAN = {np.dtype(np.float16), np.dtype(np.float32)}


@pytest.fixture(params=SCHEDULES, ids=lambda s: f"{s[0]}-{s[1]}")
def schedule(request):
    return {"schedule": request.param[0], "seed": request.param[1]}


def swizzled(place: int, swizzle: int) -> int:
    """Where the swizzle puts the byte of a linear place."""
    line, chunk, byte = place // 128, place // 16 % 8, place % 16
    if swizzle:
        chunk ^= line % (swizzle // 16)
    return 128 * line + 16 * chunk + byte


def placed(byte: int, row: int, swizzle: int) -> int:
    """Where byte ``byte`` of a box lies whose rows have ``row`` bytes: with a swizzle each row
    begins a row of the swizzle (so on an H200: the vectors of "tensor copies")."""
    return swizzled(byte // row * max(row, swizzle) + byte % row, swizzle)


def elements(extent):
    """Coordinates of a box's elements, innermost dimension first, in the order of their places."""
    return (e[::-1] for e in itertools.product(*(range(n) for n in reversed(extent))))


def a_box(rng, rank=None):
    """A random tensor, and a box of it that may stick out on any side."""
    rank = int(rng.integers(1, 6)) if rank is None else rank
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    swizzle = int(rng.choice([0, 0, 32, 64, 128]))
    most = swizzle or int(rng.choice([16, 32, 48, 96]))
    row = int(rng.integers(1, most // 16 + 1)) * 16  # bytes along the innermost dimension
    box = [row // dtype.itemsize]
    steps = [int(rng.integers(1, 4))]  # without effect along the innermost dimension
    limit = 256
    for _ in range(rank - 1):
        box.append(int(rng.integers(1, max(2, min(5, limit)))))
        limit //= box[-1]
        steps.append(int(rng.choice([1, 1, 2, 3])))
    shape = [max(1, b + int(rng.integers(-2, 6))) for b in box]
    pitch = -(-shape[0] * dtype.itemsize // 16) * 16 + 16 * int(rng.integers(0, 2))
    padded = [*shape[:0:-1], pitch // dtype.itemsize]
    tensor = rng.integers(0, 100, padded).astype(dtype)
    coords = [int(rng.integers(-2, n)) for n in shape]
    record = {
        "box": box,
        "steps": steps,
        "shape": shape,
        "swizzle": SWIZZLES[swizzle],
        "fill": int(dtype in NAN and rng.integers(2)),
    }
    extent = [box[0], *(-(-b // s) for b, s in zip(box[1:], steps[1:], strict=True))]
    return tensor, record, coords, extent, [1, *steps[1:]]


def index(element, coords, steps, shape):
    """The tensor's index of a box's element, outermost first; None outside the tensor."""
    at = [c + e * s for c, e, s in zip(coords, element, steps, strict=True)]
    inside = all(0 <= a < n for a, n in zip(at, shape, strict=True))
    return tuple(reversed(at)) if inside else None


@pytest.mark.parametrize("seed", range(60))
def test_a_load_of_a_random_box(seed):
    rng = np.random.default_rng(seed)
    tensor, record, coords, extent, steps = a_box(rng)
    nbytes = int(np.prod(extent)) * tensor.itemsize
    dtype, swizzle = tensor.dtype, {v: k for k, v in SWIZZLES.items()}[record["swizzle"]]
    row = extent[0] * tensor.itemsize
    got = np.zeros(-(-nbytes // row * max(row, swizzle) // 1024) * 1024, np.uint8)
    expected = np.zeros_like(got)
    for i, element in enumerate(elements(extent)):
        at = index(element, coords, steps, record["shape"])
        fill = np.nan if record["fill"] else 0
        value = np.array([fill if at is None else tensor[at]], dtype).view(np.uint8)
        for b in range(dtype.itemsize):
            expected[placed(i * dtype.itemsize + b, row, swizzle)] = value[b]
    report = warps.run(
        f"""
        X, Y, m = w.machine.pointers
        mbarrier_init(w, SB, 1)
        mbarrier_arrive(w, SB, 1, {nbytes}, mask=True)
        tma_load(w, SB + 1024, m, {coords}, SB, mask=True)
        await mbarrier_wait(w, SB, 0)
        for i in range({nbytes // 16}):
            place = {[placed(16 * i, row, swizzle) for i in range(nbytes // 16)]}[i]
            st_global(w, Y + place, ld_shared(w, SB + 1024 + place, 4, 4), 4, 4)
        """,
        shared=1024 + got.size,
        tensors=[("X", tensor), ("Y", got)],
        maps=[record],
        schedule=["eager", "lazy", "seeded"][seed % 3],
        seed=seed,
    )
    assert not report.findings, report
    nan = record["fill"] == 1
    if nan:  # which NaN is the driver's business
        assert np.array_equal(np.isnan(got.view(dtype)), np.isnan(expected.view(dtype)))
        outside = np.isnan(expected.view(dtype))
        assert np.array_equal(got.view(dtype)[~outside], expected.view(dtype)[~outside])
    else:
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("seed", range(40))
def test_a_store_of_a_random_box(seed):
    rng = np.random.default_rng(1000 + seed)
    tensor, record, coords, extent, steps = a_box(rng)
    record["fill"] = 0
    coords = [
        max(0, c) for c in coords
    ]  # the others fault: test_boxes_that_begin_where_a_gpu_faults
    dtype, swizzle = tensor.dtype, {v: k for k, v in SWIZZLES.items()}[record["swizzle"]]
    nbytes = int(np.prod(extent)) * dtype.itemsize
    source = rng.integers(0, 100, -(-nbytes // dtype.itemsize)).astype(dtype)
    row = extent[0] * dtype.itemsize
    held = np.zeros(-(-nbytes // row * max(row, swizzle) // 128) * 128, np.uint8)
    for i, byte in enumerate(source.view(np.uint8)):
        held[placed(i, row, swizzle)] = byte
    expected = tensor.copy()
    reduce = str(rng.choice(["", "add", "max"])) if dtype in (np.int32, np.uint64) else ""
    combine = {"": lambda a, b: b, "add": lambda a, b: a + b, "max": max}[reduce]
    shape = list(record["shape"])
    # the rest of a row's last 16 bytes is written, too: so on an H200
    shape[0] = -(-shape[0] * dtype.itemsize // 16) * 16 // dtype.itemsize
    for i, element in enumerate(elements(extent)):
        at = index(element, coords, steps, shape)
        if at is not None:
            expected[at] = combine(expected[at], source[i])
    report = warps.run(
        f"""
        X, Y, m = w.machine.pointers
        for i in range({held.size // 16}):
            st_shared(w, SB + 1024 + 16 * i, ld_global(w, Y + 16 * i, 4, 4), 4, 4)
        fence_proxy_async(w)
        tma_store(w, m, {coords}, SB + 1024, "{reduce}", mask=0)
        bulk_commit(w, mask=0)
        bulk_wait(w, 0, {bool(seed % 2)}, mask=0)
        """,
        shared=1024 + held.size,
        tensors=[("X", tensor), ("Y", held)],
        maps=[record],
        schedule=["eager", "lazy", "seeded"][seed % 3],
        seed=seed,
    )
    assert not report.findings, report
    assert np.array_equal(tensor, expected)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("tma_store(w, m, [0, -1], SB + 1024, mask=0)", "with a negative one a GPU faults"),
        ('tma_store(w, m, [-4, 0], SB + 1024, "add", mask=0)', "with a negative one a GPU faults"),
        ("tma_load(w, SB + 1024, m, [6, 0], SB, mask=True)", "coordinate 6 of the innermost"),
        ("tma_load(w, SB + 1024, m, [-1, 0], SB, mask=True)", "coordinate -1 of the innermost"),
    ],
)
def test_boxes_that_begin_where_a_gpu_faults(call, what):
    body = f"""
    X, m = w.machine.pointers
    mbarrier_init(w, SB, 1)
    mbarrier_arrive(w, SB, 1, 512, mask=True)
    {call}
    """
    program = warps.program(
        body, shared=2048, tensors=[("X", np.zeros((4, 32), np.int32))], maps=[TILE]
    )
    program = replace(program, arch="sm_90a")
    report = run_machine(
        program, [np.zeros((4, 32), np.int32)], schedule="eager", seed=0, checks=True
    )
    finding = only(report)
    assert (finding.code, finding.location.line) == ("tma-operand", 4)
    assert what in finding.message


def test_four_rows_at_once(schedule):
    """gather4 and scatter4: one column and four rows, one of them outside, two of them the same."""
    X, Y = np.arange(20 * 32, dtype=np.int32).reshape(20, 32), np.zeros((20, 32), np.int32)
    box = {"box": [8, 1], "swizzle": 1}
    report = warps.run(
        """
        m, n = w.machine.pointers[2:]
        mbarrier_init(w, SB, 1)
        mbarrier_arrive(w, SB, 1, 128, mask=True)
        tma_load(w, SB + 1024, m, [4, 7, 2, 20, 7], SB, mask=True, rows=True)
        await mbarrier_wait(w, SB, 0)
        tma_store(w, n, [26, 1, 19, 0, 5], SB + 1024, mask=0, rows=True)
        bulk_commit(w, mask=0)
        bulk_wait(w, 0, False, mask=0)
        """,
        shared=2048,
        tensors=[("X", X), ("Y", Y)],
        maps=[box, {**box, "tensor": 1}],
        **schedule,
    )
    assert not report.findings, report
    expected = np.zeros((20, 32), np.int32)
    for row, values in ((1, X[7]), (19, X[2]), (0, 0 * X[0]), (5, X[7])):
        expected[row, 26:32] = values[4:10]
    assert np.array_equal(Y, expected)


PAIR: dict[str, Any] = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}
TILE = {"box": [32, 4]}


def test_a_multicast_completes_in_every_cta(schedule):
    X, Y = np.arange(4 * 32, dtype=np.int32).reshape(4, 32), np.zeros((2, 32), np.int32)
    report = warps.run(
        """
        m = w.machine.pointers[2]
        mbarrier_init(w, SB, 1)
        fence_mbarrier_init(w)
        await cluster_sync(w)
        mbarrier_arrive(w, SB, 1, 512, mask=True)
        if w.rank == 1: tma_load(w, SB + 1024, m, [0, 0], SB, 3, mask=True)
        await mbarrier_wait(w, SB, 0)
        row = ld_shared(w, SB + 1024 + 128 * (2 + w.rank) + 4 * w.lanes, 4, 1)
        st_global(w, w.machine.pointers[1] + 128 * w.rank + 4 * w.lanes, row, 4, 1)
        await cluster_sync(w)
        """,
        shared=2048,
        tensors=[("X", X), ("Y", Y)],
        maps=[TILE],
        **PAIR,
        **schedule,
    )
    assert not report.findings, report
    assert np.array_equal(Y, X[2:])


@pytest.mark.parametrize("cast", [False, True])
def test_a_pair_completes_on_its_leaders_barrier(cast, schedule):
    """cta_group::2: the barrier of rank 0, whose bit 24 is clear, counts the bytes of both CTAs."""
    X = np.arange(8 * 32, dtype=np.int32).reshape(8, 32)
    report = warps.run(
        f"""
        m = w.machine.pointers[1]
        mbarrier_init(w, SB, 1)
        fence_mbarrier_init(w)
        await cluster_sync(w)
        leader = SB & 0xFEFFFFFF
        if w.rank == 0: mbarrier_arrive(w, SB, 1, 1024, mask=True)
        if {cast}:
            if w.rank == 1: tma_load(w, SB + 1024, m, [0, 4], leader, 3, mask=True, pair=True)
        else:
            tma_load(w, SB + 1024, m, [0, 4 * w.rank], leader, mask=True, pair=True)
        if w.rank == 0:
            t = mbarrier_wait(w, SB, 0)
            if t is not None: yield t
        await cluster_sync(w)
        w.machine.counters[w.rank] = int(ld_shared(w, SB + 1024 + 4 * w.lanes, 4, 1).sum())
        await cluster_sync(w)
        """,
        shared=2048,
        tensors=[("X", X)],
        maps=[TILE],
        **PAIR,
        **schedule,
    )
    assert not report.findings, report
    first, second = int(X[0].sum()), int(X[4].sum())
    assert report.counters[0] == (second if cast else first)
    assert report.counters[1] == second


LOAD = "tma_load(w, SB + {at}, m, {coords}, SB{more}, mask={mask})"


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"at": 1024 + 64}, "misaligned", "byte 1088, which 128 does not divide"),
        ({"at": 1024 + 128, "swizzle": 3}, "misaligned", "the 128B swizzle repeats every 1024"),
        ({"at": 1024 + 256, "swizzle": 2, "box": [16, 16]}, "misaligned", "which 512 does not"),
        ({"at": 2048 + 1024}, "out-of-bounds", "beyond the CTA's 3072"),
        ({"coords": [0]}, "tma-operand", "1 coordinates through a tensor map of 2 dimensions"),
        ({"mask": None}, "divergent-collective", "issued by 32 threads of the warp"),
        ({"more": ", 2"}, "out-of-bounds", "the multicast mask 0x2 names CTAs outside"),
        ({"coords": [0, 1, 2, 3, 4], "rows": True}, "tma-operand", "whose box is [32, 16]"),
        ({"map": "w.machine.pointers[0]"}, "out-of-bounds", "is no tensor map"),
    ],
)  # fmt: skip
def test_operands_that_a_load_cannot_take(fields, code, words):
    line = LOAD.format(**{"at": 1024, "coords": [0, 0], "more": "", "mask": 0} | fields)
    if fields.get("rows"):
        line = line[:-1] + ", rows=True)"
    report = warps.run(
        f"""
        m = {fields.get("map", "w.machine.pointers[1]")}
        mbarrier_init(w, SB, 1)
        {line}
        """,
        shared=3072,
        tensors=[("X", np.zeros((64, 64), np.int32))],
        maps=[{"box": fields.get("box", [32, 16]), "swizzle": fields.get("swizzle", 0)}],
    )
    finding = report.findings[0]
    assert (finding.code, finding.location.line) == (code, 3)
    assert words in finding.message
    assert not report.completed


def test_a_small_tile_may_be_a_part_of_a_swizzled_one():
    """Four rows of 128 bytes start at any multiple of their 512; the pattern is the address's."""
    X, Y = np.arange(4 * 32, dtype=np.int32).reshape(4, 32), np.zeros(1024, np.uint8)
    report = warps.run(
        """
        mbarrier_init(w, SB, 1)
        mbarrier_arrive(w, SB, 1, 512, mask=True)
        tma_load(w, SB + 1024 + 512, w.machine.pointers[2], [0, 0], SB, mask=True)
        await mbarrier_wait(w, SB, 0)
        for i in range(4):
            line = ld_shared(w, SB + 1536 + 128 * i + 4 * w.lanes, 4, 1)
            st_global(w, w.machine.pointers[1] + 512 + 128 * i + 4 * w.lanes, line, 4, 1)
        """,
        shared=2048,
        tensors=[("X", X), ("Y", Y)],
        maps=[{"box": [32, 4], "swizzle": 3}],
    )
    assert not report.findings, report
    for place in range(512):
        assert Y[swizzled(512 + place, 128)] == X.view(np.uint8).reshape(-1)[place]


@pytest.mark.parametrize(("interleave", "swizzle"), [(1, 0), (2, 1), (0, 4), (0, 5), (0, 6)])
def test_layouts_that_are_refused_by_name(interleave, swizzle):
    record = {"box": [8, 4, 4], "interleave": interleave, "swizzle": swizzle}
    name = {1: "interleaved by 16 B", 2: "interleaved by 32 B", 4: "128B_ATOM_32B"}
    words = name.get(interleave or swizzle, "128B_ATOM")
    with pytest.raises(sim.Unsupported, match=words):
        warps.run("pass", tensors=[("X", np.zeros((8, 8, 16), np.float16))], maps=[record])


def test_the_driver_refuses_a_map_before_anything_runs():
    with pytest.raises(ValueError, match="this swizzle takes at most 128"):
        warps.run(
            "pass",
            tensors=[("X", np.zeros((8, 128), np.float16))],
            maps=[{"box": [128, 4], "swizzle": 3}],
        )
    with pytest.raises(ValueError, match="strides are multiples of 16"):
        warps.run("pass", tensors=[("X", np.zeros((8, 9), np.float16))], maps=[{"box": [8, 4]}])


def test_an_mbarrier_of_another_cta_needs_a_pair():
    report = warps.run(
        """
        mbarrier_init(w, SB, 1)
        fence_mbarrier_init(w)
        await cluster_sync(w)
        m, leader = w.machine.pointers[1], mapa(w, SB, 0)
        if w.rank == 1: tma_load(w, SB + 1024, m, [0, 0], leader, mask=0)
        await cluster_sync(w)
        """,
        shared=2048,
        tensors=[("X", np.zeros((4, 32), np.int32))],
        maps=[TILE],
        **PAIR,
    )
    finding = only(report)
    assert (finding.code, finding.location.line) == ("tma-operand", 5)
    assert "CTA rank 1 and completes on an mbarrier of CTA rank 0" in finding.message


def test_a_copy_that_nobody_waits_for(schedule):
    body = """
        mbarrier_init(w, SB, 1)
        for k in range({loads}):
            mbarrier_arrive(w, SB, 1, 512, mask=True)
            tma_load(w, SB + 1024, w.machine.pointers[1], [0, 0], SB, mask=0)
            if k < 2:
                t = mbarrier_wait(w, SB, k % 2)
                if t is not None: yield t
    """
    launch: dict[str, Any] = {
        "shared": 2048, "tensors": [("X", np.zeros((4, 32), np.int32))], "maps": [TILE],
    }  # fmt: skip
    assert not warps.run(body.format(loads=2), **launch, **schedule).findings
    finding = only(warps.run(body.format(loads=3), **launch, **schedule))
    assert (finding.code, finding.location.line) == ("in-flight-at-exit", 4)


# ---------------------------------------------------------------------------------- bulk copies


REDUCTIONS = {
    "add": lambda a, b: a + b,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda a, b: np.where(a >= b, 0, a + 1),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - 1),
}
CASES = [
    *((how, np.uint32) for how in REDUCTIONS),
    *((how, t) for how in ("add", "min", "max") for t in (np.int32, np.uint64, np.int64)),
    *((how, np.float16) for how in ("add", "min", "max")),
    ("add", np.float32),
    ("add", np.float64),
]


@pytest.mark.parametrize(("how", "dtype"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_reductions_into_global_memory(how, dtype, schedule):
    """Two CTAs reduce into the same 256 bytes; the operations used here commute."""
    rng = np.random.default_rng(3)
    n, whole = 256 // np.dtype(dtype).itemsize, np.dtype(dtype).kind in "iu"
    low = -50 if np.dtype(dtype).kind in "if" else 0
    Y = rng.integers(low, 50, n).astype(dtype)
    parts = rng.integers(low, 50, (2, n)).astype(dtype)
    if how in ("inc", "dec"):
        parts[1] = parts[0]
    expected = Y.copy()
    for part in parts:
        expected = REDUCTIONS[how](expected, part).astype(dtype)
    assert whole or np.array_equal(expected, np.round(expected))  # exact: small whole numbers
    report = warps.run(
        f"""
        X, Y = w.machine.pointers
        for i in range(16):
            st_shared(w, SB + 1024 + 16 * i, ld_global(w, X + 256 * bx + 16 * i, 4, 4), 4, 4)
        fence_proxy_async(w)
        bulk_store(w, Y, SB + 1024, 256, "{how}", "{np.dtype(dtype).name}", mask=0)
        bulk_commit(w, mask=0)
        bulk_wait(w, 0, False, mask=0)
        """.replace("bx", "w.block[0]"),
        shared=2048,
        grid=(2, 1, 1),
        tensors=[("X", parts), ("Y", Y)],
        **schedule,
    )
    assert not report.findings, report
    assert np.array_equal(Y, expected)


@pytest.mark.parametrize(("how", "dtype"), [("add", "uint32"), ("max", "int32"), ("xor", "uint32"),
                                            ("inc", "uint32"), ("add", "uint64")])  # fmt: skip
def test_reductions_into_another_ctas_memory(how, dtype, schedule):
    """Ranks 1 and 2 reduce into rank 0, at the same time; each completes on an mbarrier there."""
    rng = np.random.default_rng(4)
    n = 128 // np.dtype(dtype).itemsize
    values = rng.integers(0, 40, (3, n)).astype(dtype)
    if how == "inc":
        values[2] = values[1]
    out = np.zeros(n, dtype)
    expected = values[0]
    for part in values[1:]:
        expected = REDUCTIONS[how](expected, part).astype(dtype)
    report = warps.run(
        f"""
        X, Y = w.machine.pointers
        for i in range(8):
            st_shared(w, SB + 1024 + 16 * i, ld_global(w, X + 128 * w.rank + 16 * i, 4, 4), 4, 4)
        mbarrier_init(w, SB, 1)
        mbarrier_init(w, SB + 8, 1)
        fence_mbarrier_init(w)
        fence_proxy_async(w)
        await cluster_sync(w)
        if w.rank == 0:
            for b in range(2):
                mbarrier_arrive(w, SB + 8 * b, 1, 128, mask=True)
                t = mbarrier_wait(w, SB + 8 * b, 0)
                if t is not None: yield t
            for i in range(8):
                st_global(w, Y + 16 * i, ld_shared(w, SB + 1024 + 16 * i, 4, 4), 4, 4)
        else:
            to, on = mapa(w, SB + 1024, 0), mapa(w, SB + 8 * (w.rank - 1), 0)
            bulk_send(w, to, SB + 1024, 128, on, "{how}", "{dtype}", mask=0)
        await cluster_sync(w)
        """,
        shared=2048,
        grid=(3, 1, 1),
        cluster=(3, 1, 1),
        tensors=[("X", values), ("Y", out)],
        **schedule,
    )
    assert not report.findings, report
    assert np.array_equal(out, expected)


def test_a_copy_between_ctas_holds_its_source_until_its_phase(schedule):
    """The mbarrier's phase says that the bytes have come, and that the source has been read."""
    body = """
        st_shared(w, SB + 1024 + 4 * w.lanes, (w.lanes + 100 * w.rank).astype(np.uint32), 4, 1)
        mbarrier_init(w, SB, 1)
        fence_mbarrier_init(w)
        fence_proxy_async(w)
        await cluster_sync(w)
        if w.rank == 0:
            mbarrier_arrive(w, SB, 1, 128, mask=True)
            t = mbarrier_wait(w, SB, 0)
            if t is not None: yield t
            w.machine.count("sum", int(ld_shared(w, SB + 2048 + 4 * w.lanes, 4, 1).sum()))
        else:
            bulk_send(w, mapa(w, SB + 2048, 0), SB + 1024, 128, mapa(w, SB, 0), mask=0)
        {wait}
        if w.rank == 1: st_shared(w, SB + 1024, 0, 4, 1)
        await cluster_sync(w)
    """
    launch: dict[str, Any] = {"shared": 4096, **PAIR, **schedule}
    good = warps.run(body.format(wait="await cluster_sync(w)"), **launch)
    assert not good.findings, good
    assert good.counters["sum"] == sum(range(100, 132))
    bad = warps.run(body.format(wait="pass"), **launch)
    assert only(bad).code == "race-smem"


@pytest.mark.parametrize("bits", [0, 0xFFFF, 0x0001, 0xA5F0])
def test_a_store_of_chosen_bytes(bits, schedule):
    X = np.arange(1, 65, dtype=np.uint8)
    Y = np.zeros(64, np.uint8)
    report = warps.run(
        f"""
        X, Y = w.machine.pointers
        for i in range(4): st_shared(w, SB + 16 * i, ld_global(w, X + 16 * i, 4, 4), 4, 4)
        fence_proxy_async(w)
        bulk_store(w, Y, SB, 64, mask=0, kept={bits})
        bulk_commit(w, mask=0)
        bulk_wait(w, 0, False, mask=0)
        """,
        tensors=[("X", X), ("Y", Y)],
        **schedule,
    )
    assert not report.findings, report
    assert Y.tolist() == [x if bits >> i % 16 & 1 else 0 for i, x in enumerate(X.tolist())]


def test_each_thread_copies_a_row_of_its_own(schedule):
    rng = np.random.default_rng(5)
    X, rows = rng.integers(0, 99, (64, 8)).astype(np.int32), rng.permutation(64)[:32]
    Y = np.zeros((32, 8), np.int32)
    report = warps.run(
        f"""
        X, Y = w.machine.pointers
        row = np.array({rows.tolist()})
        mbarrier_init(w, SB, 1)
        mbarrier_arrive(w, SB, 1, 1024, mask=True)
        bulk_load(w, SB + 1024 + 32 * w.lanes, X + 32 * row, 32, SB)
        await mbarrier_wait(w, SB, 0)
        bulk_store(w, Y + 32 * w.lanes, SB + 1024 + 32 * w.lanes, 32)
        bulk_commit(w)
        bulk_wait(w, 0, False)
        """,
        shared=4096,
        tensors=[("X", X), ("Y", Y)],
        **schedule,
    )
    assert not report.findings, report
    assert np.array_equal(Y, X[rows])


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("bulk_load(w, SB + 1024, X, 24, SB, mask=0)", "misaligned"),
        ("bulk_load(w, SB + 1024, X + 8, 32, SB, mask=0)", "misaligned"),
        ("bulk_load(w, SB + 1028, X, 32, SB, mask=0)", "misaligned"),
        ("bulk_load(w, SB + 1024, X + 240, 32, SB, mask=0)", "out-of-bounds"),
        ("bulk_load(w, SB + 2032, X, 32, SB, mask=0)", "out-of-bounds"),
        ("bulk_load(w, SB + 1024, X, 32, SB)", "divergent-collective"),
        ("bulk_store(w, X + 240, SB + 1024, 32, mask=0)", "out-of-bounds"),
        ("bulk_store(w, X, SB + 1024, 0, mask=0)", "misaligned"),
    ],
)
def test_bulk_copies_that_do_not_fit(line, code):
    report = warps.run(
        f"""
        X = w.machine.pointers[0]
        mbarrier_init(w, SB, 1)
        {line}
        """,
        shared=2048,
        tensors=[("X", np.zeros(64, np.int32))],
    )
    assert (report.findings[0].code, report.findings[0].location.line) == (code, 3)


# ----------------------------------------------------------------------------------- bulk groups


GROUPS = """
    Y = w.machine.pointers[0]
    if w.id == 0:
        for k in range(3):
            st_shared(w, SB + 1024 * k + 4 * w.lanes, (w.lanes + 100 * k).astype(np.uint32), 4, 1)
        fence_proxy_async(w)
        warp_sync(w)
        for k in range(3):
            bulk_store(w, Y + 128 * k, SB + 1024 * k, 128, mask=0)
            bulk_commit(w, mask=0)
        bulk_wait(w, {count}, {read}, mask={lane})
        warp_sync(w)
        st_shared(w, SB + 1024 * {buffer}, 7, 4, 1)
        bulk_wait(w, 0, False, mask=0)
"""


@pytest.mark.parametrize(
    ("count", "read", "buffer", "lane", "races"),
    [
        (0, True, 2, 0, False),
        (1, True, 1, 0, False),
        (1, True, 2, 0, True),
        (2, True, 0, 0, False),
        (2, False, 1, 0, True),
        (0, True, 0, 5, True),  # another thread's groups are not waited for
        (0, True, 0, None, False),  # all threads wait, the one that stored among them
    ],
)
def test_what_a_wait_for_groups_covers(count, read, buffer, lane, races, schedule):
    Y = np.zeros(96, np.uint32)
    body = GROUPS.format(count=count, read=read, buffer=buffer, lane=lane)
    report = warps.run(body, threads=64, shared=4096, tensors=[("Y", Y)], **schedule)
    assert [f.code for f in report.findings] == ["race-smem"] * races, report
    if not races:
        assert Y.tolist() == [i % 32 + 100 * (i // 32) for i in range(96)]


def test_read_sources_are_read_and_no_more():
    """After ``.read`` the bytes are on their way: under the lazy schedule not there yet."""
    Y = np.zeros(32, np.uint32)
    body = """
        Y = w.machine.pointers[0]
        st_shared(w, SB + 4 * w.lanes, w.lanes.astype(np.uint32) + 1, 4, 1)
        fence_proxy_async(w)
        warp_sync(w)
        bulk_store(w, Y, SB, 128, mask=0)
        bulk_commit(w, mask=0)
        bulk_wait(w, 0, True, mask=0)
        st_shared(w, SB + 4 * w.lanes, w.lanes.astype(np.uint32), 4, 1)
        w.machine.counters["early"] = int(w.machine.tensors[0].view(4, 1).sum())
        bulk_wait(w, 0, {full}, mask=0)
        w.machine.counters["late"] = int(w.machine.tensors[0].view(4, 1).sum())
    """
    report = warps.run(body.format(full=False), tensors=[("Y", Y)], schedule="lazy")
    assert not report.findings, report
    assert report.counters["early"] == 0
    assert report.counters["late"] == Y.sum() == sum(range(1, 33))


def test_a_group_that_is_never_waited_for():
    report = warps.run(
        """
        for i in range(32): st_shared(w, SB + 4 * i, i, 4, 1)
        fence_proxy_async(w)
        bulk_store(w, w.machine.pointers[0], SB, 128, mask=0)
        bulk_commit(w, mask=0)
        bulk_wait(w, 0, True, mask=3)
        """,
        tensors=[("Y", np.zeros(32, np.uint32))],
    )
    finding = only(report)
    assert (finding.code, finding.location.line) == ("in-flight-at-exit", 3)


# -------------------------------------------------------------------------------------- cp.async


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("form", ["plain", "src_size", "ignore"])
def test_copies_of_threads(size, form, schedule):
    rng = np.random.default_rng(size)
    X = rng.integers(1, 255, 32 * size).astype(np.uint8)
    Y = np.zeros(32 * size, np.uint8)
    taken = rng.integers(0, size + 1, 32) if form == "src_size" else np.full(32, size)
    ignored = rng.integers(0, 2, 32) if form == "ignore" else np.zeros(32, int)
    more = {
        "plain": "",
        "src_size": f", np.array({taken.tolist()})",
        "ignore": f", None, np.array({ignored.tolist()})",
    }[form]
    report = warps.run(
        f"""
        X, Y = w.machine.pointers
        at = {size} * w.lanes
        cp_async(w, SB + at, X + {size} * (31 - w.lanes), {size}{more})
        cp_async_commit(w)
        cp_async_wait(w, 0)
        words = ld_shared(w, SB + at, 4, {size // 4})
        st_global(w, Y + at, words, 4, {size // 4})
        """,
        tensors=[("X", X), ("Y", Y)],
        **schedule,
    )
    assert not report.findings, report
    expected = X.reshape(32, size)[::-1].copy()
    for lane in range(32):
        expected[lane, 0 if ignored[lane] else taken[lane] :] = 0
    assert np.array_equal(Y.reshape(32, size), expected)


def test_a_part_of_a_copy_may_lie_past_the_end():
    """Ten bytes of the tensor's last: the other six are not read."""
    X, Y = np.arange(1, 11, dtype=np.uint8), np.zeros(16, np.uint8)
    body = """
        X, Y = w.machine.pointers
        cp_async(w, SB, X, 16, {taken}, mask=w.lanes == 0)
        cp_async_wait_all(w)
        st_global(w, Y, ld_shared(w, SB, 4, 4), 4, 4)
    """
    report = warps.run(body.format(taken=10), tensors=[("X", X), ("Y", Y)])
    assert not report.findings, report
    assert Y.tolist() == [*range(1, 11)] + [0] * 6
    assert only(warps.run(body.format(taken=11), tensors=[("X", X), ("Y", Y)])).code == (
        "out-of-bounds"
    )


@pytest.mark.parametrize("noinc", [True, False])
def test_an_mbarrier_that_tracks_copies(noinc, schedule):
    """With .noinc the barrier counts 32 arrivals of the copies; without, one arrival is enough."""
    X = np.arange(32, dtype=np.uint32)
    body = f"""
        X = w.machine.pointers[0]
        if w.id == 0: mbarrier_init(w, SB, {32 if noinc else 1})
        await cta_sync(w)
        if w.id == 0:
            cp_async(w, SB + 128 + 4 * w.lanes, X + 4 * w.lanes, 4)
            cp_async_mbarrier_arrive(w, SB, {noinc})
            {{after}}
            if not {noinc}: mbarrier_arrive(w, SB, 1, mask=True)
        else:
            t = mbarrier_wait(w, SB, 0)
            if t is not None: yield t
            w.machine.count("sum", int(ld_shared(w, SB + 128 + 4 * w.lanes, 4, 1).sum()))
        await cta_sync(w)
        if w.id == 0: cp_async_wait_all(w)
    """
    launch: dict[str, Any] = {"threads": 64, "tensors": [("X", X)], **schedule}
    report = warps.run(body.format(after="pass"), **launch)
    assert not report.findings, report
    assert report.counters["sum"] == X.sum()
    late = warps.run(
        body.format(after="cp_async(w, SB + 128 + 4 * w.lanes, X + 4 * w.lanes, 4)"), **launch
    )
    assert {f.code for f in late.findings} == {"race-smem"}


# ------------------------------------------------------------------------ from kernels' sources

G2S = "cp.async.bulk.tensor.{}.shared::cta.global.tile.mbarrier::complete_tx::bytes"
HINTED = G2S.format("2d") + ".L2::cache_hint"
GATHER = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
ADD = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"


@T.prim_func
def forms(m: T.TensorMap(), one: T.TensorMap(), out: T.TensorMap(), X: T.Buffer((256,), "int32"),
          Y: T.Buffer((256,), "int32")):  # fmt: skip
    T.device_entry()
    _cta = T.cta_id([1])
    tid = T.thread_id([32])
    pool = T.SMEMPool()
    s = pool.alloc((256,), "int32", align=1024)
    q = pool.alloc((128,), "int32", align=1024)
    bar = pool.alloc((2,), "uint64", align=8)
    pool.commit()
    policy: T.uint64
    T.ptx.createpolicy.fractional.L2__evict_first.b64(policy, T.float32(0.5))
    if tid == 0:
        T.ptx.prefetch.tensormap(T.address_of(m))
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
        T.ptx.mbarrier.init.shared.b64(bar.ptr_to([1]), T.uint32(32))
        T.ptx.fence.mbarrier_init.release.cluster()
        T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), T.uint32(1024))
        T.ptx[HINTED](
            s.ptr_to([0]),
            T.address_of(m),
            0,
            4,
            T.cuda.cvta_generic_to_shared(bar.ptr_to([0])),
            policy,
        )
        T.ptx[GATHER](
            s.ptr_to([128]),
            T.address_of(one),
            0,
            3,
            1,
            2,
            0,
            T.cuda.cvta_generic_to_shared(bar.ptr_to([0])),
        )
    T.cuda.cta_sync()
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    if tid == 0:
        T.ptx[ADD](T.address_of(out), 0, 0, s.ptr_to([0]))
        T.ptx.cp.async_.bulk.commit_group()
        T.ptx.cp.async_.bulk.wait_group.read(0)
    T.ptx.cp.async_.cg.shared.global_(q.ptr_to([4 * tid]), X.ptr_to([4 * tid]), 16)
    T.ptx.cp.async_.mbarrier.arrive.noinc.shared.b64(bar.ptr_to([1]))
    T.cuda.mbarrier_wait(bar.ptr_to([1]), 0)
    for i in range(4):
        Y[128 + 32 * i + tid] = s[128 + 32 * i + tid]
        Y[32 * i + tid] = q[32 * i + tid]
    if tid == 0:
        T.ptx.cp.async_.bulk.wait_group(0)
    T.ptx.cp.async_.wait_all()


@pytest.mark.parametrize(("name", "seed"), SCHEDULES)
def test_forms_of_copies_in_a_kernel(name, seed):
    tensor = np.arange(8 * 32, dtype=np.int32).reshape(8, 32)
    out, X, Y = (
        np.ones((4, 32), np.int32),
        np.arange(256, dtype=np.int32) * 3,
        np.zeros(256, np.int32),
    )
    maps = [
        mg.TensorMap(tensor, box=(32, 4)),
        mg.TensorMap(tensor, box=(32, 1)),
        mg.TensorMap(out, box=(32, 4)),
    ]
    report = sim.simulate(forms, *maps, X, Y, schedule=name, schedule_seed=seed)
    assert not report.findings, report
    assert np.array_equal(out, tensor[4:] + 1)
    assert np.array_equal(Y[:128], X[:128])
    assert np.array_equal(Y[128:].reshape(4, 32), tensor[[3, 1, 2, 0]])


@pytest.mark.parametrize(
    ("used", "fence", "reading", "found"),
    [
        ("read", "pass", "barrier", ""),
        ("read", "pass", "fence", "which warp 0 read with ordinary loads"),
        ("read", "fence_proxy_async(w)", "fence", ""),
        ("written", "pass", "barrier", "which warp 0 wrote with ordinary stores"),
        ("written", "fence_proxy_async(w)", "barrier", ""),
    ],
)
def test_an_engine_overwrites_what_threads_have_used(used, fence, reading, found, schedule):
    """A barrier between the two, and a fence of the proxies where the reading asks for one."""
    use = {
        "read": "ld_shared(w, SB + 64 + 4 * w.lanes, 4, 1)",
        "written": "st_shared(w, SB + 64 + 4 * w.lanes, 7, 4, 1)",
    }[used]
    body = f"""
        X = w.machine.pointers[0]
        mbarrier_init(w, SB, 1)
        st_shared(w, SB + 64 + 4 * w.lanes, 0, 4, 1)
        fence_proxy_async(w)
        {use}
        {fence}
        await cta_sync(w)
        mbarrier_arrive(w, SB, 1, 128, mask=True)
        bulk_load(w, SB + 64, X, 128, SB, mask=0)
        await mbarrier_wait(w, SB, 0)
        w.machine.counters["sum"] = int(ld_shared(w, SB + 64 + 4 * w.lanes, 4, 1).sum())
    """
    X = np.arange(32, dtype=np.uint32)
    report = warps.run(body, tensors=[("X", X)], readings={"proxy-war": reading}, **schedule)
    assert report.counters["sum"] == 31 * 16
    if not found:
        assert not report.findings, report
        return
    (finding,) = report.findings
    assert (finding.code, finding.location.line) == ("missing-proxy-fence", 9)
    assert found in finding.message
    assert finding.related[0][1].line == 5


# ------------------------------------------------------------------------ cluster launch control


CLC = """
    X = w.machine.pointers[0]
    mbarrier_init(w, SB, 1)
    turn = 0
    while True:
        mbarrier_arrive(w, SB, 1, 16, mask=True)
        clc_try_cancel(w, SB + 16, SB, False, mask=0)
        t = mbarrier_wait(w, SB, turn & 1)
        if t is not None: yield t
        turn += 1
        response = wide(ld_shared(w, SB + 16, 8, 2))
        warp_sync(w)  # before lane 0 asks again
        if not clc_is_canceled(response): break
        x, y, z = (clc_first_ctaid(w, response, axis) for axis in range(3))
        w.machine.count(f"{x} {y} {z}")
    w.machine.count("{0} {1} {2}".format(*w.block))
    MORE
"""
GRID: dict[str, Any] = {"grid": (2, 3, 2), "tensors": [("X", np.zeros(4, np.uint32))]}


def test_every_cluster_is_run_or_taken_over_once(schedule):
    report = warps.run(CLC.replace("MORE", "pass"), **GRID, **schedule)
    assert not report.findings, report
    places = {k: n for k, n in report.counters.items() if k[0].isdigit()}
    assert places == {f"{x} {y} {z}": 1 for x in range(2) for y in range(3) for z in range(2)}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("clc_first_ctaid(w, response, 0)", "a response that cancelled nothing"),
        ("clc_try_cancel(w, SB + 16, SB, False, mask=0)", "after a request that has failed"),
    ],
)
def test_misuse_of_launch_control(more, words):
    report = warps.run(CLC.replace("MORE", more), **GRID)
    assert report.findings[0].code == "clc-protocol"
    assert words in report.findings[0].message


def test_a_response_that_is_overwritten_before_a_warp_has_read_it(schedule):
    """Warp 1 reads the response; without its arrival nothing keeps warp 0 from asking again."""
    body = """
        if w.id == 0:
            mbarrier_init(w, SB, 1)
            mbarrier_init(w, SB + 8, 1)
        await cta_sync(w)
        for turn in range(2):
            if w.id == 0:
                mbarrier_arrive(w, SB, 1, 16, mask=True)
                clc_try_cancel(w, SB + 16, SB, False, mask=0)
            t = mbarrier_wait(w, SB, turn)
            if t is not None: yield t
            if w.id == 1:
                ld_shared(w, SB + 16, 8, 2)
                warp_sync(w)
                mbarrier_arrive(w, SB + 8, mask=True)
            elif {waits}:
                t = mbarrier_wait(w, SB + 8, turn)
                if t is not None: yield t
    """
    launch: dict[str, Any] = {"threads": 64, "grid": (8, 1, 1), **schedule}
    good = warps.run(body.format(waits=True), **launch)
    assert not [f for f in good.findings if f.code != "clc-protocol"], good
    bad = warps.run(body.format(waits=False), **launch)
    assert {"race-smem", "barrier-lapped"} & {f.code for f in bad.findings}, bad


# ----------------------------------------------------------------------------------------- st.bulk


def test_zeros_in_bulk(schedule):
    report = warps.run(
        """
        for k in range(2): st_shared(w, SB + 128 * k + 4 * w.lanes, 7, 4, 1)
        warp_sync(w)
        st_bulk(w, SB + 24, 136, mask=3)
        warp_sync(w)
        for k in range(2):
            words = ld_shared(w, SB + 128 * k + 4 * w.lanes, 4, 1)
            w.machine.counters[k] = [int(x) for x in words]
        """.replace("7, 4, 1", "np.full(32, 7, np.uint32), 4, 1"),
        **schedule,
    )
    assert not report.findings, report
    words = report.counters[0] + report.counters[1]
    assert words == [0 if 24 <= 4 * i < 160 else 7 for i in range(64)]


def test_zeros_are_written_as_threads_write():
    """An engine that reads them needs a proxy fence; sizes are multiples of eight bytes."""
    body = """
        st_bulk(w, SB, 128, mask=0)
        {fence}
        bulk_store(w, w.machine.pointers[0], SB, 128, mask=0)
        bulk_commit(w, mask=0)
        bulk_wait(w, 0, False, mask=0)
    """
    launch: dict[str, Any] = {"tensors": [("Y", np.ones(32, np.uint32))]}
    assert only(warps.run(body.format(fence="pass"), **launch)).code == "missing-proxy-fence"
    assert not warps.run(body.format(fence="fence_proxy_async(w)"), **launch).findings
    assert only(warps.run("st_bulk(w, SB, 12, mask=0)")).code == "misaligned"
