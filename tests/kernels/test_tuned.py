"""Step 9, tuned, on Hopper: its plans, and every addition with and without."""

import re

import pytest

import mlsys_gpu as mg
from mlsys_gpu.kernels import gemm
from mlsys_gpu.kernels.gemm.hopper import tuned
from mlsys_gpu.verification import compare_gemm

from .simulated import simulated

ALL = tuple(tuned.ADDITIONS)
# Shape, CTAs: each tile width, one turn and several, a cluster and none, ragged in M, N and K;
# fewer tiles than CTAs; one CTA for all.
SHAPES = [
    ((200, 136, 72), 132, 64),
    ((300, 520, 328), 15, 128),
    ((392, 576, 200), 4, 192),
    ((392, 1000, 200), 8, 256),
    ((1400, 520, 712), 4, 192),
    ((136, 136, 72), 1, 192),
    ((1, 8, 8), 132, 64),
]


def right(shape, ctas, without=(), dtype="float16", seed=0, **schedule):
    M, N, K = shape
    kernel = tuned.build(M, N, K, dtype, ctas, without)
    A, B, D = simulated(kernel, shape, dtype, seed, **schedule)
    assert compare_gemm(A, B, D).max_error <= 1


@pytest.mark.parametrize(("shape", "ctas", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_right_in_every_schedule(shape, ctas, columns, dtype):
    assert tuned.plan(shape[0], shape[1], ctas).BN == columns
    for schedule in ("eager", "lazy", "seeded"):
        right(shape, ctas, (), dtype, schedule=schedule, schedule_seed=9)


@pytest.mark.parametrize("left_out", [*((name,) for name in ALL), ALL])
def test_right_without_an_addition(left_out):
    for shape, ctas in (((1400, 520, 328), 4), ((392, 1000, 200), 8)):
        right(shape, ctas, left_out, schedule="seeded", schedule_seed=1)


@pytest.mark.parametrize(("shape", "ctas"), [((136, 264, 200), 132), ((2100, 72, 72), 2)])
@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_silent_whatever_the_seed(shape, ctas, dtype):
    for seed in range(20):
        right(shape, ctas, (), dtype, seed, schedule="seeded", schedule_seed=seed)


@pytest.mark.parametrize("size", [512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384])
def test_a_plan_wastes_no_turn(size):
    """No wide tile would give the busiest CTA fewer columns to compute, and all are dealt."""
    found = tuned.plan(size, size)
    tiles = {n: -(-size // 128) * -(-size // n) for n in (64, 128, 192, 256)}
    turns = {n: -(-t // 132) for n, t in tiles.items()}
    wide = {n: turns[n] * n for n in (192, 256)}
    assert turns[found.BN] * found.BN <= min(wide.values())
    assert found.ctas <= 132
    assert found.ctas % found.cluster == 0
    rows = -(-size // (128 * found.cluster))
    dealt = -(-rows * -(-size // found.BN) // (found.ctas // found.cluster))
    assert dealt <= turns[found.BN] + 1
    stage = (128 + found.BN) * 64 * 2
    used = found.stages * stage + found.pieces * 128 * 64 * 2
    assert used + 1024 <= 227 * 1024 < used + stage + 2048


@pytest.mark.parametrize(
    ("shape", "columns"),
    [((512,) * 3, 64), ((1408,) * 3, 128), ((8192,) * 3, 192), ((4096,) * 3, 256)],
)
def test_assembles_without_spills_and_with_what_was_added(shape, columns):
    found = tuned.plan(*shape[:2])
    assert found.BN == columns
    made = mg.inspect(tuned.build(*shape))
    assert made.warnings == ()
    for name in ("spill_store_bytes", "spill_load_bytes", "stack_bytes"):
        assert made.resources[name] == 0
    assert made.resources["threads"] == 384
    assert f"m64n{columns}k16" in made.ptx
    assert ("multicast::cluster" in made.ptx) == (found.cluster == 2)
    assert made.launch.cluster == (found.cluster, 1, 1)
    assert len(re.findall(r"prefetch\S*\.tensormap", made.ptx)) == 3
    assert "L2::cache_hint" in made.ptx
    assert "griddepcontrol.wait" in made.ptx
    plain = mg.inspect(tuned.build(*shape, without=ALL)).ptx
    assert not re.search(r"prefetch|cache_hint|griddepcontrol", plain)
    assert "m64n256k16" in plain
    assert plain.count("barrier.cluster.arrive") == 2


def test_an_unknown_addition_is_refused():
    with pytest.raises(ValueError, match=r"without takes names of shape, .*, got 'magic'"):
        tuned.build(256, 256, 64, without=("magic",))


def test_it_is_called_tuned():
    step = gemm.tuned("hopper")
    assert step == gemm.step(9, "hopper", "tuned")
    assert (step.name, step.symbol) == ("gemm/hopper/tuned", "gemm_hopper_tuned")
    assert step.source_path.name == "tuned.py"
    with pytest.raises(ValueError, match=r"Step 9, tuned, needs N .* got N = 12"):
        step.build(128, 12, 64)
