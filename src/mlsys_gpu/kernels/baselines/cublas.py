"""cuBLAS, through PyTorch: the figure to reach."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def gemm(A: Tensor, B: Tensor, D: Tensor) -> Tensor:
    """Fill and return ``D = A @ B.T``: row-major ``A [M, K]``, ``B [N, K]``, ``D [M, N]``.

    CUDA tensors go to cuBLAS; on the CPU PyTorch computes.
    """
    import torch

    return torch.matmul(A, B.T, out=D)


@contextlib.contextmanager
def fp32_reductions() -> Iterator[None]:
    """While active, cuBLAS reduces partial sums in float32, as the ladder's kernels do.

    PyTorch's default lets it add the parts of a split K in 16 bits, which is less work and less
    exact. Source: PyTorch notes, "Numerical accuracy", reduced-precision reductions in GEMMs.
    """
    import torch

    matmul = torch.backends.cuda.matmul
    names = (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    )
    before = {name: getattr(matmul, name) for name in names}
    try:
        for name in names:
            setattr(matmul, name, False)
        yield
    finally:
        for name, value in before.items():
            setattr(matmul, name, value)
