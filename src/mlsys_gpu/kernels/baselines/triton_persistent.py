"""A persistent Triton GEMM with TMA descriptors: what Triton gives to those who know Hopper.

One CTA for each SM walks over tiles of D. Loads and stores go through tensor maps that the host
makes (``TensorDescriptor``); the loops over tiles and over K are flattened, so that Triton's
pipeliner loads the next tile's operands during this tile's epilogue; the epilogue may store D in
two halves, which frees registers and shared memory for another stage.

How it is built follows Triton's tutorial on persistent matrix products (``09-persistent-matmul``);
which tile, how many stages and warps is measured for each shape (:func:`configs`).

On CPU tensors the same kernel runs in Triton's interpreter, in this process; it uses Triton's
builtins only, like :mod:`.triton_gemm`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .config import Config

if TYPE_CHECKING:
    from torch import Tensor

FEW_ELEMENTS = 2048 * 2048
"""Of D: up to here smaller tiles are tried, too."""


def _gemm(
    A,
    B,
    D,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    CTAS: tl.constexpr,
    HALVES: tl.constexpr,
    SPECIALIZE: tl.constexpr,
    UPCAST: tl.constexpr,
):
    if SPECIALIZE:
        # Triton gives each consumer warpgroup half of a tile, and then has to make the tensor maps
        # anew. It does so for those that the kernel makes, not for the host's.
        a = tl.make_tensor_descriptor(A, [M, K], [K, 1], [BM, BK])
        b = tl.make_tensor_descriptor(B, [N, K], [K, 1], [BN, BK])
        d = tl.make_tensor_descriptor(D, [M, N], [N, 1], [BM, BN // 2 if HALVES else BN])
    else:
        a, b, d = A, B, D
    rows, cols = (M + BM - 1) // BM, (N + BN - 1) // BN
    for tile in tl.range(
        tl.program_id(0),
        rows * cols,
        CTAS,
        flatten=not SPECIALIZE,
        warp_specialize=SPECIALIZE,
    ):
        # The plain kernel's order: GROUP rows of tiles, downwards, then one tile to the right.
        first = tile // (GROUP * cols) * GROUP
        height = min(rows - first, GROUP)
        m = (first + tile % height) * BM
        n = tile % (GROUP * cols) // height * BN
        acc = tl.full((BM, BN), 0.0, dtype=tl.float32)
        for k in range(0, K, BK):  # past the edges TMA loads zeros and stores nothing
            a_tile, b_tile = a.load([m, k]), b.load([n, k])
            if UPCAST:
                a_tile, b_tile = a_tile.to(tl.float32), b_tile.to(tl.float32)
            acc = tl.dot(a_tile, tl.trans(b_tile), acc)
        if HALVES:
            pairs = tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1))
            left, right = tl.split(pairs)
            d.store([m, n], left.to(d.dtype))
            d.store([m, n + BN // 2], right.to(d.dtype))
        else:
            d.store([m, n], acc.to(d.dtype))


@lru_cache(maxsize=2)
def _kernel(interpret: bool) -> Any:
    """The kernel, compiled or interpreted: Triton decides when it decorates, by a global switch."""
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = interpret
        return triton.jit(_gemm)


def check(M: int, N: int, K: int) -> None:
    """Raise ``ValueError`` for a shape that tensor maps cannot describe.

    The rows of a tensor lie a multiple of 16 bytes apart (PTX ISA, tensor maps), which in 16-bit
    types is 8 elements.
    """
    for name, value in (("N", N), ("K", K)):
        if value % 8:
            raise ValueError(f"TMA needs {name} to be a multiple of 8, got {value}")


def configs(M: int, N: int, K: int) -> list[Config]:
    """The configurations that are tried for a shape; they fit a Hopper SM's shared memory.

    Specialised ones, of four warps, become two consumer warpgroups and a producer. (Triton 3.6 and
    3.7 do so on Hopper, for tensor maps that the kernel makes; with an epilogue in halves, 3.7.)
    """
    found = [
        Config(128, 256, 64, warps=8, stages=3),
        Config(128, 256, 64, warps=8, stages=4, halves=True),
        Config(256, 128, 64, warps=8, stages=3),
        Config(256, 128, 64, warps=8, stages=4, halves=True),
        Config(128, 128, 64, warps=4, stages=5),
        Config(128, 128, 128, warps=8, stages=3, halves=True),
        Config(128, 256, 64, warps=4, stages=3, specialize=True),
        Config(256, 128, 64, warps=4, stages=3, specialize=True),
        Config(128, 128, 64, warps=4, stages=5, specialize=True),
        Config(128, 128, 128, warps=4, stages=3, specialize=True),
    ]
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7):
        found += [
            Config(128, 256, 64, warps=4, stages=4, halves=True, specialize=True),
            Config(256, 128, 64, warps=4, stages=4, halves=True, specialize=True),
        ]
    if M * N <= FEW_ELEMENTS:  # too few large tiles to fill the GPU
        found += [
            Config(64, 128, 64, warps=4, stages=5),
            Config(64, 128, 128, warps=4, stages=4),
            Config(128, 64, 128, warps=4, stages=4),
            Config(64, 256, 64, warps=4, stages=4),
            Config(128, 64, 64, warps=4, stages=5, specialize=True),
        ]
    return found


def gemm(A: Tensor, B: Tensor, D: Tensor, config: Config | None = None) -> Tensor:
    """Fill and return ``D = A @ B.T``: row-major ``A [M, K]``, ``B [N, K]``, ``D [M, N]``.

    CUDA tensors: compiled and launched on the current stream, one CTA for each SM. CPU tensors:
    Triton's interpreter. ``config``: one of :func:`configs`, the first if left out. A shape that
    tensor maps cannot describe: ``ValueError``.
    """
    (M, K), (N, _) = A.shape, B.shape
    check(M, N, K)
    chosen = config or configs(M, N, K)[0]
    interpret = not A.is_cuda
    tiles = -(-M // chosen.BM) * -(-N // chosen.BN)
    ctas = min(tiles, 3 if interpret else _multiprocessors(A.get_device()))
    width = chosen.BN // 2 if chosen.halves else chosen.BN
    if chosen.specialize:
        triton.set_allocator(_scratch)
        operands: tuple[Any, ...] = (A, B, D)
    else:
        blocks = ((A, [chosen.BM, chosen.BK]), (B, [chosen.BN, chosen.BK]), (D, [chosen.BM, width]))
        operands = tuple(TensorDescriptor.from_tensor(t, block) for t, block in blocks)
    _kernel(interpret)[(ctas,)](
        *operands,
        M,
        N,
        K,
        BM=chosen.BM,
        BN=chosen.BN,
        BK=chosen.BK,
        GROUP=chosen.group,
        CTAS=ctas,
        HALVES=chosen.halves,
        SPECIALIZE=chosen.specialize,
        UPCAST=interpret and "bfloat16" in str(A.dtype),  # as the plain kernel does
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )
    return D


@lru_cache
def _multiprocessors(gpu: int) -> int:
    import torch

    return torch.cuda.get_device_properties(gpu).multi_processor_count


def _scratch(size: int, alignment: int, stream: int | None) -> Tensor:
    """Memory for the tensor maps that a kernel makes."""
    import torch

    return torch.empty(size, device="cuda", dtype=torch.int8)
