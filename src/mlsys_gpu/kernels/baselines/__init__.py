"""What the ladder is compared with: cuBLAS through PyTorch, a plain and a persistent Triton kernel.

All offer ``gemm(A, B, D)``, which fills ``D = A @ B.T`` and returns it. None allocates: like
the ladder's kernels they write into the tensor that they are given.
"""

TITLES = {
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "triton": "Triton",
    "triton_persistent": "Triton, persistent",
    "flash_attention2": "FlashAttention-2",
}
"""How the baselines of a result file are spelled for a reader, in the order of tables."""
