"""Exercise 12.2 (predict): what does a tiled GEMM move?

D = A @ B.T with A [M, K], B [N, K], D [M, N] and elements of `size` bytes.
As in Step 3, one CTA computes a tile of BM x BN and loads, for each K tile,
BM rows of A and BN rows of B; nothing is kept from one CTA to the next. BM
divides M and BN divides N.

Write `traffic(M, N, K, BM, BN, size)`, which returns

    flops    of the whole GEMM (a multiply and an add count 2)
    loaded   bytes that all CTAs together load from global memory
    stored   bytes that they store

On the page: M = N = K = 1024, tiles of 128 x 128, 2-byte elements.
"""


def traffic(M, N, K, BM, BN, size):
    """Returns (flops, loaded, stored)."""
    # [solution]
    ctas = (M // BM) * (N // BN)
    return 2 * M * N * K, ctas * (BM + BN) * K * size, M * N * size
    # [stub]
    # raise NotImplementedError("return (flops, loaded, stored)")
    # [end]


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("12.2", Path(__file__)))
