"""Exercise 14.6 (write): who gets a copy?

D = A @ B.T for A [M, K], B [N, K] and D [M, N] in float16 on Hopper. A
cluster of CM x CN CTAs computes CM x CN tiles of 64 x 64 that lie side by
side: the CTA of rank r has the tile in row i = r // CN and column j = r % CN
of the cluster's part of D. M is a multiple of 64 CM, N of 64 CN, K of 64.

All CTAs in row i need the same 64 rows of A; all CTAs in column j need the
same 64 rows of B. So nobody loads a whole tile: each CTA loads 64 / CN of the
rows of A that its row needs, and 64 / CM of the rows of B that its column
needs, and TMA multicasts them. Bit q of a multicast mask says that the CTA of
rank q gets the data, at the same place in its shared memory, and the bytes on
its own barrier.

Write `masks(i, j, CM, CN)`, which returns the mask for A and the mask for B of
the CTA in row i and column j, for any CM and CN whose product is at most 8. CM
and CN are numbers when the kernel is built; i and j are known only when it
runs, so build the masks from them with +, * and <<. As it stands each CTA
keeps to itself what it loads, and waits for the rest.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import finish, register_fence, wgmma, wgmma_fragment

BM, BN, BK = 64, 64, 64
REGS = BM * BN // 128
BYTES = T.uint32((BM + BN) * BK * 2)  # what a CTA gets for a K tile, from all
LEADING, STRIDE, SWIZZLE = 1, 1024 // 16, 3
K_STEP = 16 * 2 // 16


def masks(i, j, CM, CN):
    """Returns the multicast masks (for A, for B) of the CTA in row i and column j."""
    # [solution]
    # A row has CN ranks that follow each other; a column, every CN-th of CM.
    row = (1 << CN) - 1
    column = sum(1 << (r * CN) for r in range(CM))
    return row << (i * CN), column << j
    # [stub]
    # own = 1 << (i * CN + j)
    # return own, own
    # [end]


def build(M, N, K, CM, CN):
    """D = A @ B.T in clusters of CM x CN; M, N multiples of 64 CM, 64 CN; K of 64."""
    CLUSTERS_N = N // (CN * BN)
    CLUSTERS = M // (CM * BM) * CLUSTERS_N
    PART_A, PART_B = BM // CN, BN // CM  # rows that a CTA loads of each

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((N, K), "float16"),
        D: T.Buffer((M, N), "float16"),
    ):
        T.device_entry()
        rank = T.cta_id_in_cluster([CM * CN])
        cta = T.cta_id([CM * CN * CLUSTERS])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        full = pool.alloc((1,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((BM, BK), "float16")
        Bs = pool.alloc_tcgen05_mma_AB((BN, BK), "float16")
        pool.commit()
        acc = T.alloc_local((REGS,), "float32")
        descA: T.uint64
        descB: T.uint64
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descA), As.ptr_to([0, 0]), LEADING, STRIDE, SWIZZLE
        )
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descB), Bs.ptr_to([0, 0]), LEADING, STRIDE, SWIZZLE
        )
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(full.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cluster_sync()

        cluster = T.meta_var(cta // (CM * CN))
        i: T.int32 = rank // CN
        j: T.int32 = rank % CN
        m0: T.int32 = (cluster // CLUSTERS_N * CM + i) * BM
        n0: T.int32 = (cluster % CLUSTERS_N * CN + j) * BN
        A_mask, B_mask = T.meta_var(masks(i, j, CM, CN))

        for k in T.serial(K // BK):
            k0 = T.meta_var(k * BK)
            if tid == 0:
                bar = T.meta_var(full.ptr_to([0]))
                a, b = T.meta_var((j * PART_A, i * PART_B))
                A_box = T.meta_var(A[m0 + a : m0 + a + PART_A, k0 : k0 + BK])
                B_box = T.meta_var(B[n0 + b : n0 + b + PART_B, k0 : k0 + BK])
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                multicast(As[a : a + PART_A, :], A_box, bar, A_mask)
                multicast(Bs[b : b + PART_B, :], B_box, bar, B_mask)
            T.cuda.mbarrier_wait(full.ptr_to([0]), k % 2)
            register_fence(acc, REGS)
            T.ptx.wgmma.fence.sync.aligned()
            for q in T.unroll(BK // 16):
                wgmma(
                    acc,
                    0,
                    descA + T.uint64(q * K_STEP),
                    descB + T.uint64(q * K_STEP),
                    k + q != 0,
                    BN,
                    "float16",
                )
            T.ptx.wgmma.commit_group.sync.aligned()
            T.ptx.wgmma.wait_group.sync.aligned(0)
            register_fence(acc, REGS)
            # All CTAs of the cluster have read their tiles: the next loads
            # overwrite them, whoever issues them.
            T.cuda.cluster_sync()

        out = T.alloc_local((REGS,), "float16")
        out_wg = out.view(BM, BN, layout=wgmma_fragment(BM, BN))
        Tx.cast(out[:], acc[:])
        Tx.wg.copy(D[m0 : m0 + BM, n0 : n0 + BN], out_wg[:, :])

    return finish(kernel, "multicast", "hopper")


def multicast(tile, box, bar, mask):
    """Emit a TMA load of `box` into `tile` in each CTA whose bit of mask is set."""
    Tx.copy_async(tile, box, dispatch="tma_explicit", mbar=bar, cta_mask=mask)


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("14.6", Path(__file__)))
