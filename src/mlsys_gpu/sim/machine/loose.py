"""Lanes of a warp that nothing has ordered with each other yet.

A release, or a copy that is issued, covers what *its thread* has done, and what the thread has seen
of others. What the other lanes of its warp did just before is among that only behind a barrier of
the warp (or a wider one); executing in step is no order. Source: PTX ISA, "Memory Consistency
Model" (base causality order is between threads); CUDA C++ Programming Guide, "__syncwarp".

A warp has one clock. So its lanes' accesses to shared memory since its last barrier are kept; when
some lanes release, or hand memory to an engine, those that the *others* made move to a moment that
comes after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_gpu.sim.machine.clocks import AGENT_SHIFT, CLOCK_MASK, CLOCK_SHIFT, SITE_MASK, stamp
from mlsys_gpu.sim.machine.core import Warp

#: Accesses that a warp keeps: of one that never comes to a barrier, the last ones.
KEPT = 256

RULE = "lane-release"


def note(w: Warp, stamps: np.ndarray, index: Any, lanes: Any) -> None:
    """Keep an access: the shadow's stamps, where in it, and the lanes (see access.lanes_of)."""
    kept = w.loose
    kept.append((stamps, index, lanes))
    if len(kept) > 2 * KEPT:
        del kept[:KEPT]
        w.released = max(0, w.released - KEPT)


def together(w: Warp) -> None:
    """A barrier of all the warp's lanes has ordered what they did."""
    w.loose.clear()
    w.released = 0


def waited(w: Warp) -> None:
    """A wait is over: what all lanes had released before has come around to all of them."""
    if w.released:
        del w.loose[: w.released]
        w.released = 0


def settle(w: Warp) -> None:
    """Go on from where the moments end that :func:`part` has used."""
    if w.later:
        w.tick()


def part(w: Warp, lanes: Any) -> None:
    """Lanes (numbers) release, or hand memory to an engine: what the others did comes later.

    The caller ticks the warp's clock, or calls :func:`settle`, once it has published.
    """
    if not w.loose:
        return
    if np.size(lanes) >= w.active:
        w.released = len(w.loose)
        return
    here = np.zeros(32, dtype=bool)
    here[lanes] = True
    now, fenced = (int(n) for n in w.clock[:2, w.agent])
    for stamps, index, by in w.loose:
        held = np.asarray(stamps[index])
        others = ~here[by] if np.ndim(by) or by >= 0 else np.True_
        left = others & (held >> AGENT_SHIFT == w.agent)
        if not left.any():
            continue
        if w.machine.reading(RULE) == "warp":
            return
        moments = held >> CLOCK_SHIFT & CLOCK_MASK
        # what a proxy fence has covered stays covered, and what it has not does not become so
        through = left & (moments <= fenced)
        if through.any():
            w.fenced = now + 1
        sites = held & SITE_MASK
        later = np.where(through, stamp(w.agent, now + 1), stamp(w.agent, now + 2)) | sites
        stamps[index] = np.where(left, later, held)
        for site in np.unique(sites[left]).tolist():
            w.machine.left.setdefault((w.agent, site), (w.s, w.name()))
        w.later = now + 3
