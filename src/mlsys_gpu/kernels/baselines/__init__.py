"""What the ladder is compared with: cuBLAS through PyTorch, and one plain Triton kernel.

Both offer ``gemm(A, B, D)``, which fills ``D = A @ B.T`` and returns it. Neither allocates: like
the ladder's kernels they write into the tensor that they are given.
"""
