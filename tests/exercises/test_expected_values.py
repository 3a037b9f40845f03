"""What the checks expect, against values from elsewhere: TIRx, the simulator, counting."""

import importlib.util
import re
import warnings
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mlsys_gpu.grading import stubs
from mlsys_gpu.grading.checks import ch01, ch10, ch12, ch13, ch14
from mlsys_gpu.grading.checks.base import Call, Predict

ROOT = Path(__file__).resolve().parents[2]


def solution(name: str, tmp_path: Path, *, stub: bool = False) -> ModuleType:
    """The worked answer of a file below ``solutions/``, or its stub, as a module."""
    text = (ROOT / "solutions" / name).read_text(encoding="utf-8")
    file = tmp_path / f"{'stub' if stub else 'worked'}_{Path(name).name}"
    file.write_text(stubs.make_stub(text, "0.0") if stub else stubs.worked(text), encoding="utf-8")
    return module_of(file)


def module_of(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wanted(check: Predict, *args) -> object:
    function = check.draw(np.random.default_rng(0))[0].function
    return check.want(Call(function, list(args)))


def test_threads_are_numbered_as_nested_loops_would() -> None:
    dim = (3, 5, 4)
    linear = 0
    for z, y, x in product(range(dim[2]), range(dim[1]), range(dim[0])):
        assert wanted(ch01.thread_index, [x, y, z], list(dim)) == (
            linear,
            linear // 32,
            linear % 32,
        )
        linear += 1


def test_pipeline_depth_at_its_edges() -> None:
    stage = (128 + 128) * 64 * 2 + 16
    staged = 128 * 128 * 2
    for stages in (0, 1, 4):
        exactly = staged + stages * stage
        assert wanted(ch01.pipeline_depth, 128, 128, 64, 2, 2, exactly) == (stage, stages)
        if stages:
            short = wanted(ch01.pipeline_depth, 128, 128, 64, 2, 2, exactly - 1)
            assert short == (stage, stages - 1)


def test_roofline_by_hand() -> None:
    # 2 * 2 * 4 * 8 = 128 FLOP, (2 * 8 + 4 * 8 + 2 * 4) * 2 = 112 bytes.
    intensity, attainable, bound = wanted(ch01.roofline, 2, 4, 8, 2, 10.0, 2.0)  # type: ignore
    assert intensity == pytest.approx(128 / 112)
    assert attainable == pytest.approx(2 * 128 / 112)
    assert bound == "memory"
    assert wanted(ch01.roofline, 2, 4, 8, 2, 2.0, 2.0)[1:] == (2.0, "compute")  # type: ignore


def test_swizzle_is_that_of_tirx() -> None:
    from tvm.script import tirx as T
    from tvm.tirx.layout import TileLayout

    layouts = {}

    def keep(tile):
        layouts[str(tile.dtype)] = tile.layout

    @T.prim_func
    def kernel(A: T.Buffer((1,), "float32")):  # type: ignore
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([32])
        pool = T.SMEMPool()
        tile = pool.alloc_tcgen05_mma_AB((64, 64), "float16")
        pool.commit()
        keep(tile)
        A[0] = T.float32(0)

    layout = layouts["float16"]
    assert not isinstance(layout, TileLayout)  # it is a swizzle over one
    for row, col in [(0, 0), (1, 0), (5, 20), (7, 63), (8, 9), (63, 63), (42, 33)]:
        element = int(layout.apply(row, col, shape=[64, 64])["m"])
        assert wanted(ch10.swizzle, row, col, 2) == 2 * element


def test_copy_plan_is_what_tirx_emits() -> None:
    from tvm.script import tirx as T
    from tvm.script.tirx import tile as Tx

    from mlsys_gpu.kernels.common import finish
    from mlsys_gpu.lowering import lower

    def build(rows, cols, row_length, dtype, threads):
        @T.prim_func
        def kernel(
            A: T.Buffer((2 * rows, row_length), dtype),  # type: ignore
            D: T.Buffer((2 * rows, cols), dtype),  # type: ignore
        ):
            T.device_entry()
            cta = T.cta_id([2])
            wg_id = T.warpgroup_id([threads // 128])
            warp_id = T.warp_id([threads // 32])
            tid = T.thread_id([threads])
            pool = T.SMEMPool()
            tile = pool.alloc((rows, cols), dtype)
            pool.commit()
            Tx.cta.copy(tile[:, :], A[cta * rows : cta * rows + rows, 0:cols])
            T.cuda.cta_sync()
            D[cta, tid % cols] = tile[0, tid % cols]

        return finish(kernel, "plan", "hopper")

    rng = np.random.default_rng(7)
    calls = list(ch10.dispatch.draw(rng))
    for call in calls:
        rows, cols, row_length, size, threads = call.args
        dtype = {2: "float16", 4: "float32"}[size]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = lower(build(rows, cols, row_length, dtype, threads)).device.script()
        load = re.search(r'T\.ptx\.ld\(.*"global".*"(v\d|)", "u(\d+)"', text)
        assert load is not None
        width = {"": 1, "v2": 2, "v4": 4}[load[1]] * int(load[2]) // 8
        loop = re.search(r"for f in range\((\d+)\)", text)
        loads = int(loop[1]) if loop else 1
        assert wanted(ch10.dispatch, *call.args) == (width, loads), call


@pytest.mark.parametrize(
    ("base", "row", "col", "bits", "address", "warp"),
    [
        (128, 70, 9, 32, (70 << 16) | 137, 2),
        (0, 127, 511, 32, (127 << 16) | 511, 3),
        (64, 31, 7, 16, (31 << 16) | 67, 0),
        (64, 32, 6, 16, (32 << 16) | 67, 1),
    ],
)
def test_tensor_memory_by_hand(base, row, col, bits, address, warp) -> None:
    assert wanted(ch10.tensor_memory, base, row, col, bits) == (address, warp)


def test_phases_by_hand() -> None:
    assert wanted(ch12.phases, 2, 3) == [0, 1, 0, 1, 0, 1]
    assert wanted(ch12.phases, 3, 1) == [0, 1, 0]


def test_traffic_against_the_simulator() -> None:
    import mlsys_gpu as mg

    M, N, K = 256, 384, 128
    A, B = np.zeros((M, K), np.float16), np.zeros((N, K), np.float16)
    D = np.zeros((M, N), np.float16)
    report = mg.simulate(mg.gemm.step(3, arch="hopper").build(M, N, K), A, B, D)
    flops, loaded, stored = wanted(ch12.traffic, M, N, K, 128, 128, 2)  # type: ignore
    assert report.counters["global_load_bytes"] == loaded
    assert report.counters["global_store_bytes"] == stored
    assert flops == 2 * 256 * 384 * 128


def test_descriptors_by_hand() -> None:
    # Hopper, address 2048 = 128 units, column 16 = 32 bytes = 2 units.
    assert wanted(ch12.descriptor, "hopper", 2048, 16) == 0x4000004000010082
    assert wanted(ch12.descriptor, "blackwell", 2048, 16) == 0x4000404000010082


def test_tile_shape_brute_force() -> None:
    """The judge accepts exactly the possible tiles of least traffic."""
    m, n, k, stages, smem = 768, 320, 640, 4, 227 * 1024
    loads = {}
    for bm, bn in product(range(16, 321, 16), range(16, 321, 16)):
        if bm not in (64, 128, 192, 256) or bn > 256 or m % bm or n % bn:
            continue
        if stages * (bm + bn) * 128 > smem:
            continue
        loads[bm, bn] = (m // bm) * (n // bn) * (bm + bn) * k * 2
    least = min(loads.values())
    call = Call("best_tile", [m, n, k, stages, smem])
    for tile, loaded in loads.items():
        assert (ch12.tile_shape.check(call, list(tile)).ok) == (loaded == least), tile
    for impossible in ([256, 256], [96, 64], [64, 24], [64], "tile", [64.0, 64.0], [True, 16]):
        assert not ch12.tile_shape.check(call, impossible).ok


@pytest.mark.parametrize("arch", ["hopper", "blackwell"])
def test_expected_bytes_against_the_simulator_and_slices(arch) -> None:
    """Step 4 hands all boxes' bytes to its barriers: it would hang, or race, with other numbers."""
    import mlsys_gpu as mg

    M, N, K = 200, 136, 136
    A, B = np.ones((M, K), np.float16), np.ones((N, K), np.float16)
    D = np.zeros((M, N), np.float16)
    report = mg.simulate(mg.gemm.step(4, arch=arch).build(M, N, K), A, B, D)
    assert report.ok
    total = 0
    for bm, bn, k in product(range(2), range(2), range(3)):
        expected, inside, stored = wanted(ch13.expected_bytes, M, N, K, 128, 128, 64, bm, bn, k)  # type: ignore
        rows, columns = slice(bm * 128, bm * 128 + 128), slice(bn * 128, bn * 128 + 128)
        depth = slice(k * 64, k * 64 + 64)
        assert inside == A[rows, depth].nbytes + B[columns, depth].nbytes
        assert stored == D[rows, columns].nbytes
        total += expected
    assert report.counters["tma_load_bytes"] == total


def test_ring_by_hand() -> None:
    # Three stages, two tiles of D with four tiles of K each: the second tile begins at stage 1.
    assert wanted(ch13.ring, 3, 2, 4) == [
        (0, 1, 0), (1, 1, 0), (2, 1, 0), (0, 0, 1),
        (1, 0, 1), (2, 0, 1), (0, 1, 0), (1, 1, 0),
    ]  # fmt: skip


def test_order_by_hand_and_better_ones_pass() -> None:
    # Waves of 4 of 3 x 4 tiles, along the rows: 1 row and 4 columns, three times.
    along = [(m, n) for m in range(3) for n in range(4)]
    assert ch13.fetched(along, 4) == 15
    # Down the columns: 3 rows and 2 columns each time.
    assert ch13.fetched(ch13.step6_order(3, 4), 4) == 15
    # The formula of Step 6's kernels, for a last group of fewer rows.
    m_tiles, n_tiles = 13, 5
    for tile, place in enumerate(ch13.step6_order(m_tiles, n_tiles)):
        first = tile // (8 * n_tiles) * 8
        rows = min(m_tiles - first, 8)
        inside = tile % (8 * n_tiles)
        assert place == (first + inside % rows, inside // rows)

    m, n, ctas = 12, 18, 36
    calls = [Call("place", [tile, m, n, ctas]) for tile in range(m * n)]
    blocks = [
        [first + place % 6, column + place // 6]
        for first in range(0, m, 6)
        for column in range(0, n, 6)
        for place in range(36)
    ]  # blocks of 6 x 6: 12 rows a wave, the least that 36 tiles can do
    assert ch13.order.check_all(calls, blocks).ok
    assert ch13.fetched([(a, b) for a, b in blocks], ctas) == 6 * 12
    assert not ch13.order.check_all(calls, [[*divmod(tile, n)] for tile in range(m * n)]).ok


def test_pipeline_target_lies_between_three_stages_and_four(tmp_path) -> None:
    """The stub says that the target is more than twice what it reaches."""
    import mlsys_gpu as mg

    M, N, K = (ch13._TIMED[name] for name in "MNK")
    reached = {}
    worked = solution("ch13/ex13_8_pipeline.py", tmp_path)
    for stages, module in [(1, solution("ch13/ex13_8_pipeline.py", tmp_path, stub=True))] + [
        (stages, worked) for stages in (3, 4)
    ]:
        vars(module)["PIPE_DEPTH"] = stages
        timing = mg.model(module.build(M, N, K), clusters=8)
        reached[stages] = timing.tflops(2 * M * N * K)
    assert 2 * reached[1] < 0.95 * ch13.PIPELINE_TFLOPS
    assert reached[3] < 0.97 * ch13.PIPELINE_TFLOPS
    assert reached[4] > 1.05 * ch13.PIPELINE_TFLOPS


def test_first_phases_by_hand() -> None:
    # Tile 3 of 4 K tiles, K tile 2: the 15th use of a ring of 4, turn 3; accumulator 1, turn 1.
    assert wanted(ch14.phases, 3, 2, 4, 4, 2, False) == (0, 1, 0, 1)
    assert wanted(ch14.phases, 3, 2, 4, 4, 2, True) == (1, 1, 1, 1)
    assert wanted(ch14.phases, 0, 0, 4, 4, 2, True) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "fixture", "options", "bm", "bn"),
    [
        ("multicast", "hopper_cluster", {"clusters": 1}, 64, 64),
        ("cta_group::2", "blackwell_persistent", {"clusters": 1, "tile_n": 128}, 128, 128),
    ],
)
def test_bytes_of_a_pair_against_kernels(kind, fixture, options, bm, bn) -> None:
    """What right kernels hand to arrive.expect_tx, and what TMA counts."""
    import mlsys_gpu as mg
    from mlsys_gpu.lowering import lower

    M, N, K = 2 * bm, bn, 192
    kernel = module_of(ROOT / f"tests/sim/fixtures/{fixture}.py").build(M, N, K, **options)
    A, B = np.ones((M, K), np.float16), np.ones((N, K), np.float16)
    report = mg.simulate(kernel, A, B, np.zeros((M, N), np.float16))
    assert report.ok
    loaded, stage, rank0, rank1 = wanted(ch14.pair_bytes, kind, bm, bn, 64, 2)  # type: ignore
    assert report.counters["tma_load_bytes"] == 2 * loaded * (K // 64)
    expected = re.findall(
        r'T\.uint32\((\d+)\), "arrive", "expect_tx"', lower(kernel).device.script()
    )
    assert [int(n) for n in expected] == [rank0]
    assert rank1 == (rank0 if kind == "multicast" else 0)
    rows = bm + (bn if kind == "multicast" else bn // 2)
    assert stage == rows * 64 * 2


@pytest.mark.parametrize("fault", ch14.FAULTS)
@pytest.mark.parametrize(("stages", "tiles", "k_tiles"), [(4, 3, 6), (3, 2, 5), (4, 1, 4)])
def test_who_is_stuck_against_the_simulator(fault, stages, tiles, k_tiles) -> None:
    from tvm.script import tirx as T

    import mlsys_gpu as mg
    from mlsys_gpu.kernels.common import finish

    first, count = 0 if fault == "phase" else 1, 2 if fault == "count" else 1
    last, late = k_tiles - 1 if fault == "last" else k_tiles, stages if fault == "late" else 0

    @T.prim_func
    def kernel(A: T.Buffer((1,), "int32")):  # type: ignore
        T.device_entry()
        cta = T.cta_id([1])
        tid = T.thread_id([64])
        pool = T.SMEMPool()
        full = pool.alloc((stages,), "uint64", align=8)
        empty = pool.alloc((stages,), "uint64", align=8)
        pool.commit()
        if tid == 0:
            for s in T.unroll(stages):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([s]), T.uint32(count))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        if tid == 0:
            for n in T.serial(tiles * k_tiles):
                s = T.meta_var(n % stages)
                T.cuda.mbarrier_wait(empty.ptr_to([s]), (n // stages + first) % 2)
                T.ptx.mbarrier.arrive.shared.b64(full.ptr_to([s]), T.uint32(1))
        if tid == 32:
            for n in T.serial(tiles * k_tiles):
                s = T.meta_var(n % stages)
                T.cuda.mbarrier_wait(full.ptr_to([s]), n // stages % 2)
                if n >= late and n % k_tiles != last:
                    T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([s]), T.uint32(1))

    report = mg.simulate(finish(kernel, "ring", "hopper"), np.zeros(1, np.int32))
    found: dict[str, tuple[int, int]] = {}
    for waiting in (report.deadlock or {"waiting": []})["waiting"]:
        text = re.search(r"phase parity (\d) of (\w+)\[(\d)\]", waiting["waits_for"])
        assert text is not None
        found[text[2]] = (int(text[3]), int(text[1]))
    want = wanted(ch14.deadlock, stages, tiles, k_tiles, fault)
    assert want == (found.get("empty"), found.get("full"))


@pytest.mark.parametrize(("warpgroups", "ctas"), [(3, 1), (2, 2), (3, 2), (5, 1)])
def test_registers_against_the_simulator(warpgroups, ctas) -> None:
    """The simulator keeps a CTA to what it was launched with: 8 registers more, and it hangs."""
    from tvm.script import tirx as T

    import mlsys_gpu as mg
    from mlsys_gpu.kernels.common import finish

    def build(consumer):
        @T.prim_func
        def kernel(A: T.Buffer((128 * warpgroups,), "int32")):  # type: ignore
            T.device_entry()
            T.attr({"tirx.launch_bounds_min_blocks_per_sm": ctas})
            cta = T.cta_id([1])
            wg_id = T.warpgroup_id([warpgroups])
            tid = T.thread_id([128 * warpgroups])
            if wg_id == 0:
                T.ptx.setmaxnreg.dec.sync.aligned.u32(24)
            else:
                T.ptx.setmaxnreg.inc.sync.aligned.u32(consumer)
            A[tid] = tid

        return finish(kernel, "budget", "hopper")

    launch, consumer = wanted(ch14.registers, warpgroups, ctas, 24)  # type: ignore
    A = np.zeros(128 * warpgroups, np.int32)
    assert mg.simulate(build(consumer), A).ok
    findings = mg.simulate(build(consumer + 8), A).findings
    assert [f.code for f in findings] == ["setmaxnreg-budget"]
    assert f"({128 * warpgroups} * {launch})" in findings[0].message


def test_overlap_target_needs_stages_and_an_accumulator(tmp_path) -> None:
    """The stub says that it reaches about half of the target."""
    import mlsys_gpu as mg

    shape = ch14.OVERLAP_SHAPE
    M, N, K = (shape[name] for name in "MNK")

    def reached(module, **constants):
        vars(module).update(constants)
        A, B = np.zeros((M, K), np.float16), np.zeros((N, K), np.float16)
        report = mg.simulate(module.build(**shape), A, B, np.zeros((M, N), np.float16), timing=True)
        return report.timing.tflops(2 * M * N * K) / ch14.OVERLAP_TFLOPS

    assert 0.45 < reached(solution("ch14/ex14_9_overlap.py", tmp_path, stub=True)) < 0.55
    worked = solution("ch14/ex14_9_overlap.py", tmp_path)
    assert reached(worked) > 1.02
    assert reached(worked, BUFFERS=1) < 0.99
    assert reached(worked, BUFFERS=2, PIPE_DEPTH=4) < 0.95


def test_page_answers() -> None:
    """The numbers of the pages, worked out by hand."""
    pages = [
        (ch01.thread_index, (51, 1, 19)),
        (ch01.pipeline_depth, (32784, 6)),
        (ch10.swizzle, 5 * 128 + (2 ^ 5) * 16 + 8),
        (ch10.tensor_memory, ((70 << 16) + 137, 2)),
        (ch10.dispatch, (16, 8)),
        (ch12.phases, [0, 1, 0, 1, 0, 1]),
        (ch12.traffic, (2 * 1024**3, 64 * 256 * 1024 * 2, 2 * 1024**2)),
        (ch12.descriptor, 0x4000004000010082),
        (ch13.expected_bytes, (32768, (104 + 72) * 8 * 2, 104 * 72 * 2)),
        (ch13.ring, [(0, 1, 0), (1, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 0)]),
        (ch14.phases, (1, 0, 1, 0)),
        (ch14.pair_bytes, (32768, 32768, 65536, 0)),
        (ch14.deadlock, ((1, 1), (1, 0))),
        (ch14.registers, (168, 232)),
    ]
    for check, answer in pages:
        assert check.page is not None
        assert check.want(check.page) == answer
