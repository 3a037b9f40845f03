"""Vector clocks: who has seen whose work.

Every *agent* of a cluster has a component: each warp, and each asynchronous unit that works for
it (its tensor-memory loads and stores, its tcgen05 pipe, its warpgroup's wgmma, its bulk copies),
and each mbarrier for the copies that complete on it. An access is stamped with its agent and the
agent's clock; it is ordered before another thread's access if that thread's clock for the agent
has reached the stamp.

A warp carries four rows. Row 0 is ordinary happens-before. Row 1 holds what is also visible to
the *async proxy* (PTX ISA, "Proxies"): generic writes enter it only through ``fence.proxy.async``.
Row 2 holds what came before in time for any other reason: bytes that land, say, come after all that
the thread did that issued their copy, although nothing of that becomes visible with them. It orders
no accesses; it says that a barrier cannot have been lapped. Row 3 is what a fence of the GPU's
scope has made visible beyond the CTA: what a relaxed operation on global memory publishes. Kernels
that need it have a row 4: what ``tcgen05.fence::before_thread_sync`` has put ahead of a thread's
later synchronisation (see :mod:`.tcgen05`).

Clocks are of one cluster. What its warps learn of other clusters, through memory, stands in their
lists of lessons (:mod:`.order`); the unit ``learned`` of a warp counts those that a clock has seen.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

#: Units that work for a warp, in the order of their components behind the warp's own.
UNITS = (
    "warp", "tmem_load", "tmem_store", "tcgen05", "wgmma", "bulk_read", "bulk", "cp_async",
    "learned",
)  # fmt: skip
UNIT = {name: i for i, name in enumerate(UNITS)}

#: mbarriers of one CTA that have a component of their own, unless more are asked for.
BARRIERS = 64

#: The row of a clock that tcgen05.fence moves, in kernels that need it.
TCGEN05_ROW = 4

#: A stamp is ``agent << 48 | clock << 16 | site``: who, when, and at which place in the source.
AGENT_SHIFT = 48
CLOCK_SHIFT = 16
SITE_MASK = (1 << CLOCK_SHIFT) - 1
CLOCK_MASK = (1 << (AGENT_SHIFT - CLOCK_SHIFT)) - 1

NAMES = {
    "warp": "warp {w}",
    "tmem_load": "tcgen05.ld of warp {w}",
    "tmem_store": "tcgen05.st of warp {w}",
    "tcgen05": "the tensor core (for warp {w})",
    "wgmma": "the tensor core (for warpgroup {g})",
    "bulk_read": "bulk copies of warp {w}",
    "bulk": "bulk copies of warp {w}",
    "cp_async": "cp.async of warp {w}",
    "learned": "warp {w}",
}


class Agents:
    """Numbering of a cluster's agents; agent 0 is the host, whose writes everyone has seen."""

    def __init__(self, ctas: int, warps: int, barriers: int = BARRIERS, rows: int = 4):
        self.warps = warps
        self.rows = rows
        self.barriers = barriers
        self.per_cta = len(UNITS) * warps + barriers
        self.count = 1 + ctas * self.per_cta
        #: Whether an agent belongs to the async proxy (indexable by agent).
        self.asynchronous = np.zeros(self.count, dtype=bool)
        #: Whether an agent is a tensor core that works on tensor memory.
        self.tensor_core = np.zeros(self.count, dtype=bool)
        for cta in range(ctas):
            base = 1 + cta * self.per_cta
            self.tensor_core[base + UNIT["tcgen05"] : base + warps * len(UNITS) : len(UNITS)] = True
            for warp in range(warps):
                for unit in ("tcgen05", "wgmma", "bulk_read", "bulk"):
                    self.asynchronous[base + warp * len(UNITS) + UNIT[unit]] = True
            self.asynchronous[base + warps * len(UNITS) : base + self.per_cta] = True

    def of(self, cta: int, warp: int, unit: str = "warp") -> int:
        return 1 + cta * self.per_cta + warp * len(UNITS) + UNIT[unit]

    def barrier(self, cta: int, index: int) -> int:
        return 1 + cta * self.per_cta + self.warps * len(UNITS) + index

    def warp_of(self, agent: int) -> tuple[int, int] | None:
        """CTA rank and index of the warp that an agent is, or that it works for."""
        cta, rest = divmod(agent - 1, self.per_cta)
        if agent == 0 or rest >= self.warps * len(UNITS):
            return None
        return cta, rest // len(UNITS)

    def unit_of(self, agent: int) -> str:
        """Which unit an agent is: one of :data:`UNITS`, ``barrier`` or ``host``."""
        if agent == 0:
            return "host"
        rest = (agent - 1) % self.per_cta
        return "barrier" if rest >= self.warps * len(UNITS) else UNITS[rest % len(UNITS)]

    def name(self, agent: int) -> str:
        """The agent in a reader's words."""
        if agent == 0:
            return "the host"
        rest = (agent - 1) % self.per_cta
        place = f" of CTA rank {self.rank(agent)}" if self.count > 1 + self.per_cta else ""
        if rest >= self.warps * len(UNITS):
            return "a copy engine" + place
        warp, unit = divmod(rest, len(UNITS))
        return NAMES[UNITS[unit]].format(w=warp, g=warp // 4) + place

    def rank(self, agent: int) -> int:
        """Rank in the cluster of the CTA that an agent (not the host) belongs to."""
        return (agent - 1) // self.per_cta

    def clock(self) -> np.ndarray:
        """A fresh clock of shape ``[rows, agents]``: it has seen the host."""
        clock = np.zeros((self.rows, self.count), dtype=np.int64)
        clock[:, 0] = CLOCK_MASK
        return clock


#: The numbering, which clusters of the same shape share.
agents_for = lru_cache(maxsize=16)(Agents)


def join(into: np.ndarray, other: np.ndarray) -> None:
    """``into`` has now seen all that ``other`` has."""
    np.maximum(into, other, out=into)


def stamp(agent: int, clock: int, site: int = 0) -> int:
    """One integer for an access: who, when, where in the source."""
    return agent << AGENT_SHIFT | clock << CLOCK_SHIFT | site


def bounds(stamps: np.ndarray) -> tuple[int, int]:
    """The lowest and the highest of some stamps; the lowest is 0 where one is of nobody."""
    return int(np.minimum.reduce(stamps, axis=None)), int(np.maximum.reduce(stamps, axis=None))


def unseen(
    stamps: np.ndarray, clock: np.ndarray, within: tuple[int, int] | None = None
) -> np.ndarray | None:
    """Which of the stamps a clock (one row, by agent) has not seen; None where it has seen all.

    ``within``: the stamps' :func:`bounds`, where they are known. Most often one agent has made all
    of them, and then the latest decides.
    """
    low, high = bounds(stamps) if within is None else within
    agent = high >> AGENT_SHIFT
    if low >> AGENT_SHIFT == agent:
        seen = stamp(agent, int(clock[agent]), SITE_MASK)
        if high <= seen:
            return None
        return stamps > seen
    seen = (np.arange(clock.size) << AGENT_SHIFT) | (clock << CLOCK_SHIFT) | SITE_MASK
    bad = stamps > seen[stamps >> AGENT_SHIFT]
    return bad if bad.any() else None


def unseen_of(agent: int, stamps: np.ndarray, clock: np.ndarray) -> np.ndarray | None:
    """:func:`unseen` of stamps that are all of one agent, or of nobody."""
    seen = stamp(agent, int(clock[agent]), SITE_MASK)
    if int(np.maximum.reduce(stamps, axis=None)) <= seen:
        return None
    return stamps > seen
