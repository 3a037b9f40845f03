"""Lanes of a warp that nothing has ordered with each other yet.

A release, or a copy that is issued, covers what *its thread* has done, and what the thread has seen
of others. What the other lanes of its warp did just before is among that only behind a barrier of
the warp (or a wider one); executing in step is no order. Source: PTX ISA, "Memory Consistency
Model" (base causality order is between threads); CUDA C++ Programming Guide, "__syncwarp".

A warp has one clock. So its lanes' accesses to shared memory since its last barrier are kept, each
until its lane has released it; when some lanes release, or hand memory to an engine, those that
the *others* made move to a moment that comes after it. And where a part of the warp has waited,
what the rest had seen before that holds for what the rest does, until the warp meets again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_gpu.sim.machine.clocks import (
    AGENT_SHIFT,
    CLOCK_MASK,
    CLOCK_SHIFT,
    SITE_MASK,
    UNITS,
    stamp,
    unseen,
)
from mlsys_gpu.sim.machine.core import NOBODY, Warp

#: Accesses that a warp keeps: of one that never comes to a barrier, the last ones.
KEPT = 1024

RULE = "lane-release"


def note(w: Warp, what: tuple[str, int, bool], stamps: Any, index: Any, lanes: Any) -> None:
    """Keep an access: the shadow's stamps, where in it, and the lanes (see access.lanes_of).

    ``what``: read or write, of which CTA, of wide rows or of words. One that comes again with the
    same indices, which loops that do not change them keep, takes its own place.
    """
    kept = w.loose
    kept[*what, id(index)] = stamps, index, lanes, NOBODY
    if len(kept) > KEPT:
        del kept[next(iter(kept))]


def mask_of(lanes: Any) -> np.ndarray:
    """A mask of 32 lanes from their numbers."""
    mask = np.zeros(32, dtype=bool)
    mask[lanes] = True
    return mask


def together(w: Warp) -> None:
    """A barrier of all the warp's lanes has ordered what they did, and what they have seen."""
    w.loose.clear()
    w.behind = None


def some_together(w: Warp, lanes: np.ndarray) -> None:
    """A barrier of some lanes: what one of them releases covers what the others did before."""
    here = mask_of(lanes)
    for key, (stamps, index, by, done) in w.loose.items():
        w.loose[key] = stamps, index, by, done | here


def settle(w: Warp) -> None:
    """Go on from where the moments end that :func:`part` has used."""
    if w.later:
        w.tick()


def part(w: Warp, lanes: Any, fence: bool = False) -> None:
    """Lanes (numbers) release, or hand memory to an engine: what the others did comes later.

    ``fence``: they make theirs visible to the async proxy, and release nothing. The caller ticks
    the warp's clock, or calls :func:`settle`, once it has published.
    """
    if not w.loose:
        return
    if np.size(lanes) >= w.active:
        if not fence:
            w.loose.clear()
        return
    here = mask_of(lanes)
    now, fenced = (int(n) for n in w.clock[:2, w.agent])
    for key, (stamps, index, by, before) in list(w.loose.items()):
        done = before | here
        if np.ndim(by) or by >= 0:
            others = ~done[by]
        else:  # all lanes
            others = ~done[: w.active].all()
        if not np.any(others):
            if not fence:
                del w.loose[key]
            continue
        if not fence:
            w.loose[key] = stamps, index, by, done
        held = np.asarray(stamps[index])
        moments = held >> CLOCK_SHIFT & CLOCK_MASK
        # an access is kept twice where two lines made it: it moves once
        left = others & (held >> AGENT_SHIFT == w.agent) & (moments <= now)
        if not left.any():
            continue
        if w.machine.reading(RULE) == "warp":
            return
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


def waited(w: Warp, mask: Any) -> None:
    """Lanes go on behind a wait, before the warp's clock has taken in what that shows.

    ``mask``: which lanes; None for all of them.
    """
    if mask is None and w.one < 0:
        w.behind = None
        return
    here = np.zeros(32, dtype=bool)
    if mask is None or mask is True:
        here[max(w.one, 0)] = True
    else:
        here |= mask
    if here[: w.active].all():
        w.behind = None
    elif w.behind is not None:
        rest, clock, site = w.behind
        rest = rest & ~here
        w.behind = (rest, clock, site) if rest.any() else None
    else:
        clock = w.clock[0].copy()
        clock[w.agent : w.agent + len(UNITS)] = CLOCK_MASK  # the warp's own are compared by lanes
        w.behind = w.present & ~here, clock, w.s


def unseen_behind(w: Warp, stamps: np.ndarray, lanes: Any) -> np.ndarray | None:
    """Which stamps of an access were made by others that its lanes have not waited for."""
    if w.behind is None:
        return None
    rest, clock, site = w.behind
    by_rest = rest[lanes] if np.ndim(lanes) or lanes >= 0 else np.True_
    if not np.any(by_rest):
        return None
    bad = unseen(stamps, clock)
    if bad is None:
        return None
    bad = bad & by_rest
    if not bad.any() or w.machine.reading(RULE) == "warp":
        return None
    for value in np.unique(stamps[bad]).tolist():
        early = value >> AGENT_SHIFT, value & SITE_MASK
        w.machine.left.setdefault(early, (site, w.name()))
    return bad
