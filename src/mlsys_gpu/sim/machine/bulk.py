"""Bulk copies, of boxes of tensors and of plain bytes, by the tensor memory accelerator (TMA).

A copy takes effect when its engine's turn comes. Its accesses are checked and stamped when it is
issued. A load that completes on an mbarrier is stamped with that barrier's agent and the phase it
is charged to: who has waited for the phase has seen the copy. Stores, and what else completes in a
bulk group, are stamped with the issuing thread's group.

Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy" and "Tensors".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import access, loose, memory, order
from mlsys_gpu.sim.machine.atomics import combined
from mlsys_gpu.sim.machine.barriers import MBarrier, barrier_at
from mlsys_gpu.sim.machine.clocks import (
    CLOCK_MASK,
    CLOCK_SHIFT,
    SITE_MASK,
    bounds,
    stamp,
    unseen,
    unseen_of,
)
from mlsys_gpu.sim.machine.core import (
    END_HOOKS,
    EXIT_HOOKS,
    LANES,
    Cta,
    Pipe,
    Stop,
    Warp,
    op,
)
from mlsys_gpu.sim.program import Unsupported

_UINT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

_SWIZZLE_BYTES = {0: 0, 1: 32, 2: 64, 3: 128}
_OTHER_SWIZZLES = {4: "128B_ATOM_32B", 5: "128B_ATOM_32B_FLIP_8B", 6: "128B_ATOM_64B"}


class TensorMap:
    """A tensor map, as ``cuTensorMapEncodeTiled`` makes it.

    Dimensions are innermost first. ``strides`` are bytes (of the dimensions but the innermost),
    ``box`` and ``steps`` (element strides) elements; ``swizzle`` is bytes; ``fill`` is the
    out-of-bounds value's kind: 0 zeros, 1 NaN. Element strides take every so many elements of the
    box: a copy moves ``ceil(box / step)`` of them; along the innermost dimension there are none
    (CUDA Driver API, ``cuTensorMapEncodeTiled``).

    Raises :class:`Unsupported` for interleaved layouts and for swizzles of atoms wider than 16
    bytes.
    """

    def __init__(self, record: dict[str, Any], tensor: memory.Tensor, itemsize: int):
        if record["interleave"]:
            size = {1: 16, 2: 32}[record["interleave"]]
            raise Unsupported(f"the simulator does not model tensor maps interleaved by {size} B")
        if record["swizzle"] not in _SWIZZLE_BYTES:
            name = _OTHER_SWIZZLES[record["swizzle"]]
            raise Unsupported(f"the simulator does not model tensor maps with swizzle {name}")
        self.tensor = tensor
        self.dtype = record["dtype"]
        self.itemsize = itemsize
        self.offset = record["offset"]
        self.shape = record["shape"]
        self.strides = [itemsize, *record["strides"]]
        self.box = record["box"]
        self.steps = [1, *record["steps"][1:]]
        self.swizzle = _SWIZZLE_BYTES[record["swizzle"]]
        self.fill = record["fill"]
        #: Elements that one copy moves along each dimension.
        self.extent = [-(-b // s) for b, s in zip(self.box, self.steps, strict=True)]
        self.nbytes = itemsize * int(np.prod(self.extent))
        #: The whole box in box elements, and the last element that it reaches in the tensor's.
        self._whole = [(0, extent) for extent in self.extent]
        self._reach = [(e - 1) * step for e, step in zip(self.extent, self.steps, strict=True)]
        self._steps = [step * s for step, s in zip(self.steps, self.strides, strict=True)][::-1]

    def clip(self, coords: list[int]) -> list[tuple[int, int]]:
        """For each dimension the part of the box that lies in the tensor, in box elements."""
        for start, reach, size in zip(coords, self._reach, self.shape, strict=True):
            if start < 0 or start + reach >= size:
                break
        else:
            return self._whole
        parts = []
        for start, extent, step, size in zip(
            coords, self.extent, self.steps, self.shape, strict=True
        ):
            first = 0 if start >= 0 else -(start // step)
            last = min(extent, -(-(size - start) // step))
            parts.append((first, max(first, last)))
        return parts

    def widened(self, coords: list[int], parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """A clipped box, with what lies between a row's end and the next multiple of 16 bytes, as
        far as there is memory."""
        (first, last), *others = parts
        units = 16 // self.itemsize
        edge = -(-self.shape[0] // units) * units
        wide = min(self.extent[0], edge - coords[0])
        if last <= first or wide <= last or any(a >= b for a, b in others):
            return parts
        end = self.offset + (coords[0] + wide) * self.itemsize
        for start, (_, stop), step, stride in list(
            zip(coords, parts, self.steps, self.strides, strict=True)
        )[1:]:
            end += (start + (stop - 1) * step) * stride
        return [(first, wide), *others] if end <= self.tensor.nbytes else parts

    def window(self, coords: list[int], parts: list[tuple[int, int]]) -> np.ndarray:
        """The tensor's elements in the clipped box, as raw unsigned integers, outermost first."""
        shape = [last - first for first, last in reversed(parts)]
        if 0 in shape:  # the box lies outside the tensor
            return np.empty(shape, _UINT[self.itemsize])
        base = self.offset
        for start, (first, _), step, stride in zip(
            coords, parts, self.steps, self.strides, strict=True
        ):
            base += (start + first * step) * stride
        return np.ndarray(shape, _UINT[self.itemsize], self.tensor.data, base, self._steps)

    def inside(self, parts: list[tuple[int, int]]) -> tuple[slice, ...]:
        """The clipped box as slices of a whole box, outermost first."""
        return tuple(slice(first, last) for first, last in reversed(parts))

    def box_array(self) -> np.ndarray:
        """A whole box of the out-of-bounds fill."""
        box = np.zeros(tuple(reversed(self.extent)), dtype=_UINT[self.itemsize])
        if self.fill == 1:
            box[...] = _NAN[self.dtype]
        return box

    def touched(self, coords: list[int], parts) -> tuple[np.ndarray, bool]:
        """The words of the tensor that lie in the clipped box; rows of 16 bytes where True."""
        if any(first >= last for first, last in parts):
            return np.empty(0, dtype=np.int64), False
        tensor = self.tensor
        starts = np.asarray(self.offset, dtype=np.int64)  # bytes, of each run of the last dimension
        for start, (first, last), step, stride in reversed(
            list(zip(coords, parts, self.steps, self.strides, strict=True))[1:]
        ):
            starts = starts[..., None] + (start + np.arange(first, last) * step) * stride
        first, last = parts[0]
        starts = starts + (coords[0] + first) * self.itemsize
        nbytes = (last - first) * self.itemsize
        together = int(np.bitwise_or.reduce(starts, axis=None)) | nbytes
        if together % 16 == 0:
            return starts[..., None] // 16 + np.arange(nbytes // 16), True
        if together % tensor.grain == 0:
            return starts[..., None] // tensor.grain + np.arange(nbytes // tensor.grain), False
        each = starts[..., None] + np.arange(last - first) * self.itemsize
        return np.unique(access.words_of(each, self.itemsize, tensor.grain)), False


#: The out-of-bounds fill NaN, as an H200 writes it (float64: by analogy).
_NAN = {
    "float16": 0x7FF7,
    "bfloat16": 0x7FF7,
    "float32": 0x7FF77FF7,
    "float64": 0x7FF77FF77FF77FF7,
}


class Box:
    """The part of a tensor that one copy moves: a box, or four rows (``gather4``, ``scatter4``).

    Of the coordinates of four rows the first is a column, and the rest are rows of a matrix.
    """

    def __init__(self, w: Warp, tmap: TensorMap, coords: list[int], rows: bool):
        self.tmap = tmap
        #: Bytes of one of its rows, and from one to the next in shared memory.
        self.row = tmap.extent[0] * tmap.itemsize
        self.pitch = max(self.row, tmap.swizzle)
        if not rows:
            self.pieces = [(coords, tmap.clip(coords))]
            self.nbytes = tmap.nbytes
            return
        if len(tmap.shape) != 2 or tmap.box[1] != 1:
            raise _operands(
                w,
                f"a copy of four rows through a tensor map whose box is {tmap.box}",
                "give the map two dimensions, and its box one row",
            )
        pieces = [[coords[0], row] for row in coords[1:]]
        self.pieces = [(where, tmap.clip(where)) for where in pieces]
        self.nbytes = tmap.nbytes * len(pieces)

    def load(self) -> np.ndarray:
        """The elements, with the out-of-bounds fill for those outside the tensor."""
        if len(self.pieces) == 1:
            return self._load(*self.pieces[0])
        return np.concatenate([self._load(where, clipped) for where, clipped in self.pieces])

    def _load(self, where: list[int], parts) -> np.ndarray:
        tmap = self.tmap
        window = tmap.window(where, parts)
        if window.nbytes == tmap.nbytes:  # no part of the box lies outside
            return np.ascontiguousarray(window)
        box = tmap.box_array()
        box[tmap.inside(parts)] = window
        return box

    def store(self, data: np.ndarray, reduce: str = "") -> None:
        """Put elements into the tensor, or combine them with it; those outside go nowhere.

        But for those that share the 16 bytes of a row's last element: an H200 writes the padding
        there, too.
        """
        tmap = self.tmap
        shape = (len(self.pieces), *reversed(tmap.extent))
        boxes = data.reshape(-1).view(_UINT[tmap.itemsize]).reshape(shape)
        for box, (where, parts) in zip(boxes, self.pieces, strict=True):
            parts = tmap.widened(where, parts)
            window = tmap.window(where, parts)
            values = box[tmap.inside(parts)]
            if reduce:
                held = np.ascontiguousarray(window)
                values = np.ascontiguousarray(values)
                values = combined(reduce, held, values, None, tmap.dtype, False)
            window[...] = values

    def touched(self) -> list[tuple[np.ndarray, bool]]:
        """The words of the tensor that the copy touches, see :meth:`TensorMap.touched`."""
        found = [self.tmap.touched(where, parts) for where, parts in self.pieces]
        return [(index, wide) for index, wide in found if index.size]


# ----------------------------------------------------------------------------------- operands


def _operands(w: Warp, what: str, fix: str) -> Stop:
    w.machine.report("tma-operand", w, what, memory="", fix=fix)
    return Stop()


def _map_at(w: Warp, address: int) -> TensorMap:
    index = (address >> memory.SPACE_BITS) - memory.FIRST_TENSOR - len(w.machine.tensors)
    if not 0 <= index < len(w.machine.maps) or address & memory.OFFSET_MASK:
        w.machine.report(
            "out-of-bounds",
            w,
            f"the address {address:#x} is no tensor map",
            memory="tensor maps",
            fix="pass the address of a tensor map that the host encoded",
        )
        raise Stop
    return w.machine.maps[index]


def _box(w: Warp, address: int, coords: list[int], rows: bool, store: bool = False) -> Box:
    """The box that a copy names; ``rows``: four rows of a matrix."""
    tmap = _map_at(w, address)
    if not rows and len(coords) != len(tmap.shape):
        raise _operands(
            w,
            f"a copy with {len(coords)} coordinates through a tensor map of {len(tmap.shape)} "
            "dimensions",
            "let the instruction have as many dimensions as the tensor map",
        )
    # Seen on an H200 in all of 19 loads that begin elsewhere, and in none of 24 that begin so.
    if coords[0] * tmap.itemsize % 16 and w.machine.program.arch.startswith("sm_90"):
        raise _operands(
            w,
            f"a copy of a box from coordinate {coords[0]} of the innermost dimension, byte "
            f"{coords[0] * tmap.itemsize}: a GPU faults there (illegal instruction)",
            "let the box begin at a multiple of 16 bytes along the innermost dimension",
        )
    if store and min(coords) < 0:  # CUDA Programming Guide, "Tensor Memory Access"
        raise _operands(
            w,
            f"a copy into a tensor at the coordinates {tuple(coords)}: with a negative one a GPU "
            "faults (illegal instruction)",
            "let stores begin inside the tensor; what lies past its end goes nowhere",
        )
    return Box(w, tmap, coords, rows)


def _issuers(w: Warp, mask, what: str, *operands) -> Iterator[tuple[int, list[int]]]:
    """The threads that issue a copy, each with its operands.

    ``mask``: a lane's number, or which lanes (None for all of them). Threads with the same operands
    make the same copy several times, which is a finding.
    """
    if isinstance(mask, int) and mask is not False:  # True stands for one lane, whichever
        lanes = [0 if mask is True else mask]
    elif isinstance(mask, np.integer):
        lanes = [int(mask)]
    else:
        lanes = LANES[w.present if mask is None else mask & w.present].tolist()
    if len(lanes) > 1:
        columns = [
            o.reshape(-1)[lanes] for o in operands if isinstance(o, np.ndarray) and o.size > 1
        ]
        different = {tuple(int(v) for v in row) for row in zip(*columns, strict=True)}
        if len(different) < len(lanes):
            w.machine.report(
                "divergent-collective",
                w,
                f"{what} is issued by {len(lanes)} threads of the warp: each issues its own copy",
                memory="shared memory",
                fix="let one elected thread issue it (if T.cuda.elect_sync(): …)",
            )
            raise Stop
    for lane in lanes:
        loose.part(w, lane)
        yield lane, [o if isinstance(o, int) else _of_lane(o, lane) for o in operands]


def _of_lane(operand, lane: int) -> int:
    """A lane's value of an operand that may be the same for all lanes."""
    values = np.asarray(operand).reshape(-1)
    return int(values[lane if values.size > 1 else 0])


def _shared_place(w: Warp, address: int, what: str) -> tuple[int, int]:
    """Rank and offset of a shared-memory address (32 bits, or generic)."""
    if address >> memory.SPACE_BITS == memory.SHARED_SPACE:
        address -= memory.SHARED_TAG
    rank, offset = address >> memory.RANK_BITS, address & memory.SHARED_OFFSET
    if not 0 <= rank < w.cluster.size:
        w.machine.report(
            "out-of-bounds",
            w,
            f"{what} at the address {address:#x}, outside the cluster's shared memory",
            memory="shared memory",
            fix="pass an address in the CTA's shared memory, or one that mapa gives",
        )
        raise Stop
    return rank, offset


def _receivers(w: Warp, rank: int, mrank: int, ranks: int | None, pair: bool, what: str):
    """The CTAs that receive a copy, each with the one whose mbarrier the copy completes on.

    ``rank`` and ``mrank``: where destination and mbarrier lie; ``ranks``: a multicast mask, or
    None; ``pair`` (``.cta_group::2``): the mbarrier may lie in the other CTA of the pair. PTX ISA,
    "cp.async.bulk.tensor": of a multicast, at the same offset in each receiving CTA, with
    ``.cta_group::2`` in the one of its pair whose rank has the parity of the mbarrier's.
    """
    if ranks is None:
        if mrank != rank and not (pair and mrank // 2 == rank // 2):
            raise _operands(
                w,
                f"{what} brings bytes to CTA rank {rank} and completes on an mbarrier of CTA rank "
                f"{mrank}",
                "give it an mbarrier of the CTA that receives the bytes; with .cta_group::2, of "
                "that CTA or of the other one of its pair",
            )
        return [(rank, mrank)]
    targets = [r for r in range(16) if ranks >> r & 1]
    if not targets or targets[-1] >= w.cluster.size:
        w.machine.report(
            "out-of-bounds",
            w,
            f"the multicast mask {ranks:#x} names CTAs outside a cluster of {w.cluster.size}",
            memory="distributed shared memory",
            fix="set bit r for each CTA rank r of the cluster that shall receive the tile",
        )
        raise Stop
    return [(r, r & ~1 | mrank & 1 if pair else r) for r in targets]


def _rows(w: Warp, cta: Cta, start: int, box: Box, what: str) -> np.ndarray:
    """The 16-byte rows of shared memory that a box occupies, in the box's order.

    A swizzle's pattern lies at fixed addresses: a tile that holds it whole must start where it
    starts; a smaller one may be a part of such a tile. With a swizzle, each row of the box begins
    a row of the swizzle, also where it is shorter (an H200 leaves the rest as it is).
    """
    swizzle, nbytes, row, pitch = box.tmap.swizzle, box.nbytes, box.row, box.pitch
    nbytes = nbytes // row * pitch
    align = 128
    if swizzle:
        align = max(128, min(8 * swizzle, 1 << (nbytes - 1).bit_length()))
    if start % align:
        w.machine.report(
            "misaligned",
            w,
            f"{what} at shared memory byte {start - memory.RESERVED_SHARED}, which {align} does "
            "not divide"
            + (f" (the {swizzle}B swizzle repeats every {8 * swizzle} bytes)" if swizzle else ""),
            memory=cta.region(start),
            fix=f"align the tile in shared memory to {align} bytes",
        )
        raise Stop
    if start < memory.RESERVED_SHARED or start + nbytes > cta.shared.size:
        w.machine.report(
            "out-of-bounds",
            w,
            f"{what} of {nbytes} bytes at shared memory byte {start - memory.RESERVED_SHARED}, "
            f"beyond the CTA's {cta.shared.size - memory.RESERVED_SHARED}",
            memory="shared memory",
            fix="make the buffer as large as the tensor map's box",
        )
        raise Stop
    rows = _pattern(start, nbytes, swizzle)
    if pitch > row:
        rows = rows.reshape(-1, pitch // 16)[:, : row // 16].reshape(-1)
    return rows


@lru_cache(maxsize=512)
def _pattern(start: int, nbytes: int, swizzle: int) -> np.ndarray:
    """:func:`_rows` of a tile that has been checked."""
    at = start + np.arange(0, nbytes, 16, dtype=np.int64)
    if swizzle:
        at = at ^ (at >> 3 & (swizzle - 16))
    return at >> 4


def _block(start: int, box: Box) -> slice | None:
    """The same rows in the order of their addresses, where they leave no gap: a swizzle exchanges
    the 16-byte chunks of one of its rows."""
    nbytes = box.nbytes
    if box.pitch > box.row or (start | nbytes) % (box.tmap.swizzle or 16):
        return None
    return slice(start >> 4, (start + nbytes) >> 4)


def _rows_linear(w: Warp, cta: Cta, offset: int, size: int) -> np.ndarray:
    if offset < memory.RESERVED_SHARED or offset + size > cta.shared.size:
        w.machine.report(
            "out-of-bounds",
            w,
            f"a bulk copy of {size} bytes at shared memory byte {offset - memory.RESERVED_SHARED}",
            memory="shared memory",
            fix="keep the copy inside its buffer",
        )
        raise Stop
    return np.arange(offset >> 4, (offset + size) >> 4, dtype=np.int64)


def _aligned(w: Warp, size: int, *addresses: int) -> None:
    """Addresses and size of a bulk copy are multiples of 16 bytes."""
    if size > 0 and size % 16 == 0 and not any(a % 16 for a in addresses):
        return
    wrong = f"a bulk copy of {size} bytes"
    if size > 0 and size % 16 == 0:
        at = next(a for a in addresses if a % 16)
        wrong += f" at an address that is {at % 16} bytes past a multiple of 16"
    w.machine.report(
        "misaligned",
        w,
        wrong,
        memory="shared memory",
        fix="addresses and size of cp.async.bulk are multiples of 16 bytes",
    )
    raise Stop


def _global_bytes(w: Warp, address: int, size: int, what: str) -> tuple[memory.Tensor, int]:
    """The tensor and byte offset of a run of bytes in global memory, all of it inside."""
    tensor, start = access._span(w, address, 16, None, what)
    access._span(w, address + size - 16, 16, None, what)
    return tensor, int(start)


# ------------------------------------------------------------------------ copies into shared memory


def _async_write(
    w: Warp, cta: Cta, rows, barrier: MBarrier, what: str, atomic: bool = False
) -> int:
    """Check and stamp an engine's write of shared memory; returns the phase it is charged to.

    ``rows``: indices of 16-byte rows, or a slice of them. ``atomic``: a reduction, which does not
    race with another one.
    """
    phase = barrier.phase + 1
    if not w.checks:
        return phase
    agent, moment = barrier.agent, barrier.epoch + phase
    clock = w.clock.copy()
    clock[:, agent] = moment
    before = cta.shadow.writer[rows]
    within = bounds(before)
    bad = unseen(before, clock[0], within)
    if bad is not None and atomic:
        reduced = cta.state.get("reduced")
        bad = bad if reduced is None else bad & (reduced[rows] != before)
        bad = bad if bad.any() else None
    if bad is not None:
        at = access.indices(rows)
        access.race(w, cta, at, True, before, bad, "write", "write", agent, w.s, None)
    else:
        hidden = unseen(before, clock[1], within)
        if hidden is not None:
            generic = ~w.cluster.agents.asynchronous[before >> 48]
            if (hidden & generic).any():
                at, hidden = access.indices(rows), hidden & generic
                access.proxy(w, cta, at, before, hidden, what, w.s, "overwrites")
    strict = w.machine.reading("proxy-war") == "fence"
    for reader, stamps in cta.shadow.readers.items():
        if reader != agent:
            read = stamps[rows]
            bad = unseen_of(reader, read, clock[0])
            if bad is not None:
                at = access.indices(rows)
                access.race(w, cta, at, True, read, bad, "write", "read", agent, w.s, None)
            elif strict and not w.cluster.agents.asynchronous[reader]:
                hidden = unseen(read, clock[1])
                if hidden is not None:
                    at = access.indices(rows)
                    access.proxy(w, cta, at, read, hidden, what, w.s, "overwrites read")
    now = stamp(agent, moment, w.s)
    cta.shadow.write(rows, now)
    if atomic:
        reduced = cta.state.setdefault("reduced", np.zeros(cta.shadow.writer.shape, dtype=np.int64))
        reduced[rows] = now
    landings: dict[int, int] = cta.state.setdefault("landings", {})
    landings[agent] = now
    return phase


def _copy_in(
    w: Warp,
    cta: Cta,
    rows,
    barrier: MBarrier,
    what: str,
    data: Callable[[], np.ndarray],
    block: slice | None = None,
    reduce: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
):
    """Issue a copy of whole 16-byte rows into a CTA's shared memory, completing on a barrier.

    ``block``: the same rows as a slice, where they leave no gap. ``reduce`` combines what is there
    with what comes.
    """
    whole = rows if block is None else block
    phase = _async_write(w, cta, whole, barrier, what, reduce is not None)
    nbytes = 16 * rows.size
    site = w.s
    barrier.charge(phase, nbytes, w, cta.rank)
    w.tick()
    if not w.cluster.eager and reduce is None:
        cta.shared.view(4, 4)[whole] = 0xFFFFFFFF  # in flight: NaN in every format
        cta.version += 1

    def land() -> None:
        come = data().reshape(-1)
        if reduce is not None:
            come = reduce(cta.shared.view(4, 4)[rows].reshape(-1), come)
        cta.shared.rows[rows] = come.view(np.complex128)
        cta.version += 1
        barrier.complete(nbytes, phase, w, site)

    Pipe(w.cluster, f"{what} of {w.name()}").submit(land)


def _note_in(
    w: Warp, tensor: memory.Tensor, index, wide: bool, barrier: MBarrier, what: str
) -> None:
    """Check and record what a copy reads of a tensor that the kernel may also write."""
    now = stamp(barrier.agent, barrier.epoch + barrier.phase + 1, w.s)
    order.global_read(w, tensor, index, wide, barrier.agent, now, w.s, w.clock, through=what)


@op
def tma_load(
    w: Warp, destination, map_address, coords, barrier, ranks=None, mask=None,
    pair: bool = False, rows: bool = False,
) -> None:  # fmt: skip
    """``cp.async.bulk.tensor`` from global to shared memory, tile mode.

    ``ranks`` is the multicast mask over the cluster's CTAs, or None for the destination's own;
    ``pair``: ``.cta_group::2``; ``rows``: ``.tile::gather4``, of five coordinates.
    """
    what = "a TMA load"
    several = () if ranks is None else (ranks,)
    for _, values in _issuers(w, mask, what, destination, map_address, barrier, *several, *coords):
        into, address, on, *rest = values
        cast = rest.pop(0) if several else None
        box = _box(w, address, rest, rows)
        tmap = box.tmap
        rank, offset = _shared_place(w, into, what)
        mrank, moffset = _shared_place(w, on, what)
        w.machine.count("tma_load_bytes", box.nbytes)
        w.machine.count("global_load_bytes", box.nbytes)
        first = True
        for target, owner in _receivers(w, rank, mrank, cast, pair, what):
            cta = w.cluster.ctas[target]
            at = _rows(w, cta, offset, box, what)
            bar = barrier_at(w, owner << memory.RANK_BITS | moffset)
            if w.checks and tmap.tensor.mixed and first:
                for index, wide in box.touched():
                    _note_in(w, tmap.tensor, index, wide, bar, what)
            first = False
            _copy_in(w, cta, at, bar, what, box.load, _block(offset, box))


@op
def bulk_load(w: Warp, destination, source, size, barrier, ranks=None, mask=None) -> None:
    """``cp.async.bulk`` of ``size`` bytes from global memory to shared memory."""
    what = "a bulk copy"
    several = () if ranks is None else (ranks,)
    for _, values in _issuers(w, mask, what, destination, source, size, barrier, *several):
        into, origin, nbytes, on, *cast = values
        _aligned(w, nbytes, into, origin)
        if origin >> memory.SPACE_BITS <= memory.SHARED_SPACE:
            bulk_send(w, into, origin, nbytes, on, mask=0)
            continue
        rank, offset = _shared_place(w, into, what)
        mrank, moffset = _shared_place(w, on, what)
        tensor, start = _global_bytes(w, origin, nbytes, what)
        w.machine.count("global_load_bytes", nbytes)
        span = slice(start >> 4, (start + nbytes) >> 4)
        first = True
        for target, owner in _receivers(w, rank, mrank, cast[0] if cast else None, False, what):
            cta = w.cluster.ctas[target]
            rows = _rows_linear(w, cta, offset, nbytes)
            bar = barrier_at(w, owner << memory.RANK_BITS | moffset)
            if w.checks and tensor.mixed and first:
                _note_in(w, tensor, np.arange(span.start, span.stop), True, bar, what)
            first = False
            _copy_in(w, cta, rows, bar, what, lambda t=tensor, s=span: t.view(4, 4)[s].copy())


@op
def bulk_send(
    w: Warp, destination, source, size, barrier, reduce: str = "", dtype: str = "", mask=None
) -> None:
    """``cp.async.bulk`` (or ``cp.reduce``) from a CTA's shared memory to that of the cluster.

    The mbarrier lies with the destination; its phase also says that the source has been read.
    """
    what = "a bulk copy"
    for _, (into, origin, nbytes, on) in _issuers(
        w, mask, what, destination, source, size, barrier
    ):
        _aligned(w, nbytes, into, origin)
        rank, offset = _shared_place(w, into, what)
        mrank, moffset = _shared_place(w, on, what)
        srank, start = _shared_place(w, origin, what)
        ((target, owner),) = _receivers(w, rank, mrank, None, False, what)
        bar = barrier_at(w, owner << memory.RANK_BITS | moffset)
        giver, taker = w.cluster.ctas[srank], w.cluster.ctas[target]
        given = _rows_linear(w, giver, start, nbytes)
        if w.checks:
            now = stamp(bar.agent, bar.epoch + bar.phase + 1)
            access.async_read(w, giver, given, w.clock, bar.agent, now, w.s, what)
        w.machine.count("dsmem_store_bytes", nbytes)

        def data(cta=giver, rows=given) -> np.ndarray:
            return cta.shared.view(4, 4)[rows]

        def combine(held: np.ndarray, come: np.ndarray) -> np.ndarray:
            raw = _UINT[_SIZES[dtype]]
            held, come = held.view(raw), np.ascontiguousarray(come).view(raw)
            return combined(reduce, held, come, None, dtype, False)

        rows = _rows_linear(w, taker, offset, nbytes)
        _copy_in(w, taker, rows, bar, what, data, reduce=combine if reduce else None)


def _landed(cta: Cta) -> None:
    """A CTA must not end before the copies into its shared memory have come."""
    landings: dict[int, int] = cta.state.get("landings", {})
    if not landings:
        return
    ended = np.max([np.maximum(w.clock[0], w.clock[2]) for w in cta.warps], axis=0)
    for agent, value in landings.items():
        if (value >> CLOCK_SHIFT) & CLOCK_MASK > int(ended[agent]):
            cta.machine.report(
                "in-flight-at-exit",
                None,
                f"CTA {cta.label()} may end while a copy into its shared memory is under way: "
                f"none of its threads waits for {access.barrier_words(cta.cluster, agent)}, which "
                "the copy completes",
                memory="shared memory",
                threads=f"CTA {cta.label()}",
                fix="wait for every copy that has been issued, also for those of stages not used",
                site=value & SITE_MASK,
            )


END_HOOKS.append(_landed)


# ----------------------------------------------------------------------- copies out, in bulk groups


class Outgoing:
    """A copy out of shared memory: first its source is read, then its effect comes."""

    def __init__(self, pipe: Pipe, cta: Cta, rows, effect: Callable[[np.ndarray], None]):
        self.pipe = pipe
        self.cta = cta
        self.rows = rows
        self.effect = effect
        self.data: np.ndarray | None = None
        pipe.submit(self.finish)

    def read(self) -> np.ndarray:
        """Take the bytes from shared memory, which may change from then on."""
        if self.data is None:
            self.data = self.cta.shared.rows[self.rows]
        return self.data

    def finish(self) -> None:
        self.effect(self.read())


#: A bulk group: its number among the warp's, and its copies.
Group = tuple[int, list[Outgoing]]


class BulkGroups:
    """The bulk groups of a warp's threads: copies not yet committed, and those committed.

    Groups belong to the thread that issues them. ``clock`` numbers the groups of all threads.
    """

    def __init__(self) -> None:
        self.clock = 0  # the newest group
        self.open: dict[int, Group] = {}  # by lane
        self.committed: dict[int, list[Group]] = {}  # by lane, oldest first
        self.read: set[int] = set()  # groups whose sources have been waited for
        self.sites: dict[int, int] = {}

    def of(self, lane: int) -> Group:
        """The group that a copy issued now by a thread belongs to."""
        found = self.open.get(lane)
        if found is None:
            self.clock += 1
            found = self.open[lane] = (self.clock, [])
        return found


def _groups(w: Warp) -> BulkGroups:
    found = w.state.get("bulk_groups")
    if found is None:
        found = w.state["bulk_groups"] = BulkGroups()
    return found


def _copy_out(
    w: Warp, lane: int, cta: Cta, rows, what: str, effect: Callable[[np.ndarray], None]
) -> None:
    """Issue a copy out of shared memory as part of the thread's current bulk group."""
    groups = _groups(w)
    moment, copies = groups.of(lane)
    if w.checks:
        agent = w.unit["bulk_read"]
        clock = w.clock.copy()
        clock[:, agent] = moment
        access.async_read(w, cta, rows, clock, agent, stamp(agent, moment), w.s, what)
    groups.sites[moment] = w.s
    copies.append(Outgoing(Pipe(w.cluster, f"{what} of {w.name()}"), cta, rows, effect))
    loose.settle(w)


def _note_out(w: Warp, lane: int, tensor: memory.Tensor, index, wide: bool, strong: bool) -> None:
    """Check and record the words that a bulk store writes; a reduction is a strong write."""
    agent, clock = w.unit["bulk"], w.clock.copy()
    moment = _groups(w).of(lane)[0]
    clock[:, agent] = moment
    now = stamp(agent, moment, w.s)
    order.global_write(w, tensor, index, wide, agent, now, w.s, clock, strong=strong)


#: The element types that each reduction of a bulk copy takes (PTX ISA, "cp.reduce.async.bulk" and
#: "cp.reduce.async.bulk.tensor").
_REDUCES = {
    "add": ("uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64"),
    "min": ("uint32", "int32", "uint64", "int64", "float16", "bfloat16"),
    "max": ("uint32", "int32", "uint64", "int64", "float16", "bfloat16"),
    "inc": ("uint32",),
    "dec": ("uint32",),
    "and": ("uint32", "int32", "uint64", "int64"),
    "or": ("uint32", "int32", "uint64", "int64"),
    "xor": ("uint32", "int32", "uint64", "int64"),
}

_SIZES = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "uint32": 4, "int32": 4,
    "uint64": 8, "int64": 8,
}  # fmt: skip


@op
def tma_store(
    w: Warp, map_address, coords, source, reduce: str = "", mask=None, rows: bool = False
) -> None:
    """``cp.async.bulk.tensor`` from shared to global memory; ``reduce`` names a reduction.

    ``rows``: ``.tile::scatter4``, of five coordinates.
    """
    what = "a TMA store"
    for lane, (address, origin, *where) in _issuers(w, mask, what, map_address, source, *coords):
        box = _box(w, address, where, rows, True)
        tmap = box.tmap
        if reduce and tmap.dtype not in _REDUCES[reduce]:
            raise _operands(
                w,
                f"cp.reduce.async.bulk.tensor.{reduce} through a tensor map of {tmap.dtype}",
                f"{reduce} takes elements of {', '.join(_REDUCES[reduce])}",
            )
        rank, offset = _shared_place(w, origin, what)
        cta = w.cluster.ctas[rank]
        at = _rows(w, cta, offset, box, what)
        w.machine.count("tma_store_bytes", box.nbytes)
        w.machine.count("global_store_bytes", box.nbytes)
        tmap.tensor.written = True

        def effect(data: np.ndarray, box: Box = box) -> None:
            box.store(data, reduce)
            w.machine.writes += 1

        if w.checks:
            for index, wide in box.touched():
                _note_out(w, lane, tmap.tensor, index, wide, bool(reduce))
        _copy_out(w, lane, cta, at, what, effect)


@op
def bulk_store(
    w: Warp, destination, source, size, reduce: str = "", dtype: str = "", mask=None,
    flush: bool = True, kept=None,
) -> None:  # fmt: skip
    """``cp.async.bulk`` (or ``cp.reduce``) of ``size`` bytes from shared to global memory.

    ``flush``: the instruction does not say ``.noftz``; the ISA has such sums of float32 flush
    subnormals, and an H200 keeps them all the same. ``kept`` (``.cp_mask``): bit i says whether
    byte i of every 16 is copied.
    """
    del flush
    what = "a bulk store"
    several = () if kept is None else (kept,)
    for lane, values in _issuers(w, mask, what, destination, source, size, *several):
        target, origin, nbytes, *bits = values
        _aligned(w, nbytes, target, origin)
        rank, offset = _shared_place(w, origin, what)
        cta = w.cluster.ctas[rank]
        rows = _rows_linear(w, cta, offset, nbytes)
        tensor, start = _global_bytes(w, target, nbytes, what)
        tensor.written = True
        w.machine.count("global_store_bytes", nbytes)
        chosen = None
        if bits:
            chosen = np.tile((bits[0] >> np.arange(16) & 1).astype(bool), nbytes // 16)

        def effect(data: np.ndarray, tensor=tensor, start=start, chosen=chosen) -> None:
            come = data.reshape(-1).view(np.uint8)
            held = tensor.data[start : start + come.size]
            if reduce:
                raw = _UINT[_SIZES[dtype]]
                held.view(raw)[...] = combined(
                    reduce, held.view(raw), come.view(raw), None, dtype, False
                )
            elif chosen is not None:
                held[chosen] = come[chosen]
            else:
                held[...] = come
            w.machine.writes += 1

        if w.checks:
            index, wide = np.arange(start >> 4, (start + nbytes) >> 4), True
            if chosen is not None:
                grain = tensor.grain
                words = chosen.reshape(-1, grain).any(axis=1)
                index, wide = np.flatnonzero(words) + start // grain, False
            _note_out(w, lane, tensor, index, wide, bool(reduce))
        _copy_out(w, lane, cta, rows, what, effect)


def _threads(w: Warp, mask) -> list[int]:
    """The lanes that execute an operation of bulk groups."""
    if isinstance(mask, (int, np.integer)) and not isinstance(mask, bool):
        return [int(mask)]
    return LANES.tolist() if mask is None else np.flatnonzero(mask).tolist()


@op
def bulk_commit(w: Warp, mask=None) -> None:
    """``cp.async.bulk.commit_group``: a thread's copies since its last commit are one group."""
    groups = w.state.get("bulk_groups")
    if groups is None:
        return
    for lane in _threads(w, mask):
        known = groups.committed.get(lane)
        started = groups.open.pop(lane, None)
        if started is not None:
            groups.committed.setdefault(lane, []).append(started)
        elif known:
            known.append((0, []))  # an empty group counts too


@op
def bulk_wait(w: Warp, count: int, read: bool, mask=None) -> None:
    """``cp.async.bulk.wait_group{.read} N``: all but a thread's latest N groups are done (or read).

    Groups of other threads are not waited for.
    """
    groups = w.state.get("bulk_groups")
    if groups is None or not groups.committed:
        return
    units = ["bulk_read"] if read else ["bulk_read", "bulk"]
    for lane in _threads(w, mask):
        known = groups.committed.get(lane)
        if not known:
            continue
        done = known[: max(0, len(known) - int(count))]
        for number, copies in done[_read_before(groups, done) :] if read else done:
            for copy in copies:
                if read:
                    copy.read()
                else:
                    copy.pipe.drain()
            groups.read.add(number)
            for unit in units if w.checks else ():
                w.clock[:, w.unit[unit]] = max(int(w.clock[0, w.unit[unit]]), number)
        if not read:
            del known[: len(done)]


def _read_before(groups: BulkGroups, done: list[Group]) -> int:
    """How many of a thread's groups, oldest first, it has waited for before (their sources)."""
    at = len(done)
    while at and (not done[at - 1][0] or done[at - 1][0] not in groups.read):  # 0 are empty ones
        at -= 1
    return at


def _bulk_exit(w: Warp) -> None:
    """Shared memory must not be given back while a store still reads it."""
    groups = w.state.get("bulk_groups")
    if groups is None:
        return
    pending = [*groups.open.values(), *(g for known in groups.committed.values() for g in known)]
    unread = [number for number, copies in pending if copies and number not in groups.read]
    if unread:
        site = groups.sites.get(min(unread), w.s)
        uncommitted = any(copies for _, copies in groups.open.values())
        w.machine.report(
            "in-flight-at-exit",
            w,
            f"{w.name()} exits while {len(unread)} bulk group{'s' * (len(unread) != 1)} of its "
            "stores may still read shared memory",
            memory="shared memory",
            fix=(
                "execute cp.async.bulk.wait_group.read 0 in the thread that issued the stores, "
                "before it exits" + (", behind a commit_group" if uncommitted else "")
            ),
            site=site,
        )


EXIT_HOOKS.append(_bulk_exit)


@op
def st_bulk(w: Warp, address, size, mask=None) -> None:
    """``st.bulk``: a thread writes zeros to a run of the CTA's shared memory (PTX ISA, "st.bulk").

    It writes as threads do: engines see the zeros past a proxy fence.
    """
    what = "st.bulk"
    for lane, (to, nbytes) in _issuers(w, mask, what, address, size):
        rank, offset = _shared_place(w, to, what)
        if offset % 8 or nbytes % 8 or nbytes < 0:
            w.machine.report(
                "misaligned",
                w,
                f"st.bulk of {nbytes} bytes at an address that is {offset % 8} bytes past a "
                "multiple of 8",
                memory=w.cta.region(offset),
                threads=w.threads(lane),
                fix="address and size of st.bulk are multiples of 8 bytes",
            )
            raise Stop
        if nbytes == 0:
            continue
        start = rank << memory.RANK_BITS | offset
        cta, _ = access._shared(w, start, 8, lane, what)
        access._shared(w, start + nbytes - 8, 8, lane, what)
        if w.checks:
            grain = w.machine.program.grain
            words = np.arange(offset // grain, (offset + nbytes) // grain)
            access.generic_write(w, cta, words, False, np.int8(lane))
        cta.shared.data[offset : offset + nbytes] = 0
        cta.version += 1
