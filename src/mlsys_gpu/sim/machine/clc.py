"""Cluster launch control: a running cluster takes over the work of one that has not started.

The response is 128 opaque bits. Here bit 0 says that a cluster was cancelled, and bits 32 and up
hold its first CTA's x, y and z. Source: PTX ISA, ``clusterlaunchcontrol``.
"""

from __future__ import annotations

import numpy as np

from mlsys_gpu.sim.machine import memory
from mlsys_gpu.sim.machine.barriers import barrier_at
from mlsys_gpu.sim.machine.bulk import _aligned, _copy_in, _issuers, _receivers, _shared_place
from mlsys_gpu.sim.machine.core import Stop, Warp, op

#: A cluster that has had so many requests fail never ends: a few may be under way when the first
#: one fails.
MANY_FAILED = 64


@op
def clc_try_cancel(w: Warp, address, barrier, everywhere: bool, mask=None) -> None:
    """``clusterlaunchcontrol.try_cancel.async``: ask for a cluster that has not started.

    The 16-byte response lands like a copy and completes 16 bytes on the barrier; ``everywhere``
    (multicast) in every CTA of the cluster, at the same offsets.
    """
    what = "clusterlaunchcontrol.try_cancel"
    for _, (into, on) in _issuers(w, mask, what, address, barrier):
        failed = w.cluster.state.get("clc_failed")
        if (
            w.checks
            and failed is not None
            and failed[1] <= max(w.clock[0, failed[0]], w.clock[2, failed[0]])
        ):
            w.machine.report(
                "clc-protocol",
                w,
                "asks for another cluster after a request that has failed: what it gets is "
                "undefined",
                memory="a launch-control response",
                fix="end the loop once query_cancel.is_canceled is false",
                fault=_instruction(w),
            )
        origin = w.machine.cancel(w.cluster)
        if origin is None:
            _one_more_failed(w)
        bits = 0 if origin is None else 1 | sum(n << 32 * (i + 1) for i, n in enumerate(origin))
        response = np.array([bits >> 32 * i & 0xFFFFFFFF for i in range(4)], dtype=np.uint32)
        _aligned(w, 16, into)
        rank, offset = _shared_place(w, into, what)
        mrank, moffset = _shared_place(w, on, what)
        everyone = (1 << w.cluster.size) - 1 if everywhere else None
        for target, owner in _receivers(w, rank, mrank, everyone, False, what):
            cta = w.cluster.ctas[target]
            bar = barrier_at(w, owner << memory.RANK_BITS | moffset)
            if origin is None and target == w.rank:
                w.cluster.state["clc_failed"] = (bar.agent, bar.epoch + bar.phase + 1)
            rows = np.array([offset >> 4], dtype=np.int64)
            _copy_in(w, cta, rows, bar, "a launch-control response", lambda r=response: r)


def _instruction(w: Warp) -> str:
    """The place of an instruction: one fault, from wherever the function that has it is called."""
    places = w.machine.program.locations(w.s)
    return str(places[-1]) if places else ""


def _one_more_failed(w: Warp) -> None:
    """Count a cluster's failed requests; stop where it goes on for ever."""
    state = w.cluster.state
    state["clc_failures"] = state.get("clc_failures", 0) + 1
    if state["clc_failures"] <= MANY_FAILED:
        return
    w.machine.report(
        "clc-protocol",
        w,
        f"goes on asking for clusters after {MANY_FAILED} requests have failed: it never ends",
        memory="a launch-control response",
        fix="end the loop once query_cancel.is_canceled is false",
        fault=_instruction(w),
    )
    raise Stop


@op
def clc_is_canceled(response):
    """``query_cancel.is_canceled``: whether the response names a cluster."""
    found = response & 1
    return found.astype(np.int64) if isinstance(found, np.ndarray) else found


@op
def clc_first_ctaid(w: Warp, response, axis: int, mask=None):
    """``query_cancel.get_first_ctaid``: a coordinate of the cancelled cluster's first CTA."""
    found = response & 1
    if isinstance(found, np.ndarray):  # 128-bit integers of 32 lanes
        found = (found if mask is None else found[mask]).astype(bool).all()
    if not found:
        w.machine.report(
            "clc-protocol",
            w,
            "reads a CTA's coordinates from a response that cancelled nothing",
            memory="a launch-control response",
            fix="read them only where query_cancel.is_canceled is true",
            fault=_instruction(w),
        )
    value = response >> 32 * (axis + 1) & 0xFFFFFFFF
    return value.astype(np.int64) if isinstance(value, np.ndarray) else value
