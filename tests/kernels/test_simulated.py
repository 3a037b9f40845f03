"""Every kernel of the ladder computes D = A @ B.T in the simulator, and nothing is found."""

import numpy as np
import pytest

import mlsys_gpu as mg
from mlsys_gpu.kernels import gemm
from mlsys_gpu.verification import compare_gemm, output_difference, poisoned

from .simulated import simulated

# One K tile; an even and an odd number; more than one tile each way, with M, N and K all different.
SHAPES = {
    1: [(128, 128, 64)],
    2: [(128, 128, 64), (128, 128, 128), (128, 128, 448)],
    3: [(128, 128, 64), (256, 384, 192), (384, 256, 64), (128, 256, 320)],
}
# From Step 4 on tiles may hang over the edges: of M, N and K; by all but one row or 8 columns.
RAGGED = [(1, 8, 8), (128, 128, 64), (200, 136, 72), (129, 264, 520), (384, 192, 256)]
SHAPES |= dict.fromkeys(range(4, 10), RAGGED)
BOTH = sorted(set.intersection(*({s.number for s in gemm.steps(a)} for a in gemm.ARCHS)))
# Where every seed runs.
SILENT = {1: (128, 128, 64), 2: (128, 128, 448), 3: (256, 128, 128)}
KERNELS = [kernel for arch in gemm.ARCHS for kernel in gemm.everything(arch)]
CASES = [
    pytest.param(kernel, shape, dtype, id=f"{kernel.name}-{'x'.join(map(str, shape))}-{dtype}")
    for kernel in KERNELS
    for shape in SHAPES[kernel.number]
    for dtype in gemm.DTYPES
]


def of(kernels):
    """Parameters of a test, each with its kernel's name."""
    return [pytest.param(kernel, id=kernel.name) for kernel in kernels]


def among(kernel, ctas):
    """The option for so many CTAs. With launch control the grid has two for each tile, and a few
    of them, which the simulator chooses, take over all the others' tiles."""
    return {} if kernel.variant == "clc" else {"ctas": ctas}


@pytest.mark.parametrize(("kernel", "shape", "dtype"), CASES)
def test_against_float64_in_every_schedule(kernel, shape, dtype):
    func = kernel.build(*shape, dtype=dtype)
    A, B, first = simulated(func, shape, dtype, schedule="eager")
    assert compare_gemm(A, B, first).max_error <= 1
    for schedule in ("lazy", "seeded"):
        _, _, D = simulated(func, shape, dtype, schedule=schedule, schedule_seed=kernel.number)
        assert compare_gemm(A, B, D).max_error <= 1
        # A schedule moves effects in time. The order of float32 additions may differ, no more.
        assert output_difference(A, B, first, D).max_partial_sum_ulps <= 1


@pytest.mark.parametrize("kernel", of(KERNELS))
@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_silent_whatever_the_seed(kernel, dtype):
    shape = SILENT.get(kernel.number, (136, 136, 200))
    func = kernel.build(*shape, dtype=dtype)
    for seed in range(20):
        simulated(func, shape, dtype, seed, schedule="seeded", schedule_seed=seed)


# Shape, CTAs: two or three tiles a CTA, an odd and an even number of K tiles; more rows of tiles
# than a group has; one CTA for all. Clusters of two leave an odd CTA out, but for the only one.
PERSISTENT = [((392, 264, 200), 5), ((130, 520, 136), 4), ((1100, 136, 72), 4), ((136, 136, 72), 1)]
# Where a cluster's tile is larger: the same, and a last cluster whose second CTA has no row.
CLUSTERS = [((776, 520, 520), 4), ((2312, 264, 72), 6), ((264, 1032, 136), 2)]
PERSISTENT_CASES = [
    pytest.param(kernel, shape, ctas, id=f"{kernel.name}-{'x'.join(map(str, shape))}-{ctas}")
    for kernel in KERNELS
    if kernel.number >= 6
    for shape, ctas in PERSISTENT + (CLUSTERS if kernel.number >= 8 else [])
]


@pytest.mark.parametrize(("kernel", "shape", "ctas"), PERSISTENT_CASES)
@pytest.mark.parametrize("dtype", gemm.DTYPES)
def test_a_persistent_cta_computes_tile_after_tile(kernel, shape, ctas, dtype):
    func = kernel.build(*shape, dtype=dtype, **among(kernel, ctas))
    for schedule in ("eager", "lazy", "seeded"):
        A, B, D = simulated(func, shape, dtype, schedule=schedule, schedule_seed=kernel.number)
        assert compare_gemm(A, B, D).max_error <= 1


@pytest.mark.parametrize("kernel", of(k for k in KERNELS if k.number >= 6))
def test_silent_from_tile_to_tile_whatever_the_seed(kernel):
    # Two tiles for two CTAs: from Step 8 on they are one cluster, which computes both.
    shape = (136, 136, 200) if kernel.number < 9 else (264, 264, 328)
    func = kernel.build(*shape, **among(kernel, 2))
    for seed in range(20):
        simulated(func, shape, "float16", seed, schedule="seeded", schedule_seed=seed)


@pytest.mark.parametrize("n", BOTH)
def test_both_architectures_agree(n):
    shape = SHAPES[n][-1]
    A, B, blackwell = simulated(gemm.step(n, "blackwell").build(*shape), shape, "float16")
    _, _, hopper = simulated(gemm.step(n, "hopper").build(*shape), shape, "float16")
    assert output_difference(A, B, blackwell, hopper).max_partial_sum_ulps <= 1


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_large_and_small_numbers(arch):
    """Sums past float16's range become infinite, as on the GPU; zeros stay zeros."""
    kernel = gemm.step(1, arch).build(128, 128, 64)
    A, B = (np.zeros((128, 64), np.float16) for _ in range(2))
    A[3], B[5], B[6] = 40.0, 40.0, 2.0**-14
    D = poisoned((128, 128))
    assert mg.simulate(kernel, A, B, D).ok
    expected = np.zeros((128, 128))
    expected[3, 5], expected[3, 6] = np.inf, 64 * 40 * 2.0**-14
    assert np.array_equal(D.astype(np.float64), expected)
