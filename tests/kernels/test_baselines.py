"""The baselines compute the same D = A @ B.T that the ladder does."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from mlsys_gpu.kernels.baselines import cublas, triton_gemm, triton_persistent  # noqa: E402

TRITONS = [triton_gemm, triton_persistent]
# More than one tile each way; and sizes that no tile divides.
SHAPES = [(256, 384, 192), (100, 200, 72), (129, 1, 65)]
# What a CTA may have on Hopper, in bytes: 227 KiB (CUDA C++ Programming Guide)
SHARED = 227 * 1024
# Half a unit in the last place of D, relative. Triton's interpreter truncates to bfloat16 (x 2).
HALF_ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def inputs(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    M, N, K = shape
    A = torch.from_numpy(rng.standard_normal((M, K))).to(dtype)
    B = torch.from_numpy(rng.standard_normal((N, K))).to(dtype)
    return A, B, torch.full((M, N), float("nan"), dtype=dtype)


def takes(baseline, shape):
    return baseline is not triton_persistent or not (shape[1] % 8 or shape[2] % 8)


def require_right(baseline, A, B, D):
    a, b = A.double().numpy(), B.double().numpy()
    reference = a @ b.T
    factor = 2 if baseline in TRITONS and D.dtype is torch.bfloat16 else 1
    sums = np.abs(a) @ np.abs(b).T
    bound = factor * HALF_ULP[D.dtype] * np.abs(reference) + 2.0**-23 * A.shape[1] ** 0.5 * sums
    # torch on the CPU may round a product's partial sums more often than once.
    slack = 4 if baseline is cublas else 1
    assert np.all(np.abs(D.double().numpy() - reference) <= slack * bound)


@pytest.mark.parametrize("baseline", [cublas, *TRITONS])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_the_cpu_against_float64(baseline, shape, dtype):
    A, B, D = inputs(shape, dtype)
    if not takes(baseline, shape):
        with pytest.raises(ValueError, match="TMA needs N to be a multiple of 8, got 1"):
            baseline.gemm(A, B, D)
        assert bool(D.isnan().all())
        return
    assert baseline.gemm(A, B, D) is D
    require_right(baseline, A, B, D)


@pytest.mark.parametrize("baseline", TRITONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_configuration_computes_the_same(baseline, dtype):
    tried = baseline.configs(*SHAPES[0])
    assert len(set(tried)) == len(tried) > 8
    for config in [*tried, *tried[0].grouped()]:
        A, B, D = inputs(SHAPES[1], dtype, seed=config.BM + config.stages)
        baseline.gemm(A, B, D, config)
        require_right(baseline, A, B, D)


def test_more_tiles_than_ctas_are_walked_through():
    """Three CTAs, 36 tiles, groups of 8 rows: more than one group, the last one short."""
    A, B, D = inputs((1100, 456, 64), torch.float16)
    config = triton_persistent.configs(1, 1, 1)[4]
    assert (config.BM, config.BN) == (128, 128)
    triton_persistent.gemm(A, B, D, config)
    require_right(triton_persistent, A, B, D)


def test_small_results_are_tried_with_small_tiles():
    def tiles(n):
        return {(c.BM, c.BN) for c in triton_persistent.configs(n, n, n)}

    assert tiles(8192) == {(128, 256), (256, 128), (128, 128)}
    assert tiles(1024) > tiles(8192)
    assert (64, 128) in tiles(1024)
    assert all(t in tiles(1024) for t in tiles(4096))


def test_groups_of_other_sizes():
    config = triton_gemm.LARGE
    assert [c.group for c in config.grouped()] == [4, 16]
    assert config.grouped()[0].to_dict() == config.to_dict() | {"group": 4}


def assembled(baseline, config, dtype="fp16"):
    """A Triton kernel assembled for Hopper, as it is on the GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = triton.jit(baseline._gemm)
    position = {name: i for i, name in enumerate(function.arg_names)}
    width = config.BN // 2 if config.halves else config.BN
    blocks = {
        "A": (config.BM, config.BK), "B": (config.BN, config.BK), "D": (config.BM, width)
    }  # fmt: skip
    host = baseline is triton_persistent and not config.specialize
    types = {
        name: f"tensordesc<{dtype}[{rows}, {cols}]>" if host else f"*{dtype}"
        for name, (rows, cols) in blocks.items()
    }
    types |= dict.fromkeys("MNK", "i32")
    constants = {"BM": config.BM, "BN": config.BN, "BK": config.BK, "GROUP": config.group}
    constants["UPCAST"] = False
    if baseline is triton_persistent:
        constants |= {
            "CTAS": 132, "HALVES": config.halves, "SPECIALIZE": config.specialize
        }  # fmt: skip
    aligned = [name for name in types if name in "MNK" or not host]
    source = ASTSource(
        function,
        types | dict.fromkeys(constants, "constexpr"),
        {(position[name],): value for name, value in constants.items()},
        {(position[name],): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": config.warps, "num_stages": config.stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.slow
@pytest.mark.parametrize("baseline", TRITONS)
def test_every_configuration_assembles_for_hopper(baseline, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for config in baseline.configs(1024, 1024, 1024):
        made = assembled(baseline, config)
        ptx = made.asm["ptx"]
        assert made.metadata.shared <= SHARED, config
        assert "wgmma.mma_async" in ptx, config
        assert ("cp.async.bulk.tensor" in ptx) == (baseline is triton_persistent), config
        # a producer, and two consumer warpgroups
        assert ("setmaxnreg" in ptx) == config.specialize, config
        assert made.metadata.num_warps == (12 if config.specialize else config.warps), config
        assert ".local" not in ptx, config


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
    assert triton_gemm.default(4096, 4096) == triton_gemm.LARGE
    assert triton_gemm.default(512, 512) == triton_gemm.SMALL
    assert triton_gemm.default(128, 256 * 132) == triton_gemm.LARGE
    assert triton_gemm.default(128, 256 * 131) == triton_gemm.SMALL


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


def test_all_offer_the_same_call():
    for baseline in (cublas, *TRITONS):
        parameters = list(inspect.signature(baseline.gemm).parameters)
        assert parameters[:3] == ["A", "B", "D"]
        assert parameters[3:] == ([] if baseline is cublas else ["config"])


@pytest.mark.gpu
@pytest.mark.parametrize("baseline", [cublas, *TRITONS])
def test_on_the_gpu_against_float64(baseline):
    cases = [(s, d) for s in (*SHAPES, (4096, 4096, 512)) for d in HALF_ULP]
    for shape, dtype in cases:
        if not takes(baseline, shape):
            continue
        for config in [None] if baseline is cublas else baseline.configs(*shape):
            A, B, D = (t.cuda() for t in inputs(shape, dtype, seed=1))
            with cublas.fp32_reductions():
                baseline.gemm(A, B, D, *([] if config is None else [config]))
            reference = A.double() @ B.double().T
            sums = A.double().abs() @ B.double().abs().T
            bound = HALF_ULP[dtype] * reference.abs() + 2.0**-23 * shape[2] ** 0.5 * sums
            assert bool(((D.double() - reference).abs() <= bound).all()), config
