"""A plain tiled Triton GEMM: what an hour with a tile language gives.

One program computes one tile of D. Programs are numbered so that neighbours share rows of A and
B in L2 (``GROUP`` rows of tiles at a time). No TMA, no persistence. Without a ``config`` the tile
sizes are those that do well on Hopper for large shapes, with a smaller tile where there are few
tiles; a benchmark measures which of :func:`configs` is best at its shape.

On CPU tensors the same kernel runs in Triton's interpreter, in this process. For that it uses
Triton's builtins only: its library functions (``tl.zeros``, ``tl.cdiv``) are either compiled or
interpreted, once for the whole process.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from .config import Config

if TYPE_CHECKING:
    from torch import Tensor

LARGE = Config(128, 256, 64, warps=8, stages=3)
SMALL = Config(128, 128, 64, warps=4, stages=4)
ENOUGH_TILES = 132  # one large tile for each SM of an H100 or H200


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
    UPCAST: tl.constexpr,
):
    # Which tile: walk down GROUP rows of tiles before moving one tile to the right.
    tile = tl.program_id(0)
    rows, cols = (M + BM - 1) // BM, (N + BN - 1) // BN
    first = tile // (GROUP * cols) * GROUP
    height = min(rows - first, GROUP)
    bm = first + tile % height
    bn = tile % (GROUP * cols) // height

    m = bm * BM + tl.arange(0, BM)
    n = bn * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    # Rows past the edge wrap around: what they compute is masked away at the store.
    a = A + (m % M)[:, None] * K + k[None, :]
    b = B + (n % N)[None, :] * K + k[:, None]
    acc = tl.full((BM, BN), 0.0, dtype=tl.float32)
    for k0 in range(0, K, BK):
        inside = k < K - k0
        a_tile = tl.load(a, mask=inside[None, :], other=0.0)
        b_tile = tl.load(b, mask=inside[:, None], other=0.0)
        if UPCAST:
            a_tile, b_tile = a_tile.to(tl.float32), b_tile.to(tl.float32)
        acc = tl.dot(a_tile, b_tile, acc)
        a += BK
        b += BK
    d = D + m[:, None] * N + n[None, :]
    tl.store(d, acc.to(D.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


@lru_cache(maxsize=2)
def _kernel(interpret: bool) -> Any:
    """The kernel, compiled or interpreted: Triton decides when it decorates, by a global switch."""
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = interpret
        return triton.jit(_gemm)


def default(M: int, N: int) -> Config:
    """The configuration for an M x N result that nobody has measured."""
    tiles = -(-M // LARGE.BM) * -(-N // LARGE.BN)
    return LARGE if tiles >= ENOUGH_TILES else SMALL


def check(M: int, N: int, K: int) -> None:
    """Raise ``ValueError`` for a shape that it cannot take; it takes all."""


def configs(M: int, N: int, K: int) -> list[Config]:
    """The configurations that are tried for a shape; they fit a Hopper SM's shared memory."""
    return [
        LARGE,
        SMALL,
        Config(128, 256, 64, warps=8, stages=4),
        Config(256, 128, 64, warps=8, stages=3),
        Config(256, 128, 64, warps=8, stages=4),
        Config(128, 128, 64, warps=8, stages=4),
        Config(128, 128, 64, warps=4, stages=3),
        Config(128, 128, 128, warps=8, stages=3),
        Config(64, 128, 64, warps=4, stages=4),
        Config(64, 256, 64, warps=4, stages=4),
    ]


def gemm(A: Tensor, B: Tensor, D: Tensor, config: Config | None = None) -> Tensor:
    """Fill and return ``D = A @ B.T``: row-major ``A [M, K]``, ``B [N, K]``, ``D [M, N]``.

    CUDA tensors: compiled and launched on the current stream. CPU tensors: Triton's interpreter.
    ``config``: one of :func:`configs`; :func:`default` if left out.
    """
    (M, K), (N, _) = A.shape, B.shape
    chosen = config or default(M, N)
    grid = (-(-M // chosen.BM) * -(-N // chosen.BN),)
    interpret = not A.is_cuda
    # The interpreter's dot takes the bits of a bfloat16 for an integer. (Its conversion to
    # bfloat16 also truncates where the GPU rounds: expect up to one unit in the last place.)
    upcast = interpret and "bfloat16" in str(A.dtype)
    _kernel(interpret)[grid](
        A,
        B,
        D,
        M,
        N,
        K,
        BM=chosen.BM,
        BN=chosen.BN,
        BK=chosen.BK,
        GROUP=chosen.group,
        UPCAST=upcast,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )
    return D
