"""Which elements of the input tensors the tensor core multiplied with each other.

A descriptor with a wrong swizzle, or a K step that advances too far, leaves every access in bounds
and ordered; only the numbers are wrong. So a kernel in which nothing else was found runs again, its
first cluster alone, on inputs whose 16-bit elements hold their own coordinates instead of numbers:
once the last coordinate, once the others, once a hash of both and of the tensor. Where an operand's
three patterns fit together, they say which element of which tensor lies there; where they do not,
the operand has been computed, and nothing is said about it.

Then, for every product:

* all rows of an operand have the same coordinate at one position of K, and one row of the operand
  keeps its own coordinate over K (else the layout in the descriptor is not that of the tile);
* A and B advance together along K;
* no coordinate of K is added twice to one accumulator, and none is left out between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mlsys_gpu.sim.machine import memory
from mlsys_gpu.sim.machine.core import Machine, Stop, Warp
from mlsys_gpu.sim.program import Program

LAYOUT_FIX = (
    "the descriptor's swizzle, leading and stride offsets must be those of the layout in which the "
    "tile was written, and each K step must advance the start address by the bytes of its 16 "
    "values (32), within one row of the swizzle"
)
STEP_FIX = (
    "advance the start address of both descriptors by the bytes of one K step: 16 values of 2 "
    "bytes are 32 bytes, 2 in the descriptor's units of 16 bytes; where the descriptors do "
    "advance, see that each turn of the K loop copies its own columns of A and B into the tile"
)


@dataclass
class Product:
    """One product as the tensor core did it: its operands' bit patterns, ``[rows, k]``."""

    warp: Warp
    site: int
    what: str
    accumulator: Any
    accumulate: bool
    a: np.ndarray
    b: np.ndarray
    #: The 16-byte rows of shared memory that they came from; None for registers.
    rows: tuple[np.ndarray | None, np.ndarray | None]
    transposed: tuple[bool | None, bool | None]
    dtypes: tuple[str, str]


@dataclass
class Operand:
    """Where an operand's elements come from: coordinates ``[rows, k]`` (-1 where unknown)."""

    name: str
    tensor: memory.Tensor
    sources: np.ndarray  # index of the tensor that each element comes from, -1 where unknown
    along: np.ndarray  # the coordinate that K runs over
    across: np.ndarray  # the other one: rows of the operand
    last: bool  # K runs over the tensor's last dimension
    flat: np.ndarray  # the element's place in the tensor, counted row by row

    @cached_property
    def stride(self) -> int:
        """Between neighbours along K: the heads of ``V[batch, key, head, :]``, say, else 1."""
        return max(1, int(np.gcd.reduce(np.diff(self.along[0]))))

    def element(self, tensors: list[memory.Tensor], row: int, k: int) -> str:
        """``A[3, 17]``: the element at a position of the operand."""
        tensor = tensors[int(self.sources[row, k])]
        index = np.unravel_index(int(self.flat[row, k]), tensor.shape)
        return f"{tensor.name}[{', '.join(str(int(i)) for i in index)}]"

    def span(self, numbers: Any) -> str:
        """``A[:, 16:24]``: a range along K."""
        low, high = int(min(numbers)), int(max(numbers)) + 1
        return f"{self.tensor.name}[{f':, {low}:{high}' if self.last else f'{low}:{high}, :'}]"


#: The coordinates of K that one accumulator holds, for each pair of tensors multiplied.
Life = dict[tuple[Any, ...], set[int]]


def _hash(tensor: int, row: np.ndarray, last: np.ndarray) -> np.ndarray:
    """16 bits of a coordinate, by which a copied element is told from a computed one."""
    columns = np.asarray(last, dtype=np.uint32) * np.uint32(0x9E3779B1)
    columns = columns ^ np.uint32(((tensor + 1) * 0xC2B2AE3D) & 0xFFFFFFFF)
    mixed = columns ^ (np.asarray(row, dtype=np.uint32) * np.uint32(0x85EBCA77))
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x2C1B3C6D)
    mixed ^= mixed >> np.uint32(12)
    return mixed.astype(np.uint16)


def marked(tensor: memory.Tensor, kind: str) -> memory.Tensor:
    """A copy of a tensor; its 16-bit elements hold ``last``, ``row`` or ``hash``."""
    data = tensor.source[: tensor.nbytes]
    if tensor.itemsize == 2 and tensor.shape and max(tensor.shape) <= 1 << 16:
        rows, width = int(np.prod(tensor.shape[:-1])), tensor.shape[-1]
        if rows <= 1 << 16:
            last, row = np.arange(width)[None, :], np.arange(rows)[:, None]
            values = np.empty((rows, width), dtype=np.uint16)
            if kind == "hash":
                block = max(1, (1 << 16) // width)  # of rows, which stay in the caches
                for i in range(0, rows, block):
                    values[i : i + block] = _hash(tensor.index, row[i : i + block], last)
            else:
                values[...] = last if kind == "last" else row
            data = values.reshape(-1).view(np.uint8)
    return memory.Tensor(
        tensor.index, tensor.name, data, tensor.itemsize, tensor.shape, tensor.grain
    )


def examine(machine: Machine, program: Program, tensors: list[memory.Tensor]) -> None:
    """Report what the products of the first cluster multiplied, where it does not fit together."""
    runs = []
    for kind in ("last", "row", "hash"):
        seen: list[Product] = []
        copies = [marked(tensor, kind) for tensor in tensors]
        again = Machine(program, copies, "eager", 0, False)
        again.trace = seen
        try:
            again.run(clusters=1)
        except Exception:  # a kernel whose control depends on its data may do anything on these
            return
        if again.findings:
            return
        runs.append(seen)
    if len({len(run) for run in runs}) != 1:
        return
    lives: dict[Any, Life] = {}
    for products in zip(*runs, strict=True):
        if len({p.site for p in products}) != 1:
            return
        try:
            _examine_product(machine, tensors, products, lives)
        except Stop:
            return


def _examine_product(machine: Machine, tensors, products, lives) -> None:
    first = products[0]
    if not first.accumulate:  # a new sum, whatever becomes of this product's own operands
        lives[first.accumulator] = {}
    operands = []
    for i, name in enumerate(("a", "b")):
        last, row, mark = (getattr(p, name).astype(np.uint32) for p in products)
        operand = origin(name.upper(), tensors, last, row, mark, bool(first.transposed[i]))
        if operand is not None:
            rows = first.rows[i]
            if rows is not None:
                _distinct(machine, first, operand, rows)
            elif _wrong(operand).any():  # fragments may be put together in any order
                operands.append(None)
                continue
            _consistent(machine, tensors, first, operand)
            _format(machine, first, operand, first.dtypes[i])
        operands.append(operand)
    a, b = operands
    if a is not None and b is not None:
        _together(machine, first, a, b)
    lead = a or b
    if lead is None:
        return
    along = lead.along[0]
    pair = tuple([None if operand is None else operand.tensor for operand in operands])
    before = lives.setdefault(first.accumulator, {}).setdefault(pair, set())
    _once(machine, first, lead, along, before, pair)


def origin(name: str, tensors, last, row, mark, transposed: bool) -> Operand | None:
    """Where an operand was copied from, or None where it was computed."""
    blank = (mark == 0) & (row == 0) & (last == 0)  # filled with zeros past an edge
    sources = np.full(mark.shape, -1)
    fits = []
    for tensor in tensors:
        if tensor.itemsize == 2:
            fits.append((tensor, mark == _hash(tensor.index, row, last)))
            if fits[-1][1].all():  # all of it: what fits others does so by chance
                fits = fits[-1:]
                break
    # The tensor that most elements fit comes first: a hash of 16 bits fits by chance now and then.
    for tensor, here in sorted(fits, key=lambda pair: -int(pair[1].sum())):
        sources[here & (sources < 0)] = tensor.index
    known = sources >= 0
    if not (known | blank).all() or not known[0].all():
        return None
    last, row = last.astype(np.int64), row.astype(np.int64)
    last[~known], row[~known] = -1, -1
    along_last = _steady(last, row)
    if along_last == _steady(row, last):  # neither, or too small to tell: as it was declared
        along_last = not transposed
    along, across = (last, row) if along_last else (row, last)
    tensor = tensors[int(sources[0, 0])]
    flat = np.maximum(row, 0) * tensor.shape[-1] + np.maximum(last, 0)
    found = Operand(name, tensor, sources, along, across, along_last, flat)
    step = _matrix(found) if _wrong(found).any() else None
    if step is not None:  # the tensor is declared in another shape than the matrix that lies in it
        found.along = np.broadcast_to(flat[:1] // step, flat.shape)
        found.across = np.broadcast_to(np.arange(flat.shape[0])[:, None], flat.shape)
    return found


def _matrix(operand: Operand) -> int | None:
    """How far apart neighbours along K lie in memory, where the operand is a matrix in a tensor of
    other dimensions: flattened, or with heads beside each other in one row."""
    flat, width = operand.flat, operand.tensor.shape[-1]
    if (operand.sources != operand.tensor.index).any() or min(flat.shape) < 2:
        return None
    down, step = int(flat[1, 0] - flat[0, 0]), int(flat[0, 1] - flat[0, 0])
    if min(down, step) <= 0 or not all(n % width == 0 or width % n == 0 for n in (down, step)):
        return None
    rows, columns = (np.arange(n) for n in flat.shape)
    fits = flat == flat[0, 0] + down * rows[:, None] + step * columns
    return step if fits.all() else None


def _steady(along: np.ndarray, across: np.ndarray) -> bool:
    """Whether ``along`` depends on K alone, and ``across`` on the row alone."""
    known = along >= 0
    return bool(
        ((along == along[:1]) | ~known).all() and ((across == across[:, :1]) | ~known).all()
    )


def _distinct(machine: Machine, product: Product, operand: Operand, rows: np.ndarray) -> None:
    """Two rows of an operand that are the same bytes: the stride between them is too short."""
    if np.unique(rows).size == rows.size:
        return
    first: dict[int, int] = {}
    per = operand.along.shape[0] // rows.shape[0]
    for i, at in enumerate(rows[:, 0]):
        if int(at) in first:
            said = (
                f"rows {first[int(at)] * per} and {i * per} of operand {operand.name} are the same "
                "bytes of shared memory"
            )
            _report(machine, product, said, LAYOUT_FIX, operand)
        first[int(at)] = i


def _wrong(operand: Operand) -> np.ndarray:
    """Which elements do not belong to the row and the position along K that they stand at."""
    wrong = operand.along != operand.along[:1]
    wrong = wrong | (operand.across != operand.across[:, :1])
    return (wrong | (operand.sources != operand.tensor.index)) & (operand.along >= 0)


def _consistent(machine: Machine, tensors, product: Product, operand: Operand) -> None:
    across, wrong = operand.across, _wrong(operand)
    if not wrong.any():
        return
    step = int(np.argwhere(wrong.any(axis=0))[0][0]) // 16  # the first K step that goes wrong
    block = slice(16 * step, 16 * step + 16)
    row = int(np.argwhere(wrong[:, block].any(axis=1))[0][0])
    k = 16 * step + int(np.flatnonzero(wrong[row, block])[0])
    there = operand.element(tensors, row, k)
    if not wrong[row, 0] and (across[row, k] != across[row, 0] or row == 0):
        said = (
            f"row {row} of operand {operand.name} begins with {operand.element(tensors, row, 0)}, "
            f"and at K position {k} (K step {step}) goes on with {there}: the step leaves the row"
        )
    else:
        said = (
            f"at K position {k}, row 0 of operand {operand.name} is "
            f"{operand.element(tensors, 0, k)} and row {row} is {there}: they do not belong to one "
            f"position along K"
        )
    _report(machine, product, said, LAYOUT_FIX, operand)


def _format(machine: Machine, product: Product, operand: Operand, dtype: str) -> None:
    held = machine.program.params[operand.tensor.index][2]
    if held == dtype or held not in ("float16", "bfloat16"):
        return
    said = f"operand {operand.name} is read as {dtype}, and {operand.tensor.name} holds {held}"
    fix = "name the tensor's own format in the instruction (or in its instruction descriptor)"
    _report(machine, product, said, fix, operand)


def _together(machine: Machine, product: Product, a: Operand, b: Operand) -> None:
    apart = a.along[0] // a.stride - b.along[0] // b.stride
    if (apart == apart[0]).all():
        return
    step = int(np.flatnonzero(apart != apart[0])[0]) // 16
    block = slice(16 * step, 16 * step + 16)
    said = (
        f"K step {step} multiplies {a.span(a.along[0][block])} by {b.span(b.along[0][block])}: the "
        "two operands do not advance together along K"
    )
    _report(machine, product, said, STEP_FIX, a)


def _once(machine: Machine, product: Product, operand: Operand, along, before, pair) -> None:
    """Every coordinate of K counts once, and none is skipped between two steps.

    ``before``: the coordinates of earlier steps with the same pair of tensors, to which these are
    added. Where one operand is computed, the other may well come again: with other parts of a sum,
    say.
    """
    stride = operand.stride
    for step in range(0, along.size, 16):
        numbers = along[step : step + 16].tolist()
        again = sorted(before.intersection(numbers))
        if again and None not in pair:
            said = (
                f"K step {step // 16} adds {operand.span(numbers)} to an accumulator that holds "
                f"the products of {operand.span(again)} already"
            )
            _report(machine, product, said, STEP_FIX, operand)
        gap = _gap(before, numbers, stride)
        if gap:
            said = (
                f"K step {step // 16} goes on with {operand.span(numbers)} and leaves out "
                f"{operand.span(gap)}"
            )
            _report(machine, product, said, STEP_FIX, operand)
        before.update(numbers)


def _gap(before: set[int], numbers: list[int], stride: int) -> list[int]:
    """Coordinates skipped just before a step: fewer than a step's 16, so that no one meant them."""
    low = min(numbers)
    for last in range(low - 1, low - 16 * stride - 1, -1):
        if last in before:
            return list(range(last + stride, low, stride))
    return []


def _report(machine: Machine, product: Product, said: str, fix: str, operand: Operand) -> None:
    machine.report(
        "wrong-operand",
        None,
        f"{product.what}: {said}",
        memory=f"shared memory; tensor {operand.tensor.name}",
        threads=product.warp.threads(),
        fix=fix,
        site=product.site,
    )
    raise Stop
