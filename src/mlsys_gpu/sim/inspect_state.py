"""What a stopped machine holds, in the kernel author's terms.

Plain data and NumPy arrays out of a running :class:`~mlsys_gpu.sim.machine.core.Machine`: a warp's
variables, tiles in shared memory through their layouts, tensor memory, barriers, positions. Nothing
here changes the machine. :mod:`mlsys_gpu.sim.debugger` shows it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlsys_gpu.sim import layouts, page
from mlsys_gpu.sim.machine import memory
from mlsys_gpu.sim.machine.barriers import MBarrier
from mlsys_gpu.sim.machine.clocks import AGENT_SHIFT, CLOCK_MASK, CLOCK_SHIFT, SITE_MASK
from mlsys_gpu.sim.machine.core import Cluster, Cta, Machine, Warp, ranges
from mlsys_gpu.sim.machine.formats import STORED, decode
from mlsys_gpu.sim.machine.numerics import INTEGER_POISON, POISON, STORAGE, bf16_to_f32
from mlsys_gpu.sim.machine.rendezvous import Rendezvous
from mlsys_gpu.sim.machine.tcgen05 import filling
from mlsys_gpu.sim.machine.waitgraph import state_of
from mlsys_gpu.sim.machine.wgmma import registers_now
from mlsys_gpu.sim.program import Program
from mlsys_gpu.sim.report import Location


class DebugError(ValueError):
    """What was asked for does not exist; the message names what there is."""


# ------------------------------------------------------------------------------------- arrays


def shown(array: np.ndarray, edge: int = 4) -> str:
    """An array in a terminal: its corners, all numbers in the same few digits, a row in a line."""
    corners = array
    for axis, size in enumerate(array.shape):
        if size > 2 * edge:
            kept = [*range(edge), *range(size - edge, size)]
            corners = np.take(corners, kept, axis=axis)
    floats = array.dtype.kind == "f"
    text = _number_format(corners if array.ndim > 1 else array) if floats else str
    width = max((len(text(v)) for v in corners.flat), default=1)
    rows_fit = array.ndim < 2 or array.shape[-1] * (width + 1) <= 96
    return np.array2string(
        array,
        threshold=64 if rows_fit else 0,
        edgeitems=edge,
        max_line_width=96 if array.ndim < 2 else 120,
        formatter={"float_kind": lambda v: text(v).rjust(width)} if floats else None,
    )


def _number_format(array: np.ndarray) -> Callable[[Any], str]:
    """How to write the numbers of an array: with one precision, and exponents only where a number
    would be long, or read as zero."""
    sizes = np.abs(array[np.isfinite(array)].astype(np.float64))
    sizes = sizes[sizes > 0]
    most = float(sizes.max()) if sizes.size else 1.0
    figures = 5 if array.itemsize < 4 else 6
    places = min(5, max(1, figures - 1 - math.floor(math.log10(most)) - (most >= 1)))
    if most >= 1e7 or (sizes.size and float(sizes.min()) < 0.5 * 10**-places):
        return lambda value: f"{value:.{figures - 2}e}"
    enough = next(n for n in range(places + 1) if (sizes.round(n) == sizes.round(places)).all())
    return lambda value: f"{value:.{enough}f}" + "." * (not enough and bool(np.isfinite(value)))


def as_numbers(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes (uint8, last axis one element's) as numbers; bfloat16 and narrower floats as float32.

    A dtype that NumPy and ml_dtypes do not know stays unsigned integers.
    """
    size = raw.shape[-1]
    flat = np.ascontiguousarray(raw)
    if dtype == "bfloat16":
        return bf16_to_f32(flat.view(np.uint16)[..., 0])
    if dtype in STORED:
        return decode(flat[..., 0], STORED[dtype])
    if dtype in STORAGE:
        return flat.view(STORAGE[dtype])[..., 0]
    try:
        import ml_dtypes

        return flat.view(getattr(ml_dtypes, dtype))[..., 0].astype(np.float32)
    except (ImportError, AttributeError, TypeError):
        unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
        return flat.view(unsigned[size])[..., 0] if size in unsigned else flat


def _bits(dtype: str) -> int:
    match = re.search(r"(\d+)", dtype)
    return 8 if dtype == "bool" else int(match.group(1)) if match else 32


# ----------------------------------------------------------------------------------- variables


class _Unwritten:
    def __repr__(self) -> str:
        return "<nothing written yet>"


#: The value of a scalar that nothing has written.
UNWRITTEN = _Unwritten()


@dataclass(frozen=True)
class Variable:
    """A variable of a stopped warp.

    ``kind``: ``scalar`` (the same for all lanes), ``lane`` (``value`` has shape ``[32]``),
    ``array`` (``[32, n]``: n registers of each lane), ``list`` (``[n]``, the same for all lanes),
    ``loop`` (``[32 or 1, n]``: all n iterations of a loop that runs as one) or ``vector``.
    ``unwritten`` counts the values that nothing has written; ``note`` says what else to know.
    """

    name: str
    dtype: str
    kind: str
    value: Any
    unwritten: int = 0
    note: str = ""

    def __str__(self) -> str:
        shape = "x".join(str(n) for n in np.shape(self.value))
        head = f"{self.name}: {self.dtype}"
        if self.kind == "scalar":
            return f"{head} = {self.value}" + (f"  ({self.note})" if self.note else "")
        what = {
            "lane": "one for each lane",
            "array": "lanes x registers",
            "list": "the same for all lanes",
            "loop": "lanes x iterations",
            "vector": "elements",
        }.get(self.kind, "")
        notes = [f"[{shape}] {what}"]
        if self.unwritten:
            notes.append(f"{self.unwritten} of {np.size(self.value)} not written yet")
        if self.note:
            notes.append(self.note)
        return f"{head} {', '.join(notes)}\n{shown(np.asarray(self.value))}"


def scope(program: Program, warp: Warp) -> list[list[Any]]:
    """The variables that are visible where a warp stands, the innermost first."""
    if not 0 <= warp.at < len(program.stops):
        return []
    found, at = [], program.stops[warp.at][1]
    while at >= 0:
        found.append(program.scopes[at])
        at = program.scopes[at][0]
    return found


def variables(program: Program, warp: Warp) -> dict[str, Variable]:
    """A warp's variables by name, outermost first; inner ones hide outer ones of their name."""
    frame = warp.code.gi_frame if warp.code is not None else None
    if frame is None:
        return {}
    local = frame.f_locals
    if not program.debug:
        return _plain_locals(warp, local)
    found: dict[str, Variable] = {}
    for _, name, code, dtype, kind, size in reversed(scope(program, warp)):
        value = _value_of(code, local)
        if value is None:
            continue
        found.pop(name, None)
        found[name] = variable(warp, name, dtype, kind, value, size)
    return found


def _value_of(code: str, local: dict[str, Any]) -> Any:
    """The value that a name, a number or a tuple of such stands for; None where it has none yet."""
    if re.fullmatch(r"\w+", code) and not code.isdigit():
        return {"True": True, "False": False}.get(code, local.get(code))
    try:
        return eval(code, {"__builtins__": {}}, local)
    except NameError:
        return None


def _plain_locals(warp: Warp, local: dict[str, Any]) -> dict[str, Variable]:
    """The locals of a Program that was not translated for debugging, under their own names."""
    found = {}
    for name, value in local.items():
        if name in ("w", "tidc", "SB", "GB", "bx", "by", "bz") or re.match(
            r"(t|cse_v\d+)_\d", name
        ):
            continue
        if isinstance(value, np.ndarray):
            kind = "array" if value.ndim == 2 else "lane"
            found[name] = variable(warp, name, value.dtype.name, kind, value, value.shape[-1])
        elif isinstance(value, (int, float, np.generic)):
            kind = "float64" if isinstance(value, float) else "int64"
            found[name] = variable(warp, name, kind, "scalar", value, 1)
    return found


def variable(warp: Warp, name: str, dtype: str, kind: str, value: Any, size: int) -> Variable:
    """A local of the generated code as the author knows it."""
    if dtype == "handle":
        return Variable(name, dtype, kind, value, note=_pointer(warp, value))
    if kind == "scalar":
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if _is_unwritten(value, dtype):
            return Variable(name, dtype, kind, UNWRITTEN, 1)
        if dtype == "bfloat16":
            value = float(bf16_to_f32(np.uint16(value)))
        elif isinstance(value, np.generic):
            value = value.item()
        return Variable(name, dtype, kind, value)
    if kind == "vector":
        return Variable(name, dtype, kind, np.stack([np.asarray(v) for v in value], axis=-1))
    if kind == "lane":
        value = np.broadcast_to(np.asarray(value), (32,))
    note = ""
    if kind == "array":
        note = _in_flight(warp, value)
        value = registers_now(warp, value)
    array = np.asarray(value)
    blank = unwritten(array, dtype)
    if dtype == "bfloat16":
        array = bf16_to_f32(array)
    return Variable(name, dtype, kind, np.array(array), int(blank.sum()), note)


def _in_flight(warp: Warp, registers: np.ndarray) -> str:
    """What may still be writing or reading a warp's registers, in words."""
    program, notes = warp.machine.program, []
    wgmma = warp.state.get("wgmma")
    uses = wgmma.pending.get(id(registers), ()) if wgmma is not None else ()
    for site in sorted({use.site for use in uses}):
        notes.append(f"the wgmma at {program.location(site)} may still be using them")
    for site in filling(warp, registers):
        notes.append(f"the tcgen05.ld at {program.location(site)} may not have filled them")
    return "; ".join(dict.fromkeys(notes))


def _is_unwritten(value: Any, dtype: str) -> bool:
    return bool(unwritten(np.asarray(value), dtype).all())


def unwritten(array: np.ndarray, dtype: str) -> np.ndarray:
    """Which values are the pattern that fills registers before anything is written."""
    if dtype == "float32" and array.dtype == np.float32:
        return array.view(np.uint32) == POISON
    if dtype.startswith(("int", "uint")) and array.dtype.kind in "iu":
        size = max(1, _bits(dtype) // 8)
        pattern = int.from_bytes(INTEGER_POISON * size, "little")
        mask = (1 << 8 * size) - 1
        if array.dtype == np.uint64:
            return array == np.uint64(pattern)
        return (array & mask if size < 8 else array) == pattern
    return np.zeros(array.shape, dtype=bool)


def _pointer(warp: Warp, value: Any) -> str:
    """What a generic address points to, in words (for lanes: what the first one's does)."""
    first = int(np.asarray(value).flat[0])
    space, offset = first >> memory.SPACE_BITS, first & memory.OFFSET_MASK
    if space == memory.SHARED_SPACE:
        rank, at = offset >> memory.RANK_BITS, offset & memory.SHARED_OFFSET
        if 0 <= rank < warp.cluster.size:
            return warp.cluster.ctas[rank].region(at)
    index = space - memory.FIRST_TENSOR
    if 0 <= index < len(warp.machine.tensors):
        return warp.machine.tensors[index].element(offset)
    return ""


def register_tile(program: Program, warp: Warp, name: str) -> Tile:
    """A view of registers that the threads of a warpgroup or CTA share, through its layout."""
    known = [v for v in program.views if v[1] == "local"]
    view = next((v for v in known if v[0] == name), None)
    if view is None:
        raise DebugError(_unknown("view of registers", name, [v[0] for v in known]))
    _, _, source, shape, dtype, layout = view
    try:
        found = layouts.places(layout, shape)
    except ValueError as error:
        raise DebugError(f"{name}: {error}") from None
    register = found.pop("m", np.zeros(shape, dtype=np.int64))
    zero = np.zeros(shape, dtype=np.int64)
    first = warp.id // 4 * 4  # of the warp's warpgroup
    if "tx" in found:
        owner, lane = found["tx"] // 32, found["tx"] % 32
    elif "tid_in_wg" in found:
        owner, lane = first + found["tid_in_wg"] // 32, found["tid_in_wg"] % 32
    else:
        owner = found.get("warpid", found.get("wid_in_wg", zero + warp.id - first) + first)
        lane = found.get("laneid", zero)
    if set(found) - {"tx", "tid_in_wg", "warpid", "wid_in_wg", "laneid"}:
        raise DebugError(f"{name} is spread over {', '.join(sorted(found))}")
    values = np.full(tuple(shape), np.nan, dtype=np.float64)
    state, absent, exact = np.zeros(tuple(shape), dtype=np.int8), [], None
    for number in np.unique(owner).tolist():
        other = warp.cta.warps[number] if number < len(warp.cta.warps) else None
        held = variables(program, other).get(source) if other is not None else None
        if held is None or held.kind != "array":
            absent.append(str(number))
            continue
        mine = owner == number
        values[mine] = held.value[lane[mine], register[mine]]
        blank = unwritten(held.value, held.dtype)[lane[mine], register[mine]]
        state[mine] = np.where(blank, NEVER, WRITTEN)
        exact = held.value.dtype
    if exact is None:
        raise DebugError(f"{name} is a view of {source}, which no warp has where it stands")
    note = f"warp {', '.join(absent)} has no {source} where it stands" if absent else ""
    if not absent:
        values = values.astype(exact)
    place = f"registers {source} of CTA {warp.cta.label()}"
    return Tile(name, place, dtype, values, state, note=note)


# ------------------------------------------------------------------------------ shared memory

#: States of an element of a tile.
NEVER, WRITTEN, FLYING = 0, 1, 2
STATES = {NEVER: "never written", WRITTEN: "written", FLYING: "in flight"}


@dataclass(frozen=True)
class Tile:
    """A tile in shared memory, tensor memory or registers, as its author declared it.

    ``values`` are numbers in the tile's logical order (bfloat16 and narrower floats as float32);
    ``state``, of the same shape, says of each element whether it was never written (0), is written
    (1) or is in flight (2); None where the checks are off. ``writers`` are those who wrote last:
    who, where, and how many elements.
    """

    name: str
    place: str
    dtype: str
    values: np.ndarray
    state: np.ndarray | None = None
    writers: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def summary(self) -> list[str]:
        """What there is to say about the whole tile, a sentence each."""
        lines = []
        if self.state is not None:
            counts = {words: int((self.state == s).sum()) for s, words in STATES.items()}
            total = self.state.size
            lines += [f"{n} of {total} elements {words}" for words, n in counts.items() if n]
        for writer in self.writers:
            at = f" at {writer['location']}" if writer["location"] else ""
            lines.append(f"last written by {writer['who']}{at}: {writer['elements']} elements")
        if self.note:
            lines.append(self.note)
        return lines

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self.shape)
        lines = [f"{self.name}: {self.dtype} [{shape}], {self.place}"]
        lines += [f"  {line}" for line in self.summary()]
        return "\n".join([*lines, shown(self.values)])

    def _repr_html_(self) -> str:
        shape = " × ".join(str(n) for n in self.shape)
        head = f"<strong>{page.esc(self.name)}</strong> {page.esc(self.dtype)} [{shape}], "
        items = "".join(f"<li>{page.esc(line)}</li>" for line in self.summary())
        body = f"<p>{head}{page.esc(self.place)}</p>" + (f"<ul>{items}</ul>" if items else "")
        if self.state is not None and self.state.ndim == 2 and np.unique(self.state).size > 1:
            body += page.cell_map(*_state_map(self.state), meanings=_MEANINGS)
        label = f"corners of {self.name}"
        return page.page(
            "mg-debug", body + page.scrolling("pre", label, page.esc(shown(self.values)))
        )


_MEANINGS = {"#": "written", "-": "in flight", ".": "never written", "~": "several of these"}


def _state_map(state: np.ndarray) -> tuple[list[str], str]:
    """A map of at most 16 x 16 cells of a tile's state, and what it shows in words."""
    rows, cols = (min(16, n) for n in state.shape)
    lines = []
    for band in np.array_split(state, rows, axis=0):
        line = ""
        for cell in np.array_split(band, cols, axis=1):
            first = int(cell.flat[0])
            line += {WRITTEN: "#", FLYING: "-", NEVER: "."}[first] if (cell == first).all() else "~"
        lines.append(line)
    counts = [f"{int((state == s).sum())} elements {words}" for s, words in STATES.items()]
    return lines, "map of the tile: " + ", ".join(counts)


def shared_names(program: Program) -> list[str]:
    """Names of the buffers in shared memory; one without a name is called by its first byte."""
    return [name or f"byte{start}" for name, start, *_ in program.regions]


def barrier_names(program: Program) -> list[str]:
    """Names of the buffers that may hold mbarriers: those of 8-byte integers."""
    names = zip(shared_names(program), program.regions, strict=True)
    return [name for name, region in names if region[4] in ("uint64", "int64")]


def called(name: str, known: Iterable[str]) -> str:
    """The name of a buffer, for what its author calls it.

    TIRx's ``full = MBarrier(pool, 3)`` names its buffer ``full_buf``.
    """
    base, bracket, rest = name.partition("[")
    known = set(known)
    if base not in known and f"{base}_buf" in known:
        return f"{base}_buf{bracket}{rest}"
    return name


def shared_tile(cta: Cta, name: str, stage: int | None = None) -> Tile:
    """A buffer in a CTA's shared memory through its layout, or one stage of it.

    ``stage`` picks along the first of three or more dimensions.
    """
    program = cta.machine.program
    names = shared_names(program)
    if not isinstance(name, str):
        raise DebugError(f"a buffer's name is a string, such as 'As': got {name!r}")
    name = called(name, names)
    if name not in names:
        raise DebugError(_unknown("buffer in shared memory", name, names))
    index = names.index(name)
    _, start, nbytes, shape, dtype = program.regions[index]
    if any(start <= at - memory.RESERVED_SHARED < start + nbytes for at in cta.barriers):
        raise DebugError(f"{name} holds mbarriers, which are no numbers: see the barriers")
    bits = _bits(dtype)
    if bits % 8:
        dtype, bits, shape, stage = "uint8", 8, [nbytes], None
    layout = program.layouts[index] if index < len(program.layouts) else None
    note = ""
    try:
        element = layouts.places(layout, shape)["m"]
    except (ValueError, KeyError) as error:
        element = layouts.places(None, shape)["m"]
        note = f"shown in the order of its bytes: its layout is not understood ({error})"
    if stage is not None:
        if len(shape) < 3:
            sizes = ", ".join(str(n) for n in shape)
            raise DebugError(f"{name} has no stages: its shape is [{sizes}]")
        if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage < shape[0]:
            raise DebugError(f"{name} has stages 0 to {shape[0] - 1}, no {stage!r}")
        element = element[stage]
    at = memory.RESERVED_SHARED + start + element * (bits // 8)
    if int(at.max()) + bits // 8 > cta.shared.size:
        raise DebugError(f"{name} reaches beyond the CTA's shared memory")
    raw = cta.shared.data[at[..., None] + np.arange(bits // 8)]
    label = name if stage is None else f"{name}[{stage}]"
    low = int(at.min()) - memory.RESERVED_SHARED
    place = f"shared memory of CTA {cta.label()}, bytes {low} to "
    place += str(int(at.max()) - memory.RESERVED_SHARED + bits // 8 - 1)
    state, writers = None, []
    if cta.machine.checks:
        stamps = cta.shadow.writer.reshape(-1)[at // program.grain]
        state, writers = _states(cta.cluster, stamps)
    return Tile(label, place, dtype, as_numbers(raw, dtype), state, writers, note)


def _states(cluster: Cluster, stamps: np.ndarray) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """What stamps of writes say of each element, and who they are, those of most elements first."""
    state = np.where(stamps == 0, NEVER, WRITTEN).astype(np.int8)
    agents, program = cluster.agents, cluster.machine.program
    known, where, counts = np.unique(stamps, return_inverse=True, return_counts=True)
    where = where.reshape(stamps.shape)
    found: dict[tuple[str, int, bool], int] = {}
    for i, value in enumerate(known.tolist()):
        if value == 0:
            continue
        agent, site = value >> AGENT_SHIFT, value & SITE_MASK
        flying = _is_flying(cluster, agent, value >> CLOCK_SHIFT & CLOCK_MASK)
        if flying:
            state[where == i] = FLYING
        key = (agents.name(agent), site, flying)
        found[key] = found.get(key, 0) + int(counts[i])
    writers = [
        {
            "who": who + (" (the phase of its mbarrier is not complete)" if flying else ""),
            "location": program.location(site),
            "elements": count,
        }
        for (who, site, flying), count in sorted(found.items(), key=lambda item: -item[1])
    ]
    return state, writers


def _is_flying(cluster: Cluster, agent: int, clock: int) -> bool:
    """Whether a copy that completes on an mbarrier has not been completed by its phase."""
    agents = cluster.agents
    if agents.unit_of(agent) != "barrier":
        return False
    index = (agent - 1) % agents.per_cta - agents.of(0, agents.warps) + 1
    for barrier in cluster.ctas[agents.rank(agent)].barriers.values():
        if barrier.index == index:
            return barrier.phase < clock
    return False


def _unknown(what: str, name: str, known: list[str]) -> str:
    there = f"there are {', '.join(known)}" if known else "there is none"
    return f"no {what} is called {name!r}; {there}"


# ------------------------------------------------------------------------------- tensor memory


def tensor_memory_names(program: Program) -> list[str]:
    return [view[0] for view in program.views if view[1] == "tmem"]


def tensor_memory(
    cta: Cta, column: int | str, count: int | None = None, dtype: str | None = None
) -> Tile:
    """Columns of tensor memory, ``[128, n]``, or a named buffer through its layout.

    ``column``: the first column, or the buffer's name; ``count`` 32-bit columns (32); ``dtype``
    float32, or a 16-bit one that has two elements in a column.
    """
    program = cta.machine.program
    tmem = cta.state.get("tmem")
    if tmem is None:
        raise DebugError(f"CTA {cta.label()} has not used tensor memory so far")
    if isinstance(column, str):
        view = next((v for v in program.views if v[0] == column and v[1] == "tmem"), None)
        if view is None:
            names = tensor_memory_names(program)
            raise DebugError(_unknown("buffer in tensor memory", column, names))
        label, _, first, shape, declared, layout = view
        kind: str = dtype or declared
        note = ""
        try:
            found = layouts.places(layout, shape)
            lanes, cols = found["TLane"], found["TCol"]
        except (ValueError, KeyError):
            note = "shown as lanes and columns: its layout is not understood"
            width = min(512, -(-math.prod(shape) * _bits(declared) // 32 // 128))
            lanes, cols = np.indices((128, width * 32 // _bits(kind)))
    else:
        first, note = column, ""
        if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first < 512:
            raise DebugError(f"tensor memory has columns 0 to 511, no {column!r}")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise DebugError(f"n is a number of columns, got {count!r}")
        kind = dtype or "float32"
        count = min(32 if count is None else count, 512 - first)
        if count < 1:
            raise DebugError(f"a block of tensor memory has at least one column, not {count}")
        label = f"columns {first}-{first + count - 1}"
        lanes, cols = np.indices((128, count * 32 // _bits(kind)))
    bits = _bits(kind)
    if bits not in (8, 16, 32):
        raise DebugError(f"a column of tensor memory holds 32 bits: {kind} does not fit it")
    at = first * 4 + cols * (bits // 8)
    if int(at.max()) >= 2048 or int(lanes.max()) >= 128:
        raise DebugError(f"{label} reaches beyond tensor memory (128 lanes of 512 columns)")
    raw = tmem.data.view(np.uint8)[lanes[..., None], at[..., None] + np.arange(bits // 8)]
    column_of = at // 4
    state, writers = None, []
    if cta.machine.checks:
        state, writers = _states(cta.cluster, tmem.shadow.writer[lanes // 16, column_of])
        if _queued(cta.cluster):
            note += "; " * bool(note) + "products that were issued may not be done"
    held = tmem.owner[int(column_of.min()) : int(column_of.max()) + 1]
    if not held.all():
        note += "; " * bool(note) + "not (all) allocated"
    place = f"tensor memory of CTA {cta.label()}, columns {int(column_of.min())} to "
    place += str(int(column_of.max()))
    return Tile(label, place, kind, as_numbers(raw, kind), state, writers, note)


def _queued(cluster: Cluster) -> bool:
    """Whether a warp has products queued in the tensor core."""
    for warp in (w for cta in cluster.ctas for w in cta.warps):
        pipe = warp.state.get("tcgen05")
        if pipe is not None and (pipe.batch or pipe.pipe.entries):
            return True
    return False


def allocations(cta: Cta) -> list[dict[str, Any]]:
    """Allocations of tensor memory: first column, columns, and the line that made them."""
    tmem: Any = cta.state.get("tmem")
    program = cta.machine.program
    return [
        {
            "cta": cta.label(),
            "column": start,
            "columns": held.columns,
            "allocated at": str(program.location(held.made & SITE_MASK) or ""),
        }
        for start, held in (sorted(tmem.allocations.items()) if tmem is not None else ())
    ]


# ------------------------------------------------------------------------------------ barriers


def plain_name(barrier: Any) -> str:
    """A barrier's name without its CTA: ``full[1]``, ``the CTA barrier``, ``named barrier 3``."""
    if isinstance(barrier, Rendezvous):
        return barrier.label
    at, program = barrier.offset - memory.RESERVED_SHARED, barrier.cta.machine.program
    for name, (_, start, nbytes, shape, _) in zip(
        shared_names(program), program.regions, strict=True
    ):
        if start <= at < start + nbytes:
            size = max(1, math.prod(shape))
            return f"{name}[{(at - start) // max(1, nbytes // size)}]" if size > 1 else name
    return f"byte{at}"


def barrier_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """All barriers of a cluster, as plain data.

    ``phase`` counts from 0: the phase that is under way. For mbarriers ``pending`` arrivals of
    ``count``, ``bytes`` that are expected and have not come, ``in flight`` bytes of copies under
    way; for the others the threads that have come, of those that are expected.
    """
    rows = []
    for cta in cluster.ctas:
        for _, barrier in sorted(cta.barriers.items()):
            rows.append(_mbarrier_row(cta, barrier))
        for _, rendezvous in sorted(cta.named.items()):
            live = 32 * sum(not w.exited for w in cta.warps)
            expected = live if rendezvous.everyone else rendezvous.expected
            rows.append(_rendezvous_row(cta.label(), rendezvous, expected))
    shared = cluster.state.get("cluster_barrier")
    if shared is not None:
        live = 32 * sum(not w.exited for cta in cluster.ctas for w in cta.warps)
        rows.append(_rendezvous_row("all", shared, live))
    return rows


def _named(waiters: list[tuple[Warp, str]]) -> str:
    """Warps in few words: ``warps 0-3 of CTA (0, 0) (parity 1)``."""
    groups: dict[tuple[str, str], list[int]] = {}
    for warp, how in waiters:
        groups.setdefault((warp.cta.label(), how), []).append(warp.id)
    return ", ".join(
        f"warp{'s' * (len(ids) > 1)} {ranges(sorted(ids))} of CTA {cta}"
        + (f" ({how})" if how else "")
        for (cta, how), ids in groups.items()
    )


def _mbarrier_row(cta: Cta, barrier: MBarrier) -> dict[str, Any]:
    site, who = barrier.last
    place = cta.machine.program.location(site)
    return {
        "barrier": plain_name(barrier),
        "cta": cta.label(),
        "phase": barrier.phase,
        "pending": barrier.pending,
        "count": barrier.count,
        "bytes": barrier.tx,
        "in flight": sum(barrier.flying.values()),
        "waiting": _named([(w, f"parity {p}") for w, p in barrier.waiters]),
        "last arrival": f"{who} at {place}" if who else "",
    }


def _rendezvous_row(cta: str, rendezvous: Rendezvous, expected: int) -> dict[str, Any]:
    return {
        "barrier": rendezvous.label,
        "cta": cta,
        "phase": rendezvous.phase,
        "pending": max(0, expected - rendezvous.threads),
        "count": expected,
        "bytes": 0,
        "in flight": 0,
        "waiting": _named([(w, "") for w in rendezvous.parked]),
        "last arrival": rendezvous.members[-1].name() if rendezvous.members else "",
    }


# ----------------------------------------------------------------------------------- positions


def site_of(program: Program, warp: Warp) -> int:
    """The site at which a warp stands."""
    return program.stops[warp.at][0] if 0 <= warp.at < len(program.stops) else 0


def location(warp: Warp) -> Location | None:
    """The kernel's line at which a warp stands; None before its first."""
    program = warp.machine.program
    return program.location(site_of(program, warp)) if warp.at >= 0 else None


def active_lanes(warp: Warp) -> str:
    """Which lanes run where a warp stands: ``all lanes``, ``lane 0``, ``lanes 0-15``."""
    if warp.code is None or warp.code.gi_frame is None or warp.at < 0:
        return ""
    active = active_mask(warp)
    if active.all():
        return "all lanes"
    lanes = [int(i) for i in np.flatnonzero(active)]
    return f"lane{'s' * (len(lanes) != 1)} {ranges(lanes)}"


def active_mask(warp: Warp) -> np.ndarray:
    """The lanes that run where a warp stands, as 32 truths."""
    program = warp.machine.program
    frame = warp.code.gi_frame if warp.code is not None else None
    everyone = np.ones(32, dtype=bool)
    if frame is None or not 0 <= warp.at < len(program.stops):
        return everyone
    _, _, mask, lane = program.stops[warp.at]
    name = lane if lane is not None else mask
    value = frame.f_locals.get(name) if name is not None else None
    if value is None:
        return everyone
    return np.arange(32) == int(value) if lane is not None else np.asarray(value, dtype=bool)


def positions(cluster: Cluster) -> list[dict[str, Any]]:
    """Where every warp of a cluster stands, and what it does there."""
    rows = []
    for cta in cluster.ctas:
        for warp in cta.warps:
            place = location(warp)
            rows.append(
                {
                    "warp": warp.id,
                    "cta": cta.label(),
                    "state": state_of(warp),
                    "at": str(place) if place else "",
                    "line": place.text.strip() if place else "",
                }
            )
    return rows


def tensor(machine: Machine, name: str) -> Tile:
    """A tensor in global memory, as the kernel sees it now."""
    names = [t.name for t in machine.tensors]
    if name not in names:
        raise DebugError(_unknown("tensor", name, names))
    index = names.index(name)
    held, (_, shape, dtype) = machine.tensors[index], machine.program.params[index]
    raw = held.data[: held.nbytes].reshape(*shape, held.itemsize)
    values = as_numbers(raw, dtype).copy()
    written = machine.program.written
    note = ""
    if written is not None and index not in written:
        note = "an input: the kernel writes nothing into it"
    elif not held.written:
        # which tensors are inputs alone is not always known: what holds numbers may be one
        blank = values.dtype.kind == "f" and bool(np.isnan(values).all())
        note = "not written so far" if blank else "as it was passed: nothing has written it so far"
    return Tile(name, "global memory", dtype, values, note=note)
