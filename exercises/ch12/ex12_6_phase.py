# Exercise 12.6. Stub e57bf3ef2074: yours to edit; `mlsys-gpu reset 12.6` brings it back.
"""Exercise 12.6 (debug): it worked with two tiles.

D = A @ B.T for A [128, K], B [64, K] and D [128, 64] in float16 on
Blackwell: Step 2 with a narrower tile, K a multiple of 64.

One place in this kernel is at fault: the tensor core may still be busy with
one K tile when the next one is copied over it. Often nothing comes of it.
Find the place, mend it, and change nothing else.
"""

from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import wg_local_layout

from mlsys_gpu.kernels.common import finish, tcgen05_commit

BM, BN, BK = 128, 64, 64


def build(K):
    """D = A @ B.T for A [128, K] and B [64, K]; K is a multiple of 64."""

    @T.prim_func
    def kernel(
        A: T.Buffer((BM, K), "float16"),
        B: T.Buffer((BN, K), "float16"),
        D: T.Buffer((BM, BN), "float16"),
    ):
        T.device_entry()
        cta = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=512)
        acc = tmem.alloc((BM, BN), "float32")
        mma_bar = pool.alloc((1,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((BM, BK), "float16")
        Bs = pool.alloc_tcgen05_mma_AB((BN, BK), "float16")
        pool.commit()
        tmem.commit()
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(mma_bar.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        phase: T.int32 = 0
        for k in T.serial(K // BK):
            k0 = T.meta_var(k * BK)
            Tx.cta.copy(As[:, :], A[:, k0 : k0 + BK])
            Tx.cta.copy(Bs[:, :], B[:, k0 : k0 + BK])
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()
            if warp_id == 0:
                if T.cuda.elect_sync():
                    T.ptx.tcgen05.fence__after_thread_sync()
                    Tx.gemm_async(
                        acc[:, :],
                        As[:, :],
                        Bs[:, :],
                        accum=k != 0,
                        dispatch="tcgen05",
                    )
                    tcgen05_commit(mma_bar.ptr_to([0]))
            T.cuda.mbarrier_wait(mma_bar.ptr_to([0]), phase)
            if warp_id == 0:
                phase = phase ^ 1

        T.ptx.tcgen05.fence__after_thread_sync()
        regs = T.alloc_local((BN,), "float32")
        regs_wg = regs.view(BM, BN, layout=wg_local_layout(BN))
        Tx.wg.copy_async(regs_wg[:, :], acc[:, :])
        T.ptx.tcgen05.wait__ld.sync.aligned()
        out = T.alloc_local((BN,), "float16")
        out_wg = out.view(BM, BN, layout=wg_local_layout(BN))
        Tx.cast(out[:], regs[:])
        Tx.wg.copy(D[:, :], out_wg[:, :])
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "two_tiles", "blackwell")


if __name__ == "__main__":
    from pathlib import Path

    from mlsys_gpu import check

    print(check("12.6", Path(__file__)))
