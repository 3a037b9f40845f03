"""What the translator knows of an expression's value and of a kernel's variables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from mlsys_gpu.sim.machine.formats import STORED


class NotVectorizable(Exception):
    """A loop whose iterations cannot run as one slice; it is emitted as an ordinary loop."""


@dataclass(frozen=True)
class Value:
    """Python source of an expression, and the axes that its value has.

    ``lane``: it differs between lanes (first axis, 32). ``loop``: it differs between iterations of
    the loop that is being emitted as a slice (second axis). Neither: a Python or NumPy scalar.
    ``parts``: the elements of a short vector (``uint32x2``), each a Value.
    """

    code: str
    dtype: str
    lane: bool = False
    loop: bool = False
    parts: tuple[Value, ...] | None = None

    @property
    def uniform(self) -> bool:
        return not self.lane and not self.loop


@dataclass
class Root:
    """A local allocation: one register or an array of them for each thread.

    ``kind``: ``scalar`` (a Python variable, the same for all lanes), ``lane`` (a variable that
    holds 32 values), ``list`` (a Python list of scalars), or ``array`` (``[32, size]``, NumPy).
    """

    name: str
    dtype: str
    size: int
    var: Any
    alloc_region: int | None
    kind: str = "scalar"
    aliased: bool = False
    fragment: bool = False  # wgmma accumulates in it, or reads operand A from it
    loaded: bool = False  # tcgen05.ld writes it
    #: Single-lane regions in which it is read; None stands for code that all lanes run.
    read_in: set[int | None] = field(default_factory=set)
    written_in: set[int | None] = field(default_factory=set)
    views: dict[str, str] = field(default_factory=dict)

    @property
    def unused(self) -> bool:
        """Whether nothing ever reads it: a variable that lowering has left over."""
        return self.size == 1 and self.kind != "array" and not self.read_in


@dataclass(frozen=True)
class Buffer:
    """A TIRx buffer as the translator sees it: its space, element type, and what it lies in."""

    name: str
    dtype: str
    scope: str
    root: Root | None = None  # local
    base: str = ""  # source of its base address (global, shared)
    declared_at: int | None = None  # tensor memory: its first column
    #: Numbers in one element: a buffer of ``uint32x4`` is one of ``uint32``, four at a subscript.
    lanes: int = 1


@dataclass(frozen=True)
class Registers:
    """Consecutive registers ``first … first + count - 1`` of a local array, seen as ``dtype``.

    Inside a loop that is emitted as a slice, ``first`` advances by ``step`` with each iteration; or
    ``step`` says for each iteration how far it is from the first.
    """

    root: Root
    dtype: str
    first: str  # source of a uniform integer
    count: int
    step: int | tuple[int, ...] = 0
    #: ``first`` in two parts: a number, and the source of what is known at run time only.
    offset: int = 0
    rest: str = ""


@dataclass
class SliceLoop:
    """The loop that is being emitted as a slice: its variable, its extent, its temporaries."""

    var: Any
    name: str
    extent: int
    temps: dict[int, Value] = field(default_factory=dict)
    groups: dict[tuple[int, str, str, int], Value] = field(default_factory=dict)
    writes: dict[int, set[tuple]] = field(default_factory=dict)
    reads: dict[int, set[tuple]] = field(default_factory=dict)
    loads: set[str] = field(default_factory=set)
    stores: set[str] = field(default_factory=set)
    exprs: dict[int, Any] = field(default_factory=dict)
    #: Variables that take other numbers than a progression's, with their values.
    tables: dict[int, tuple[int, ...]] = field(default_factory=dict)
    inner: set[int] = field(default_factory=set)


class UnknownType(Exception):
    """A number type that nothing here computes with or stores; its name is the argument."""


class _Sizes(dict[str, int]):
    def __missing__(self, dtype: str) -> int:
        raise UnknownType(dtype)


def element(dtype: str) -> tuple[str, int]:
    """The number type of a buffer's elements, and how many numbers each has."""
    found = re.fullmatch(r"(.*\w)x(\d+)", dtype)
    return (found[1], int(found[2])) if found else (dtype, 1)


#: Bytes of one element.
BYTES = _Sizes(
    {
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
        "int8": 1,
        "uint8": 1,
        "int16": 2,
        "uint16": 2,
        "int32": 4,
        "uint32": 4,
        "int64": 8,
        "uint64": 8,
        "uint128": 16,
        "bool": 1,
        **dict.fromkeys(STORED, 1),
    }
)

FLOATS = ("float16", "bfloat16", "float32", "float64")

NUMPY = {
    "float16": "np.float16",
    "bfloat16": "np.uint16",
    "float32": "np.float32",
    "float64": "np.float64",
    "int8": "np.int8",
    "uint8": "np.uint8",
    "int16": "np.int16",
    "uint16": "np.uint16",
    "int32": "np.int32",
    "uint32": "np.uint32",
    "int64": "np.int64",
    "uint64": "np.uint64",
    "bool": "np.bool_",
    **dict.fromkeys(STORED, "np.uint8"),
}
