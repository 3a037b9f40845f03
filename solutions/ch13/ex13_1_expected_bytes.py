"""Exercise 13.1 (predict): which bytes does the barrier expect?

D = A @ B.T with A [M, K], B [N, K] and D [M, N], elements of 2 bytes, in
tiles of BM x BN. As in Step 4, TMA brings the tiles: for K tile k of the tile
of D at place (bm, bn), one thread hands the number of bytes to
arrive.expect_tx and then issues two loads,

    A[bm * BM : bm * BM + BM, k * BK : k * BK + BK]
    B[bn * BN : bn * BN + BN, k * BK : k * BK + BK]

and at the end one store of the whole tile of D. M, N and K need not be
multiples of BM, BN and BK: a box may reach past an edge of its matrix.

Write `tile_bytes(M, N, K, BM, BN, BK, bm, bn, k)`, which returns

    expected   what the thread hands to arrive.expect_tx for this K tile
    inside     how many of those bytes are elements of A and B
    stored     how many bytes of D the store of the tile changes

On the page: M = 1000, N = 840, K = 520, tiles of 128 x 128 x 64, and the last
tile each way: bm = 7, bn = 6, k = 8.
"""


def tile_bytes(M, N, K, BM, BN, BK, bm, bn, k):
    """Returns (expected, inside, stored)."""
    # [solution]
    rows = min(BM, M - bm * BM)
    columns = min(BN, N - bn * BN)
    depth = min(BK, K - k * BK)
    # Zeros are written to shared memory too, and count like all other bytes.
    return (BM + BN) * BK * 2, (rows + columns) * depth * 2, rows * columns * 2
    # [stub]
    # raise NotImplementedError("return (expected, inside, stored), all in bytes")
    # [end]


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("13.1", Path(__file__)))
