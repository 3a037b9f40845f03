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


#: As lazily and as eagerly as possible, and in between.
SCHEDULES = [("eager", 0), ("lazy", 0), ("seeded", 1), ("seeded", 2)]


def run(kernel, *arguments, schedule="lazy", seed=0):
    report = sim.simulate(kernel, *arguments, arch="sm_100a", schedule=schedule, schedule_seed=seed)
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


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(("dtype", "k"), [("float32", 64), ("bfloat16", 300)])
def test_stable_sort_of_selected_values(dtype, k, schedule, seed):
    """A radix sort in shared memory; equal values keep their order."""
    rows = 2
    kernel = module("topk.stable_sort_topk_by_value").get_kernel(
        dtype=dtype, num_rows=rows, k=k, pattern="unique"
    )
    values = (torch.randint(-40, 40, (rows, k)) / 8).to(getattr(torch, dtype))
    indices = torch.stack([torch.randperm(5000)[:k] for _ in range(rows)]).to(torch.int32)
    got, places = values.clone().flatten(), indices.clone().flatten()
    run(kernel, places, got, schedule=schedule, seed=seed)
    order = torch.sort(values.double(), dim=1, descending=True, stable=True).indices
    assert torch.equal(got.reshape(rows, k), values.gather(1, order))
    assert torch.equal(places.reshape(rows, k), indices.gather(1, order))


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_radix_topk(schedule, seed):
    rows, length, k = 2, 3001, 64
    topk = module("topk.radix_topk_single_cta")
    kernel = topk.get_kernel(dtype="float32", mode="basic", num_rows=rows, length=length, k=k)
    scores = random(5, rows, length)
    indices = torch.full((rows * k,), -7, dtype=torch.int32)
    values = torch.full((rows * k,), torch.nan)
    none = torch.zeros(rows, dtype=torch.int32)
    aux, lengths = torch.zeros(1, dtype=torch.int32), torch.full((rows,), length).to(torch.int32)
    arguments = scores.flatten(), indices, values, aux, lengths, none, none, none, 0
    run(kernel, *arguments, schedule=schedule, seed=seed)
    for row, chosen in enumerate(indices.reshape(rows, k).tolist()):
        assert set(chosen) == set(torch.topk(scores[row], k).indices.tolist())
        assert torch.equal(values.reshape(rows, k)[row], scores[row, chosen])


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("output", ["float8_e4m3fn", "float8_e5m2"])
def test_rmsnorm_to_eight_bits(output, schedule, seed):
    """Stored 8-bit floats, within one of their places."""
    rows, columns, eps, scale = 3, 111, 1e-6, 0.01
    kernel = module("norm.rmsnorm_quant").get_kernel(
        "float16", output, rows, columns, "compact", "compact", False, scale, eps
    )
    x, weight = random(1, rows, columns, dtype="float16"), random(2, columns, dtype="float16")
    kind = getattr(torch, output)
    y = torch.zeros(rows * columns).to(kind)
    arguments = x.flatten(), weight, y, rows, torch.tensor([scale]), eps
    run(kernel, *arguments, schedule=schedule, seed=seed)
    wanted = (rms(x.double(), weight.double(), eps) / scale).flatten()
    wanted = wanted.clamp(-torch.finfo(kind).max, torch.finfo(kind).max)
    place = torch.finfo(kind).eps
    assert ((y.double() - wanted).abs() <= place * wanted.abs() / 2 * 1.01 + 2.0**-9).all()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_combined_parts_of_attention(schedule, seed):
    """Parts of a split softmax, weighed by their log-sum-exps; one row has no part at all."""
    combine = importlib.import_module(
        "tirx_kernels.ported.cudnn.bsa.block_sparse_attention_forward_combine_sm100_blk64"
    )
    batch, heads, length, splits, dim = 1, 2, 5, 3, 128
    kernel = combine.get_kernel(batch=batch, num_heads=heads, seqlen_q=length, kv_splits=splits)
    parts = random(1, batch, splits, heads, length, dim)
    sums = random(2, batch, splits, heads, length)
    sums[0, :, 1, 3] = -torch.inf
    parts[0, :, 1, 3] = 0
    # a reciprocal of 32 bits, which the kernel takes as an int32
    divisor = np.array(combine._fast_divmod(length), np.int64).astype(np.int32).tolist()
    out = torch.zeros(batch * length * heads * dim, dtype=torch.bfloat16)
    lse = torch.full((batch * heads * length,), torch.nan)
    run(
        kernel, parts.flatten(), sums.flatten(), out, lse, batch, heads, length, splits,
        *divisor, schedule=schedule, seed=seed,
    )  # fmt: skip
    total = torch.logsumexp(sums.double(), 1)
    weights = torch.where(
        torch.isinf(total)[:, None], 0.0, torch.exp(sums.double() - total[:, None])
    )
    wanted = (weights[..., None] * parts.double()).sum(1)  # [batch, heads, length, dim]
    got = out.reshape(batch, length, heads, dim).permute(0, 2, 1, 3)
    close(got, wanted, "bfloat16")
    wanted = total.permute(0, 2, 1).flatten()  # row by row
    assert torch.allclose(lse.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_gated_delta_rule(schedule, seed):
    """One token: the state decays, learns v at k by the delta rule, and is read at q."""
    heads, value_heads, dim, slots = 2, 4, 128, 3
    kernel = module("gdn_decode.gdn_decode_bf16_ilp4").get_kernel(
        seq_len=1, batch=1, num_heads=heads, num_v_heads=value_heads, tile_v=16,
        use_qk_l2norm=True, disable_state_update=False, cache_intermediate_states=False,
        disable_output=False,
    )  # fmt: skip
    state = (random(1, slots, value_heads, dim, dim) / 8).bfloat16()
    q, k = (random(seed, 1, 1, heads, dim, dtype="bfloat16") for seed in (2, 3))
    v = random(4, 1, 1, value_heads, dim, dtype="bfloat16")
    a, b = (random(seed, 1, 1, value_heads, dtype="bfloat16") for seed in (5, 6))
    rate, bias = random(7, value_heads), random(8, value_heads)
    out = torch.zeros_like(v)
    read = torch.tensor([1], dtype=torch.int32)
    none = torch.zeros(1, dtype=torch.int32)
    before = state.clone()
    run(
        kernel, state.flatten(), torch.zeros(1, dtype=torch.bfloat16), rate, a.flatten(), bias,
        q.flatten(), k.flatten(), v.flatten(), b.flatten(), out.view(-1), read, read, none, none,
        state.stride(0), q.stride(0), k.stride(0), v.stride(0), 1,
        schedule=schedule, seed=seed,
    )  # fmt: skip
    decay = torch.exp(-torch.exp(rate.double()) * torch.nn.functional.softplus(a.double() + bias))
    unit = [x.double() / torch.sqrt((x.double() ** 2).sum(-1, keepdim=True) + 1e-6) for x in (q, k)]
    query, key = (x[0, 0].repeat_interleave(value_heads // heads, 0) for x in unit)
    held = before[1].double() * decay.flatten()[:, None, None]
    learnt = v[0, 0].double() - torch.einsum("hvk,hk->hv", held, key)
    learnt = learnt * torch.sigmoid(b.double()).flatten()[:, None]
    held = held + learnt[..., None] * key[:, None, :]
    wanted = torch.einsum("hvk,hk->hv", held, query) / dim**0.5
    assert torch.allclose(out[0, 0].double(), wanted, rtol=2.0**-7, atol=1e-3)
    assert torch.allclose(state[1].double(), held, rtol=2.0**-7, atol=2.0**-7)
    assert torch.equal(state[0], before[0])
    assert torch.equal(state[2], before[2])
