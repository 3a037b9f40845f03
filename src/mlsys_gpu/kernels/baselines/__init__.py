"""What the ladder is compared with: cuBLAS through PyTorch, a plain and a persistent Triton kernel.

All offer ``gemm(A, B, D)``, which fills ``D = A @ B.T`` and returns it. None allocates: like
the ladder's kernels they write into the tensor that they are given.
"""
