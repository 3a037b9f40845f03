"""Exercise 12.9 (optimise): load each byte once.

D = A @ B.T for A [M, K], B [N, K] and D [M, N] in float16 on Hopper; M is a
multiple of 128, N of 192, K of 64. A CTA computes a tile of 128 x 192 in two
halves of 96 columns, each with accumulators of its own.

The kernel below is right. It finishes the left half before it begins the
right one, and so it loads every tile of A twice. Target: a CTA loads its 128
rows of A and its 192 rows of B once, and not a byte more.

(There is room in shared memory for both halves of B's tile.)
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import finish, register_fence, wgmma, wgmma_fragment

BM, BN, BK = 128, 192, 64
HALF = BN // 2
MMA_M, MMA_K = 64, 16
REGS = BM * HALF // 128  # accumulators a thread, for one half

LEADING, STRIDE, SWIZZLE = 1, 1024 // 16, 3
ROWS_STEP = MMA_M * BK * 2 // 16  # to the next 64 rows
HALF_STEP = HALF * BK * 2 // 16  # to the second half of B's rows
K_STEP = MMA_K * 2 // 16  # to the next 16 values of K


def build(M, N, K):
    """D = A @ B.T; M is a multiple of 128, N of 192, K of 64."""

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((N, K), "float16"),
        D: T.Buffer((M, N), "float16"),
    ):
        T.device_entry()
        bx, by = T.cta_id([N // BN, M // BM])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        As = pool.alloc_tcgen05_mma_AB((BM, BK), "float16")
        Bs = pool.alloc_tcgen05_mma_AB((BN, BK), "float16")
        pool.commit()
        acc = T.alloc_local((2 * REGS,), "float32")
        descA: T.uint64
        descB: T.uint64
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descA), As.ptr_to([0, 0]), LEADING, STRIDE, SWIZZLE
        )
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descB), Bs.ptr_to([0, 0]), LEADING, STRIDE, SWIZZLE
        )
        m0 = T.meta_var(by * BM)
        n0 = T.meta_var(bx * BN)

        # [solution]
        for k in T.serial(K // BK):
            k0 = T.meta_var(k * BK)
            Tx.cta.copy(As[:, :], A[m0 : m0 + BM, k0 : k0 + BK])
            Tx.cta.copy(Bs[:, :], B[n0 : n0 + BN, k0 : k0 + BK])
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()
            register_fence(acc, 2 * REGS)
            T.ptx.wgmma.fence.sync.aligned()
            for h in T.unroll(2):
                for i in T.unroll(BM // MMA_M):
                    for j in T.unroll(BK // MMA_K):
                        wgmma(
                            acc,
                            h * REGS + i * REGS // 2,
                            descA + T.uint64(i * ROWS_STEP + j * K_STEP),
                            descB + T.uint64(h * HALF_STEP + j * K_STEP),
                            k + j != 0,
                            HALF,
                            "float16",
                        )
            T.ptx.wgmma.commit_group.sync.aligned()
            T.ptx.wgmma.wait_group.sync.aligned(0)
            register_fence(acc, 2 * REGS)
            T.cuda.cta_sync()
        # [stub]
        # for h in T.unroll(2):
        #     for k in T.serial(K // BK):
        #         k0 = T.meta_var(k * BK)
        #         b0 = T.meta_var(n0 + h * HALF)
        #         Tx.cta.copy(As[:, :], A[m0 : m0 + BM, k0 : k0 + BK])
        #         Tx.cta.copy(Bs[0:HALF, :], B[b0 : b0 + HALF, k0 : k0 + BK])
        #         T.ptx.fence.proxy.async_.shared__cta()
        #         T.cuda.cta_sync()
        #         register_fence(acc, 2 * REGS)
        #         T.ptx.wgmma.fence.sync.aligned()
        #         for i in T.unroll(BM // MMA_M):
        #             for j in T.unroll(BK // MMA_K):
        #                 wgmma(
        #                     acc,
        #                     h * REGS + i * REGS // 2,
        #                     descA + T.uint64(i * ROWS_STEP + j * K_STEP),
        #                     descB + T.uint64(j * K_STEP),
        #                     k + j != 0,
        #                     HALF,
        #                     "float16",
        #                 )
        #         T.ptx.wgmma.commit_group.sync.aligned()
        #         T.ptx.wgmma.wait_group.sync.aligned(0)
        #         register_fence(acc, 2 * REGS)
        #         T.cuda.cta_sync()
        # [end]

        for h in T.unroll(2):
            out = T.alloc_local((REGS,), "float16")
            out_wg = out.view(BM, HALF, layout=wgmma_fragment(BM, HALF))
            Tx.cast(out[:], acc[h * REGS : h * REGS + REGS])
            d0 = T.meta_var(n0 + h * HALF)
            Tx.wg.copy(D[m0 : m0 + BM, d0 : d0 + HALF], out_wg[:, :])

    return finish(kernel, "load_once", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("12.9", Path(__file__)))
