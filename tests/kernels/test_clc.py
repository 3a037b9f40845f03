"""Step 9 with Cluster Launch Control: who asks, who takes over, and what it emits."""

import re

import pytest

import mlsys_gpu as mg
from mlsys_gpu.kernels import gemm
from mlsys_gpu.sim.machine.core import Machine
from mlsys_gpu.verification import compare_gemm, gemm_inputs, poisoned

CLC = gemm.step(9, "blackwell", "clc")
SHAPE = (1030, 520, 72)  # 3 x 3 tiles of 512 x 256; the last row of tiles has 6 rows
TILES = 9


@pytest.fixture(scope="module", params=gemm.DTYPES)
def made(request):
    pytest.importorskip("cuda.bindings.nvrtc", reason="assembling needs cuda-python and NVRTC")
    return mg.inspect(CLC.build(*CLC.default_shape, request.param))


def test_who_it_is():
    assert (CLC.name, CLC.symbol) == ("gemm/blackwell/step9-clc", "gemm_blackwell_step9_clc")
    assert CLC.source_path.name == "step9_clc.py"
    last = gemm.step(9, "blackwell")
    assert CLC.roles[-len(last.roles) :] == last.roles
    assert any("warp 11" in who for who, _ in CLC.roles)
    with pytest.raises(ValueError, match=r"Step 9, clc, needs N .* got N = 12"):
        CLC.build(128, 12, 64)
    with pytest.raises(TypeError, match="ctas"):  # the GPU says how many run
        CLC.build(*SHAPE, ctas=4)


def test_one_thread_asks_and_all_warps_read(made):
    ptx = made.ptx
    once = {
        r"clusterlaunchcontrol\.try_cancel\S*\.multicast::cluster::all\.b128": 1,
        # Loads and MMAs have a loop, and the epilogue has one; each reads at its end.
        r"clusterlaunchcontrol\.query_cancel\.is_canceled": 2,
        r"clusterlaunchcontrol\.query_cancel\.get_first_ctaid::x": 2,
        r"ld\.shared\.b128": 2,
        r"mbarrier\.init\.shared\.b64": 12 + 2,  # clc_full, clc_empty
        # One thread each loads, multiplies and expects the response; a warp's arrives, twice.
        r"elect\.sync": 3 + 2,
    }
    assert {p: len(re.findall(p, ptx)) for p in once} == once


def test_two_ctas_for_each_tile_and_no_spills(made):
    M, N, _ = CLC.default_shape
    assert made.launch.grid == (2 * -(-M // 512) * -(-N // 256), 1, 1)
    assert made.launch.cluster == (2, 1, 1)
    for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes"):
        assert made.resources[name] == 0
    assert made.resources["threads"] == 384
    assert made.warnings == ()


@pytest.mark.parametrize("schedule", ["eager", "lazy", "seeded"])
def test_those_that_run_take_over_the_others_tiles(monkeypatch, schedule):
    """The simulator holds few clusters at a time: each tile is asked for, or its cluster starts."""
    given = []
    cancel = Machine.cancel

    def counted(machine, cluster):
        given.append(cancel(machine, cluster))
        return given[-1]

    monkeypatch.setattr(Machine, "cancel", counted)
    A, B = gemm_inputs(*SHAPE)
    D = poisoned(SHAPE[:2])
    # (With checks the simulator would run a cluster again, to see which elements it multiplies.)
    report = mg.simulate(
        CLC.build(*SHAPE), A, B, D, schedule=schedule, schedule_seed=4, checks=False
    )
    assert report.ok, report
    assert compare_gemm(A, B, D).max_error <= 1
    taken = [origin for origin in given if origin is not None]
    started = TILES - len(taken)
    assert 1 <= started <= 3
    assert given.count(None) == started  # each that starts is told once that none is left
    assert len(set(taken)) == len(taken)  # and no tile is given twice
    if schedule == "eager":
        assert started == 1
