# Exercise 12.7. Stub 056ae85c935d: yours to edit; `mlsys-gpu reset 12.7` brings it back.
"""Exercise 12.7 (debug): the tensor core reads elsewhere.

D = A @ B.T for A [M, K], B [N, K] and D [M, N] in float16 on Hopper, with
tiles of 128 x 64: M is a multiple of 128, N and K are multiples of 64.

The tiles arrive in shared memory as they should, the barriers are right, and
D is wrong all the same. One line is at fault. Find it, mend it, and change
nothing else.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import finish, register_fence, wgmma, wgmma_fragment

BM, BN, BK = 128, 64, 64
MMA_M, MMA_K = 64, 16
REGS = BM * BN // 128  # accumulators a thread

# In units of 16 bytes: the distance of 8 rows, of 64 rows, and of 16 values of K.
LEADING, STRIDE, SWIZZLE = 1, 1024 // 16, 3
ROWS_STEP = MMA_M * BK * 2 // 16
K_STEP = MMA_K


def build(M, N, K):
    """D = A @ B.T; M is a multiple of 128, N and K are multiples of 64."""

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
        acc = T.alloc_local((REGS,), "float32")
        descA: T.uint64
        descB: T.uint64
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descA), As.ptr_to([0, 0]), LEADING, STRIDE, SWIZZLE
        )
        T.cuda.wgmma.encode_matrix_descriptor(
            T.address_of(descB), Bs.ptr_to([0, 0]), LEADING, STRIDE, SWIZZLE
        )
        # The first row of this CTA's tile of D, and its first column.
        m0 = T.meta_var(by * BM)
        n0 = T.meta_var(bx * BN)

        for k in T.serial(K // BK):
            k0 = T.meta_var(k * BK)
            Tx.cta.copy(As[:, :], A[m0 : m0 + BM, k0 : k0 + BK])
            Tx.cta.copy(Bs[:, :], B[n0 : n0 + BN, k0 : k0 + BK])
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()
            register_fence(acc, REGS)
            T.ptx.wgmma.fence.sync.aligned()
            for i in T.unroll(BM // MMA_M):
                for j in T.unroll(BK // MMA_K):
                    wgmma(
                        acc,
                        i * REGS // 2,
                        descA + T.uint64(i * ROWS_STEP + j * K_STEP),
                        descB + T.uint64(j * K_STEP),
                        k + j != 0,
                        BN,
                        "float16",
                    )
            T.ptx.wgmma.commit_group.sync.aligned()
            T.ptx.wgmma.wait_group.sync.aligned(0)
            register_fence(acc, REGS)
            T.cuda.cta_sync()

        out = T.alloc_local((REGS,), "float16")
        out_wg = out.view(BM, BN, layout=wgmma_fragment(BM, BN))
        Tx.cast(out[:], acc[:])
        Tx.wg.copy(D[m0 : m0 + BM, n0 : n0 + BN], out_wg[:, :])

    return finish(kernel, "k_step", "hopper")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("12.7", Path(__file__)))
