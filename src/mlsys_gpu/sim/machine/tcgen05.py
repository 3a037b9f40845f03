"""``tcgen05``: tensor memory and the tensor core that writes it (Blackwell).

Products are computed when their engine's turn comes, adjacent k16 steps in one matrix product. What
they read and write is checked and stamped when they are issued: whether two accesses are ordered
does not depend on when the schedule lets an engine work.
Products of 16-bit floats are exact in float32; their sum is accumulated in float32 in an order that
the ISA leaves open, as the hardware does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mlsys_gpu.sim.machine import access, descriptors, memory
from mlsys_gpu.sim.machine.barriers import barrier_at, came_after, uniform
from mlsys_gpu.sim.machine.clocks import (
    AGENT_SHIFT,
    CLOCK_MASK,
    CLOCK_SHIFT,
    SITE_MASK,
    stamp,
    unseen,
)
from mlsys_gpu.sim.machine.core import (
    END_HOOKS,
    EXIT_HOOKS,
    Cta,
    Pipe,
    Stop,
    Waiting,
    Warp,
    op,
    whole_warp,
)
from mlsys_gpu.sim.machine.numerics import POISON
from mlsys_gpu.sim.machine.operands import (
    bad_descriptor,
    count_product,
    decode,
    discarded,
    note,
    out_of_shared,
)

# ---------------------------------------------------------------------------- tensor memory

COLUMNS = 512


class Tmem:
    """A CTA's tensor memory: 128 lanes of 512 32-bit columns, and who holds which columns."""

    def __init__(self, checks: bool):
        self.data = np.full((128, COLUMNS), POISON, dtype=np.uint32)
        self.floats = self.data.view(np.float32)
        #: For each column the allocation it belongs to, or 0.
        self.owner = np.zeros(COLUMNS, dtype=np.int32)
        #: For each column the stamp of the last dealloc.
        self.freed = np.zeros(COLUMNS, dtype=np.int64)
        self.allocations: dict[int, tuple[int, int, int, int]] = {}
        self.count = 0
        self.permit = True
        self.waiting: list[Warp] = []  # warps that wait for free columns
        self.pair_turn = 0  # allocations made as one of a pair
        #: Stamps by 16 lanes and column: the finest division that an MMA's layout makes.
        self.shadow = memory.Shadow((8, COLUMNS if checks else 0))
        #: Where the last write added to what was there, and where nothing has read it since.
        self.added = np.zeros(self.shadow.shape, dtype=bool)
        self.unread = np.zeros(self.shadow.shape, dtype=bool)


def tmem_of(cta: Cta) -> Tmem:
    found = cta.state.get("tmem")
    if found is None:
        found = cta.state["tmem"] = Tmem(cta.machine.checks)
    return found


@op
def tcgen05_alloc(w: Warp, address, columns, group: int = 1, mask=None):
    """``tcgen05.alloc``: reserve columns; the first one's address goes to shared memory."""
    whole_warp(w, mask, "tcgen05.alloc")
    columns = int(uniform(w, columns, "a column count"))
    tmem = tmem_of(w.cta)
    if columns & (columns - 1) or not 32 <= columns <= COLUMNS:
        w.machine.report(
            "tmem-lifetime",
            w,
            f"tcgen05.alloc of {columns} columns",
            memory="tensor memory",
            fix="ask for a power of two of columns, 32 to 512",
        )
        raise Stop
    if not tmem.permit:
        w.machine.report(
            "tmem-lifetime",
            w,
            "tcgen05.alloc after relinquish_alloc_permit",
            memory="tensor memory",
            fix="relinquish the permit only after the last allocation",
        )
        raise Stop
    start = _free_columns(w, tmem, columns) if group == 1 else _pair_columns(w, columns)
    if start is None:
        return w.waiting
    tmem.count += 1
    tmem.owner[start : start + columns] = tmem.count
    tmem.allocations[start] = (columns, tmem.count, w.now, w.s)
    tmem.data[:, start : start + columns] = POISON
    if w.checks:
        tmem.shadow.forget((slice(None), slice(start, start + columns)))
        tmem.unread[:, start : start + columns] = False
    access.st_shared(w, uniform(w, address, "an address"), start, 4, 1)
    return None


def _choice(w: Warp, free: list[int]) -> int | None:
    """One of the free places. Which one an allocation gets is the hardware's choice, and other CTAs
    on the SM may hold the first columns: only the eager schedule starts at column 0."""
    if not free:
        return None
    rng = w.machine.rng
    if rng is not None:
        return free[rng.randrange(len(free))]
    return free[0] if w.cluster.eager else free[-1]


def _free(tmem: Tmem, columns: int) -> set[int]:
    return {c for c in range(0, COLUMNS, columns) if not tmem.owner[c : c + columns].any()}


def _free_columns(w: Warp, tmem: Tmem, columns: int) -> int | None:
    """The first column of a new allocation, or None once the warp has been parked."""
    start = _choice(w, sorted(_free(tmem, columns)))
    if start is None:
        _park_for_columns(w, tmem, columns)
    return start


def _park_for_columns(w: Warp, tmem: Tmem, columns: int) -> None:
    held = int((tmem.owner != 0).sum())
    tmem.waiting.append(w)
    w.waiting = Waiting(
        "tcgen05.alloc",
        tmem,
        lambda: f"waits for {columns} free columns of tensor memory; {held} of 512 are held",
    )


def _peer(w: Warp, rank: int) -> Cta:
    """The other CTA of a pair (``cta_group::2``)."""
    if rank ^ 1 >= w.cluster.size:
        w.machine.report(
            "divergent-collective",
            w,
            "cta_group::2 in a cluster without a pair of CTAs",
            memory="",
            fix="launch clusters of an even number of CTAs",
        )
        raise Stop
    return w.cluster.ctas[rank ^ 1]


def _pair_columns(w: Warp, columns: int) -> int | None:
    """The first column of a pair's allocation: both CTAs must ask, and both get the same."""
    peer, tmem = _peer(w, w.rank), tmem_of(w.cta)
    pairs = w.cluster.state.setdefault("tmem_pairs", {})
    turn = pairs.setdefault((w.rank & ~1, tmem.pair_turn), {"asked": {}, "start": None})
    turn["asked"][w.rank] = w
    if len(turn["asked"]) < 2:
        w.waiting = Waiting(
            "tcgen05.alloc",
            tmem,
            lambda: (
                "waits in tcgen05.alloc.cta_group::2 for a warp of the peer, CTA rank "
                f"{peer.rank}, to allocate too"
            ),
        )
        return None
    if turn["start"] is None:
        free = _free(tmem, columns) & _free(tmem_of(peer), columns)
        turn["start"] = _choice(w, sorted(free))
        if turn["start"] is None:
            _park_for_columns(w, tmem, columns)
            return None
        other = turn["asked"][w.rank ^ 1]
        if other.waiting is not None:
            w.cluster.wake(other)
    tmem.pair_turn += 1
    return turn["start"]


@op
def tcgen05_dealloc(w: Warp, address, columns, group: int = 1, mask=None) -> None:
    """``tcgen05.dealloc``: give columns back; nothing may still be using them."""
    whole_warp(w, mask, "tcgen05.dealloc")
    if w.open is not None:
        w.open.flush()
    start = int(uniform(w, address, "a tensor-memory address")) & 0xFFFF
    columns = int(uniform(w, columns, "a column count"))
    tmem = tmem_of(w.cta)
    held = tmem.allocations.get(start)
    if held is None or held[0] != columns:
        known = ", ".join(f"{c} columns at {s}" for s, (c, *_) in tmem.allocations.items())
        w.machine.report(
            "tmem-lifetime",
            w,
            f"tcgen05.dealloc of {columns} columns at {start}, which is no allocation "
            f"(held: {known or 'none'})",
            memory="tensor memory",
            fix="give back what tcgen05.alloc returned, once, with the same column count",
        )
        raise Stop
    if w.checks:
        _tmem_check(
            w,
            w.cta,
            slice(0, 8),
            start,
            columns,
            w.clock[0],
            w.s,
            "tcgen05.dealloc",
            w.agent,
            "free",
        )
    tmem.owner[start : start + columns] = 0
    tmem.freed[start : start + columns] = w.now | w.s
    del tmem.allocations[start]
    waiting, tmem.waiting = tmem.waiting, []
    for other in waiting:
        other.cluster.wake(other)


@op
def tcgen05_relinquish(w: Warp, group: int = 1, mask=None) -> None:
    """``tcgen05.relinquish_alloc_permit``: this CTA will allocate no more."""
    whole_warp(w, mask, "tcgen05.relinquish_alloc_permit")
    tmem_of(w.cta).permit = False


def _tmem_columns(
    w: Warp, cta: Cta, start: int, count: int, what: str, site: int, agent: int, clock: np.ndarray
) -> Tmem:
    """Tensor memory, once the columns have been found to lie in one live allocation."""
    tmem = tmem_of(cta)
    end = start + count
    owners = tmem.owner[start:end] if start >= 0 and end <= COLUMNS else np.zeros(1, dtype=np.int32)
    if owners.size == 0 or not owners.all():
        freed = int(tmem.freed[start:end].max()) if 0 <= start < end <= COLUMNS else 0
        if freed and (freed >> CLOCK_SHIFT) & CLOCK_MASK > clock[freed >> AGENT_SHIFT]:
            late, early = (freed >> AGENT_SHIFT, freed & SITE_MASK), (agent, site)
            _tmem_race(w, cta, start, "free", late, early, "tcgen05.dealloc", "uses")
            raise Stop
        w.machine.report(
            "tmem-lifetime",
            w,
            f"{what} uses tensor-memory columns {start} to {end - 1}, "
            + ("which do not exist" if end > COLUMNS else "which are not allocated"),
            memory=f"tensor memory, columns {start}-{end - 1}",
            fix="allocate the columns first (tcgen05.alloc), and give them back after the last use",
            site=site,
        )
        raise Stop
    return tmem


COMMIT_FIX = (
    "wait for an mbarrier that a tcgen05.commit, issued after the MMA by the same thread, arrives "
    "at; a CTA barrier shows only that the MMA was issued"
)
TRANSFER_FIX = "execute tcgen05.wait::ld (or ::st) and then a barrier, before the other's access"


def _tmem_check(
    w, cta, lanes, start, count, clock, site, what: str, agent: int, kind: str, adds: bool = False
) -> bool:
    """Check an access to tensor memory against all before it; returns whether it is in order.

    ``kind``: ``read``, ``write`` or ``free``; ``adds``: the write accumulates. As with shared
    memory the report stands at the access that fails to wait, whichever came first in this run: a
    read does not wait for a product that it should have contained, unless the product overwrites
    what the read was meant to get.
    """
    shadow = tmem_of(cta).shadow
    box = (lanes, slice(start, start + count))
    before = shadow.writer[box]
    bad = unseen(before, clock)
    if bad is not None:
        whose, other_site = _other(before, bad)
        column = start + int(np.argwhere(bad)[0][1])
        if kind == "read":
            held = shadow.previous[box][bad]
            seen = (held >> CLOCK_SHIFT) & CLOCK_MASK <= clock[held >> AGENT_SHIFT]
            kept = (held != 0) & seen & ~tmem_of(cta).added[box][bad]
            if kept.any():
                _tmem_race(w, cta, column, "write", (whose, other_site), (agent, site), what)
            else:
                _tmem_race(w, cta, column, "read", (agent, site), (whose, other_site), what)
        else:
            _tmem_race(w, cta, column, kind, (agent, site), (whose, other_site), what)
        return False
    if kind == "read":
        return True
    for reader, readers in shadow.readers.items():
        stamps = readers[box]
        bad = unseen(stamps, clock)
        if bad is None or reader == agent:
            continue
        whose, other_site = _other(stamps, bad)
        column = start + int(np.argwhere(bad)[0][1])
        early = kind == "write" and (adds or bool((before[bad] == 0).any()))
        if early:
            _tmem_race(w, cta, column, "read", (whose, other_site), (agent, site), what)
        else:
            _tmem_race(w, cta, column, kind, (agent, site), (whose, other_site), what, "reads")
        return False
    return True


def _other(stamps: np.ndarray, bad: np.ndarray) -> tuple[int, int]:
    value = int(stamps[bad].flat[0])
    return value >> AGENT_SHIFT, value & SITE_MASK


def _tmem_race(
    w: Warp, cta: Cta, column: int, kind: str, late, early, what: str, verb: str = "writes"
) -> None:
    """Report accesses to tensor memory: ``late`` (agent and site) had to wait for ``early``."""
    machine, agents = w.machine, w.cluster.agents
    who, site = late
    whose, other_site = early
    place = machine.program.location(other_site)
    name, other = agents.name(who), agents.name(whose)
    engine = agents.unit_of(whose) == "tcgen05"
    if kind == "free" and (other_site in machine.uncommitted):
        return  # the same products were read too early: that says it already
    if kind == "read":
        machine.raced.add(site)
        if engine:
            machine.uncommitted.add(other_site)
        code = "missing-commit" if engine else "race-tmem"
        message = (
            f"{name} reads tensor-memory column {column}, which {other} writes ({place}), and "
        )
        message += (
            "has waited for nothing that says that the product is done"
            if engine
            else "does not wait for that"
        )
    elif kind == "write":
        code = "race-tmem"
        verb = "reads" if agents.unit_of(whose) == "tmem_load" else verb
        message = (
            f"{name} overwrites tensor-memory column {column} and does not wait for {other}, which "
            f"{verb} it ({place})"
        )
    else:
        code = "missing-commit" if engine else "race-tmem"
        message = (
            f"{what} gives back tensor-memory column {column} and does not wait for {other}, which "
            f"{verb} it ({place})"
        )
    machine.report(
        code,
        w,
        message,
        memory=f"tensor memory, column {column}",
        threads=f"{name} and {other}, CTA {cta.label()}",
        fix=COMMIT_FIX if engine else TRANSFER_FIX,
        site=site,
        related=[("the other access", place)],
        hints=lambda: w.cluster.early_waits(who, whose),
        fault=frozenset((site, other_site)),
    )


# ----------------------------------------------------------------------------- tcgen05.mma


class TensorPipe:
    """What one warp has asked of the fifth-generation tensor core: MMAs and commits, in order."""

    def __init__(self, w: Warp):
        self.warp = w
        self.pipe = Pipe(w.cluster, f"tcgen05 of {w.name()}")
        self.batch: list[tuple] = []
        self.clock = 1  # of the MMAs since the last commit
        self.seen: np.ndarray | None = None  # the issuer's clock at its last MMA

    def flush(self) -> None:
        """Hand the MMAs gathered so far to the engine as one product, once they are checked."""
        self.warp.open = None
        if self.batch:
            batch, self.batch = self.batch, []
            self.pipe.submit(_product(self.warp, batch))


def _tensor_pipe(w: Warp) -> TensorPipe:
    found = w.state.get("tcgen05")
    if found is None:
        found = w.state["tcgen05"] = TensorPipe(w)
    return found


@op
def tcgen05_mma(w: Warp, d, a, b, idesc, accumulate, group: int = 1, lanes_off=None, mask=None):
    """``tcgen05.mma.kind::f16`` with A and B in shared memory: queue one k16 step."""
    if mask is not None and int(np.sum(mask)) == 0:
        return
    threads = w.active if mask is None else int(np.sum(mask))
    if threads != 1:
        w.machine.report(
            "divergent-collective",
            w,
            f"tcgen05.mma is issued by {threads} threads of the warp: each issues its own product",
            memory="tensor memory",
            fix="let one elected thread issue it (if T.cuda.elect_sync(): …)",
        )
        raise Stop
    pipe = _tensor_pipe(w)
    values = (
        int(uniform(w, d, "a tensor-memory address")),
        int(uniform(w, a, "a descriptor")),
        int(uniform(w, b, "a descriptor")),
        int(uniform(w, idesc, "an instruction descriptor")),
        bool(uniform(w, accumulate, "the accumulate flag")),
    )
    if pipe.batch:
        last = pipe.batch[-1]
        same = (last[0], last[3], last[5], last[8]) == (values[0], values[3], w.s, group)
        high = ~((1 << 14) - 1)
        same = (
            same
            and (last[1] & high) == (values[1] & high)
            and (last[2] & high) == (values[2] & high)
        )
        if not same or not values[4] or len(pipe.batch) >= 16:
            pipe.flush()
    if w.checks:
        pipe.seen = w.release()  # the commit publishes it; what this warp does next comes after
    pipe.batch.append((*values, w.s, pipe.seen, pipe.clock, group))
    w.open = pipe
    w.machine.count("mma_instructions")


def _shape_rule(form: descriptors.Instruction, group: int) -> None:
    """Raise for an M and N that ``tcgen05.mma.kind::f16`` does not have."""
    rows = (64, 128) if group == 1 else (128, 256)
    step = 8 if form.m == 64 else 16
    if form.m not in rows or not step <= form.n <= 256 or form.n % step:
        raise descriptors.DescriptorError(
            f"the instruction descriptor asks for M = {form.m}, N = {form.n}: with "
            f"cta_group::{group}, M is {rows[0]} or {rows[1]}, "
            f"and N a multiple of {step} up to 256"
        )


class Place:
    """Where a CTA's part of a product lies in tensor memory: lanes (of the shadow, by 16) and
    columns, and the view of the 128 x 512 floats that receives it."""

    def __init__(self, form: descriptors.Instruction, group: int, column: int):
        rows = form.m // group
        self.columns = form.n // 2 if (group, form.m) == (2, 128) else form.n
        self.column = column
        self.lanes = slice(0, 8, 2) if rows == 64 and group == 1 else slice(0, 8)
        self.group, self.m, self.n = group, form.m, form.n

    def box(self) -> tuple[slice, slice]:
        return self.lanes, slice(self.column, self.column + self.columns)

    def target(self, floats: np.ndarray) -> np.ndarray:
        """The part of tensor memory, in the shape that :meth:`shaped` gives a product."""
        window = floats[:, self.column : self.column + self.columns]
        if self.group == 1 and self.m == 64:
            # Layout F: rows 16i..16i+15 lie in lanes 32i..32i+15
            return floats.reshape(4, 32, COLUMNS)[:, :16, self.column : self.column + self.n]
        return window

    def shaped(self, product: np.ndarray) -> np.ndarray:
        """A CTA's rows of the product, arranged as :meth:`target` is (PTX ISA, tcgen05 data path
        layouts)."""
        if self.group == 1 and self.m == 64:
            return product.reshape(4, 16, self.n)
        if self.group == 2 and self.m == 128:
            # Layout B: the left half of the columns in lanes 0-63, the right half in 64-127
            return np.concatenate([product[:, : self.columns], product[:, self.columns :]])
        return product


def _product(w: Warp, batch: list[tuple]) -> Callable[[], None]:
    """Check a batch of k16 steps, ``D (+)= A @ B.T`` in tensor memory; returns what computes it.

    With ``cta_group::2`` each CTA of the pair holds half of A's rows, half of B's, and half of D's.
    """
    site = batch[0][5]
    d, _, _, ibits, accumulate, _, seen, clock_value, group = batch[0]
    try:
        form = descriptors.instruction(ibits)
        left = [descriptors.tcgen05_matrix(entry[1]) for entry in batch]
        right = [descriptors.tcgen05_matrix(entry[2]) for entry in batch]
        _shape_rule(form, group)
    except descriptors.DescriptorError as error:
        raise bad_descriptor(w, error, site) from None
    count_product(w, form.m, form.n, len(batch))
    ctas = [w.cta] if group == 1 else sorted((w.cta, _peer(w, w.rank)), key=lambda c: c.rank)
    rows_a, ta = descriptors.operand_rows(left, form.m // group, form.transpose_a)
    rows_b, tb = descriptors.operand_rows(right, form.n // group, form.transpose_b)
    what = f"tcgen05.mma ({form.m}x{form.n}x{16 * len(batch)})"
    place = Place(form, group, d & 0xFFFF)
    column, columns = place.column, place.columns
    agent = w.unit["tcgen05"]
    for cta in ctas:
        out_of_shared(w, cta, rows_a, f"operand A of {what}", site)
        out_of_shared(w, cta, rows_b, f"operand B of {what}", site)
        known = w.clock[0] if seen is None else seen[0]
        tmem = _tmem_columns(w, cta, column, columns, what, site, agent, known)
        if not w.checks:
            continue
        assert seen is not None  # checks are on
        clock = seen.copy()
        clock[:, agent] = clock_value  # one pipe's MMAs are done in order
        now = stamp(agent, clock_value)
        access.async_read(w, cta, rows_a, clock, agent, now, site, f"operand A of {what}")
        access.async_read(w, cta, rows_b, clock, agent, now, site, f"operand B of {what}")
        if accumulate and not tmem.shadow.writer[place.box()].all():
            w.machine.report(
                "uninitialised-read",
                w,
                f"{what} adds to tensor-memory columns {column} to {column + columns - 1}, which "
                "hold nothing yet",
                memory=f"tensor memory, columns {column}-{column + columns - 1}",
                fix="let the first product of a tile overwrite: accum=False (enable-input-d false)",
                site=site,
            )
        box = place.box()
        _tmem_check(
            w, cta, place.lanes, column, columns, clock[0], site, what, agent, "write", accumulate
        )
        unread = tmem.unread[box]
        if not accumulate and unread.any():
            discarded(w, int(tmem.shadow.writer[box][unread].flat[0]) & SITE_MASK, what, site)
        tmem.shadow.write(box, now | site)
        tmem.added[box] = accumulate
        tmem.unread[box] = True

    def compute() -> None:
        if w.machine.trace is not None:
            operands = [(rows_a, ta, form.a), (rows_b, tb, form.b)]
            note(w, site, what, (ctas[0].index, column), accumulate, ctas, *operands)
        a = [decode(cta, rows_a, ta, form.a) for cta in ctas]
        b = [decode(cta, rows_b, tb, form.b) for cta in ctas]
        product = a[0] @ b[0].T if group == 1 else np.concatenate(a) @ np.concatenate(b).T
        if form.negate_a != form.negate_b:
            product = -product
        half = form.m // group
        for i, cta in enumerate(ctas):
            target = place.target(tmem_of(cta).floats)
            part = place.shaped(product[i * half : (i + 1) * half])
            if accumulate:
                np.add(target, part, out=target)
            else:
                target[...] = part

    return compute


@op
def tcgen05_commit(w: Warp, address, group: int = 1, ranks=None, mask=None) -> None:
    """``tcgen05.commit``: one arrival at an mbarrier when this thread's MMAs so far are done.

    ``ranks`` is a multicast mask: the barrier at the same offset in each of these CTAs.
    """
    threads = w.active if mask is None else int(np.sum(mask))
    if threads == 0:
        return
    pipe = _tensor_pipe(w)
    pipe.flush()
    if ranks is None:
        barriers = [barrier_at(w, address)]
    else:
        bits = int(uniform(w, ranks, "a multicast mask"))
        offset = int(uniform(w, address, "an mbarrier's address")) & memory.SHARED_OFFSET
        barriers = [
            barrier_at(w, rank << memory.RANK_BITS | offset)
            for rank in range(bits.bit_length())
            if bits >> rank & 1
        ]
    published = np.zeros_like(w.clock)
    if w.checks and pipe.seen is not None:
        published = pipe.seen.copy()
        published[:, w.unit["tcgen05"]] = pipe.clock
        pipe.clock += 1
    if w.checks:
        came_after(published, w.clock)
        w.tick()
    for barrier in barriers:
        barrier.arrivers.add(w.unit["tcgen05"])
    site, who = w.s, f"tcgen05.commit of {w.name()}"

    def arrive() -> None:
        for barrier in barriers:
            barrier.arrive(published, threads, w, who, site)

    pipe.pipe.submit(arrive)


# ------------------------------------------------------------------ tcgen05.ld, st, wait, fence


class _Transfers:
    """Loads or stores between tensor memory and a warp's registers, complete at the wait."""

    def __init__(self, w: Warp, unit: str):
        self.pipe = Pipe(w.cluster, f"{unit} of {w.name()}")
        self.clock = 1
        #: Transfers that nothing has waited for: their registers (None for a store) and sites.
        self.pending: list[tuple[np.ndarray | None, int]] = []

    def waited(self, w: Warp, unit: str) -> None:
        """All transfers so far are done, as far as this warp's order goes."""
        self.pending.clear()
        w.clock[:, w.unit[unit]] = self.clock
        self.clock += 1


def _transfers(w: Warp, unit: str) -> _Transfers:
    found = w.state.get(unit)
    if found is None:
        found = w.state[unit] = _Transfers(w, unit)
    return found


@dataclass(frozen=True)
class Fragment:
    """Which word of tensor memory each register of each thread is, for one shape of tcgen05.ld/st.

    ``rows`` and ``columns`` ``[32, R]`` count from the address's lane and column; ``spans`` are the
    columns that are touched, each the first one and how many. With packing a register is the low
    halves of two columns, of which ``columns`` is the first.
    """

    lanes: int
    rows: np.ndarray
    columns: np.ndarray
    spans: tuple[tuple[int, int], ...]
    packed: bool
    straight: bool  # register r of thread t is lane t, column r

    def read(self, data: np.ndarray, lane: int, column: int) -> np.ndarray:
        """The registers ``[32, R]`` (uint32) that tensor memory gives."""
        if self.straight:
            return data[lane : lane + 32, column : column + self.rows.shape[1]]
        rows, columns = self.rows + lane, self.columns + column
        if not self.packed:
            return data[rows, columns]
        return data[rows, columns] & LOW_HALF | data[rows, columns + 1] << np.uint32(16)

    def write(self, data: np.ndarray, lane: int, column: int, words: np.ndarray) -> None:
        """Put registers ``[32, R]`` (uint32) into tensor memory."""
        if self.straight:
            data[lane : lane + 32, column : column + self.rows.shape[1]] = words
            return
        rows, columns = self.rows + lane, self.columns + column
        if not self.packed:
            data[rows, columns] = words
            return
        data[rows, columns] = words & LOW_HALF | UPPER_HALF
        data[rows, columns + 1] = words >> np.uint32(16) | UPPER_HALF


LOW_HALF = np.uint32(0xFFFF)
#: What stands above a 16-bit element that has a column of its own: the ISA leaves it open; as part
#: of a float32 it makes a NaN.
UPPER_HALF = np.uint32(0x7FC00000)


@lru_cache(maxsize=256)
def fragment(shape: str, num: int, packed: bool = False, split: int = 0) -> Fragment:
    """The registers of ``tcgen05.{ld,st}.shape.xnum`` (PTX ISA, "tcgen05 data movement shape",
    matrix fragments); ``split`` is the immHalfSplitoff of ``.16x32bx2``."""
    per_num = {"16x128b": 2, "16x256b": 4}.get(shape, 1)
    thread = np.arange(32, dtype=np.int64)[:, None]
    register = np.arange(num * per_num, dtype=np.int64)[None, :]
    wide = 2 if packed else 1
    if shape == "32x32b":
        row, word, words = thread, register, num
    elif shape == "16x64b":
        row, word, words = thread // 4 + 8 * (thread % 2), thread // 2 % 2 + 2 * register, 2 * num
    elif shape == "16x128b":
        row = thread // 4 + 8 * (register % 2)
        word, words = thread % 4 + 4 * (register // 2), 4 * num
    elif shape == "16x256b":
        row = thread // 4 + 8 * (register // 2 % 2)
        word, words = register % 2 + 2 * (thread % 4) + 8 * (register // 4), 8 * num
    else:  # 16x32bx2: the upper 16 threads have a base of their own
        row, word, words = thread % 16, register, num
    row, word = np.broadcast_arrays(row, word)
    column = word * wide
    spans: tuple[tuple[int, int], ...] = ((0, words * wide),)
    if shape == "16x32bx2":
        column = column + thread // 16 * split
        spans = (*spans, (split, words * wide))
    lanes = 32 if shape == "32x32b" else 16
    return Fragment(lanes, row, column, spans, packed, shape == "32x32b" and not packed)


def _quarter(w: Warp, address: int, what: str, lanes: int) -> tuple[int, int]:
    """First lane and column of a warp's access; a warp reaches the lanes of its quarter only."""
    lane, column = address >> 16, address & 0xFFFF
    own = 32 * (w.id % 4)
    starts = range(0, 32, lanes)
    routed = w.machine.reading("tmem-lane-0") != "strict"
    if lane - own in starts:
        return lane, column
    if routed and lane in starts:
        return own + lane, column
    if own <= lane < own + 32:
        wrong = f"starts at lane {lane}, which is no multiple of the {lanes} lanes that it accesses"
    else:
        wrong = (
            f"names lanes {lane} to {lane + lanes - 1}; it can reach lanes {own} to {own + 31} "
            "only (warp index modulo 4)"
        )
    w.machine.report(
        "tmem-lane-quarter",
        w,
        f"{what} of warp {w.id} {wrong}",
        memory=f"tensor memory, lanes {lane}-{lane + lanes - 1}",
        fix=(
            "let warp w of a warpgroup read the 32 lanes from 32 * (w % 4) on, and write those "
            "rows of D"
        ),
    )
    raise Stop


@op
def tcgen05_ld(
    w: Warp, registers, address, shape: str, num: int, mask=None, packed=False, split: int = 0
) -> None:
    """``tcgen05.ld.shape.xnum``: words of the warp's lanes into registers of each thread.

    ``registers`` is the warp's ``[32, R]`` view (any 32-bit type), or a list of views that have R
    registers together; they are filled by the wait. ``packed`` is ``.pack::16b``.
    """
    whole_warp(w, mask, "tcgen05.ld")
    if w.open is not None:
        w.open.flush()
    form = fragment(shape, num, packed, split)
    address = int(uniform(w, address, "a tensor-memory address"))
    lane, column = _quarter(w, address, "tcgen05.ld", form.lanes)
    site = w.s
    w.machine.count("tmem_load_bytes", form.rows.size * 4)
    transfers = _transfers(w, "tmem_load")
    views = registers if isinstance(registers, list) else [registers]
    targets = [view.view(np.uint32) for view in views]
    for target in targets:
        target[...] = POISON
        transfers.pending.append((target, site))
    cta, agent = w.cta, w.unit["tmem_load"]
    tmem = tmem_of(cta)
    for offset, count in form.spans:
        first = column + offset
        _tmem_columns(w, cta, first, count, "tcgen05.ld", site, agent, w.clock[0])
        if w.checks:
            _check_load(w, transfers, slice(lane // 16, (lane + form.lanes) // 16), first, count)

    def land() -> None:
        words = form.read(tmem.data, lane, column)
        if len(targets) == 1:
            targets[0][...] = words
            return
        first = 0
        for target in targets:
            target[...] = words[:, first : first + target.shape[1]]
            first += target.shape[1]

    transfers.pipe.submit(land)


def _check_load(w: Warp, transfers: _Transfers, lanes: slice, column: int, count: int) -> None:
    """Check and record a load of columns (lanes by 16) by the warp, at the current site."""
    cta, agent, site = w.cta, w.unit["tmem_load"], w.s
    shadow = tmem_of(cta).shadow
    clock = w.clock[0].copy()
    clock[agent] = transfers.clock
    clock[w.unit["tmem_store"]] = _transfers(w, "tmem_store").clock  # same thread: in order
    box = (lanes, slice(column, column + count))
    bad = shadow.writer[box] == 0
    if bad.any():
        w.machine.report(
            "uninitialised-read",
            w,
            f"tcgen05.ld reads tensor-memory columns {column} to {column + count - 1}, in "
            "which nothing has been written",
            memory=f"tensor memory, lanes {16 * lanes.start}-{16 * lanes.stop - 1}",
            fix="wait for the MMA that writes them",
            unless=lambda: site in w.machine.raced and bool(shadow.writer[box][bad].all()),
        )
    _tmem_check(w, cta, lanes, column, count, clock, site, "tcgen05.ld", agent, "read")
    shadow.reader(agent)[box] = stamp(agent, transfers.clock, site)
    tmem_of(cta).unread[box] = False


@op
def tcgen05_touch(w: Warp, registers: np.ndarray, write: bool) -> None:
    """Threads read or write registers that a tcgen05.ld may still be filling."""
    transfers = w.state.get("tmem_load")
    if transfers is None or not transfers.pending:
        return
    site = next(
        (
            site
            for target, site in transfers.pending
            if target is not None and np.may_share_memory(target, registers)
        ),
        None,
    )
    if site is None:
        return
    if w.machine.reading("tcgen05-ld") == "compiler":
        return
    place = w.machine.program.location(site)
    w.machine.report(
        "tcgen05-in-flight",
        w,
        f"{w.name()} {'writes' if write else 'reads'} registers that the tcgen05.ld at {place} may "
        "not have filled yet",
        memory="registers",
        fix="execute tcgen05.wait::ld between the load and the first use of its registers",
        related=[("the load", place)],
    )
    transfers.waited(w, "tmem_load")  # once is enough


@op
def tcgen05_st(
    w: Warp, address, values, shape: str, num: int, mask=None, unpacked=False, split: int = 0
) -> None:
    """``tcgen05.st.shape.xnum``: registers of each thread into words of the warp's lanes.

    ``values`` are 32-bit registers, broadcast to ``[32, R]``. ``unpacked`` is ``.unpack::16b``.
    """
    whole_warp(w, mask, "tcgen05.st")
    if w.open is not None:
        w.open.flush()
    form = fragment(shape, num, unpacked, split)
    address = int(uniform(w, address, "a tensor-memory address"))
    lane, column = _quarter(w, address, "tcgen05.st", form.lanes)
    site = w.s
    w.machine.count("tmem_store_bytes", form.rows.size * 4)
    transfers = _transfers(w, "tmem_store")
    cta, agent = w.cta, w.unit["tmem_store"]
    tmem = tmem_of(cta)
    lanes = slice(lane // 16, (lane + form.lanes) // 16)
    for offset, count in form.spans:
        first = column + offset
        _tmem_columns(w, cta, first, count, "tcgen05.st", site, agent, w.clock[0])
        if w.checks:
            clock = w.clock[0].copy()
            clock[agent] = transfers.clock
            clock[w.unit["tmem_load"]] = _transfers(w, "tmem_load").clock
            _tmem_check(w, cta, lanes, first, count, clock, site, "tcgen05.st", agent, "write")
            box = (lanes, slice(first, first + count))
            tmem.shadow.write(box, stamp(agent, transfers.clock, site))
            tmem.added[box] = False
    values = np.asarray(values)
    if values.dtype.itemsize != 4:  # a Python integer, the same for all lanes
        values = values.astype(np.uint32)
    data = np.broadcast_to(values, form.rows.shape).copy().view(np.uint32)
    transfers.pending.append((None, site))
    transfers.pipe.submit(lambda: form.write(tmem.data, lane, column, data))


def _wait_transfers(w: Warp, unit: str) -> None:
    transfers = _transfers(w, unit)
    transfers.pipe.drain()
    transfers.waited(w, unit)


@op
def tcgen05_wait_ld(w: Warp, mask=None) -> None:
    """``tcgen05.wait::ld``: this thread's tensor-memory loads so far are done."""
    whole_warp(w, mask, "tcgen05.wait::ld")
    _wait_transfers(w, "tmem_load")


@op
def tcgen05_wait_st(w: Warp, mask=None) -> None:
    """``tcgen05.wait::st``: this thread's tensor-memory stores so far are done."""
    whole_warp(w, mask, "tcgen05.wait::st")
    _wait_transfers(w, "tmem_store")


def _tcgen05_exit(w: Warp) -> None:
    """A thread that exits must have waited for its transfers."""
    pipe = w.state.get("tcgen05")
    if pipe is not None:
        pipe.flush()
    for unit, name in (("tmem_load", "tcgen05.ld"), ("tmem_store", "tcgen05.st")):
        transfers = w.state.get(unit)
        if transfers is not None and transfers.pending:
            w.machine.report(
                "in-flight-at-exit",
                w,
                f"{w.name()} exits without having waited for this {name}",
                memory="tensor memory",
                fix=f"execute tcgen05.wait::{name[-2:]} behind it",
                site=transfers.pending[0][1],
            )


def _tmem_end(cta: Cta) -> None:
    """Tensor memory must have been given back when the CTA has ended."""
    tmem = cta.state.get("tmem")
    if tmem is None:
        return
    for start, (columns, _, _, site) in tmem.allocations.items():
        cta.machine.report(
            "tmem-lifetime",
            None,
            f"the CTA ended with {columns} columns of tensor memory (from {start}) still allocated",
            memory=f"tensor memory, columns {start}-{start + columns - 1}",
            threads=f"CTA {cta.label()}",
            fix=(
                "let the warp that allocated execute tcgen05.relinquish_alloc_permit and "
                "tcgen05.dealloc, after a barrier behind the last use; the next CTA on this SM "
                "would wait for ever"
            ),
            site=site,
        )


EXIT_HOOKS.append(_tcgen05_exit)
END_HOOKS.append(_tmem_end)
