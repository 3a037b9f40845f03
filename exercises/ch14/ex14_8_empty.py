# Exercise 14.8. Stub b173b38de13c: yours to edit; `mlsys-gpu reset 14.8` brings it back.
"""Exercise 14.8 (debug): released too soon.

D = A @ B.T for A [M, K], B [N, K] and D [M, N] in float16 on Hopper: M is a
multiple of 128, N and K are multiples of 64. A small Step 8: a cluster of two
CTAs computes two tiles of 64 x 64 that lie one below the other. Each CTA
loads its own tile of A and one half of B's tile, which TMA multicasts to
both. Warp 4 of each CTA is the producer, warps 0 to 3 are the consumer, and a
ring of two stages lies between them.

Often the numbers are right. One number in this kernel is not. Find it, mend
it, and change nothing else.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from mlsys_gpu.kernels.common import finish, register_fence, wgmma, wgmma_fragment

PIPE_DEPTH = 2
BM, BN, BK = 64, 64, 64
HALF = BN // 2  # rows of B that one CTA loads for both
REGS = BM * BN // 128
BYTES = T.uint32((BM + BN) * BK * 2)  # of A's tile and of both halves of B's
LEADING, STRIDE, SWIZZLE = 1, 1024 // 16, 3
K_STEP = 16 * 2 // 16
STAGE_STEP = BM * BK * 2 // 16  # to the next stage (BM = BN)


def build(M, N, K):
    """D = A @ B.T; M is a multiple of 128, N and K are multiples of 64."""
    TILES_N = N // BN
    PAIRS = M // (2 * BM) * TILES_N

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"),
        B: T.Buffer((N, K), "float16"),
        D: T.Buffer((M, N), "float16"),
    ):
        T.device_entry()
        rank = T.cta_id_in_cluster([2])
        cta = T.cta_id([2 * PAIRS])
        wg_id = T.warpgroup_id([2])
        warp_id = T.warp_id([8])
        tid = T.thread_id([256])
        pool = T.SMEMPool()
        full = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        empty = pool.alloc((PIPE_DEPTH,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BM, BK), "float16")
        Bs = pool.alloc_tcgen05_mma_AB((PIPE_DEPTH, BN, BK), "float16")
        pool.commit()
        m0: T.int32 = (cta // 2 // TILES_N * 2 + rank) * BM
        n0: T.int32 = cta // 2 % TILES_N * BN
        if tid == 0:
            for s in T.unroll(PIPE_DEPTH):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([s]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cluster_sync()

        # --- Producer ------------------------------------------------------
        if warp_id == 4:
            if T.cuda.elect_sync():
                for k in T.serial(K // BK):
                    k0 = T.meta_var(k * BK)
                    s = T.meta_var(k % PIPE_DEPTH)
                    used = T.meta_var(k // PIPE_DEPTH)
                    bar = T.meta_var(full.ptr_to([s]))
                    half = T.meta_var(rank * HALF)
                    b0 = T.meta_var(n0 + half)
                    A_box = T.meta_var(A[m0 : m0 + BM, k0 : k0 + BK])
                    B_box = T.meta_var(B[b0 : b0 + HALF, k0 : k0 + BK])
                    T.cuda.mbarrier_wait(empty.ptr_to([s]), used % 2 ^ 1)
                    T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, BYTES)
                    load(As[s, :, :], A_box, bar)
                    load(Bs[s, half : half + HALF, :], B_box, bar, cta_mask=3)

        # --- Consumer ------------------------------------------------------
        if wg_id == 0:
            acc = T.alloc_local((REGS,), "float32")
            descA: T.uint64
            descB: T.uint64
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(descA), As.ptr_to([0, 0, 0]), LEADING, STRIDE, SWIZZLE
            )
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(descB), Bs.ptr_to([0, 0, 0]), LEADING, STRIDE, SWIZZLE
            )
            for k in T.serial(K // BK):
                s = T.meta_var(k % PIPE_DEPTH)
                A_s = T.meta_var(descA + T.uint64(s * STAGE_STEP))
                B_s = T.meta_var(descB + T.uint64(s * STAGE_STEP))
                T.cuda.mbarrier_wait(full.ptr_to([s]), k // PIPE_DEPTH % 2)
                register_fence(acc, REGS)
                T.ptx.wgmma.fence.sync.aligned()
                for j in T.unroll(BK // 16):
                    wgmma(
                        acc,
                        0,
                        A_s + T.uint64(j * K_STEP),
                        B_s + T.uint64(j * K_STEP),
                        k + j != 0,
                        BN,
                        "float16",
                    )
                T.ptx.wgmma.commit_group.sync.aligned()
                T.ptx.wgmma.wait_group.sync.aligned(0)
                register_fence(acc, REGS)
                # The stage is released in both CTAs: thread r arrives in CTA r.
                if tid < 2:
                    there: T.uint32
                    T.ptx.mapa.shared__cluster.u32(
                        there,
                        T.cuda.cvta_generic_to_shared(empty.ptr_to([s])),
                        T.uint32(tid),
                    )
                    T.ptx.mbarrier.arrive.shared__cluster.b64(there)
            out = T.alloc_local((REGS,), "float16")
            out_wg = out.view(BM, BN, layout=wgmma_fragment(BM, BN))
            Tx.cast(out[:], acc[:])
            Tx.wg.copy(D[m0 : m0 + BM, n0 : n0 + BN], out_wg[:, :])
        # The peer may still arrive at this CTA's barriers: it must not end.
        T.cuda.cluster_sync()

    return finish(kernel, "empty", "hopper")


def load(tile, box, bar, **how):
    """Emit a TMA load of `box` into `tile`; `cta_mask` multicasts it."""
    Tx.copy_async(tile, box, dispatch="tma_explicit", mbar=bar, **how)


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("14.8", Path(__file__)))
