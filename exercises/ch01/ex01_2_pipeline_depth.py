# Exercise 1.2. Stub 1c61cd313745: yours to edit; `mlsys-gpu reset 1.2` brings it back.
"""Exercise 1.2 (predict): how deep can the pipeline be?

A GEMM kernel keeps in shared memory, for the whole of its life, one tile of
D that it stages before storing it: BM x BN elements of out_bytes each.

What remains is cut into pipeline stages. Every stage holds one tile of A
(BM x BK elements of in_bytes), one tile of B (BN x BK elements of in_bytes)
and two mbarriers of 8 bytes, "full" and "empty".

Write `depth(BM, BN, BK, in_bytes, out_bytes, smem_bytes)`, which returns

    stage_bytes   the bytes of one stage
    stages        how many stages fit into smem_bytes together with the tile
                  of D (0 where not even one fits)

On the page: 128 x 128 x 64 tiles, 2-byte inputs and outputs, and the
232,448 bytes (227 KiB) that a CTA may use on Hopper and Blackwell.
"""


def depth(BM, BN, BK, in_bytes, out_bytes, smem_bytes):
    """Returns (stage_bytes, stages)."""
    raise NotImplementedError("return (stage_bytes, stages)")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("1.2", Path(__file__)))
