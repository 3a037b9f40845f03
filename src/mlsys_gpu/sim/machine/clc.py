"""Cluster launch control: a running cluster takes over the work of one that has not started.

The response is 128 opaque bits. Here bit 0 says that a cluster was cancelled, and bits 32 and up
hold its first CTA's x, y and z. Source: PTX ISA, ``clusterlaunchcontrol``.
"""

from __future__ import annotations

import numpy as np

from mlsys_gpu.sim.machine import memory
from mlsys_gpu.sim.machine.barriers import barrier_at
from mlsys_gpu.sim.machine.bulk import _copy_in, _destination, _one_thread
from mlsys_gpu.sim.machine.core import Warp, op


@op
def clc_try_cancel(w: Warp, address, barrier, everywhere: bool, mask=None) -> None:
    """``clusterlaunchcontrol.try_cancel.async``: ask for a cluster that has not started.

    The 16-byte response lands like a copy and completes 16 bytes on the barrier; ``everywhere``
    (multicast) in every CTA of the cluster, at the same offsets.
    """
    if not _one_thread(w, mask, "clusterlaunchcontrol.try_cancel"):
        return
    origin = w.machine.cancel()
    bits = 0 if origin is None else 1 | sum(n << 32 * (i + 1) for i, n in enumerate(origin))
    response = np.array([bits >> 32 * i & 0xFFFFFFFF for i in range(4)], dtype=np.uint32)
    rank, offset = _destination(w, address)
    mrank, moffset = _destination(w, barrier)
    for target in range(w.cluster.size) if everywhere else [rank]:
        cta = w.cluster.ctas[target]
        owner = target if everywhere else mrank
        bar = barrier_at(w, owner << memory.RANK_BITS | moffset)
        rows = np.array([offset >> 4], dtype=np.int64)
        _copy_in(w, cta, rows, bar, "a launch-control response", lambda: response)


@op
def clc_is_canceled(response: int) -> int:
    """``query_cancel.is_canceled``: whether the response names a cluster."""
    return response & 1


@op
def clc_first_ctaid(w: Warp, response: int, axis: int) -> int:
    """``query_cancel.get_first_ctaid``: a coordinate of the cancelled cluster's first CTA."""
    if not response & 1:
        w.machine.report(
            "clc-protocol",
            w,
            "reads a CTA's coordinates from a response that cancelled nothing",
            memory="a launch-control response",
            fix="read them only where query_cancel.is_canceled is true",
        )
    return response >> 32 * (axis + 1) & 0xFFFFFFFF
