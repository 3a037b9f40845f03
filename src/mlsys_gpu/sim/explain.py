"""Where a number of an output came from: who wrote it, and what was multiplied and added for it.

The kernel runs again, under the same schedule and seed, with every write to the element and every
product of the tensor core noted; and three times more on inputs that hold their own coordinates
(:mod:`mlsys_gpu.sim.machine.provenance`), which tell the elements that met from where they lay.
Which row and column of which product the element is, the values tell: a run of the output's
elements is looked up among the accumulators.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlsys_gpu.sim import page
from mlsys_gpu.sim.arguments import bind
from mlsys_gpu.sim.inspect_state import as_numbers
from mlsys_gpu.sim.machine import host_array, memory
from mlsys_gpu.sim.machine.core import Machine, Warp, coverage, one_blas_thread
from mlsys_gpu.sim.machine.numerics import STORAGE, bf16_to_f32, f32_to_bf16
from mlsys_gpu.sim.machine.provenance import Operand, Product, marked, origin
from mlsys_gpu.sim.program import Program
from mlsys_gpu.sim.report import Location

#: Distance from 1 to the next larger number, by dtype.
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclass
class Explanation:
    """Where a number came from; prints as text, shows as HTML, and ``to_dict()`` is for machines.

    ``value`` is what the output holds at ``element``, ``expected`` what the reference has. ``map``
    shows which tiles of the output are wrong (``x``: more than nine elements in ten), wrong in part
    (``~``) and right (``o``), each ``tile`` elements large. ``writes`` lists who wrote the element;
    ``terms`` the products that were added for it, in order, each with the elements of its operands
    that met; ``missing`` and ``repeated`` are ranges along K that were left out, or added more than
    once. ``sum`` is the sum of the terms. ``conclusion`` says in sentences what follows.
    """

    kernel: str
    tensor: str
    element: tuple[int, ...]
    value: float
    expected: float | None = None
    wrong: int | None = None
    elements: int = 0
    tile: list[int] = field(default_factory=list)
    map: list[str] = field(default_factory=list)
    writes: list[dict[str, Any]] = field(default_factory=list)
    terms: list[dict[str, Any]] = field(default_factory=list)
    missing: list[list[int]] = field(default_factory=list)
    repeated: list[list[int]] = field(default_factory=list)
    sum: float | None = None
    conclusion: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The element, as ``D[3, 17]``."""
        return f"{self.tensor}[{', '.join(str(i) for i in self.element)}]"

    def to_dict(self) -> dict[str, Any]:
        def plain(row: dict[str, Any]) -> dict[str, Any]:
            place = row["location"]
            return row | {"location": place.to_dict() if place is not None else None}

        return {
            "kernel": self.kernel,
            "tensor": self.tensor,
            "element": list(self.element),
            "value": _finite(self.value),
            "expected": _finite(self.expected),
            "wrong": self.wrong,
            "elements": self.elements,
            "tile": self.tile,
            "map": self.map,
            "writes": [plain(row) for row in self.writes],
            "terms": [plain(row) for row in self.terms],
            "missing": self.missing,
            "repeated": self.repeated,
            "sum": _finite(self.sum),
            "conclusion": self.conclusion,
        }

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent, sort_keys=True)

    def _head(self) -> str:
        text = f"{self.name} is {_short(self.value)}"
        if self.expected is not None:
            text += f", and should be {_short(self.expected)}"
        return text

    def _where(self) -> str:
        if self.wrong is None:
            return ""
        return f"{self.wrong} of {self.elements} elements of {self.tensor} are wrong"

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {self._head()}"]
        if self.wrong is not None:
            lines.append(f"  {self._where()}")
            if len(self.map) > 1 or len(self.map[0]) > 1:
                rows, cols = self.tile
                lines.append(
                    f"    by {rows} x {cols} elements (x wrong, ~ wrong in part, o right):"
                )
                lines += [f"      {row}" for row in self.map]
        for row in self.writes:
            lines.append(f"  written by {row['who']} at {row['location']}")
            lines.append(f"    {row['location'].line:>4} | {row['location'].text.strip()}")
        if self.terms:
            lines.append("  added for it, in this order:")
            shown = self.terms if len(self.terms) <= 12 else self.terms[:8]
            for row in shown:
                lines.append(f"    {row['text']}, {row['what']} at {row['location']}")
            if len(shown) < len(self.terms):
                lines.append(f"    … and {len(self.terms) - len(shown)} more")
        lines += [f"  {sentence}" for sentence in self.conclusion]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        bad = self.expected is not None and not _same(self.value, self.expected)
        tag = page.tag("wrong number" if bad else "number", "bad" if bad else "info")
        parts = [f'<p class="o-head">{tag} {page.esc(self.kernel)}: {page.esc(self._head())}</p>']
        parts += [
            f"<p><strong>{page.esc(s[0].upper() + s[1:])}.</strong></p>" for s in self.conclusion
        ]
        if self.map:
            label = f"{self._where()}; map of tiles"
            parts.append(page.title(self._where()) + page.cell_map(self.map, label))
            rows, cols = self.tile
            parts.append(f'<p class="o-muted">A cell is {rows} × {cols} elements.</p>')
        parts.append(page.title("Written by"))
        written = "".join(
            f"<li>{page.esc(r['who'])} at {page.esc(r['location'])}"
            f"{page.source_line(r['location'])}</li>"
            for r in self.writes
        )
        parts.append(f"<ul>{written or '<li>nothing wrote it</li>'}</ul>")
        if self.terms:
            rows = [
                [r["text"], _short(r["value"]), r["what"], str(r["location"])] for r in self.terms
            ]
            header = ["elements that met", "sum", "product", "at"]
            parts.append(page.table(header, rows, "Added for it, in this order", [0]))
        return page.page("mg-explain", "".join(parts))


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None


def _short(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.6g}"


def _same(a: float, b: float) -> bool:
    return a == b or (np.isnan(a) and np.isnan(b))


# ------------------------------------------------------------------------------------ the runs


class _Writers:
    """Notes who writes one element, as a debugger of the machine (see :mod:`.debugger`)."""

    def __init__(self) -> None:
        self.current: Warp | None = None
        self.writes: list[tuple[Warp, int]] = []

    def began(self, machine: Machine) -> None: ...

    def line(self, warp: Warp) -> None:
        self.current = warp

    def phase(self, barrier: Any) -> None: ...

    def finding(self, finding: Any, warp: Warp | None) -> None: ...

    def exited(self, warp: Warp) -> None: ...

    def wrote(self) -> None:
        if self.current is not None:
            self.writes.append((self.current, self.current.s))


class _Watched(memory.Tensor):
    """A tensor that tells :class:`_Writers` of the writes that reach one element."""

    watch: tuple[_Writers, int] | None = None

    def note_write(self, index: Any, wide: bool, cta: int) -> tuple[bool, int]:
        self._note(index, wide)
        return super().note_write(index, wide, cta)

    def note_atomic(self, index: Any, wide: bool, cta: int) -> None:
        self._note(index, wide)
        super().note_atomic(index, wide, cta)

    def _note(self, index: Any, wide: bool) -> None:
        if self.watch is not None:
            writers, byte = self.watch
            unit = byte // (16 if wide else self.grain)
            rows = np.arange(self.size // (16 if wide else self.grain))
            touched = rows[index] if isinstance(index, slice) else np.asarray(index)
            if (touched == unit).any():
                writers.wrote()


class _Trace(list[Product]):
    """Products of the clusters that hold one CTA."""

    def __init__(self, cta: int | None):
        super().__init__()
        self.cta = cta

    def append(self, product: Product) -> None:
        if self.cta is None or any(c.index == self.cta for c in product.warp.cluster.ctas):
            super().append(product)


def _tensors(program: Program, hosts: Sequence[np.ndarray], kind: Any = memory.Tensor) -> list[Any]:
    return [
        kind(i, name, host, np.dtype(STORAGE[dtype]).itemsize, shape, program.grain)
        for i, (host, (name, shape, dtype)) in enumerate(zip(hosts, program.params, strict=True))
    ]


def _run(machine: Machine) -> None:
    with one_blas_thread(), np.errstate(all="ignore"):
        machine.run()


def explain(
    kernel: Any,
    *arrays: Any,
    output: Any = None,
    reference: Any = None,
    element: Sequence[int] | None = None,
    tolerance: float | None = None,
    schedule: str = "lazy",
    schedule_seed: int = 0,
    readings: dict[str, str] | None = None,
    arch: str | None = None,
) -> Explanation:
    """Where a number that a kernel computes comes from.

    Args:
        kernel: a TIRx ``PrimFunc``, or a Program.
        arrays: its tensors, as for :func:`mlsys_gpu.simulate`; they are not changed.
        output: the array among them, or its parameter's name; the last one if left out.
        reference: what the output should hold, of its shape.
        element: the element to explain; the one that is furthest from the reference if left out.
        tolerance: how far from the reference an element is still right: relative to it, and to the
            root mean square of the reference. Four times the rounding of the dtype if left out.
        schedule, schedule_seed, readings: as for :func:`mlsys_gpu.simulate`: a wrong number that
            comes of a race needs the schedule that showed it.

    Raises:
        ValueError: no element is wrong and none is named; an element or output that do not exist.
    """
    from mlsys_gpu import sim
    from mlsys_gpu.sim.debugger import instrumented

    _check(reference, element, tolerance)
    program, given = bind(instrumented(sim.compile(kernel, arch)), arrays)
    hosts = [host_array(a, *p).copy() for a, p in zip(given, program.params, strict=True)]
    which = _output(program, given, output)
    name, shape, dtype = program.params[which]

    tensors = _tensors(program, hosts)
    first = Machine(program, tensors, schedule, schedule_seed, True, readings)
    _run(first)
    held = tensors[which]
    values = as_numbers(held.data[: held.nbytes].reshape(*shape, held.itemsize), dtype)
    values = values.astype(np.float64).reshape(shape)
    made = Explanation(program.name, name, (), 0.0, elements=values.size)
    wanted = None if reference is None else np.asarray(reference, dtype=np.float64)
    if wanted is not None and wanted.shape != values.shape:
        raise ValueError(f"the reference has shape {wanted.shape}, {name} has {values.shape}")
    made.element = _chosen(made, values, wanted, element, tolerance, dtype, held)
    made.value = float(values[made.element])
    made.expected = None if wanted is None else float(wanted[made.element])

    cta = _who_wrote(made, program, hosts, which, schedule, schedule_seed, readings)
    if cta is not None and "mma_instructions" in first.counters:
        runs = _Runs(program, hosts, (schedule, schedule_seed, readings), cta)
        _sum(made, runs, values, dtype)
    elif cta is not None:
        _copied(made, program, hosts, which, (schedule, schedule_seed, readings))
    return made


def _check(reference: Any, element: Any, tolerance: Any) -> None:
    """Raise ``ValueError`` for what is no reference, element or tolerance."""
    whole = (int, np.integer)
    if element is not None and not (
        isinstance(element, (tuple, list))
        and all(isinstance(i, whole) and not isinstance(i, bool) for i in element)
    ):
        raise ValueError(f"element is a tuple of integers, one a dimension, not {element!r}")
    number = isinstance(tolerance, (int, float, np.number)) and not isinstance(tolerance, bool)
    if tolerance is not None and not (number and tolerance >= 0):
        raise ValueError(f"tolerance is a number that is not negative, not {tolerance!r}")
    if reference is not None and not hasattr(reference, "shape"):
        raise ValueError(f"reference is an array of the output's shape, not {reference!r}")


def _output(program: Program, arrays: Sequence[Any], output: Any) -> int:
    names = [name for name, _, _ in program.params]
    if output is None:
        return max(i for i in range(len(names)) if i not in program.workspaces)
    if isinstance(output, str):
        if output not in names:
            raise ValueError(f"no parameter is called {output!r}; there are {', '.join(names)}")
        return names.index(output)
    for i, array in enumerate(arrays):
        if array is output or np.shares_memory(host_array(array, *program.params[i]), output):
            return i
    raise ValueError("output is none of the arrays that the kernel was given: name its parameter")


def _chosen(
    made: Explanation,
    values: np.ndarray,
    wanted: np.ndarray | None,
    element: Sequence[int] | None,
    tolerance: float | None,
    dtype: str,
    tensor: memory.Tensor,
) -> tuple[int, ...]:
    """The element to explain; fills in what is wrong of the whole output."""
    shape = values.shape
    if element is not None:
        index = tuple(int(i) for i in element)
        if len(index) != len(shape) or any(
            not 0 <= i < n for i, n in zip(index, shape, strict=True)
        ):
            raise ValueError(f"{made.tensor} has shape {shape}: there is no element {index}")
    if wanted is None:
        if element is None:
            raise ValueError("name an element, or pass a reference to find a wrong one")
        return index
    relative = 4 * _EPS.get(dtype, 0.0) if tolerance is None else tolerance
    scale = float(np.sqrt(np.mean(wanted[np.isfinite(wanted)] ** 2))) or 1.0
    with np.errstate(all="ignore"):
        error = np.abs(values - wanted) - relative * (np.abs(wanted) + scale)
    error = np.where((values == wanted) | (np.isnan(values) & np.isnan(wanted)), -1.0, error)
    error = np.where(np.isnan(error), np.inf, error)
    bad = error > 0
    made.wrong = int(bad.sum())
    seen = coverage(tensor)
    rows = bad.reshape(-1, shape[-1])
    made.tile = list(seen.get("tile") or rows.shape)
    for r in range(0, rows.shape[0], made.tile[0]):
        line = ""
        for c in range(0, rows.shape[1], made.tile[1]):
            part = rows[r : r + made.tile[0], c : c + made.tile[1]]
            line += "x" if part.mean() > 0.9 else "~" if part.any() else "o"
        made.map.append(line)
    if element is not None:
        return index
    if not made.wrong:
        raise ValueError(
            f"all {values.size} elements of {made.tensor} are right; name the element to explain"
        )
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(error)), shape))


def _who_wrote(
    made: Explanation, program: Program, hosts: Any, which: int, schedule: str, seed: int, readings
) -> int | None:
    """Find who wrote the element; returns the linear index of the last writer's CTA."""
    tensors = _tensors(program, hosts, _Watched)
    held = tensors[which]
    writers = _Writers()
    flat = int(np.ravel_multi_index(made.element, held.shape)) if held.shape else 0
    held.watch = (writers, flat * held.itemsize)
    machine = Machine(program, tensors, schedule, seed, True, readings)
    machine.watch = writers
    _run(machine)
    seen: dict[tuple[str, int], int] = {}
    for warp, site in writers.writes:
        who = f"warp {warp.id} of CTA {warp.cta.label()}"
        seen[who, site] = seen.get((who, site), 0) + 1
    for (who, site), times in seen.items():
        place = program.location(site) or Location("", 0)
        made.writes.append({"who": who, "location": place, "times": times})
    if not writers.writes:
        made.conclusion.append(f"nothing wrote {made.name}: it holds what it held before the run")
        return None
    if len(seen) > 1:
        made.conclusion.append(f"{len(seen)} different places wrote it; the last one stays")
    return writers.writes[-1][0].cta.index


# ------------------------------------------------------------------------- products and their sum


class _Runs:
    """The products of one cluster: their numbers, and the coordinates of their operands."""

    def __init__(self, program: Program, hosts: Any, options: tuple[str, int, Any], cta: int):
        self.program, self.hosts, self.options, self.cta = program, hosts, options, cta
        self.tensors = _tensors(program, hosts)
        self.real = self._products(self.tensors)
        self.coordinates: list[tuple[Operand | None, Operand | None]] = []
        marks = []
        for kind in ("last", "row", "hash"):
            copies = [marked(tensor, kind) for tensor in _tensors(program, hosts)]
            try:
                marks.append(self._products(copies))
            except Exception:  # control that depends on data may do anything on these
                marks = []
                break
        same = marks and all([p.site for p in run] == [p.site for p in self.real] for run in marks)
        for i, product in enumerate(self.real):
            if not same:
                self.coordinates.append((None, None))
                continue
            found = []
            for side, letter in enumerate(("a", "b")):
                bits = [getattr(run[i], letter).view(np.uint16).astype(np.uint32) for run in marks]
                turned = bool(product.transposed[side])
                known = origin(letter.upper(), self.tensors, bits[0], bits[1], bits[2], turned)
                found.append(known)
            self.coordinates.append((found[0], found[1]))

    def _products(self, tensors: Any) -> _Trace:
        schedule, seed, readings = self.options
        machine = Machine(self.program, tensors, schedule, seed, False, readings)
        machine.trace = _Trace(self.cta)
        _run(machine)
        return machine.trace

    def lives(self) -> list[list[int]]:
        """The products (by index) that were added to each other, for every use of an accumulator.

        A use begins with a product that overwrites, or with one of other rows of the operands than
        the last (registers that threads have cleared).
        """
        found: list[list[int]] = []
        current: dict[Any, list[int]] = {}
        for i, product in enumerate(self.real):
            before = current.get(product.accumulator)
            if before is None or not product.accumulate or self._moved(before[-1], i):
                before = current[product.accumulator] = []
                found.append(before)
            before.append(i)
        return found

    def _moved(self, one: int, other: int) -> bool:
        for a, b in zip(self.coordinates[one], self.coordinates[other], strict=True):
            if a is None or b is None or a.across.shape[0] != b.across.shape[0]:
                continue
            if (a.across[:, 0] != b.across[:, 0]).any():
                return True
        return False


def _f32(bits: np.ndarray, dtype: str) -> np.ndarray:
    if bits.dtype == np.float16:
        return bits.astype(np.float32)
    if dtype == "bfloat16":
        return bf16_to_f32(bits)
    return bits.view(np.float16).astype(np.float32)


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return bf16_to_f32(f32_to_bf16(values)).astype(np.float64)
    return values.astype(STORAGE[dtype]).astype(np.float64)


def _sum(made: Explanation, runs: _Runs, values: np.ndarray, dtype: str) -> None:
    """Find the accumulator that the element is a copy of, and what was added to it."""
    if dtype not in _EPS or values.ndim < 1:
        return
    window, at = _window(made.element, values)
    lives = runs.lives()
    # Whole sums first: a kernel may keep a part of a sum on purpose.
    places = [(life, place) for life in lives for place in _places(runs, life, window, dtype, True)]
    if not places:
        places = [
            (life, place) for life in lives for place in _places(runs, life, window, dtype, False)
        ]
    for life, (count, m, n, turned) in places[:1]:
        m, n = (m + at, n) if turned else (m, n + at)
        _terms(made, runs, life[:count], m, n)
        if count < len(life):
            _read_early(made, runs, life, count)
        return
    made.conclusion.append(
        f"the tensor core's accumulators hold {made.name} at no time, neither whole nor after a "
        "part of their products: the kernel has computed with it (scaled it, say, or added to it), "
        "or written something else"
    )


def _places(
    runs: _Runs, life: list[int], window: np.ndarray, dtype: str, whole: bool
) -> list[tuple[int, int, int, bool]]:
    """Where an accumulator holds a run of numbers: after how many products, row, column, turned.

    ``whole``: after all of its products, else after fewer, the most first.
    """
    found = []
    with np.errstate(all="ignore"):
        total = np.zeros((runs.real[life[0]].a.shape[0], runs.real[life[0]].b.shape[0]))
        for count, i in enumerate(life, 1):
            product = runs.real[i]
            a, b = _f32(product.a, product.dtypes[0]), _f32(product.b, product.dtypes[1])
            total = total + a.astype(np.float64) @ b.astype(np.float64).T
            if whole == (count == len(life)):
                place = _find(_rounded(total.astype(np.float32), dtype), window, dtype)
                if place is not None:
                    found.append((count, *place))
    return found[::-1]


def _read_early(made: Explanation, runs: _Runs, life: list[int], count: int) -> None:
    """Say that the element is what an accumulator held before all of its products were added."""
    following = runs.real[life[count]]
    place = runs.program.location(following.site)
    before = f"K {_spans(made.missing)} was" if made.missing else "the rest was"
    made.conclusion.insert(
        0,
        f"{made.name} is the accumulator as it was after {count} of its {len(life)} products: it "
        f"was read before {before} added (by the next product, {place}): the read does not wait "
        "for the last product, or waits for a phase of its barrier that was over before",
    )


def _window(element: tuple[int, ...], values: np.ndarray) -> tuple[np.ndarray, int]:
    """Elements of the output along its last dimension, and the element's place among them."""
    row = values[element[:-1]]
    first = min(element[-1] // 8 * 8, max(0, row.size - 8))
    return row[first : first + 8], element[-1] - first


def _find(matrix: np.ndarray, window: np.ndarray, dtype: str) -> tuple[int, int, bool] | None:
    """Where a matrix holds a run of numbers: row, column, and whether the run goes down a column.

    Sums differ in their last bits by the order of their terms.
    """
    size = window.size
    if not np.isfinite(window).all() or np.unique(window).size == 1 < size:
        return None
    slack = 2 * _EPS[dtype] * np.abs(window) + 1e-5 * float(np.abs(window).max())
    for turned in (False, True):
        grid = matrix.T if turned else matrix
        if grid.shape[1] < size:
            continue
        views = np.lib.stride_tricks.sliding_window_view(grid, size, axis=1)
        places = np.argwhere((np.abs(views - window) <= slack).all(axis=-1))
        if len(places):
            row, column = (int(n) for n in places[0])
            return (column, row, True) if turned else (row, column, False)
    return None


def _terms(made: Explanation, runs: _Runs, life: list[int], m: int, n: int) -> None:
    """What was added to row ``m``, column ``n`` of an accumulator."""
    total = 0.0
    along: list[int] = []
    rows: set[tuple[str, int]] = set()
    apart, unknown = 0, 0
    for i in life:
        product, (a, b) = runs.real[i], runs.coordinates[i]
        left = _f32(product.a[m : m + 1], product.dtypes[0])[0].astype(np.float64)
        right = _f32(product.b[n : n + 1], product.dtypes[1])[0].astype(np.float64)
        value = float(left @ right)
        total += value
        texts = [_met(x, row, letter) for x, row, letter in ((a, m, "A"), (b, n, "B"))]
        for x, row in ((a, m), (b, n)):
            if x is None:
                unknown += 1
            else:
                rows.update((x.tensor.name, int(r)) for r in np.unique(x.across[row]) if r >= 0)
        if a is not None and b is not None:
            apart += int((a.along[m] != b.along[n]).sum())
        lead, at = (a, m) if a is not None else (b, n)
        if lead is not None:
            along += [int(k) for k in lead.along[at] if k >= 0]
        made.terms.append(
            {
                "text": " · ".join(texts),
                "what": product.what,
                "value": value,
                "location": runs.program.location(product.site) or Location("", 0),
            }
        )
    made.sum = total
    _conclude(made, runs, life, (m, n), along, rows, apart)


def _met(operand: Operand | None, row: int, letter: str) -> str:
    """The elements of an operand's row: ``A[3, 0:64]``."""
    if operand is None:
        return f"operand {letter} (computed by the kernel)"
    along, across = operand.along[row], operand.across[row]
    known = along >= 0
    if not known.any():
        return "zeros past the tensor's edge"
    parts = []
    for index in dict.fromkeys(across[known].tolist()):
        here = [int(k) for k in along[known & (across == index)]]
        for low, high in _ranges(here)[:4]:
            where = f"{index}, {low}:{high}" if operand.last else f"{low}:{high}, {index}"
            parts.append(f"{operand.tensor.name}[{where}]")
    more = ", …" if len(parts) > 4 else ""
    return ", ".join(parts[:4]) + more


def _ranges(numbers: Sequence[int]) -> list[list[int]]:
    """Runs of successive numbers as ``[first, one past the last]``, in their order."""
    found: list[list[int]] = []
    for n in numbers:
        if found and n == found[-1][1]:
            found[-1][1] += 1
        else:
            found.append([n, n + 1])
    return found


def _conclude(
    made: Explanation,
    runs: _Runs,
    life: list[int],
    place: tuple[int, int],
    along: list[int],
    rows: set[tuple[str, int]],
    apart: int,
) -> None:
    """Sentences on what the terms have in common, lack, or have twice."""
    m, n = place
    said = made.conclusion
    says = [f"{name} row {row}" for name, row in sorted(rows)]
    if says:
        what = " and ".join(says)
        said.append(f"{made.name} is row {m}, column {n} of a product: the sum over K of {what}")
    a, b = next(
        ((a, b) for a, b in (runs.coordinates[i] for i in life) if a is not None and b is not None),
        (None, None),
    )
    if apart:
        said.append(f"at {apart} positions along K the two operands have different coordinates")
    if a is None or b is None or not along:
        return
    extent = a.tensor.shape[-1] if a.last else int(np.prod(a.tensor.shape[:-1]))
    counts = np.bincount(along, minlength=extent)[:extent]
    made.missing = _ranges(np.flatnonzero(counts == 0).tolist())
    made.repeated = _ranges(np.flatnonzero(counts > 1).tolist())
    row_a, row_b = int(a.across[m].max()), int(b.across[n].max())
    if not made.missing and not made.repeated:
        said.append(f"all {extent} coordinates of K were added, once each")
        _other_rows(made, runs, (a, b), (row_a, row_b), extent)
        return
    lacks = _dot(runs, a, b, row_a, row_b, np.flatnonzero(counts == 0))
    extra = _dot(runs, a, b, row_a, row_b, np.repeat(np.arange(extent), np.maximum(counts - 1, 0)))
    if made.missing:
        said.append(
            f"K {_spans(made.missing)} of {extent} was left out: that would add {lacks:.6g}"
        )
    if made.repeated:
        said.append(f"K {_spans(made.repeated)} was added more than once: {extra:.6g} too much")
    mended = (made.sum or 0.0) + lacks - extra
    text = f"with each coordinate of K once the sum is {mended:.6g}"
    if made.expected is not None and not apart:
        close = abs(mended - made.expected) <= 0.01 * (abs(made.expected) + abs(lacks) + abs(extra))
        text += ", which is what it should be" if close else ""
    said.append(text)


def _other_rows(
    made: Explanation,
    runs: _Runs,
    operands: tuple[Operand, Operand],
    rows: tuple[int, int],
    extent: int,
) -> None:
    """Say where the rows of the operands that the element's own place names give what is expected.

    That is so for a product ``D = A @ B.T``; where it is not, nothing is said.
    """
    a, b = operands
    if made.expected is None or len(made.element) < 2 or rows == made.element[-2:]:
        return
    try:
        right = _dot(runs, a, b, made.element[-2], made.element[-1], np.arange(extent))
    except IndexError:
        return
    if abs(right - made.expected) > 0.01 * abs(made.expected) + 1e-6:
        return
    wanted = zip((a, b), rows, made.element[-2:], strict=True)
    text = " and ".join(
        f"{x.tensor.name} row {want} (not {got})" for x, got, want in wanted if got != want
    )
    made.conclusion.append(f"it should be the sum of {text}: that is {right:.6g}")


def _dot(runs: _Runs, a: Operand, b: Operand, row_a: int, row_b: int, ks: np.ndarray) -> float:
    """The sum of products of two rows of the input tensors over some coordinates of K."""
    lines = []
    for operand, row in ((a, row_a), (b, row_b)):
        tensor = operand.tensor
        _, shape, dtype = runs.program.params[tensor.index]
        raw = tensor.data[: tensor.nbytes].reshape(-1, shape[-1], tensor.itemsize)
        matrix = as_numbers(raw, dtype)
        line = matrix[row] if operand.last else matrix[:, row]
        lines.append(line[ks].astype(np.float64))
    return float(lines[0] @ lines[1])


def _spans(ranges: list[list[int]]) -> str:
    parts = [f"{low} to {high - 1}" if high - low > 1 else str(low) for low, high in ranges[:4]]
    return ", ".join(parts) + (", …" if len(ranges) > 4 else "")


# ------------------------------------------------------------------------------------- copies


def _copied(
    made: Explanation, program: Program, hosts: Any, which: int, options: tuple[str, int, Any]
) -> None:
    """Find whether the element is a copy of an input's."""
    schedule, seed, readings = options
    found = []
    for kind in ("last", "row", "hash"):
        tensors = [marked(tensor, kind) for tensor in _tensors(program, hosts)]
        machine = Machine(program, tensors, schedule, seed, False, readings)
        try:
            _run(machine)
        except Exception:  # control that depends on data may do anything on these
            return
        held = tensors[which]
        if held.itemsize != 2:
            return
        flat = int(np.ravel_multi_index(made.element, held.shape))
        found.append(held.data.view(np.uint16)[flat : flat + 1].reshape(1, 1).astype(np.uint32))
    last, row, mark = found
    operand = origin("A", _tensors(program, hosts), last, row, mark, False)
    if operand is not None and operand.along[0, 0] >= 0:
        tensor = operand.tensor
        shape = tensor.shape[:-1]
        outer = np.unravel_index(int(row[0, 0]), shape) if shape else ()
        index = ", ".join(str(int(i)) for i in (*outer, last[0, 0]))
        made.conclusion.append(f"{made.name} is a copy of {tensor.name}[{index}]")
