"""Step 9, tuned, on Blackwell: its plans, and every addition with and without."""

import re

import pytest

import mlsys_gpu as mg
from mlsys_gpu.kernels import gemm
from mlsys_gpu.kernels.gemm.blackwell import tuned
from mlsys_gpu.verification import compare_gemm

from .simulated import simulated

ALL = tuple(tuned.ADDITIONS)
# Shape, CTAs, and the columns of the plan's tile: each of them, one turn and several, ragged in M,
# N and K; fewer tiles than pairs; one pair for all; tiles of which a CTA has no row.
SHAPES = [
    ((200, 136, 72), 148, 64),
    ((300, 520, 328), 24, 128),
    ((392, 576, 200), 4, 192),
    ((264, 520, 712), 2, 192),
    ((1000, 1000, 200), 32, 256),
    ((1100, 1000, 136), 6, 256),
    ((136, 136, 72), 1, 192),
    ((1, 8, 8), 148, 64),
]
# Two consumers: one turn, several turns, ragged, and a second consumer without rows.
TWO = [((520, 264, 328), 4), ((1100, 520, 200), 4), ((136, 136, 72), 2), ((1100, 264, 136), 2)]


def right(shape, ctas, without=(), dtype="float16", seed=0, **schedule):
    M, N, K = shape
    kernel = tuned.build(M, N, K, dtype, ctas, without)
    A, B, D = simulated(kernel, shape, dtype, seed, **schedule)
    assert compare_gemm(A, B, D).max_error <= 1


@pytest.mark.parametrize(("shape", "ctas", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_right_in_every_schedule(shape, ctas, columns, dtype):
    found = tuned.plan(shape[0], shape[1], ctas)
    assert (found.consumers, found.columns) == (1, columns)
    for schedule in ("eager", "lazy", "seeded"):
        right(shape, ctas, (), dtype, schedule=schedule, schedule_seed=9)


@pytest.mark.parametrize(("shape", "ctas"), TWO)
@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_right_with_two_consumers(shape, ctas, dtype):
    found = tuned.plan(shape[0], shape[1], ctas, ("shape",))
    assert (found.consumers, found.columns) == (2, 256)
    for schedule in ("eager", "lazy", "seeded"):
        right(shape, ctas, ("shape",), dtype, schedule=schedule, schedule_seed=9)


@pytest.mark.parametrize("left_out", [*((name,) for name in ALL), ALL])
def test_right_without_an_addition(left_out):
    for shape, ctas in (((392, 576, 328), 4), ((1100, 520, 200), 4)):
        right(shape, ctas, left_out, schedule="seeded", schedule_seed=1)


# Six turns of 192 columns, two of 64; three of two consumers.
SILENT = [((264, 520, 200), 2, ()), ((776, 40, 136), 4, ()), ((1032, 200, 136), 2, ("shape",))]


@pytest.mark.parametrize(("shape", "ctas", "without"), SILENT)
@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_silent_whatever_the_seed(shape, ctas, without, dtype):
    for seed in range(20):
        right(shape, ctas, without, dtype, seed, schedule="seeded", schedule_seed=seed)


@pytest.mark.parametrize("size", [512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384])
@pytest.mark.parametrize("without", [(), ("shape",)])
def test_a_plan_fits_and_wastes_no_turn(size, without):
    found = tuned.plan(size, size, without=without)
    tiles = -(-size // (256 * found.consumers)) * -(-size // found.columns)
    turns = -(-tiles // 74)
    assert found.pairs <= 74
    assert -(-tiles // found.pairs) == turns  # no more turns than with all pairs
    assert found.pairs == 1 or -(-tiles // (found.pairs - 1)) > turns  # and none too many
    assert found.consumers * found.columns <= 512  # of TMEM; one consumer has two accumulators
    # The busiest pair has no more columns to compute than the widest tiles would leave it.
    wide = -(-(-(-size // 256) * -(-size // 256)) // 74)
    assert without or turns * found.columns <= 256 * wide
    stage = (128 * found.consumers + found.columns // 2) * 64 * 2
    used = found.stages * stage + found.consumers * found.pieces * 128 * 64 * 2
    assert used + 1024 <= 227 * 1024 < used + stage + 1024


def test_small_products_take_more_sms_than_the_last_step():
    """What a plan is for: 1024 x 1024 is 8 tiles of 512 x 256, and 64 of 256 x 64."""
    assert tuned.plan(1024, 1024, without=("shape",)).pairs == 8
    assert tuned.plan(1024, 1024).pairs == 64


def test_narrower_tiles_where_wide_ones_leave_pairs_idle_and_l2_does_not_bind():
    """At 4096 tiles of 192 columns take 5 turns of 74 pairs, 960 columns; of 256, 4, so 1024. At
    12288 they would save as little, 42 turns for 32, and load a sixth more: L2 would bind."""
    assert tuned.plan(4096, 4096).columns == 192
    assert tuned.plan(12288, 12288).columns == 256


@pytest.mark.parametrize("size", [512, 1024, 1536, 2048, 4096, 8192])
def test_assembles_without_spills_and_with_what_was_added(size):
    found = tuned.plan(size, size)
    made = mg.inspect(tuned.build(size, size, size))
    assert made.warnings == ()
    for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes"):
        assert made.resources[name] == 0
    assert made.resources["threads"] == 128 * (1 + found.consumers)
    assert made.launch.cluster == (2, 1, 1)
    assert made.launch.grid == (2 * found.pairs, 1, 1)
    assert len(re.findall(r"prefetch\S*\.tensormap", made.ptx)) == 3
    assert "L2::cache_hint" in made.ptx
    assert "griddepcontrol.wait" in made.ptx
    assert "setmaxnreg" not in made.ptx  # 256 threads have as many as a thread can have
    pieces = len(re.findall(r"cp\.async\.bulk\.wait_group\.read\s+1;", made.ptx))
    assert pieces == (found.columns // 64 if found.pieces == 2 else 0)


@pytest.mark.parametrize("size", [1024, 1536, 4096, 8192])
def test_without_all_it_is_the_last_step(size):
    made = mg.inspect(tuned.build(size, size, size, without=ALL))
    last = mg.inspect(gemm.step(9, "blackwell").build(size, size, size))
    assert not re.search(r"prefetch|cache_hint|griddepcontrol", made.ptx)
    assert made.launch.grid == last.launch.grid
    assert made.launch.shared_bytes == last.launch.shared_bytes
    assert "setmaxnreg" in made.ptx
    assert made.warnings == ()
    for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes"):
        assert made.resources[name] == 0
    for operation in ("tcgen05.mma", "tcgen05.commit", "cp.async.bulk.tensor", "mbarrier.init"):
        assert made.ptx.count(operation) == last.ptx.count(operation)


def test_each_addition_that_the_model_knows_gains_in_it():
    """At 2048 x 2048: the tile by shape, and stores beside the reads of the next columns."""

    def modelled(without):
        return mg.model(tuned.build(2048, 2048, 2048, without=without), gpu="b200").microseconds

    whole = modelled(())
    assert modelled(("shape",)) > 1.2 * whole
    assert modelled(("pieces",)) > 1.02 * whole
    assert modelled(ALL) > 1.2 * whole


def test_an_unknown_addition_is_refused():
    with pytest.raises(ValueError, match=r"without takes names of shape, .*, got 'magic'"):
        tuned.build(256, 256, 64, without=("magic",))


def test_it_is_called_tuned():
    step = gemm.tuned("blackwell")
    assert step == gemm.step(9, "blackwell", "tuned")
    assert (step.name, step.symbol) == ("gemm/blackwell/tuned", "gemm_blackwell_tuned")
    assert step.source_path.name == "tuned.py"
    assert step.roles != gemm.step(9, "blackwell").roles
    with pytest.raises(ValueError, match=r"Step 9, tuned, needs N .* got N = 12"):
        step.build(128, 12, 64)


@pytest.mark.parametrize(
    ("without", "loads", "multiplies", "stores"),
    [((), {6}, {4}, {0}), (("shape",), {10}, {8, 9}, {0, 4})],
)
def test_warps_do_what_the_registry_announces(without, loads, multiplies, stores):
    """The last warpgroup's third warp loads, its first (and second) multiply, one for each
    consumer; the warpgroups before it store."""
    timing = mg.model(tuned.build(520, 264, 136, without=without), gpu="b200")
    seen: dict[str, set[int]] = {"TMA loads": set(), "tcgen05.mma": set(), "TMA stores": set()}
    for role in timing.statistics()["roles"]:
        for what in seen:
            if role["cta_rank"] == 0 and what in role["name"]:
                seen[what] |= set(role["warps"])
    assert list(seen.values()) == [loads, multiplies, stores]
