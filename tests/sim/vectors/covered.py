"""Which operations the simulator models have a vector, and why the others have none."""

from __future__ import annotations

from functools import cache

from mlsys_gpu.sim.frontend import analysis, table

from . import all_cases

#: Operations of PTX that an sm_90a does not have, by patterns of their names.
LATER_GPUS = (
    "tcgen05_*", "clusterlaunchcontrol_*", "*_vec256", "max3", "min3", "redux_sync_f32", "st_bulk",
    "cvt_*f4x2*", "cvt_*f6x2*", "cvt_*ue8m0x2*", "cvt_bf16x2_f8x2", "cvt_rs_*", "set_packed",
    "applypriority_async_bulk*", "cp_async_bulk*prefetch_evict_last",
)  # fmt: skip

_ORDER = "it orders accesses and has no result; the findings' tests hold it"
_NEWER = "the assembler of CUDA 13.0, which makes the cubins, does not know it"
_BUILT = "CUDA compiles it to instructions that have vectors"
_NONE = "it has no effect on results"
_TIME = "what it gives depends on the time or the chip"

#: What else has no vector, by patterns of the operations' names, and why.
WITHOUT: dict[str, str] = {
    "ptx.fence": _ORDER, "ptx.fence_proxy_tensormap*": _ORDER, "cuda.thread_fence": _ORDER,
    "ptx.setmaxnreg": "how many registers a warp may have shows in no result",
    "ptx.addr": "part of an address",
    "ptx.discard": "what memory holds afterwards is undefined",
    "ptx.applypriority": _NONE, "ptx.createpolicy_cvt": _NONE, "cuda.iket*": _NONE,
    "cuda.wgmma_noop_barrier*": _NONE,
    "ptx.*f32_noftz*": _NEWER, "ptx.ld_proxy_readonly": _NEWER, "ptx.prefetch_valid_addr": _NEWER,
    "ptx.mbarrier_check_layout": _NEWER,
    "cuda.atomic_*": _BUILT, "cuda.ldg": _BUILT, "cuda.float22half2": _BUILT,
    "cuda.float8tohalf8": _BUILT, "cuda.half8tofloat8": _BUILT, "cuda.wait_until": _BUILT,
    "cuda.mbarrier_wait_acquire_cluster": _BUILT, "cuda.warpgroup_sync": _BUILT,
    "cuda.grid_sync": _BUILT, "cuda.smem_addr_from_uint64": _BUILT, "cuda.elect_sync": _BUILT,
    "cuda.f*2_rn": "of pairs of floats: a Blackwell GPU's instruction",
    "cuda.get_tmem_addr": "of Blackwell's tensor memory",
    "cuda.tcgen05_*": "of Blackwell's tensor core",
    "cuda.sm100_*": "of Blackwell's pairs of CTAs",
    "cuda.clock64": _TIME, "cuda.nano_sleep": _TIME,
    "cuda.printf": "it writes to the host", "cuda.trap_when_assert_failed": "it ends the kernel",
    "cuda.func_call": "inline CUDA: whatever it says",
}  # fmt: skip


def modelled() -> list[str]:
    """The operations of PTX and of CUDA that the simulator models."""
    return [name for name in table.names() if name.startswith(("ptx.", "cuda."))]


@cache
def used() -> frozenset[str]:
    """The operations that some vector's kernel has."""
    found = set()
    for case in all_cases():
        if case.family == "wgmma" and case.name != "wgmma n8":
            continue  # they differ in their shapes alone
        for call in analysis.calls(case.kernel().body):
            found.add(str(getattr(call.op, "name", call.op)).removeprefix("tirx."))
    return frozenset(found)
