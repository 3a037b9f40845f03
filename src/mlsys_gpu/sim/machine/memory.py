"""Memories: global tensors, a CTA's shared memory and tensor memory, and the shadow beside each.

Addresses are plain integers. A *generic* address has its space in the bits from 40 up: 1 is the
cluster's shared window, 2 + i is tensor i. A *shared* (32-bit) address is ``rank << 24 | offset``,
the ``shared::cluster`` window in which each CTA's own shared memory lies at its rank.

The shadow remembers, for every 4 bytes (or fewer, where a kernel has narrower accesses), who wrote
them last and who has read them since: a stamp (agent, clock and site, see :mod:`.clocks`). It is
indexed like the memory it shadows: by rows of 16 bytes where an access is that wide, else by words.
"""

from __future__ import annotations

import numpy as np

SPACE_BITS = 40
OFFSET_MASK = (1 << SPACE_BITS) - 1
SHARED_SPACE = 1
SHARED_TAG = SHARED_SPACE << SPACE_BITS
FIRST_TENSOR = 2
RANK_BITS = 24
SHARED_OFFSET = (1 << RANK_BITS) - 1

#: The system's own kilobyte at the start of a CTA's shared memory on Hopper and Blackwell
#: (CUDA C++ Programming Guide, "Shared Memory" of compute capability 9.0 and 10.0).
RESERVED_SHARED = 1024


def base_of(address: int) -> int:
    """The start of the space that an address means: one a little before it is an offset below 0."""
    return (address + (1 << (SPACE_BITS - 1))) >> SPACE_BITS << SPACE_BITS


#: The type that moves 16 bytes at once is complex: NumPy copies it whole, several times as fast as
#: four words. Nothing computes with it.
_UINT = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def rows_of(data: np.ndarray, size: int, lanes: int) -> np.ndarray:
    """View bytes as rows of ``lanes`` unsigned integers of ``size`` bytes each."""
    typed = data.view(_UINT[size])
    return typed.reshape(-1, lanes) if lanes > 1 else typed


class Linear:
    """A byte-addressed memory with a cache of its typed views."""

    def __init__(self, data: np.ndarray):
        self.data = data
        self.size = data.size
        self._views: dict[tuple[int, int], np.ndarray] = {}
        #: What strong writes have published, by byte offset (see order.publish).
        self.published: dict[int, dict] = {}

    def view(self, size: int, lanes: int) -> np.ndarray:
        key = (size, lanes)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = rows_of(self.data, size, lanes)
        return found

    @property
    def rows(self) -> np.ndarray:
        """The memory as rows of 16 bytes, each one opaque element: to be copied, not computed."""
        return self.view(16, 1)


class Tensor(Linear):
    """A kernel argument in global memory: a private copy, 32-byte aligned and padded."""

    def __init__(
        self, index: int, name: str, source: np.ndarray, itemsize: int, shape, grain: int = 4
    ):
        raw = source.reshape(-1).view(np.uint8)
        padded = np.zeros((raw.size + 63) // 32 * 32, dtype=np.uint8)
        start = (-padded.ctypes.data) % 32
        data = padded[start : start + (raw.size + 31) // 32 * 32]
        data[: raw.size] = raw
        super().__init__(data)
        self.index = index
        self.source = raw  # the bytes before the run, shared with the caller
        self.name = name
        self.nbytes = raw.size
        self.itemsize = itemsize
        self.shape = tuple(shape)
        self.grain = grain
        self.written = False
        self.mixed = True  # whether the kernel may write it as well as read it
        self.order: Order | None = None
        #: For each ``grain`` bytes: 1 + the CTA that wrote them, or 0; -1 where several CTAs did.
        self.writer: np.ndarray | None = None

    def afresh(self) -> Tensor:
        """The tensor as it was before the run."""
        return Tensor(self.index, self.name, self.source, self.itemsize, self.shape, self.grain)

    def note_write(self, index, wide: bool, cta: int) -> tuple[bool, int]:
        """Record that ``cta`` writes; returns whether another CTA had written there, and which."""
        if self.writer is None:
            self.writer = np.zeros((self.size // 16, 16 // self.grain), dtype=np.int32)
        table = self.writer if wide else self.writer.reshape(-1)
        before = table[index]
        clash = (before != 0) & (before != cta + 1)
        if clash.any():
            other = int(before[clash].flat[0])
            table[index] = np.where(clash, -1, cta + 1)
            return True, other - 1
        table[index] = cta + 1
        return False, 0

    def note_atomic(self, index, wide: bool, cta: int) -> None:
        """Record an atomic: it counts as written, and as no other CTA's overwriting."""
        if self.writer is None:
            self.writer = np.zeros((self.size // 16, 16 // self.grain), dtype=np.int32)
        table = self.writer if wide else self.writer.reshape(-1)
        before = table[index]
        table[index] = np.where(before == 0, cta + 1, before)

    def element(self, offset: int) -> str:
        """The element at a byte offset, as ``D[3, 17]``."""
        if offset < 0 or offset >= self.nbytes:
            return f"{self.name} (byte {offset}, {self.nbytes} bytes long)"
        flat = offset // self.itemsize
        index = np.unravel_index(flat, self.shape) if self.shape else ()
        return f"{self.name}[{', '.join(str(int(i)) for i in index)}]"


class Order:
    """Who has written and read each word of a tensor: stamps, and the clusters that they are of.

    ``home`` holds 1 + the number of the cluster, 0 for words that nobody has written. Of the
    readers since a write two are kept: the last of those that are ordered among each other, and the
    last of the others.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.writer = np.zeros(shape, dtype=np.int64)
        self.home = np.zeros(shape, dtype=np.int32)
        self.strong: np.ndarray | None = None  # words whose last write was a strong one
        self.reader: np.ndarray | None = None  # [2, …], made at the first read
        self.reader_home: np.ndarray | None = None

    def readers(self) -> tuple[np.ndarray, np.ndarray]:
        if self.reader is None or self.reader_home is None:
            self.reader = np.zeros((2, *self.writer.shape), dtype=np.int64)
            self.reader_home = np.zeros((2, *self.writer.shape), dtype=np.int32)
        return self.reader, self.reader_home


class Shadow:
    """Who wrote each word last, and who has read it since: stamps (0 where nobody).

    An array of any shape: ``[rows, words]`` for shared memory (rows of 16 bytes), ``[8, 512]``
    (16 lanes by one column) for tensor memory. ``readers`` holds one array for each agent that has
    ever read.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self.writer = np.zeros(shape, dtype=np.int64)
        #: The stamps that the last writes replaced: they say which value a reader was meant to get.
        self.previous = np.zeros(shape, dtype=np.int64)
        #: The first write of each word: who has seen it was meant to read in an early round.
        self.first = np.zeros(shape, dtype=np.int64)
        self.readers: dict[int, np.ndarray] = {}
        #: Lanes of the last writer and reader, for threads' accesses (see access.same_warp).
        self.writer_lane = np.full(shape, -2, dtype=np.int8)
        self.reader_lane = np.full(shape, -2, dtype=np.int8)
        #: Words whose last write was a strong one (an atomic, say), made at the first of those.
        self.strong: np.ndarray | None = None
        self._flat: Shadow | None = None

    def write(self, index, stamp) -> None:
        """Record a write."""
        before = self.writer[index]
        self.previous[index] = before
        if not np.all(before):
            self.first[index] = np.where(before, self.first[index], stamp)
        self.writer[index] = stamp
        if self.strong is not None:
            self.strong[index] = False

    def strong_words(self) -> np.ndarray:
        """Which words were last written by a strong write, indexed by words."""
        if self.strong is None:
            self.strong = np.zeros(self.shape, dtype=bool)
            if self._flat is not None and self._flat is not self:
                self._flat.strong = self.strong.reshape(-1)
        return self.strong.reshape(-1)

    def flat(self) -> Shadow:
        """The same shadow, indexed by words."""
        if self._flat is None:
            flat = Shadow.__new__(Shadow)
            flat.shape = (self.writer.size,)
            flat.writer = self.writer.reshape(-1)
            flat.writer_lane = self.writer_lane.reshape(-1)
            flat.reader_lane = self.reader_lane.reshape(-1)
            flat.previous = self.previous.reshape(-1)
            flat.first = self.first.reshape(-1)
            flat.strong = None if self.strong is None else self.strong.reshape(-1)
            flat.readers = {a: r.reshape(-1) for a, r in self.readers.items()}
            flat._flat = flat
            self._flat = flat
        return self._flat

    def reader(self, agent: int) -> np.ndarray:
        """The stamps of one agent's reads, made at its first."""
        found = self.readers.get(agent)
        if found is None:
            found = self.readers[agent] = np.zeros(self.shape, dtype=np.int64)
            twin = self._flat
            if twin is self:
                raise AssertionError("readers are made on the shadow, not on its flat view")
            if twin is not None:
                twin.readers[agent] = found.reshape(-1)
        return found

    def forget(self, index) -> None:
        """Make words as if nothing had ever touched them (a new allocation)."""
        self.writer[index] = 0
        self.previous[index] = self.first[index] = 0
        if self.strong is not None:
            self.strong[index] = False
        for stamps in self.readers.values():
            stamps[index] = 0
