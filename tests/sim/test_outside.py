"""Kernels from outside: modules of PyPI's ``tirx-kernels``, against float64, with all checks.

``pytest tests/sim/test_outside.py -s`` prints error, bound, findings, seconds and memory of each.
"""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
import torch

from mlsys_gpu import sim

#: Relative distance from a value to the next one, halved: what one rounding may lose.
HALF, BFLOAT = 2.0**-11, 2.0**-8


def simulated(name: str, kernel: Any, arguments: Any, check: Any, faults: Any = ()) -> None:
    """Run without and with checks; both must be right, and the second silent but for ``faults``.

    ``faults``: codes and lines of the kernel's own faults, each argued where it is given.
    """
    program = sim.compile(kernel, arch="sm_100a")
    seconds = []
    error = bound = float("nan")
    for checks in (False, True):
        report = sim.simulate(program, *arguments(), checks=checks)
        assert report.completed
        found = {(f.code, f.location.text.strip()) for f in report.findings if f.location}
        assert found == (set(faults) if checks else set()), report
        seconds.append(report.seconds)
        error, bound = check()
        assert error <= 1, (name, checks)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"\n{name}: {error:.3f} of its bound ({bound}), {len(faults) or 'no'} findings, "
        f"{seconds[0]:.2f} s without checks, {seconds[1]:.2f} s with, at most {peak:.2f} GiB in "
        "this process"
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gemm_with_pairs_of_ctas_and_launch_control(dtype):
    from tirx_kernels.gemm import fp16_bf16_gemm as module

    size = 1024
    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    a, b = (torch.randn(size, size).to(kind) for _ in range(2))
    d = torch.empty(size, size, dtype=kind)
    kernel = module.get_kernel(M=size, N=size, K=size, dtype=GEMM_NAMES[dtype])
    wanted = a.double() @ b.double().T
    # rounding to the output's format, and float32 sums of K products
    half = HALF if dtype == "float16" else BFLOAT
    bound = half * wanted.abs() + 2.0**-23 * size**0.5 * (a.double().abs() @ b.double().abs().T)

    def arguments():
        d.fill_(float("nan"))
        return a, b, d

    def check():
        return float(((d.double() - wanted).abs() / bound).max()), "rounding and float32 sums"

    # A true fault: after the last response of launch control the loader and the scheduler of CTA
    # rank 1 still arrive at a barrier in rank 0, where nobody waits for that any more, and the
    # handshake at the end is the epilogue's alone: rank 0 may have exited by then.
    faults = [("cluster-exit", "ld.consume()"), ("cluster-exit", "clc.run_scheduler(cbx)")]
    simulated(f"gemm/fp16_bf16_gemm {size}³ {dtype}", kernel, arguments, check, faults)


GEMM_NAMES = {"float16": "fp16", "bfloat16": "bf16"}


@pytest.mark.parametrize(("rows", "width"), [(1, 128), (4, 4096), (3, 5120)])
def test_rmsnorm(rows, width):
    from tirx_kernels.norm import rmsnorm as module

    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, width)).astype(np.float16)
    w = rng.standard_normal(width).astype(np.float16)
    out = np.empty((rows, width), np.float16)
    wide = x.astype(np.float64)
    scale = 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + module.eps)
    wanted = wide * scale * w
    # the output's rounding, two truncated float32 products, and the approximate root
    bound = (HALF + 2.0**-20) * np.abs(wanted) + 2.0**-24

    def arguments():
        out.fill(np.nan)
        return x.reshape(-1), w, out.reshape(-1), rows

    def check():
        return float((np.abs(out - wanted) / bound).max()), "rounding to fp16"

    simulated(f"norm/rmsnorm {rows} x {width}", module.get_kernel(width), arguments, check)


def attention(q, k, v, causal):
    """Softmax attention in float64, and for each output the sum of |p v| that bounds its error."""
    q, k, v = (x.double().numpy() for x in (q, k, v))
    batch, length, heads, width = q.shape
    out, size = np.zeros_like(q), np.zeros_like(q)
    for i in range(batch):
        for j in range(heads):
            of = j // (heads // k.shape[2])
            scores = q[i, :, j] @ k[i, :, of].T / np.sqrt(width)
            if causal:
                scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            out[i, :, j] = p @ v[i, :, of]
            size[i, :, j] = p @ np.abs(v[i, :, of])
    return out, size


@pytest.mark.parametrize(
    ("batch", "length", "heads", "kv_heads", "causal"),
    [(1, 512, 4, 1, False), (1, 512, 4, 1, True), (1, 256, 2, 2, False)],
)
def test_flash_attention_4(batch, length, heads, kv_heads, causal):
    from tirx_kernels.ported.flashattention import flash_attention4 as module

    from mlsys_gpu import tensormap  # noqa: F401  (encodes the host's tensor maps)

    torch.manual_seed(0)
    q = torch.randn(batch, length, heads, 128, dtype=torch.float16)
    k, v = (torch.randn(batch, length, kv_heads, 128, dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(q)
    kernel = module.get_kernel(batch, length, heads, kv_heads, 128, causal)
    shape = {
        "batch_size": batch, "seq_len_q": length, "seq_len_kv": length, "num_qo_heads": heads,
        "num_kv_heads": kv_heads, "head_dim": 128, "is_causal": causal,
    }  # fmt: skip
    wanted, size = attention(q, k, v, causal)
    # P rounded to fp16 (and the sum that it is divided by is not), exp2 as a cubic, and the output
    bound = 2 * HALF * size + HALF * np.abs(wanted) + 2.0**-14
    held = []

    def arguments():
        out.fill_(float("nan"))
        held[:] = module.build_tensor_maps(q, k, v, out, **shape)
        return [tensor_map.ptr for tensor_map in held]

    def check():
        return float((np.abs(out.double().numpy() - wanted) / bound).max()), "P and D in fp16"

    name = f"flash_attention4 {batch} x {length}, {heads}/{kv_heads} heads"
    simulated(name + ", causal" * causal, kernel, arguments, check)
