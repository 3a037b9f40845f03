"""Small kernels from PyPI's ``tirx-kernels`` against float64: activations, norms, merged states.

They are ports of FlashInfer's, written in PTX instruction by instruction: predicated loads of
rows' edges, halves of pairs that are discarded, shuffles that some lanes do not reach.
"""

import importlib

import numpy as np
import pytest
import torch

from mlsys_gpu import sim

PACKAGE = "tirx_kernels.ported.flashinfer."
pytest.importorskip("tirx_kernels")


def module(name):
    return importlib.import_module(PACKAGE + name)


def random(seed, *shape, dtype="float32"):
    values = np.random.default_rng(seed).standard_normal(shape)
    return torch.tensor(values, dtype=getattr(torch, dtype))


def run(kernel, *arguments):
    report = sim.simulate(kernel, *arguments, arch="sm_100a")
    assert report.completed
    assert not report.findings, report


def close(got, expected, dtype):
    """Within a few units in the last place of the output, which the kernels' own tests allow."""
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-20}[dtype]
    error = (got.double() - expected).abs()
    bound = 4 * unit * expected.abs() + 4 * unit * 2.0**-4
    assert (error <= bound).all(), (error / bound).max()


ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_act_and_mul(act, dtype):
    """264 columns: 33 threads, so that the second warp has one."""
    tokens, d = 3, 264
    x = random(1, tokens, 2 * d, dtype=dtype)
    out = torch.full((tokens, d), torch.nan, dtype=x.dtype)
    kernel = module("activation.act_and_mul").get_kernel(act, dtype, tokens, d)
    run(kernel, x, out)
    wide = x.double()
    close(out, ACTIVATIONS[act](wide[:, :d]) * wide[:, d:], dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_merge_state(dtype):
    """Two attention states, merged by their log2-sum-exps."""
    length, heads, dim = 3, 5, 64
    va, vb = (random(seed, length, heads, dim, dtype=dtype) for seed in (1, 2))
    sa, sb = (random(seed, length, heads) for seed in (3, 4))
    merged, total = torch.full((va.numel(),), torch.nan, dtype=va.dtype), torch.zeros(sa.numel())
    kernel = module("cascade.merge_state").get_kernel(dtype, length, heads, dim)
    run(kernel, va.flatten(), sa.flatten(), vb.flatten(), sb.flatten(), merged, total)
    first = torch.sigmoid((sa - sb).double() * np.log(2))[..., None]
    close(merged, (va.double() * first + vb.double() * (1 - first)).flatten(), dtype)
    close(total, torch.log2(2.0 ** sa.double() + 2.0 ** sb.double()).flatten(), "float32")


def rms(x, weight, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("variant", ["rmsnorm", "gemma_rmsnorm"])
@pytest.mark.parametrize(("rows", "columns"), [(5, 128), (2, 111), (3, 1024)])
def test_rmsnorm(variant, rows, columns):
    """111 columns: an odd number, whose last pair is half undefined."""
    eps = 1e-6
    x, weight = random(1, rows, columns, dtype="float16"), random(2, columns, dtype="float16")
    y = torch.full((x.numel(),), torch.nan, dtype=x.dtype)
    kernel = module("norm.rmsnorm").get_kernel(
        variant, "float16", rows, columns, "compact", "compact", False, eps
    )
    run(kernel, x.flatten(), weight, y, rows, eps)
    bias = 1 if variant.startswith("gemma") else 0
    close(y, rms(x.double(), weight.double() + bias, eps).flatten(), "float16")


@pytest.mark.parametrize(("rows", "columns"), [(3, 128), (2, 111)])
def test_fused_add_rmsnorm(rows, columns):
    """In place: the residual becomes the sum, the input its norm."""
    eps = 1e-6
    x, r = (random(seed, rows, columns, dtype="float16") for seed in (1, 2))
    weight = random(3, columns, dtype="float16")
    name = module("norm.fused_add_rmsnorm").CONFIGS[0]["variant"]
    kernel = module("norm.fused_add_rmsnorm").get_kernel(
        name, "float16", rows, columns, "compact", "compact", False, eps
    )
    got, residual = x.flatten().clone(), r.flatten().clone()
    run(kernel, got, residual, weight, rows, eps)
    total = x.double() + r.double()
    close(residual, total.flatten(), "float16")
    close(got, rms(total, weight.double(), eps).flatten(), "float16")


def test_qk_rmsnorm():
    """Rows of heads: 12 rows for 16 places of a CTA, the rest of which is discarded."""
    batch, heads, columns, eps = 2, 6, 64, 1e-6
    x = random(1, batch, heads, columns, dtype="bfloat16")
    weight = random(2, columns, dtype="bfloat16")
    y = torch.full((x.numel(),), torch.nan, dtype=x.dtype)
    kernel = module("norm.qk_rmsnorm").get_kernel(
        variant="rmsnorm", dtype="bfloat16", H=columns, enable_pdl=False, B=batch, N=heads
    )
    strides = (heads * columns, columns)
    run(kernel, x.flatten(), weight, y, batch, heads, eps, *strides, *strides)
    close(y, rms(x.double(), weight.double(), eps).flatten(), "bfloat16")


@pytest.mark.parametrize(("rows", "columns"), [(2, 128), (1, 768)])
def test_layernorm(rows, columns):
    eps = 1e-6
    x = random(1, rows, columns, dtype="bfloat16")
    gamma, beta = random(2, columns), random(3, columns)
    out = torch.full((x.numel(),), torch.nan, dtype=x.dtype)
    kernel = module("norm.layernorm").get_kernel(rows, columns, "compact", "compact", False, eps)
    run(kernel, out, x.flatten(), gamma, beta, rows, eps, columns, columns)
    wanted = torch.nn.functional.layer_norm(
        x.double(), (columns,), gamma.double(), beta.double(), eps
    )
    close(out, wanted.flatten(), "bfloat16")
