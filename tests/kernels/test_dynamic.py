"""Step 9 with a dynamic scheduler, on Hopper: the counter, who draws, what it is made of."""

import re

import numpy as np
import pytest

import mlsys_gpu as mg
from mlsys_gpu.kernels import gemm
from mlsys_gpu.verification import compare_gemm, gemm_inputs, poisoned

from .test_emitted import CONSUMERS, ONE_THREAD, count, guards


@pytest.fixture(scope="module")
def dynamic():
    return gemm.step(9, "hopper", "dynamic")


# Shape, CTAs: as many tiles as clusters, more, many more for one cluster, fewer than clusters.
@pytest.mark.parametrize(
    ("shape", "ctas"),
    [((264, 264, 72), 8), ((520, 520, 72), 4), ((264, 520, 72), 2), ((136, 264, 72), 132)],
)
def test_the_counter_is_zero_again_and_serves_the_next_launch(dynamic, shape, ctas):
    kernel = dynamic.build(*shape, ctas=ctas)
    counter = np.zeros(1, np.int32)
    for seed, schedule in enumerate(("eager", "lazy", "seeded")):
        A, B = gemm_inputs(*shape, seed=seed)
        D = poisoned(shape[:2])
        report = mg.simulate(kernel, A, B, D, counter, schedule=schedule, schedule_seed=seed)
        assert report.ok, report
        assert counter[0] == 0
        assert compare_gemm(A, B, D).max_error <= 1


def test_a_counter_that_is_not_zero_leaves_tiles_out(dynamic):
    """What the counter decides: from 1 on, the first tile that is drawn is nobody's."""
    shape = (776, 520, 72)
    A, B = gemm_inputs(*shape)
    D = poisoned(shape[:2])
    kernel = dynamic.build(*shape, ctas=4)
    mg.simulate(kernel, A, B, D, np.ones(1, np.int32))
    # 4 x 3 tiles of 256 x 256 for two clusters, whose first are tiles 0 and 1: tile 2 is skipped.
    # Rows before columns: it is in the third row of the first column.
    untouched = np.isnan(D.astype(np.float64))
    wanted = np.zeros_like(untouched)
    wanted[512:768, :256] = True
    assert np.array_equal(untouched, wanted)


@pytest.mark.parametrize(("shape", "ctas"), [((520, 776, 72), 4), ((520, 520, 72), 18)])
def test_a_cluster_draws_until_no_tile_is_left_and_no_more(dynamic, shape, ctas):
    kernel = dynamic.build(*shape, ctas=ctas)
    A, B = gemm_inputs(*shape)
    tiles = -(-shape[0] // 256) * -(-shape[1] // 256)
    for seed in range(2):
        D = poisoned(shape[:2])
        report = mg.simulate(kernel, A, B, D, schedule="seeded", schedule_seed=seed)
        assert report.ok, report
        # Of each cluster's first tile no number is drawn; each draws one that is past the last.
        assert report.counters["global_atomics"] == tiles


def test_what_it_is_made_of(dynamic):
    shapes = [dynamic.default_shape, (4096, 4096, 4096), (200, 136, 72)]
    for shape in shapes:
        made = mg.inspect(dynamic.build(*shape))
        assert made.warnings == ()
        for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes"):
            assert made.resources[name] == 0
        assert len(re.findall(r"USETMAXREG", made.sass)) == 2
        for pattern, times in {
            r"atom\.relaxed\.gpu\.global\.inc\.u32": 1,
            r"st\.async\S*shared::cluster\S*complete_tx::bytes\S*": 2,  # to each CTA
            r"mbarrier\.init\.shared\.b64": 10,  # full and empty of four stages, drawn, taken
            r"shfl\.sync": 3,  # the warp's number; the tile of two roles
        }.items():
            assert count(pattern, "float16", made.ptx) == times, pattern


SCHEDULER = {
    (
        "clusterCtaIdx_x == 0",
        "warp_id_in_cta // 4 == 0",
        "warp_id_in_cta % 4 == 1",
        "T.cuda.elect_sync()",
    )
}
ROLES = {
    r'"global", "inc"': SCHEDULER,
    r"st_async": SCHEDULER,
    r"T\.cuda\.mbarrier_wait\(T\.address_of\(taken": SCHEDULER,
    r"T\.cuda\.mbarrier_wait\(T\.address_of\(drawn": {("warp_id_in_cta == 0",), *CONSUMERS},
    r'"bulk", "tensor".*mbarrier': ONE_THREAD,
    r"T\.ptx\.wgmma\(": CONSUMERS,
}


def test_roles(dynamic):
    made = mg.inspect(dynamic.build(*dynamic.default_shape))
    script = made.lowered.device.script()
    assert {p: guards(script, p) for p in ROLES} == ROLES
    assert dynamic.roles[0][0] == "one thread of CTA 0's warpgroup 0"
    assert dynamic.roles[1:] == gemm.step(9, "hopper").roles


@pytest.mark.parametrize("shape", [(2048, 2048, 1024), (1304, 2056, 520)])
def test_modelled_as_if_all_clusters_drew_in_turn(dynamic, shape):
    """A few clusters stand for all, and do not draw for all: about the time of the dealt tiles."""
    dealt, drawn = (
        mg.model(step.build(*shape), gpu="h200").microseconds
        for step in (gemm.step(9, "hopper"), dynamic)
    )
    assert dealt < drawn < 1.06 * dealt


def test_a_timed_run_is_right_and_draws_in_turn(dynamic):
    shape = (1024, 1024, 200)
    times = []
    for step in (gemm.step(9, "hopper"), dynamic):
        A, B = gemm_inputs(*shape)
        D = poisoned(shape[:2])
        report = mg.simulate(step.build(*shape, ctas=8), A, B, D, timing="h200")
        assert report.ok
        assert compare_gemm(A, B, D).max_error <= 1
        times.append(report.timing.microseconds)
    assert times[0] < times[1] < 1.15 * times[0]
