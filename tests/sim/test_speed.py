"""A student waits seconds. Processor time, best of a few runs, so that other work counts less."""

import os
import time

import pytest

from mlsys_gpu import sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.verification import compare_gemm, gemm_inputs, poisoned


def fastest(function, runs: int) -> float:
    """Seconds of processor time of the fastest of some runs."""
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_step_3_with_all_checks_in_half_a_second(arch):
    M = N = K = 256
    program = sim.compile(gemm.step(3, arch).build(M, N, K))  # lowering apart
    A, B = gemm_inputs(M, N, K, dtype="float16", seed=0)
    D = poisoned((M, N), "float16")
    reports = []
    seconds = fastest(lambda: reports.append(sim.simulate(program, A, B, D)), 3)
    assert not reports[-1].findings
    assert compare_gemm(A, B, D).max_error <= 1
    assert seconds <= 0.5


@pytest.mark.slow
def test_step_3_is_no_slower_than_tritons_interpreter():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton", reason="no wheel of Triton on this platform")
    from mlsys_gpu.kernels.baselines import triton_gemm

    M = N = K = 1024
    A, B = gemm_inputs(M, N, K, dtype="float16", seed=0)
    D = poisoned((M, N), "float16")
    a, b, d = (torch.from_numpy(x.copy()) for x in (A, B, D))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        triton = fastest(lambda: triton_gemm.gemm(a, b, d), 3)
    finally:
        torch.set_num_threads(before)
    assert compare_gemm(A, B, d.numpy()).max_error <= 1
    ratios = {}
    for arch in gemm.ARCHS:
        program = sim.compile(gemm.step(3, arch).build(M, N, K))
        D = poisoned((M, N), "float16")
        ours = fastest(lambda p=program, out=D: sim.simulate(p, A, B, out, checks=False), 3)
        assert compare_gemm(A, B, D).max_error <= 1
        ratios[arch] = ours / triton
    if "PYTEST_XDIST_WORKER" not in os.environ:
        print({arch: round(ratio, 2) for arch, ratio in ratios.items()}, f"of {triton:.2f} s")
    assert max(ratios.values()) <= 1, ratios
