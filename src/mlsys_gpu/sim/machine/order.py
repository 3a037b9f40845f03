"""Happens-before through memory: accesses to global memory, and synchronisation by strong ones.

A *strong* operation (``ld`` and ``st`` with ``.relaxed``, ``.acquire``, ``.release`` or
``.volatile``, and every atomic) does not race with another strong one. A strong write publishes at
its place what its thread has seen: all of it where it releases, else what a fence has made visible.
A strong read that acquires, or that a fence follows, has then seen that too, as far as both scopes
reach. Source: PTX ISA, "Memory Consistency Model" (release and acquire patterns, scope, causality).

Clocks are of one cluster. A *lesson* is what a warp has learnt of other clusters: for each of them
two rows of a clock, ordinary happens-before and what the async proxy sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import loose, memory
from mlsys_gpu.sim.machine.clocks import (
    AGENT_SHIFT,
    CLOCK_MASK,
    CLOCK_SHIFT,
    SITE_MASK,
    unseen,
)
from mlsys_gpu.sim.machine.core import Cluster, Warp, op

#: How far each scope reaches: the CTA, the cluster, the GPU.
SCOPES = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 2}

Lesson = dict[int, np.ndarray]

#: What is published at a place: by cluster, rank and scope, a clock and what it knows of others.
Published = dict[tuple[int, int, int], tuple[np.ndarray, Lesson]]


def learned(cluster: Cluster, clock: np.ndarray) -> Lesson:
    """What a clock of this cluster knows of other clusters, by their numbers."""
    found: Lesson = {}
    for warp in cluster.learners:
        unit, lessons = warp.unit["learned"], warp.lessons
        seen, through = int(clock[0, unit]), int(clock[1, unit])
        if seen:
            for number, rows in lessons[seen - 1].items():
                _merge(found, number, rows)
        if through:  # a proxy fence came behind the lesson: all of it is visible to engines
            for number, rows in lessons[through - 1].items():
                _merge(found, number, np.stack([rows[0], rows[0]]))
    return found


def _merge(into: Lesson, number: int, rows: np.ndarray) -> None:
    held = into.get(number)
    into[number] = rows.copy() if held is None else np.maximum(held, rows)


def learn(w: Warp, lesson: Lesson) -> None:
    """A warp has seen what other clusters have done, up to these rows of their clocks."""
    known = dict(w.lessons[-1]) if w.lessons else {}
    for number, rows in lesson.items():
        if number != w.cluster.number:
            _merge(known, number, rows)
    if not w.lessons:
        w.cluster.learners.append(w)
    w.lessons.append(known)
    w.clock[0, w.unit["learned"]] = len(w.lessons)


# --------------------------------------------------------------------------- strong operations


def publish(
    w: Warp, place: memory.Linear, offset: int, sem: str, scope: str, rmw: bool,
    lanes: np.ndarray | None = None,
) -> None:  # fmt: skip
    """A strong write to ``offset``, by ``lanes`` (None: all), publishes what its threads have seen.

    A read-modify-write keeps what was published before it (a release sequence); a store ends that.
    """
    if not w.checks:
        return
    w.cta.spoke = True
    table: Published = place.published.setdefault(offset, {}) if rmw else {}
    place.published[offset] = table
    reach = SCOPES[scope or "gpu"]
    if sem in ("release", "acq_rel", "sc"):
        if lanes is not None:
            loose.part(w, lanes)
        _enter(w, table, reach, w.release())
        return
    fence, wide = w.state.get("fence"), w.clock[3, 1:].any()
    if fence is None and not wide:
        return
    clock = w.clock.copy()
    if wide:
        clock[0] = clock[3]
        _enter(w, table, reach, clock.copy())
    if fence is not None:
        clock[0] = fence[0]
        _enter(w, table, min(reach, fence[1]), clock)
    w.tick()


def _enter(w: Warp, table: Published, reach: int, clock: np.ndarray) -> None:
    key = (w.cluster.number, w.rank, reach)
    lesson = learned(w.cluster, clock) if w.cluster.learners else {}
    held = table.get(key)
    if held is None:
        table[key] = (clock, lesson)
        return
    np.maximum(held[0], clock, out=held[0])
    for number, rows in lesson.items():
        _merge(held[1], number, rows)


def observe(w: Warp, place: memory.Linear, offset: int, sem: str, scope: str) -> None:
    """A strong read of ``offset``: what was published there has been seen, now or by a fence."""
    if not w.checks:
        return
    w.heard = True
    table = place.published.get(offset)
    if not table:
        return
    if sem in ("acquire", "acq_rel", "sc"):
        _take(w, table, SCOPES[scope or "gpu"])
    else:
        copies = {key: (clock.copy(), dict(lesson)) for key, (clock, lesson) in table.items()}
        w.state.setdefault("observed", {})[id(place), offset] = (copies, SCOPES[scope or "gpu"])


def _take(w: Warp, table: Published, reach: int) -> None:
    lesson: Lesson = {}
    for (number, rank, scope), (clock, known) in table.items():
        needed = 2
        if number == w.cluster.number:
            needed = 0 if rank == w.rank else 1
        if min(scope, reach) < needed:
            continue
        if number == w.cluster.number:
            w.acquire(clock)
        else:
            _merge(lesson, number, clock[:2])
        for other, rows in known.items():
            _merge(lesson, other, rows)
    lesson.pop(w.cluster.number, None)
    if lesson and not _knows(w, lesson):
        learn(w, lesson)


def _knows(w: Warp, lesson: Lesson) -> bool:
    """Whether a warp's last lesson holds all of this one (a polling loop hears it again)."""
    if not w.lessons or int(w.clock[0, w.unit["learned"]]) < len(w.lessons):
        return False
    last = w.lessons[-1]
    return all(n in last and bool((last[n] >= rows).all()) for n, rows in lesson.items())


@op
def fence_memory(w: Warp, sem: str, scope: str) -> None:
    """``fence.acq_rel``, ``fence.sc`` and ``membar``: orders strong operations around it.

    Relaxed reads before it become acquires, relaxed writes behind it releases, up to its scope.
    """
    reach = SCOPES[scope or "sys"]
    if sem != "release":
        waited = w.state.pop("unacquired", None)  # what relaxed waits at mbarriers have found
        if waited is not None:
            w.acquire(waited)
        for table, read in w.state.pop("observed", {}).values():
            _take(w, table, min(read, reach))
    if sem != "acquire":
        clock = w.release()
        w.state["fenced"] = clock
        w.state["fence"] = (clock[0], reach)
        if reach >= 2:
            np.maximum(w.clock[3], clock[0], out=w.clock[3])


# ------------------------------------------------------------------------------ global memory

GLOBAL_FIX = (
    "order the two: a barrier between them where both are of one CTA; between CTAs let the first "
    "one release at the GPU's scope (red.release.gpu, or a __threadfence() and an atomic) and the "
    "second acquire what it wrote (ld.acquire.gpu) before its access"
)
GLOBAL_PROXY_FIX = (
    "execute fence.proxy.async between the threads' writes and the copy: behind the writes, or by "
    "the thread that issues the copy once it knows of them"
)


def _unordered(w: Warp, clock: np.ndarray, stamps, homes, row: int = 0) -> np.ndarray | None:
    """Which stamps (of the clusters ``homes``) a clock has not seen; None where it has seen all."""
    mine = w.cluster.number + 1
    if (homes == mine).all():
        return unseen(stamps, clock[row])
    bad = np.zeros(stamps.shape, dtype=bool)
    known = learned(w.cluster, clock) if w.cluster.learners else {}
    moments, agents = (stamps >> CLOCK_SHIFT) & CLOCK_MASK, stamps >> AGENT_SHIFT
    for home in np.unique(homes).tolist():
        if home == 0:
            continue
        there = homes == home
        seen = clock[row] if home == mine else None
        if seen is None and home - 1 in known:
            seen = known[home - 1][row]
        bad |= there if seen is None else there & (moments > seen[agents])
    return bad if bad.any() else None


def _words(array: np.ndarray, wide: bool) -> np.ndarray:
    return array if wide else array.reshape(-1)


def _order_of(tensor: memory.Tensor) -> memory.Order:
    if tensor.order is None:
        tensor.order = memory.Order((tensor.size // 16, 16 // tensor.grain))
    return tensor.order


def global_write(
    w: Warp,
    tensor: memory.Tensor,
    index: Any,
    wide: bool,
    agent: int,
    now: int,
    site: int,
    clock: np.ndarray,
    strong: bool = False,
    same: Callable[[], bool] | None = None,
) -> None:
    """Check and record a write of global memory: by a warp's threads, or an engine for it.

    ``index``: rows of 16 bytes where ``wide``, else words; ``now``: the writer's stamp; ``same``
    tells whether the bytes are there already, so that the order of two writes does not matter.
    """
    order = _order_of(tensor)
    writer, home = _words(order.writer, wide), _words(order.home, wide)
    before = np.asarray(writer[index])
    if before.any():
        homes = np.asarray(home[index])
        bad = _unordered(w, clock, before, homes)
        if bad is not None and strong and order.strong is not None:
            bad = bad & ~_words(order.strong, wide)[index]
        if bad is not None and bad.any():
            equal = same is not None and same()
            _race(w, tensor, index, wide, before, homes, bad, agent, site, "write", "write", equal)
    if order.reader is not None and order.reader_home is not None:
        for slot in (0, 1):
            stamps = np.asarray(_words(order.reader[slot], wide)[index])
            if stamps.any():
                homes = np.asarray(_words(order.reader_home[slot], wide)[index])
                bad = _unordered(w, clock, stamps, homes)
                if bad is not None and not (same is not None and same()):
                    _race(w, tensor, index, wide, stamps, homes, bad, agent, site, "write", "read")
                _words(order.reader[slot], wide)[index] = 0
    writer[index] = now
    home[index] = w.cluster.number + 1
    if strong and order.strong is None:
        order.strong = np.zeros(order.writer.shape, dtype=bool)
    if order.strong is not None:
        _words(order.strong, wide)[index] = strong
    if strong:
        tensor.note_atomic(index, wide, w.cta.index)
    else:
        tensor.note_write(index, wide, w.cta.index)


def global_read(
    w: Warp,
    tensor: memory.Tensor,
    index: Any,
    wide: bool,
    agent: int,
    now: int,
    site: int,
    clock: np.ndarray,
    strong: bool = False,
    through: str = "",
) -> None:
    """Check and record a read of global memory that the kernel may also write.

    ``through`` names an engine that reads through the async proxy.
    """
    order = _order_of(tensor)
    before = np.asarray(_words(order.writer, wide)[index])
    if before.any():
        homes = np.asarray(_words(order.home, wide)[index])
        bad = _unordered(w, clock, before, homes)
        if bad is not None and strong and order.strong is not None:
            bad = bad & ~_words(order.strong, wide)[index]
        if bad is not None and bad.any():
            _race(w, tensor, index, wide, before, homes, bad, agent, site, "read", "write")
        elif through:
            hidden = _unordered(w, clock, before, homes, row=1)
            generic = ~w.cluster.agents.asynchronous[before >> AGENT_SHIFT]
            if hidden is not None and (hidden & generic).any():
                _hidden(w, tensor, index, wide, before, homes, hidden & generic, site, through)
    if strong:  # a later write need not wait for it
        return
    readers, reader_homes = order.readers()
    held, held_home = (_words(a[0], wide) for a in (readers, reader_homes))
    stamps = np.asarray(held[index])
    if stamps.any():
        late = _unordered(w, clock, stamps, np.asarray(held_home[index]))
        if late is not None:
            for a, b in ((readers, held), (reader_homes, held_home)):
                other = _words(a[1], wide)
                other[index] = np.where(late, b[index], other[index])
    held[index] = now
    held_home[index] = w.cluster.number + 1


def _element(tensor: memory.Tensor, index: Any, wide: bool, bad: np.ndarray) -> str:
    where = np.argwhere(bad)[0]
    rows = np.asarray(index)
    if wide:
        row = rows[tuple(where[:-1])] if rows.ndim else rows
        return tensor.element(int(row) * 16 + int(where[-1]) * tensor.grain)
    word = rows[tuple(where)] if rows.ndim else rows
    return tensor.element(int(word) * tensor.grain)


def _who(w: Warp, home: int, agent: int) -> tuple[str, tuple[int, int, int]]:
    """An agent of a cluster in the reader's words, and the CTA it belongs to."""
    block = w.machine.block_of(home - 1, w.cluster.agents.rank(agent))
    name = w.cluster.agents.name(agent).split(" of CTA rank")[0]
    return name, block


def _label(block: tuple[int, int, int]) -> str:
    x, y, z = block
    return f"({x}, {y})" if z == 0 else f"({x}, {y}, {z})"


def _race(
    w: Warp, tensor, index, wide, stamps, homes, bad, agent: int, site: int, now, before, same=False
) -> None:
    """Report two unordered accesses to global memory.

    The report stands at the access that fails to wait, whichever came first in this run: of a read
    and a write the read, unless it was meant to get what an earlier write of the kernel had left.
    """
    machine = w.machine
    value, home = int(stamps[bad].flat[0]), int(homes[bad].flat[0])
    place = _element(tensor, index, wide, bad)
    here = (w.cluster.number + 1, agent, site)
    there = (home, value >> AGENT_SHIFT, value & SITE_MASK)
    late, early = (here, now), (there, before)
    if now == "write" and before == "read":
        order = _order_of(tensor)
        if not np.asarray(_words(order.home, wide)[index])[bad].all():
            late, early = early, late
    elif now == before and there[2] > site:
        late, early = early, late
    (whose, verb), (other, past) = late, early
    name, block = _who(w, whose[0], whose[1])
    other_name, other_block = _who(w, other[0], other[1])
    location = machine.program.location(other[2])
    apart = block != other_block
    if now == before and apart:
        message = (
            f"CTA {_label(block)} writes {place}, which CTA {_label(other_block)} has written too "
            f"({location}); nothing orders the two"
        )
        fix = "give every CTA its own tile: check how the tile's offsets follow from blockIdx"
        if same:
            message += " (the values are equal, so the work was done twice)"
    else:
        verbs = {"read": "reads", "write": "writes"}
        by = f"{other_name} of " + (f"CTA {_label(other_block)}" if apart else "the same CTA")
        message = (
            f"{name} of CTA {_label(block)} {verbs[verb]} {place} and does not wait for {by}, "
            f"which {verbs[past]} it ({location}): nothing orders the two"
        )
        fix = GLOBAL_FIX
    machine.report(
        "race-global",
        w,
        message,
        memory=f"global memory, tensor {tensor.name}",
        threads=f"{name} of CTA {_label(block)} and {other_name} of CTA {_label(other_block)}",
        fix=fix,
        site=whose[2],
        severity="warning" if same and not apart else "error",
        related=[(f"the other {past}", location)],
        fault=(tensor.name, frozenset((site, there[2])), same),
    )


def _hidden(w: Warp, tensor, index, wide, stamps, homes, bad, site: int, what: str) -> None:
    """Report a write by threads that an engine reads without a proxy fence between."""
    value, home = int(stamps[bad].flat[0]), int(homes[bad].flat[0])
    other, block = _who(w, home, value >> AGENT_SHIFT)
    location = w.machine.program.location(value & SITE_MASK)
    w.machine.report(
        "missing-proxy-fence",
        w,
        f"{what} reads {_element(tensor, index, wide, bad)}, which {other} of CTA {_label(block)} "
        "wrote with ordinary stores; the two are ordered, but no fence.proxy.async makes the write "
        "visible to the engine",
        memory=f"global memory, tensor {tensor.name}",
        fix=GLOBAL_PROXY_FIX,
        site=site,
        related=[("the write", location)],
    )
