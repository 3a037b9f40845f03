"""Loads and stores of threads, and the happens-before checks of everyone's accesses.

Generated code calls :func:`ld_global`, :func:`st_global`, :func:`ld_shared`, :func:`st_shared` and
their generic forms. Addresses are an integer (all lanes the same) or an int64 array whose first
axis is the lane; a second axis appears where a loop over registers became a slice. Values are
unsigned integers of the access's element size, with a last axis for vector accesses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import loose, memory, order
from mlsys_gpu.sim.machine.clocks import (
    AGENT_SHIFT,
    CLOCK_MASK,
    CLOCK_SHIFT,
    SITE_MASK,
    bounds,
    unseen,
    unseen_of,
)
from mlsys_gpu.sim.machine.compute import held
from mlsys_gpu.sim.machine.core import END_HOOKS, Cluster, Cta, Stop, Warp, op
from mlsys_gpu.sim.program import Unsupported

_UINT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

#: How to order two accesses, by what must wait for what.
ORDER_FIX = {
    "read": (
        "let the reader wait for the writer: a barrier between them (T.cuda.cta_sync(), or an "
        "mbarrier) that the writer reaches after its write and the reader before its read"
    ),
    "write": (
        "let the writer wait for the reader: a barrier between them (T.cuda.cta_sync(), or an "
        "mbarrier) that the reader reaches after its read and the writer before it writes again"
    ),
    "engine": (
        "let the writer wait until the tensor core has read: for the mbarrier that a "
        "tcgen05.commit behind the MMA arrives at, or for wgmma.wait_group, and where other warps "
        "wait, for a barrier behind that"
    ),
    "copy": (
        "let the reader wait for the phase of the mbarrier that the copy completes (for cp.async: "
        "for its group, and then for a barrier)"
    ),
    "store": (
        "let the thread that issued the bulk store commit its group and wait until that has been "
        "read (cp.async.bulk.wait_group.read), and the writers wait for that thread at a barrier"
    ),
    "both": (
        "give the two different places, or order them: a barrier (T.cuda.cta_sync(), or an "
        "mbarrier) between the first write and the second"
    ),
}
CLUSTER_FIX = (
    "order the two: a cluster barrier (T.cuda.cluster_sync()) or an mbarrier between them, which "
    "the writer reaches after its write and the reader before its read; a CTA barrier does not "
    "reach the other CTA's threads"
)
PROXY_FIX = (
    "after writing shared memory with threads, execute T.ptx.fence.proxy.async_.shared__cta() and "
    "then the barrier that hands the data over; the tensor core and the copy engine read through "
    "the async proxy, which sees threads' writes only past that fence"
)
PROXY_WAR_FIX = (
    "after reading shared memory with threads, execute T.ptx.fence.proxy.async_.shared__cta() and "
    "then the barrier that gives the place back"
)


# ------------------------------------------------------------------------------- global memory


def _tensor(w: Warp, address: int, what: str) -> memory.Tensor:
    index = (address >> memory.SPACE_BITS) - memory.FIRST_TENSOR
    if not 0 <= index < len(w.machine.tensors):
        w.machine.report(
            "out-of-bounds",
            w,
            f"{what} address {address:#x} belongs to no tensor",
            memory="global memory",
            fix="compute the address from a kernel argument",
        )
        raise Stop
    return w.machine.tensors[index]


def _count_scattered(w: Warp, offsets, width: int, what: str) -> None:
    """Count the instructions whose lanes do not touch one run of consecutive bytes."""
    if isinstance(offsets, np.ndarray) and offsets.shape[0] > 1:
        apart = offsets[-1] - offsets[0] != width * (offsets.shape[0] - 1)
        scattered = int(np.count_nonzero(apart))
        if scattered:
            w.machine.count(f"global_{what}_scattered", scattered)


def _outside(w: Warp, tensor: memory.Tensor, offsets, width: int, mask, what: str) -> Stop:
    flat = np.asarray(offsets).reshape(-1)
    bad = flat[(flat < 0) | (flat + width > tensor.nbytes)]
    first = int(bad[0])
    size = " x ".join(str(n) for n in tensor.shape)
    if first < 0:
        where = f"{-first} bytes before its start"
    else:
        where = f"at byte {first}, {first + width - tensor.nbytes} bytes past its end"
    if len(tensor.shape) == 2:  # the coordinates that the address stands for
        row, column = divmod(first // tensor.itemsize, tensor.shape[1])
        where += f", where {tensor.name}[{row}, {column}] would be"
    elif len(tensor.shape) == 1:
        where += f", where {tensor.name}[{first // tensor.itemsize}] would be"
    w.machine.report(
        "out-of-bounds",
        w,
        f"{what} of {width} bytes outside {tensor.name} ({size} elements, {tensor.nbytes} bytes): "
        f"{where}",
        memory=f"global memory, tensor {tensor.name}",
        threads=w.threads(mask),
        fix=(
            f"keep the tile inside {tensor.name}: check the grid's extent, and the offset that the "
            "tile's coordinates give"
        ),
    )
    return Stop()


def _misaligned(w: Warp, offsets, width: int, mask, what: str, where: str) -> Stop:
    flat = np.asarray(offsets).reshape(-1)
    first = int(flat[flat % width != 0][0])
    w.machine.report(
        "misaligned",
        w,
        f"{what} of {width} bytes at byte {first}, which {width} does not divide",
        memory=where,
        threads=w.threads(mask),
        fix=f"align the address to {width} bytes, or use a narrower access",
    )
    return Stop()


def _divides(width: int, offsets) -> bool:
    """Whether a width, a power of two, divides all offsets."""
    if isinstance(offsets, np.ndarray):
        offsets = int(np.bitwise_or.reduce(offsets, axis=None))
    return not offsets & (width - 1)


def _span(w: Warp, address, width: int, mask, what: str):
    """The tensor and offsets (bytes) of an access, in bounds and aligned, or a finding."""
    first = int(address.flat[0]) if isinstance(address, np.ndarray) else address
    base = memory.base_of(first)
    tensor = _tensor(w, base, what)
    offsets = address - base
    low, high = bounds(offsets) if isinstance(offsets, np.ndarray) else (offsets, offsets)
    if low < 0 or high + width > tensor.nbytes:
        raise _outside(w, tensor, offsets, width, mask, what)
    if not _divides(width, offsets):
        raise _misaligned(w, offsets, width, mask, what, f"global memory, tensor {tensor.name}")
    return tensor, offsets


@op
def ld_global(w: Warp, address, size: int, lanes: int, mask=None, lane=None):
    """Load ``lanes`` elements of ``size`` bytes from global memory."""
    width = size * lanes
    if mask is not None and not mask.any():
        return _nothing(address, size, lanes)
    if mask is not None and isinstance(address, np.ndarray):
        full, address = address, _active(address, mask)
        tensor, offsets = _span(w, address, width, mask, "load")
        _count_loads(w, width, np.size(offsets))
        _count_scattered(w, offsets, width, "load")
        if w.checks and tensor.mixed:
            _note_read(w, tensor, offsets, width)
        return _spread(tensor.view(size, lanes)[offsets // width], full.shape, mask, lanes)
    tensor, offsets = _span(w, address, width, mask, "load")
    _count_loads(w, width, np.size(offsets))
    _count_scattered(w, offsets, width, "load")
    if w.checks and tensor.mixed:
        _note_read(w, tensor, offsets, width)
    return held(tensor.view(size, lanes)[offsets // width])


def _note_read(w: Warp, tensor: memory.Tensor, offsets, width: int) -> None:
    wide = width == 16
    index = offsets >> 4 if wide else words_of(offsets, width, w.machine.program.grain)
    order.global_read(w, tensor, index, wide, w.agent, w.now | w.s, w.s, w.clock)


def _count_loads(w: Warp, width: int, threads: int) -> None:
    w.machine.count("global_load_bytes", width * threads)
    w.machine.count("global_load_instructions", max(1, threads // 32))


@op
def st_global(w: Warp, address, value, size: int, lanes: int, mask=None, lane=None) -> None:
    """Store ``lanes`` elements of ``size`` bytes to global memory."""
    width = size * lanes
    value = _one_place(w, address, value, lanes, mask, "global")
    if mask is not None:
        address, value = _select(address, value, mask, lanes)
        if np.size(address) == 0:
            return
    tensor, offsets = _span(w, address, width, mask, "store")
    w.machine.count("global_store_bytes", width * np.size(offsets))
    w.machine.count("global_store_instructions", max(1, np.size(offsets) // 32))
    w.machine.writes += 1
    _count_scattered(w, offsets, width, "store")
    view, rows = tensor.view(size, lanes), offsets // width
    if w.checks:
        wide = width == 16
        index = offsets >> 4 if wide else words_of(offsets, width, w.machine.program.grain)
        now = w.now | w.s

        def same() -> bool:
            return bool(np.all(view[rows] == value))

        order.global_write(w, tensor, index, wide, w.agent, now, w.s, w.clock, same=same)
    view[rows] = value
    tensor.written = True
    if w.checks:
        _overwritten(w, view, offsets, width, value, mask)


# ------------------------------------------------------------------------------- shared memory


def _shared(w: Warp, address, width: int, mask, what: str):
    """The CTA and byte offsets of a shared-memory access, in bounds and aligned."""
    if isinstance(address, np.ndarray):
        rank = int(address.flat[0]) >> memory.RANK_BITS
        offsets = address - (rank << memory.RANK_BITS)
        low, high = bounds(offsets)
    else:
        address = int(address)
        rank, offsets = address >> memory.RANK_BITS, address & memory.SHARED_OFFSET
        low = high = offsets
    ctas = w.cluster.ctas
    if (
        not 0 <= rank < len(ctas)
        or low < memory.RESERVED_SHARED
        or high + width > ctas[rank].shared.size
    ):
        first = low if low < memory.RESERVED_SHARED else high
        size = ctas[min(max(rank, 0), len(ctas) - 1)].shared.size - memory.RESERVED_SHARED
        w.machine.report(
            "out-of-bounds",
            w,
            f"{what} of {width} bytes at byte {first - memory.RESERVED_SHARED} of shared memory "
            f"(rank {rank} of a cluster of {len(ctas)}), which holds {size} bytes"
            + _nearest(w, first - memory.RESERVED_SHARED),
            memory="shared memory",
            threads=w.threads(mask),
            fix="keep the index inside its buffer, and the buffer inside what the pool commits",
        )
        raise Stop
    if not _divides(width, offsets):
        raise _misaligned(w, offsets, width, mask, what, "shared memory")
    return ctas[rank], offsets


def _nearest(w: Warp, at: int) -> str:
    """The named buffer that lies nearest below a byte of shared memory, and what would be there."""
    below = [region for region in w.machine.program.regions if region[0] and region[1] <= at]
    if not below:
        return ": before all of its buffers"
    name, start, nbytes, shape, _ = max(below, key=lambda region: region[1])
    count = max(1, int(np.prod(shape)))
    text = f": nearest is {name} (byte {start} to {start + nbytes - 1})"
    if len(shape) <= 1:
        text += f", where {name}[{(at - start) // max(1, nbytes // count)}] would be"
    return text


def _by_rank(w: Warp, address, mask) -> list[np.ndarray]:
    """Masks of the lanes that address each CTA of a cluster, where they address several."""
    if w.cluster.size == 1 or not isinstance(address, np.ndarray) or address.shape[0] == 1:
        return []
    ranks = address >> memory.RANK_BITS
    if (ranks == ranks.flat[0]).all():
        return []
    of_lane = ranks.reshape(32, -1)
    if (of_lane != of_lane[:, :1]).any():
        raise Unsupported("a vectorised access of one lane to several CTAs of the cluster")
    active = np.ones(32, dtype=bool) if mask is None else mask
    found = [active & (of_lane[:, 0] == rank) for rank in np.unique(of_lane[active, 0])]
    return found if len(found) > 1 or mask is None else []


class _Plan:
    """A shared-memory access worked out: where it goes, in the forms that its parts need.

    Addresses that a loop does not change come back as the same array: the warp keeps the plans of
    its latest accesses.
    """

    __slots__ = ("address", "cta", "index", "lanes", "offsets", "rows", "wide")

    def __init__(self, w: Warp, address, width: int, mask, lane, what: str):
        self.address = address
        self.cta, offsets = _shared(w, address, width, mask, what)
        self.offsets, self.rows = offsets, offsets // width
        self.wide = width == 16
        if w.checks:
            grain = w.machine.program.grain
            self.index = offsets >> 4 if self.wide else words_of(offsets, width, grain)
            self.lanes = lanes_of(offsets, mask, lane)


def _plan(w: Warp, address, width: int, mask, lane, what: str) -> _Plan:
    if mask is not None or lane is not None or not isinstance(address, np.ndarray):
        return _Plan(w, address, width, mask, lane, what)
    key = (id(address), width, what)  # a plan keeps its array, and so the array's identity
    known = w.plans.get(key)
    if known is None:
        if len(w.plans) >= _PLANS:
            w.plans.clear()
        known = w.plans[key] = _Plan(w, address, width, mask, lane, what)
    return known


#: Plans that a warp keeps.
_PLANS = 32


def _counted(w: Warp, cta: Cta, what: str) -> str:
    """The counter of an access: shared memory of the warp's own CTA, or of another one."""
    return f"shared_{what}_bytes" if cta is w.cta else f"dsmem_{what}_bytes"


@op
def ld_shared(w: Warp, address, size: int, lanes: int, mask=None, lane=None):
    """Load ``lanes`` elements of ``size`` bytes from shared memory (32-bit shared addresses)."""
    width = size * lanes
    if mask is not None and not mask.any():
        return _nothing(address, size, lanes)
    parts = _by_rank(w, address, mask)
    if parts:
        loaded = [(part, ld_shared(w, address, size, lanes, part, lane)) for part in parts]
        for part, values in loaded[1:]:
            loaded[0][1][part] = values[part]
        return loaded[0][1]
    full = None
    if mask is not None and isinstance(address, np.ndarray):
        full, address = address, _active(address, mask)
    plan = _plan(w, address, width, mask, lane, "load")
    cta, offsets = plan.cta, plan.offsets
    w.machine.count(_counted(w, cta, "load"), width * np.size(offsets))
    if w.checks:
        if cta is not w.cta:
            reach(w, cta)
        generic_read(w, cta, plan.index, plan.wide, plan.lanes, mask)
    value = held(cta.shared.view(size, lanes)[plan.rows])
    return value if full is None else _spread(value, full.shape, mask, lanes)


@op
def st_shared(w: Warp, address, value, size: int, lanes: int, mask=None, lane=None) -> None:
    """Store ``lanes`` elements of ``size`` bytes to shared memory (32-bit shared addresses)."""
    width = size * lanes
    value = _one_place(w, address, value, lanes, mask, "shared")
    parts = _by_rank(w, address, mask)
    if parts:
        for part in parts:
            st_shared(w, address, value, size, lanes, part, lane)
        return
    if mask is not None:
        address, value = _select(address, value, mask, lanes)
        if np.size(address) == 0:
            return
    if w.open is not None:
        w.open.flush()
    plan = _plan(w, address, width, mask, lane, "store")
    cta, offsets = plan.cta, plan.offsets
    w.machine.count(_counted(w, cta, "store"), width * np.size(offsets))
    if w.checks:
        if cta is not w.cta:
            reach(w, cta)
        generic_write(w, cta, plan.index, plan.wide, plan.lanes, mask)
    cta.shared.view(size, lanes)[plan.rows] = value
    cta.version += 1
    if w.checks:
        _overwritten(w, cta.shared.view(size, lanes), offsets, width, value, mask, cta)


@op
def ld_generic(w: Warp, address, size: int, lanes: int, mask=None, lane=None):
    """Load through a generic address: its space decides."""
    first = int(address.flat[0]) if isinstance(address, np.ndarray) else address
    if first >> memory.SPACE_BITS == memory.SHARED_SPACE:
        return ld_shared(w, address - memory.SHARED_TAG, size, lanes, mask, lane)
    return ld_global(w, address, size, lanes, mask)


@op
def st_generic(w: Warp, address, value, size: int, lanes: int, mask=None, lane=None) -> None:
    """Store through a generic address: its space decides."""
    first = int(address.flat[0]) if isinstance(address, np.ndarray) else address
    if first >> memory.SPACE_BITS == memory.SHARED_SPACE:
        st_shared(w, address - memory.SHARED_TAG, value, size, lanes, mask, lane)
    else:
        st_global(w, address, value, size, lanes, mask)


def _nothing(address, size: int, lanes: int):
    """What a load gives that no lane makes."""
    shape = (*np.shape(address), lanes) if lanes > 1 else np.shape(address)
    return np.zeros(shape, dtype=_UINT[size])[()]


def _active(address: np.ndarray, mask) -> np.ndarray:
    """The addresses of the lanes in the mask (first axis)."""
    if address.shape[0] == 1:
        return address
    return address[mask]


def _select(address, value, mask, lanes: int):
    """Addresses and values of the lanes in the mask."""
    count = int(mask.sum())
    if not isinstance(address, np.ndarray):
        return (address, value) if count else (np.empty(0, dtype=np.int64), value)
    if address.shape[0] != 1:
        address = address[mask]
    if isinstance(value, np.ndarray) and value.ndim > (lanes > 1) and value.shape[0] == 32:
        value = value[mask]
    return address, value


def _one_place(w: Warp, address, value, lanes: int, mask, space: str):
    """What a store to one address leaves there: one lane's value, and a finding where they differ.

    PTX gives no order to the lanes' stores; which of different values stays is undefined.
    """
    if isinstance(address, np.ndarray) or np.ndim(value) <= (lanes > 1):
        return value
    values = value if mask is None else value[mask]
    if len(values) == 0:
        return value[0]
    if w.checks and (values != values[0]).any():
        numbers = np.arange(32) if mask is None else np.flatnonzero(mask)
        other = int(np.flatnonzero((values != values[0]).reshape(len(values), -1).any(axis=1))[0])
        _two_lanes(w, int(numbers[0]), int(numbers[other]), space, "one address", mask)
    return values[-1]


def _overwritten(w: Warp, view, offsets, width: int, value, mask, cta: Cta | None = None) -> None:
    """Report lanes of one store that put different values into one place."""
    if not isinstance(offsets, np.ndarray) or np.ndim(value) == 0 or offsets.shape[0] == 1:
        return
    index = offsets // width
    lost = view[index] != value
    if not lost.any():
        return
    lost = lost.reshape(*index.shape, -1).any(axis=-1)
    numbers = np.arange(32) if mask is None else np.flatnonzero(mask)
    owner = np.broadcast_to(numbers.reshape(-1, *[1] * (index.ndim - 1)), index.shape)
    for place, lane in zip(index[lost].tolist(), owner[lost].tolist(), strict=True):
        others = owner[(index == place) & (owner != lane)]
        if others.size:  # not the same lane again, in a later round of a loop
            where = cta.region(int(place) * width) if cta is not None else f"byte {place * width}"
            space = "shared" if cta is not None else "global"
            _two_lanes(w, lane, int(others[-1]), space, where, mask)
            return


def _two_lanes(w: Warp, one: int, other: int, space: str, where: str, mask) -> None:
    w.machine.report(
        "race-smem" if space == "shared" else "race-global",
        w,
        f"lanes {one} and {other} of warp {w.id} store different values to {where} in one "
        "instruction; which of them stays is undefined",
        memory=f"{space} memory",
        threads=w.threads(mask),
        fix="let one thread store (if tid == 0), or give each lane a place of its own",
        key=("one place", space),
    )


def _spread(value: np.ndarray, shape, mask, lanes: int) -> np.ndarray:
    """Loaded values back at their lanes; the others hold zero, which nobody reads."""
    full = np.zeros((*shape, lanes) if lanes > 1 else shape, dtype=value.dtype)
    full[mask] = value
    return full


def words_of(offsets, width: int, grain: int):
    """Indices of the words (of ``grain`` bytes) that accesses of ``width`` bytes touch."""
    first = offsets // grain
    if width <= grain:
        return first
    return np.asarray(first)[..., None] + np.arange(width // grain)


# ---------------------------------------------------------------------------- happens-before


#: Lanes that are no single lane: all of the warp's (an address that all share), or several.
ALL_LANES, SEVERAL = -2, -3


def lanes_of(offsets, mask, lane):
    """Which lane makes each access, shaped to meet the words that the accesses touch."""
    if lane is not None:
        return np.int8(lane)
    if mask is not None and np.count_nonzero(mask) == 1:
        return np.int8(np.flatnonzero(mask)[0])
    if not isinstance(offsets, np.ndarray) or offsets.shape[0] == 1:
        return np.int8(ALL_LANES)
    numbers = np.arange(32) if mask is None else np.flatnonzero(mask)
    return numbers.astype(np.int8).reshape(-1, *[1] * (offsets.ndim - 1))


def _meet(lanes, words: np.ndarray):
    """Lanes with the axes of the words they touch."""
    extra = words.ndim - np.ndim(lanes)
    return lanes if np.ndim(lanes) == 0 else lanes.reshape(*lanes.shape, *[1] * extra)


def recent(w: Warp, within: tuple[int, int]) -> bool:
    """Whether stamps within these bounds may have been made by the warp since its last barrier."""
    return within[0] <= w.now | SITE_MASK and within[1] >= w.now


def same_warp(w, cta, index, wide, stamps, lanes, own, kinds: tuple[str, str], mask) -> None:
    """Check against other lanes of the warp: since its last barrier they do not run in step."""
    bad = (stamps >> CLOCK_SHIFT == w.now >> CLOCK_SHIFT) & (lanes != own)
    if bad.any():
        lane_race(w, cta, index, wide, stamps, lanes, bad, kinds, mask)


def generic_read(w: Warp, cta: Cta, index, wide: bool, lanes, mask=None) -> None:
    """Check and record a read of shared memory by threads of a warp (lane numbers ``lanes``)."""
    shadow = cta.shadow
    own = shadow.reader(w.agent)
    if not wide:
        shadow = shadow.flat()
        own = own.reshape(-1)
    before = np.asarray(shadow.writer[index])
    within = bounds(before)
    if not within[0]:
        uninitialised(w, cta, index, wide, before == 0, "a load", mask)
    lanes = made_by = _meet(lanes, before)
    bad = unseen(before, w.clock[0], within)
    if bad is None and w.behind is not None:
        bad = loose.unseen_behind(w, before, lanes)
    if bad is not None:
        race(w, cta, index, wide, before, bad, "read", "write", w.agent, w.s, mask)
    if recent(w, within):
        own_lanes = shadow.writer_lane[index]
        same_warp(w, cta, index, wide, before, own_lanes, lanes, ("reads", "write"), mask)
    again = np.asarray(own[index]) >> CLOCK_SHIFT == w.now >> CLOCK_SHIFT
    if again.any():
        held = shadow.reader_lane[index]
        lanes = np.where(again & (held != lanes), np.int8(SEVERAL), lanes)
    shadow.reader_lane[index] = lanes
    own[index] = w.now | w.s
    loose.note(w, ("read", cta.rank, wide), own, index, made_by)


def generic_write(w: Warp, cta: Cta, index, wide: bool, lanes, mask=None) -> None:
    """Check and record a write of shared memory by threads of a warp (lane numbers ``lanes``)."""
    shadow = cta.shadow if wide else cta.shadow.flat()
    before = np.asarray(shadow.writer[index])
    within = bounds(before)
    lanes = _meet(lanes, before)
    bad = unseen(before, w.clock[0], within)
    if bad is None and w.behind is not None:
        bad = loose.unseen_behind(w, before, lanes)
    if bad is not None:
        race(w, cta, index, wide, before, bad, "write", "write", w.agent, w.s, mask)
    if recent(w, within):
        own = shadow.writer_lane[index]
        same_warp(w, cta, index, wide, before, own, lanes, ("writes", "write"), mask)
    for agent, stamps in shadow.readers.items():
        read = np.asarray(stamps[index])
        if agent != w.agent:
            bad = unseen_of(agent, read, w.clock[0])
            if bad is None and w.behind is not None:
                bad = loose.unseen_behind(w, read, lanes)
            if bad is not None:
                race(w, cta, index, wide, read, bad, "write", "read", w.agent, w.s, mask)
        elif recent(w, bounds(read)):
            own = shadow.reader_lane[index]
            same_warp(w, cta, index, wide, read, own, lanes, ("writes", "read"), mask)
    shadow.writer_lane[index] = lanes
    shadow.write(index, w.now | w.s)
    if np.ndim(lanes) or lanes >= 0:  # where all lanes write one word, each has written it
        loose.note(w, ("write", cta.rank, wide), shadow.writer, index, lanes)


def lane_race(w, cta, index, wide, stamps, lanes, bad, kinds: tuple[str, str], mask) -> None:
    """Report two lanes of one warp that touch a word with nothing between them."""
    verb, before = kinds
    where = cta.region(_first(index, bad, wide, w.machine.program.grain))
    value = int(stamps[bad].flat[0])
    other = int(np.broadcast_to(lanes, bad.shape)[bad].flat[0])
    who = f"lane {other}" if other >= 0 else "other lanes"
    place = w.machine.program.location(value & SITE_MASK)
    past = {"write": "wrote", "read": "read"}[before]
    here, findings = w.machine.program.location(w.s), w.machine.findings

    def wider() -> bool:
        """Whether warps race here too: what orders them orders the lanes."""
        return any(
            f.code == "race-smem" and f.location == here and "of the same warp" not in f.message
            for f in findings.values()
        )

    w.machine.report(
        "race-smem",
        w,
        f"a lane of warp {w.id} {verb} {where}, which {who} of the same warp {past} at {place}; "
        "the lanes of a warp do not run in step, and nothing orders the two",
        memory=where,
        threads=w.threads(mask),
        fix=(
            "put T.cuda.warp_sync() (or a wider barrier) between the two; without it the compiler "
            "may exchange them, too"
        ),
        related=[(f"the {before}", place)],
        key=("lanes", verb, before),
        unless=wider,
    )


def async_read(w: Warp, cta: Cta, index, clock, agent: int, now: int, site: int, what: str) -> bool:
    """Check and record a read of 16-byte rows of shared memory by an engine working for ``w``.

    ``index``: the rows, or a slice of them; ``clock`` is the issuer's at the issue. Returns False
    where a fault was reported.
    """
    shadow = cta.shadow
    before = shadow.writer[index]
    within = bounds(before)
    clean = True
    if not within[0]:
        uninitialised(w, cta, indices(index), True, before == 0, what, None, site=site)
        clean = False
    bad = unseen(before, clock[0], within)
    if bad is not None:
        race(
            w, cta, indices(index), True, before, bad, "read", "write", agent, site, None, clock[0]
        )
        clean = False
    elif (hidden := unseen(before, clock[1], within)) is not None:
        generic = ~w.cluster.agents.asynchronous[before >> AGENT_SHIFT]
        hidden = hidden & generic
        if hidden.any():
            proxy(w, cta, indices(index), before, hidden, what, site)
            clean = False
    shadow.reader(agent)[index] = now | site
    return clean


def indices(rows) -> np.ndarray:
    """Rows as an array of their indices, where they may be a slice."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


def _first(index, bad: np.ndarray, wide: bool, grain: int) -> int:
    """Byte offset of the first fault in an access."""
    where = np.argwhere(bad)[0]
    rows = np.asarray(index)
    if wide:
        row = rows[tuple(where[:-1])] if rows.ndim else rows
        return int(row) * 16 + int(where[-1]) * grain
    word = rows[tuple(where)] if rows.ndim else rows
    return int(word) * grain


def _stamp_at(stamps: np.ndarray, bad: np.ndarray) -> tuple[int, int]:
    """Agent and site of the first stamp that was not seen."""
    value = int(stamps[bad].flat[0])
    return value >> AGENT_SHIFT, value & SITE_MASK


def race(w, cta, index, wide, stamps, bad, now, before, agent, site, mask, clock=None) -> None:
    """Report two unordered accesses to shared memory: ``agent`` does ``now`` what meets ``before``.

    ``stamps`` are those of the other access, ``bad`` says which of them the clock has not seen. The
    report does not depend on which of the two came first in this run: it stands at the access that
    fails to wait. A write fails to wait where the reader has seen what the word held before it
    (and so was meant to read that); else the read does.
    """
    other, other_site = _stamp_at(stamps, bad)
    if int(stamps[bad].flat[0]) >> CLOCK_SHIFT & CLOCK_MASK == CLOCK_MASK:
        _barrier_memory(w, cta, _first(index, bad, wide, w.machine.program.grain), agent, now, site)
        return
    shadow = cta.shadow if wide else cta.shadow.flat()
    agents = w.cluster.agents
    clock = w.clock[0] if clock is None else clock
    if now == before:
        kind, late, early = "both", (agent, site), (other, other_site)
        if agents.unit_of(agent) == "barrier" != agents.unit_of(other):
            if _filled_early(shadow, index, stamps, bad, other):
                kind, late, early = "fill", (other, other_site), (agent, site)
        elif agents.unit_of(other) == "barrier" and (
            not clock[other] or _issued_before(w, other, int(stamps[bad].flat[0]), clock)
        ):
            kind = "fill"
        if kind == "both" and other_site > site:
            late, early = early, late
    elif now == "read":
        # A write of the word that the reader has seen: it was meant to read that one. Who ran
        # several rounds ahead has overwritten all but the first. Writes that a lane's arrival left
        # behind are of the reader's own round.
        seen = np.zeros(int(bad.sum()), dtype=bool)
        behind = (other, other_site) in w.machine.left
        for held in (shadow.previous,) if behind else (shadow.previous, shadow.first):
            old = np.asarray(held[index])[bad]
            seen |= (old != 0) & ((old >> CLOCK_SHIFT) & CLOCK_MASK <= clock[old >> AGENT_SHIFT])
        if seen.any() and not _issued_before(w, other, int(stamps[bad].flat[0]), clock):
            kind, late, early = "write", (other, other_site), (agent, site)
        else:
            kind, late, early = "read", (agent, site), (other, other_site)
    else:
        unwritten = np.asarray(shadow.writer[index])[bad] == 0
        if unwritten.any() or (
            agents.unit_of(agent) == "barrier" and _filled_early(shadow, index, None, bad, other)
        ):
            kind, late, early = "read", (other, other_site), (agent, site)
        else:
            kind, late, early = "write", (agent, site), (other, other_site)
    _race(
        w, cta, _first(index, bad, wide, w.machine.program.grain), int(bad.sum()), kind, late, early
    )


def _barrier_of(cluster: Cluster, agent: int) -> Any:
    """The mbarrier whose copies an agent stands for, or None."""
    if cluster.agents.unit_of(agent) != "barrier":
        return None
    barriers = cluster.ctas[cluster.agents.rank(agent)].barriers.values()
    return next((barrier for barrier in barriers if barrier.agent == agent), None)


def barrier_words(cluster: Cluster, agent: int) -> str:
    """The mbarrier whose copies an agent stands for, in a reader's words."""
    barrier = _barrier_of(cluster, agent)
    return barrier.name() if barrier is not None else "the mbarrier"


def _issued_before(w: Warp, agent: int, value: int, clock) -> bool:
    """Whether a copy's issue (its stamp) comes before what a clock has seen: then the copy cannot
    be meant to wait for it."""
    barrier = _barrier_of(w.cluster, agent)
    issue = barrier.issues.get((value >> CLOCK_SHIFT) & CLOCK_MASK) if barrier is not None else None
    return issue is not None and int(clock[issue[0]]) >= issue[1]


def _filled_early(shadow, index, stamps, bad: np.ndarray, agent: int) -> bool:
    """Whether an agent has read words that a copy now fills before anyone had written them, and
    then put its own there: it was meant to read what the copy brings."""
    flat = shadow.readers.get(agent)
    if flat is None:
        return False
    wrote, read = np.asarray(shadow.writer[index])[bad], np.asarray(flat[index])[bad]
    own = (wrote >> AGENT_SHIFT == agent) & (np.asarray(shadow.previous[index])[bad] == 0)
    return bool((own & (read != 0) & (read <= wrote)).any())


def _barrier_memory(w, cta: Cta, offset: int, agent: int, now: str, site: int) -> None:
    """Report an access to the bytes of an mbarrier, which only mbarrier operations may touch."""
    barrier = cta.barriers[offset // 8 * 8]
    verb = {"read": "reads", "write": "overwrites"}[now]
    w.machine.report(
        "barrier-init",
        w,
        f"{w.cluster.agents.name(agent)} {verb} the 8 bytes of {barrier.name()}, which is in use",
        memory=cta.region(offset),
        fix=(
            "touch an mbarrier with mbarrier operations alone; give other data another place, or "
            "end the barrier's life first (mbarrier.inval)"
        ),
        site=site,
        related=[("initialised", w.machine.program.location(barrier.init_site))],
    )


def _race(w: Warp, cta: Cta, offset: int, words: int, kind: str, late, early) -> None:
    """The report of :func:`race`: ``late`` must wait for ``early``; each is an agent and a site."""
    machine, agents = w.machine, w.cluster.agents
    where = cta.region(offset)
    if w.cluster.size > 1:
        where += f" of CTA rank {cta.rank}"
    who, site = late
    whose, other_site = early
    place = machine.program.location(other_site)
    name, other = agents.name(who), agents.name(whose)
    fix = ORDER_FIX.get(kind, "")
    if kind == "read":
        message = f"{name} reads {where} and does not wait for {other}, which writes it ({place}): "
        verb = "the write"
        if agents.unit_of(whose) in ("barrier", "cp_async"):
            fix = ORDER_FIX["copy"]
    elif kind == "fill":
        message = f"{name} overwrites {where}, which a copy fills ({place}), and does not wait: "
        verb, fix = "the copy", ORDER_FIX["copy"]
    elif kind == "write":
        message = (
            f"{name} overwrites {where} and does not wait for {other}, which reads it ({place}): "
        )
        verb = "the read"
        unit = agents.unit_of(whose)
        if unit in ("tcgen05", "wgmma"):
            fix = ORDER_FIX["engine"]
        elif unit in ("bulk_read", "bulk"):
            fix = ORDER_FIX["store"]
    else:
        message = f"{name} and {other} ({place}) both write {where}: "
        verb = "the other write"
    if agents.rank(who) != agents.rank(whose):
        fix = CLUSTER_FIX
    barrier = _barrier_of(w.cluster, whose) if kind in ("read", "fill") else None
    if barrier is not None:
        own = agents.warp_of(who)
        waits = own is None or w.cluster.ctas[own[0]].warps[own[1]].clock[0, whose]
        how = "does not wait for that phase of" if waits else "waits nowhere before for"
        message += f"{name} {how} {barrier.name()}, which the copy completes; "
        fix = (
            f"wait for {barrier.name()} before the place is touched (T.cuda.mbarrier_wait, for the "
            "parity of the copy's phase)"
        )
    related = [(verb, place)]
    left = machine.left.get(early)
    if left is not None:
        message += (
            f"what {left[1]} does at {machine.program.location(left[0])} holds for the lanes that "
            "do it, not for the warp's other lanes; "
        )
        related.append(("what holds for some lanes alone", machine.program.location(left[0])))
        fix = (
            "put T.cuda.warp_sync() (or a wider barrier) between it and what the other lanes do: "
            "before a release, behind a wait"
        )
    if kind == "read":
        machine.raced.add(site)
    machine.report(
        "race-smem",
        w,
        message + "nothing orders the two",
        memory=f"{where}, {words} word{'s' * (words != 1)} in all",
        threads=f"{name} and {other}, CTA {cta.label()}",
        fix=fix,
        site=site,
        related=related,
        hints=lambda: w.cluster.early_waits(who, whose),
        fault=frozenset((site, other_site)),
    )


def proxy(w, cta, index, stamps, bad, what: str, site: int, now: str = "reads") -> None:
    """Report threads' accesses that meet an engine's without a proxy fence between.

    ``now``: the engine ``reads`` or ``overwrites`` what they wrote, or ``overwrites`` what they
    ``read`` (``overwrites read``).
    """
    machine = w.machine
    other, other_site = _stamp_at(stamps, bad)
    where = cta.region(_first(index, bad, True, w.machine.program.grain))
    place = machine.program.location(other_site)
    name = w.cluster.agents.name(other)
    verb, _, read = now.partition(" ")
    theirs = "read with ordinary loads" if read else "wrote with ordinary stores"
    why = {
        "reads": "makes the write visible to the engine",
        "overwrites": "keeps the engine's write behind theirs",
    }[verb]
    message = (
        f"{what} {verb} {where}, which {name} {theirs}; a barrier orders the two, but no "
        f"fence.proxy.async {why}"
    )
    machine.report(
        "missing-proxy-fence",
        w,
        message,
        memory=where,
        fix=PROXY_WAR_FIX if read else PROXY_FIX,
        site=site,
        related=[("the read" if read else "the write", place)],
    )


def uninitialised(w, cta, index, wide, bad, what: str, mask, site: int | None = None) -> None:
    """Report a read of shared memory that nothing has written.

    Where a write that the read should have waited for comes later, the report becomes that race.
    """
    where = cta.region(_first(index, bad, wide, w.machine.program.grain))
    site = w.s if site is None else site
    shadow = cta.shadow if wide else cta.shadow.flat()
    w.machine.report(
        "uninitialised-read",
        w,
        f"{what} reads {where}, which nothing has written",
        memory=f"{where}, {int(bad.sum())} word{'s' * (int(bad.sum()) != 1)} in all",
        threads=w.threads(mask),
        fix="write it first, and order the write before this read",
        site=site,
        unless=lambda: (
            site in w.machine.raced and bool(np.asarray(shadow.writer[index])[bad].all())
        ),
    )


def reach(w: Warp, cta: Cta) -> None:
    """Note an access to another CTA's shared memory: that CTA must have started, and not ended.

    It has started where this thread has seen anything of it. Source: CUDA C++ Programming Guide,
    "Distributed Shared Memory".
    """
    cta.remote[w.agent] = w.now | w.s
    first = w.cluster.agents.of(cta.rank, 0)
    if w.clock[::2, first : first + w.cluster.agents.per_cta].any():
        return
    if w.heard and cta.spoke:  # through global memory, in whichever order: it runs
        return
    w.machine.report(
        "cluster-start",
        w,
        f"{w.name()} accesses the shared memory of CTA rank {cta.rank}, and nothing shows that "
        "this CTA has started",
        memory=f"shared memory of CTA rank {cta.rank}",
        fix=(
            "begin the kernel with a cluster barrier (T.cuda.cluster_sync()) before the first "
            "access to another CTA's shared memory"
        ),
    )


def _peers_done(cta: Cta) -> None:
    """A CTA must not end before its peers' accesses to its shared memory have been made."""
    if not cta.remote or not cta.machine.checks:
        return
    ended = np.max([np.maximum(w.clock[0], w.clock[2]) for w in cta.warps], axis=0)
    for agent, value in sorted(cta.remote.items(), key=lambda item: item[1] & SITE_MASK):
        if (value >> CLOCK_SHIFT) & CLOCK_MASK <= int(ended[agent]):
            continue
        cta.machine.report(
            "cluster-exit",
            None,
            f"{cta.cluster.agents.name(agent)} accesses the shared memory of CTA rank {cta.rank}, "
            "and nothing keeps that CTA from ending before",
            memory=f"shared memory of CTA rank {cta.rank}",
            threads=cta.cluster.agents.name(agent),
            fix=(
                "end the kernel with a cluster barrier (T.cuda.cluster_sync()) behind the last "
                "access to another CTA's shared memory"
            ),
            site=value & SITE_MASK,
        )


END_HOOKS.append(_peers_done)
