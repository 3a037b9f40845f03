"""Exercise 14.2 (predict): the bytes of a pair.

Two CTAs of a cluster, rank 0 and rank 1, share the work on D. For one K tile
they need 2 * BM rows of A and BN rows of B, each of BK values of `size`
bytes. Each CTA loads its own BM rows of A and one half of the rows of B. What
becomes of B's halves depends on the kernel:

    "multicast"      as in Step 8 on Hopper. Each CTA multiplies with tiles of
                     its own, so it needs all BN rows of B in its own shared
                     memory. TMA writes each half into both CTAs, and the
                     bytes complete on the full barrier of the CTA that they
                     are written to.
    "cta_group::2"   as in Step 8 on Blackwell. One MMA, issued by rank 0,
                     reads the shared memory of both CTAs: rank 1 keeps its
                     half of B to itself. The loads of both CTAs complete on
                     the full barrier of rank 0.

Write `pair_bytes(kind, BM, BN, BK, size)`, which returns, for one K tile,

    loaded   bytes that each of the two CTAs asks L2 for
    stage    bytes of shared memory that a stage takes in each CTA
    rank0    bytes that complete on the full barrier of rank 0
    rank1    bytes that complete on the full barrier of rank 1

On the page: "cta_group::2" with BM = 128, BN = 256, BK = 64, 2-byte elements.
"""


def pair_bytes(kind, BM, BN, BK, size):
    """Returns (loaded, stage, rank0, rank1)."""
    # [solution]
    row = BK * size
    loaded = (BM + BN // 2) * row
    if kind == "multicast":
        whole = (BM + BN) * row
        return loaded, whole, whole, whole
    return loaded, loaded, 2 * loaded, 0
    # [stub]
    # raise NotImplementedError("return (loaded, stage, rank0, rank1)")
    # [end]


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("14.2", Path(__file__)))
