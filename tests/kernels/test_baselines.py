"""The baselines compute the same D = A @ B.T that the ladder does."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mlsys_gpu.kernels.baselines import cublas, triton_gemm  # noqa: E402

# More than one tile each way; and sizes that no tile divides.
SHAPES = [(256, 384, 192), (100, 200, 72), (129, 1, 65)]
# Half a unit in the last place of D, relative. Triton's interpreter truncates to bfloat16 (x 2).
HALF_ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def inputs(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    M, N, K = shape
    A = torch.from_numpy(rng.standard_normal((M, K))).to(dtype)
    B = torch.from_numpy(rng.standard_normal((N, K))).to(dtype)
    return A, B, torch.full((M, N), float("nan"), dtype=dtype)


@pytest.mark.parametrize("baseline", [cublas, triton_gemm])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_the_cpu_against_float64(baseline, shape, dtype):
    A, B, D = inputs(shape, dtype)
    assert baseline.gemm(A, B, D) is D
    a, b = A.double().numpy(), B.double().numpy()
    reference = a @ b.T
    factor = 2 if baseline is triton_gemm and dtype is torch.bfloat16 else 1
    sums = np.abs(a) @ np.abs(b).T
    bound = factor * HALF_ULP[dtype] * np.abs(reference) + 2.0**-23 * shape[2] ** 0.5 * sums
    # torch on the CPU may round a product's partial sums more often than once.
    slack = 4 if baseline is cublas else 1
    assert np.all(np.abs(D.double().numpy() - reference) <= slack * bound)


@pytest.mark.parametrize("switch", ["0", "1"])
def test_the_interpreter_runs_in_process_whatever_the_environment(switch):
    code = """
import torch
from mlsys_gpu.kernels.baselines import triton_gemm
A, B = torch.randn(128, 64).half(), torch.randn(128, 64).half()
D = triton_gemm.gemm(A, B, torch.full((128, 128), float("nan")).half())
print(bool((D.double() - A.double() @ B.double().T).abs().max() < 0.05))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "TRITON_INTERPRET": switch, "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"


def test_triton_takes_the_large_tile_only_where_it_fills_the_gpu():
    assert triton_gemm.config(4096, 4096) == triton_gemm.LARGE
    assert triton_gemm.config(512, 512) == triton_gemm.SMALL
    assert triton_gemm.config(128, 256 * 132) == triton_gemm.LARGE
    assert triton_gemm.config(128, 256 * 131) == triton_gemm.SMALL


def test_fp32_reductions_puts_back_what_it_found():
    matmul = torch.backends.cuda.matmul
    names = ["allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"]
    before = [getattr(matmul, name) for name in names]
    try:
        with cublas.fp32_reductions():
            assert not any(getattr(matmul, name) for name in names)
            raise KeyError
    except KeyError:
        pass
    assert [getattr(matmul, name) for name in names] == before


def test_both_offer_the_same_call():
    for baseline in (cublas, triton_gemm):
        assert list(inspect.signature(baseline.gemm).parameters) == ["A", "B", "D"]


@pytest.mark.gpu
@pytest.mark.parametrize("baseline", [cublas, triton_gemm])
def test_on_the_gpu_against_float64(baseline):
    cases = [(s, d) for s in (*SHAPES, (4096, 4096, 512)) for d in HALF_ULP]
    for shape, dtype in cases:
        A, B, D = (t.cuda() for t in inputs(shape, dtype, seed=1))
        with cublas.fp32_reductions():
            baseline.gemm(A, B, D)
        reference = A.double() @ B.double().T
        sums = A.double().abs() @ B.double().abs().T
        bound = HALF_ULP[dtype] * reference.abs() + 2.0**-23 * shape[2] ** 0.5 * sums
        assert bool(((D.double() - reference).abs() <= bound).all())
