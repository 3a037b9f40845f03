"""What a student reads: the leading finding is the cause, and its words say what to mend."""

# pyright: reportInvalidTypeForm=false

import numpy as np
import pytest
from tvm.backend.cuda.lang import MBarrier
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import wg_local_layout

import mlsys_gpu as mg
from mlsys_gpu.kernels.common import finish

SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", n) for n in range(6)]


@pytest.fixture(params=SCHEDULES, ids=lambda s: f"{s[0]}-{s[1]}")
def schedule(request):
    return {"schedule": request.param[0], "schedule_seed": request.param[1]}


def place(finding):
    """The line of a finding, without what stands around it."""
    return finding.location.text.strip()


def related(finding):
    return {what: at.text.strip() for what, at in finding.related}


# ------------------------------------------------------------------------ a ring of two warps

STAGES = 3


def ring(rounds=10, empty_wait=True, count=32):
    @T.prim_func
    def kernel(A: T.Buffer((rounds, 32), "float32"), D: T.Buffer((rounds, 32), "float32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        stages = pool.alloc((STAGES, 32), "float32")
        full = MBarrier(pool, STAGES)
        empty = MBarrier(pool, STAGES)
        pool.commit()
        full.init(count)
        empty.init(32)
        T.cuda.cta_sync()
        if warp == 0:
            for r in T.serial(rounds):
                if empty_wait:
                    empty.wait(r % STAGES, (r // STAGES) % 2 ^ 1)
                stages[r % STAGES, lane] = A[r, lane]
                full.arrive(r % STAGES)
        else:
            for r in T.serial(rounds):
                full.wait(r % STAGES, (r // STAGES) % 2)
                D[r, lane] = stages[r % STAGES, lane] * T.float32(2)
                empty.arrive(r % STAGES)

    return finish(kernel, "ring", "hopper")


def run_ring(schedule, **options):
    A = np.arange(320, dtype=np.float32).reshape(10, 32)
    D = np.full((10, 32), np.nan, np.float32)
    return mg.simulate(ring(**options), A, D, **schedule)


def test_a_whole_ring_is_silent(schedule):
    assert not run_ring(schedule).findings


def test_a_ring_that_does_not_wait_for_empty_stages_blames_the_writer(schedule):
    report = run_ring(schedule, empty_wait=False)
    lead = report.findings[0]
    assert lead.code == "barrier-lapped"
    assert place(lead) == "full.arrive(r % STAGES)"
    assert "warp 0 (32 threads) runs ahead" in lead.message
    assert "empty barrier" in lead.fix
    for finding in report.findings:
        if finding.code == "race-smem":
            assert place(finding) == "stages[r % STAGES, lane] = A[r, lane]"
            assert "does not wait for warp 1, which reads it" in finding.message
        if finding.code == "deadlock":
            assert "follows from them" in finding.fix


def test_a_count_that_is_never_reached_leads_a_deadlock(schedule):
    (finding,) = run_ring(schedule, count=33).findings
    assert finding.code == "deadlock"
    assert place(finding) == "full.wait(r % STAGES, (r // STAGES) % 2)"
    assert "full_buf[0] counts 33 arrivals a phase" in finding.message
    assert "bring 32 (warp 0 (32 threads)" in finding.message
    assert related(finding)["initialised with 33"] == "full.init(count)"
    assert finding.fix == "initialise full_buf[0] with 32, or let 1 more arrive in each phase"


# -------------------------------------------------------------------------------- TMA copies


def tma_ring(rounds=6, expect=True):
    @T.prim_func
    def kernel(A: T.Buffer((rounds * 8, 64), "float16"), D: T.Buffer((rounds * 8, 64), "float16")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        full = pool.alloc((2,), "uint64", align=8)
        empty = pool.alloc((2,), "uint64", align=8)
        stages = pool.alloc((2, 8, 64), "float16", align=1024)
        pool.commit()
        if warp == 0:
            if lane == 0:
                for i in T.unroll(2):
                    T.ptx.mbarrier.init.shared.b64(full.ptr_to([i]), T.uint32(1))
                    T.ptx.mbarrier.init.shared.b64(empty.ptr_to([i]), T.uint32(32))
                T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        if warp == 0:
            if T.cuda.elect_sync():
                for r in T.serial(rounds):
                    s = T.meta_var(r % 2)
                    T.cuda.mbarrier_wait(empty.ptr_to([s]), (r // 2 + 1) % 2)
                    if expect:
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([s]), T.uint32(1024))
                    Tx.copy_async(
                        stages[s, :, :],
                        A[r * 8 : r * 8 + 8, :],
                        dispatch="tma_auto",
                        mbar=full.ptr_to([s]),
                    )
        else:
            for r in T.serial(rounds):
                s = T.meta_var(r % 2)
                T.cuda.mbarrier_wait(full.ptr_to([s]), (r // 2) % 2)
                for j in T.serial(8):
                    D[r * 8 + j, lane] = stages[s, j, lane]
                    D[r * 8 + j, lane + 32] = stages[s, j, lane + 32]
                T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([s]), T.uint32(1))

    return finish(kernel, "tma_ring", "hopper")


def test_bytes_that_nobody_expects_lead_a_deadlock(schedule):
    A = np.ones((48, 64), np.float16)
    assert not mg.simulate(tma_ring(), A, np.zeros_like(A), **schedule).findings
    (finding,) = mg.simulate(tma_ring(expect=False), A, np.zeros_like(A), **schedule).findings
    assert finding.code == "deadlock"
    assert place(finding).startswith("T.cuda.mbarrier_wait(full.ptr_to([s])")
    assert "1024 bytes have come to full[0] that no arrive.expect_tx before" in finding.message
    assert "T.ptx.mbarrier.init.shared.b64(full" in related(finding)["initialised with 1"]
    assert "arrive.expect_tx on full[0]" in finding.fix


def tma_add(nbytes=8192, wait=True, read=True):
    @T.prim_func
    def kernel(A: T.Buffer((64, 64), "float16"), D: T.Buffer((64, 64), "float16")):
        T.device_entry()
        T.cta_id([1])
        T.warpgroup_id([1])
        warp = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        tile = pool.alloc_tcgen05_mma_AB((64, 64), "float16")
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(bar.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        if warp == 0:
            if T.cuda.elect_sync():
                T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar.ptr_to([0]), T.uint32(nbytes))
                Tx.copy_async(tile[:, :], A[:, :], dispatch="tma_auto", mbar=bar.ptr_to([0]))
        if wait:
            T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        for j in T.serial(32):
            e = T.meta_var(j * 128 + tid)
            r, c = T.meta_var(e // 64), T.meta_var(e % 64)
            tile[r, c] = tile[r, c] + T.float16(1)
        T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        if warp == 0:
            if T.cuda.elect_sync():
                Tx.copy_async(D[:, :], tile[:, :], dispatch="tma_auto")
                T.ptx.cp.async_.bulk.commit_group()
                if read:
                    T.ptx.cp.async_.bulk.wait_group(0)

    return finish(kernel, "tma_add", "hopper")


def run_tma(schedule, **options):
    A = np.ones((64, 64), np.float16)
    return mg.simulate(tma_add(**options), A, np.zeros_like(A), **schedule)


def test_a_missing_wait_for_a_load_names_its_barrier(schedule):
    assert not run_tma(schedule).findings
    report = run_tma(schedule, wait=False)
    lead = report.findings[0]
    assert lead.code == "race-smem"
    assert place(lead) == "tile[r, c] = tile[r, c] + T.float16(1)"
    assert "waits nowhere before for bar, which the copy completes" in lead.message
    for finding in report.findings:
        assert "cta_sync" not in finding.fix
        assert "wait_group" not in finding.fix


def test_expected_bytes_against_those_that_come(schedule):
    lead = run_tma(schedule, nbytes=4096).findings[0]
    assert lead.code == "tx-count"
    assert "phase 0 of bar expects 4096 bytes, its copies bring 8192" in lead.message
    assert "T.ptx.mbarrier.arrive.expect_tx" in related(lead)["expects 4096 bytes"]
    assert "8192" in lead.fix
    lead = run_tma(schedule, nbytes=16384).findings[0]
    assert lead.code == "tx-count"
    assert "phase 0 of bar expects 16384 bytes, its copies bring 8192" in lead.message
    assert "T.ptx.mbarrier.arrive.expect_tx" in related(lead)["expects 16384 bytes"]
    assert "issue the copies that bring all 16384" in lead.fix


def test_a_store_that_is_committed_and_not_waited_for():
    (finding,) = run_tma({}, read=False).findings
    assert finding.code == "in-flight-at-exit"
    assert finding.message.startswith("warp 0 exits while 1 bulk group of its stores")
    assert "commit" not in finding.fix


# ----------------------------------------------------------------------------- tensor memory


def product(flip=True, wait_ld=True):
    @T.prim_func
    def kernel(
        A: T.Buffer((128, 128), "float16"),
        B: T.Buffer((64, 128), "float16"),
        D: T.Buffer((128, 64), "float32"),
    ):
        T.device_entry()
        T.cta_id([1])
        T.warpgroup_id([1])
        warp = T.warp_id([4])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        tmem = T.TMEMPool(pool, total_cols=512)
        acc = tmem.alloc((128, 64), "float32")
        done = pool.alloc((1,), "uint64", align=8)
        As = pool.alloc_tcgen05_mma_AB((128, 64), "float16")
        Bs = pool.alloc_tcgen05_mma_AB((64, 64), "float16")
        pool.commit()
        tmem.commit()
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(done.ptr_to([0]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        for k in T.serial(2):
            Tx.cta.copy(As[:, :], A[:, k * 64 : k * 64 + 64])
            Tx.cta.copy(Bs[:, :], B[:, k * 64 : k * 64 + 64])
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()
            if warp == 0:
                if T.cuda.elect_sync():
                    T.ptx.tcgen05.fence__after_thread_sync()
                    Tx.gemm_async(acc[:, :], As[:, :], Bs[:, :], accum=k != 0, dispatch="tcgen05")
                    T.ptx["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"](
                        done.ptr_to([0])
                    )
            if flip:
                T.cuda.mbarrier_wait(done.ptr_to([0]), k % 2)
            else:
                T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
        T.ptx.tcgen05.fence__after_thread_sync()
        regs = T.alloc_local((64,), "float32")
        rows = regs.view(128, 64, layout=wg_local_layout(64))
        Tx.wg.copy_async(rows[:, :], acc[:, :])
        if wait_ld:
            T.ptx.tcgen05.wait__ld.sync.aligned()
        Tx.wg.copy(D[:, :], rows[:, :])
        T.ptx.tcgen05.fence__before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence__after_thread_sync()
        tmem.dealloc()

    return finish(kernel, "product", "blackwell")


def run_product(**options):
    rng = np.random.default_rng(1)
    A = rng.standard_normal((128, 128)).astype(np.float16)
    B = rng.standard_normal((64, 128)).astype(np.float16)
    D = np.full((128, 64), np.nan, np.float32)
    report = mg.simulate(product(**options), A, B, D, schedule="lazy")
    return report, D, A.astype(np.float64) @ B.astype(np.float64).T


def test_an_accumulator_that_was_read_before_its_last_product():
    report, D, reference = run_product(flip=False)
    assert report.findings[0].code == "barrier-parity"
    found = report.explain(D, reference)
    assert len(found.terms) == 1
    assert found.missing == [[64, 128]]
    assert "is the accumulator as it was after 1 of its 2 products" in found.conclusion[0]
    assert "read before K 64 to 127 was added" in found.conclusion[0]
    assert not any("has computed with it" in text for text in found.conclusion)


def test_a_load_without_its_wait():
    assert not run_product()[0].findings
    report, *_ = run_product(wait_ld=False)
    (finding,) = report.findings
    assert finding.code == "missing-tcgen05-wait"
    assert place(finding) == "Tx.wg.copy_async(rows[:, :], acc[:, :])"
    assert "has not waited for this tcgen05.ld (no tcgen05.wait::ld behind it)" in finding.message
    assert "reading tcgen05-ld: dependency" in finding.message
    assert "tcgen05-ld" in report.readings


# ---------------------------------------------------------------------------- plain accesses


def plain(off=0, all_but=64, written=64):
    @T.prim_func
    def kernel(A: T.Buffer((64,), "float32"), D: T.Buffer((64,), "float32")):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([64])
        pool = T.SMEMPool()
        a = pool.alloc((64,), "float32")
        b = pool.alloc((64,), "float32")
        pool.commit()
        a[tid] = A[tid]
        b[tid] = T.float32(7)
        T.cuda.cta_sync()
        if tid != all_but:
            if tid < written:
                D[tid] = a[tid + off] + b[tid]

    return finish(kernel, "plain", "hopper")


def run_plain(**options):
    A = np.zeros(64, np.float32)
    return mg.simulate(plain(**options), A, np.zeros_like(A))


def test_an_index_far_outside_shared_memory_names_the_nearest_buffer():
    (finding,) = run_plain(off=128).findings
    assert finding.code == "out-of-bounds"
    assert "nearest is b (byte 256 to 511), where b[" in finding.message


def test_an_output_that_lacks_one_element():
    assert not run_plain().findings
    report = run_plain(all_but=5)
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("unwritten-output", "warning")
    assert report.ok
    assert "1 of 64 elements of D are never written: D[5]" in finding.message
    assert "not written: D[5]" in str(report)


def test_an_output_of_which_a_part_is_written():
    report = run_plain(written=40)
    assert not report.findings
    assert "not written: D[40-63]" in str(report)
