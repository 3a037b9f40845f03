"""Translate a lowered device function into the Python source of one warp.

The lowered function is statements (lets, allocations, loops, ifs, stores) and calls of PTX and CUDA
operations. Each becomes Python that runs for the 32 lanes of a warp at once. What is the same for
all lanes stays a Python scalar; the rest are NumPy arrays whose first axis is the lane. A loop
whose iterations are independent becomes one slice with a second axis. A branch that one lane takes
runs on scalars; a branch that some lanes take runs under a mask.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mlsys_gpu.lowering import LINE_KEY, Lowered, span_lines
from mlsys_gpu.sim.frontend import analysis, control, coverage, families, overflow, table, work
from mlsys_gpu.sim.frontend.control import Context, Frame
from mlsys_gpu.sim.frontend.hoist import hoist
from mlsys_gpu.sim.frontend.nesting import split
from mlsys_gpu.sim.frontend.reroll import reroll
from mlsys_gpu.sim.frontend.values import (
    BYTES,
    FLOATS,
    NUMPY,
    Buffer,
    NotVectorizable,
    Registers,
    Root,
    SliceLoop,
    UnknownType,
    Value,
    element,
)
from mlsys_gpu.sim.machine import formats
from mlsys_gpu.sim.machine.formats import STORED
from mlsys_gpu.sim.program import Program, Unsupported


def translate(lowered: Lowered, debug: bool = False) -> Program:
    """The Program of a lowered kernel; raises :class:`Unsupported` naming what is not modelled.

    ``debug``: with a call before every statement at which a debugger can stop.
    """
    table.load()
    try:
        return _translated(lowered, debug)
    except RecursionError:
        return _with_room(lambda: _translated(lowered, debug))


def _translated(lowered: Lowered, debug: bool) -> Program:
    translator = Translator(lowered, debug)
    try:
        return translator.program()
    except UnknownType as error:
        raise translator.refuse(f"numbers of the type {error}") from None


def _with_room(function: Callable[[], Any]) -> Any:
    """What a function returns that recurses deeply, as expressions of thousands of terms make it.

    In a thread, whose stack can be made as large as that takes.
    """
    limit, size = sys.getrecursionlimit(), threading.stack_size()
    threading.stack_size(1 << 29)
    sys.setrecursionlimit(max(limit, _DEEP))
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(function).result()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)


#: Python calls inside each other for the longest expressions.
_DEEP = 100_000


@dataclass
class PtxCall:
    """A call of the PTX dialect, its operands and modifiers by name."""

    name: str
    operands: dict[str, list[Any]]
    mods: dict[str, str]
    pred: Any
    node: Any

    def one(self, name: str) -> Any:
        """The operand of this name, which is a single register."""
        return self.operands[name][0]


class Translator:
    """Emits the source of one kernel."""

    def __init__(self, lowered: Lowered, debug: bool = False):
        self.lowered = lowered
        self.debug = debug
        self.stops: list[list[Any]] = []
        self.scopes: list[list[Any]] = []
        self.scope = -1
        self.stopped: int | None = None  # the site of the last stop
        self.placed = False  # whether the current statement has a line of its own
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[str, int] = {}
        self.buffers: dict[int, Buffer] = {}
        self.vars: dict[int, Value] = {}
        self.context = Context()
        self.frames: list[Frame] = []
        self.slice: SliceLoop | None = None
        self.sites: list[list[list[Any]]] = [[]]
        self.site_index: dict[tuple, int] = {(): 0}
        self.site = 0
        self.emitted_site: int | None = None
        self.override: list[tuple[str, int]] | None = None
        self.static_shared = 0
        self.tally = work.Tally()
        #: Scalars, and parts (bytes) of arrays, that every path to here has written.
        self.assigned: set[int] = set()
        self.filled: dict[int, list[tuple[int, int]]] = {}
        self.grain = 4
        self.moved = False  # the value being read is only moved (see carried)
        #: Parts (bytes) of arrays that tcgen05.ld fills of which it is known that they are filled;
        #: and arrays into which the current block has loaded.
        self.settled: dict[int, list[tuple[int, int]]] = {}
        self.unsettled: set[int] = set()
        self.device: Any = lowered.device
        #: Loops that :func:`reroll` has made: they run as slices, or unrolled.
        self.rerolled: dict[int, dict[int, tuple[int, ...]]] = {}
        #: Arrays of numbers that the source uses, by their expressions.
        self.arrays: dict[str, str] = {}
        if not debug:
            body, self.rerolled = reroll(self.device.body)
            if self.rerolled:
                self.device = self.device.with_body(body)
        self.facts = analysis.analyse(self.device, lowered.launch)
        self.products = overflow.Products(self.device, lowered.launch, self.facts)

    # ------------------------------------------------------------------------------ output

    def program(self) -> Program:
        device = self.device
        self.emit("tid = w.tid")
        self.emit("tidc = tid[:, None]")
        self.emit("bx, by, bz = w.block")
        self.emit("wid = w.id")
        self.emit("SB = w.base + 1024")  # dynamic shared memory, behind the system's kilobyte
        self.emit("GB = SB + (1 << 40)")
        start = len(self.lines)
        control.begin(self)
        for i, param in enumerate(device.params):
            name = self.fresh("p_" + str(param.name))
            self.emit(f"{name} = w.machine.pointers[{i}]")
            scalar = type(param.ty).__name__ == "PrimType"
            self.vars[_id(param)] = Value(name, str(param.ty) if scalar else "handle")
        self.stmt(device.body)
        self.lines[start:start] = [f"    {name} = {code}" for code, name in self.arrays.items()]
        self.emit("return")
        self.emit("yield")  # a warp that never waits is a generator too
        if not any(line.lstrip().startswith("partial(") for line in self.lines):
            self.lines = [x for x in self.lines if not x.lstrip().startswith(families.REJOIN)]
        source = "def kernel(w):\n" + "\n".join(split(hoist(self.lines))) + "\n"
        low = self.lowered
        return Program(
            name=low.name,
            arch=low.arch,
            source=source,
            launch={
                "grid": list(low.launch.grid),
                "block": list(low.launch.block),
                "cluster": list(low.launch.cluster),
                "threads": low.launch.threads,
                "shared_bytes": low.launch.shared_bytes,
            },
            params=[
                [p.name, None if p.shape is None else list(p.shape), p.dtype] for p in low.params
            ],
            arguments=[list(argument) for argument in low.arguments],
            maps=[asdict(m) for m in low.maps],
            sites=self.sites,
            regions=[
                [r.name, r.offset, r.nbytes, list(r.shape), r.dtype] for r in low.shared_regions
            ],
            static_shared=self.static_shared,
            grain=self.grain,
            texts=_texts(self.sites, whole=self.debug),
            layouts=[r.layout for r in low.shared_regions],
            views=[
                [v.name, v.scope, v.source, list(v.shape), v.dtype, v.layout] for v in low.views
            ],
            debug=self.debug,
            stops=self.stops,
            scopes=self.scopes,
            written=self.writable(),
            workspaces=[i for i, p in enumerate(low.params) if p.workspace],
            work=self.tally.table,
        )

    def writable(self) -> list[int]:
        """The kernel's tensors that it may write, by their numbers."""
        low = self.lowered
        found = set()
        for i in analysis.written_params(low.device):
            kind, *which = low.arguments[i]
            if kind == "map":
                found.add(low.maps[int(which[0])].tensor)
            elif kind == "tensor":
                found.add(int(which[0]))
        return sorted(found)

    def emit(self, line: str) -> None:
        self.tally.before(line, self.lines, self.depth)
        self.lines.append("    " * self.depth + line)

    def flush(self) -> None:
        """Write a line for the instructions that have been counted and not written yet."""
        self.tally.flush(self.lines, self.depth)

    def fresh(self, name: str) -> str:
        """A Python name that nothing else has."""
        base = re.sub(r"\W", "_", name) or "v"
        count = self.names.get(base, 0)
        self.names[base] = count + 1
        return f"{base}_{count}"

    def here(self) -> str:
        """The current source line, for messages."""
        places = self.sites[self.site]
        return f"{places[0][0]}:{places[0][1]}" if places else "a line that TVM has not recorded"

    def refuse(self, what: str) -> Unsupported:
        """The error that names what the simulator does not model, and where it stands."""
        return Unsupported(f"the simulator does not model {what} (at {self.here()})")

    # ------------------------------------------------------------------------------- sites

    def enter(self, span: Any) -> bool:
        """Make the statement's place the current site; False where it has none."""
        places = self.override or _authors(span_lines(span))
        if places:
            key = tuple(places)
            number = self.site_index.get(key)
            if number is None:
                number = self.site_index[key] = len(self.sites)
                self.sites.append([[file, line] for file, line in places])
            self.site = number
        return bool(places)

    def mark(self) -> None:
        """Tell the warp where it is, before an operation that may find a fault."""
        if self.emitted_site != self.site:
            self.emit(f"w.s = {self.site}")
            self.emitted_site = self.site

    def stop(self) -> None:
        """A place where a debugger can stop: before the first statement of a line."""
        if self.stopped != self.site:
            self.emit(f"at(w, {len(self.stops)})")
            self.stops.append([self.site, self.scope, self.context.mask, self.context.lane])
            self.stopped = self.site

    def declare(self, name: str, code: str, dtype: str, kind: str, size: int = 1) -> None:
        """A variable of the author's, which a debugger shows from here to the end of the block.

        ``kind``: ``scalar``, ``lane`` (32 values), ``list`` or ``array`` of registers, or ``loop``.
        """
        if not self.debug or self.override is not None:
            return
        if not name:
            name = self.guessed()
        elif name not in self.lowered.names:
            return
        if name:
            self.scopes.append([self.scope, name, code, dtype, kind, size])
            self.scope = len(self.scopes) - 1

    def guessed(self) -> str:
        """A name for a variable that has none: that which its source line assigns, if any.

        Kernels that are traced, rather than parsed, give their registers no names. Where a line
        makes several, they are numbered.
        """
        places = self.sites[self.site] if self.placed else []
        for file, line in places:
            text = (_source_lines(file)[line - 1 : line] or [""])[0]
            found = re.match(r"\s*(?:self\.)?([A-Za-z_]\w*)\s*(?::[^=]+)?=(?!=)", text)
            if found:
                name, at, taken = found.group(1), self.scope, set()
                while at >= 0:
                    taken.add(self.scopes[at][1])
                    at = self.scopes[at][0]
                numbered = (f"{name}_{n}" for n in range(1, len(taken) + 2))
                return name if name not in taken else next(n for n in numbered if n not in taken)
        return ""

    def block(self, again: Any = None) -> _Indent:
        """An indented block; ``again``: the statement whose rounds it is the code of."""
        return _Indent(self, again)

    # -------------------------------------------------------------------------- statements

    def stmt(self, stmt: Any) -> None:
        handler = getattr(self, "stmt_" + type(stmt).__name__, None)
        if handler is None:
            raise self.refuse(f"the statement {type(stmt).__name__}")
        if type(stmt).__name__ not in ("SeqStmt", "AttrStmt"):
            # Where TVM has merged or hoisted branches, their conditions keep their places.
            span = getattr(stmt, "span", None) or getattr(
                getattr(stmt, "condition", None), "span", None
            )
            self.placed = self.enter(span)
            if self.debug and self.placed and type(stmt).__name__ != "DeclBuffer":
                self.stop()
            self.tally.statement()
        handler(stmt)

    def stmt_SeqStmt(self, stmt: Any) -> None:
        control.sequence(self, list(stmt.seq))

    def stmt_AttrStmt(self, stmt: Any) -> None:
        key = str(stmt.attr_key)
        if key == LINE_KEY:
            before = self.override
            if before is None:
                places = []
                for place in str(stmt.value.value).split("\n"):
                    file, _, line = place.rpartition(":")
                    places.append((file, int(line)))
                self.override = _authors(places)
            self.stmt(stmt.body)
            self.override = before
            return
        if key == "thread_extent":
            axis = str(stmt.node.thread_tag)
            self.vars[_id(stmt.node.var)] = self.thread_axis(axis)
        elif key not in analysis.SILENT_ATTRIBUTES:
            raise self.refuse(f"the attribute {key}")
        self.stmt(stmt.body)

    def thread_axis(self, axis: str) -> Value:
        launch = self.lowered.launch
        if axis == "threadIdx.x" and launch.block[1] == launch.block[2] == 1:
            return Value("tid", "int32", lane=True)
        if axis.startswith("threadIdx."):
            x, y, _ = launch.block
            code = {
                "threadIdx.x": f"(tid % {x})",
                "threadIdx.y": f"(tid // {x} % {y})",
                "threadIdx.z": f"(tid // {x * y})",
            }[axis]
            name = self.fresh(axis.replace(".", "_"))
            self.emit(f"{name} = {code}")
            return Value(name, "int32", lane=True)
        cx, cy, cz = launch.cluster
        codes = {
            "blockIdx.x": "bx",
            "blockIdx.y": "by",
            "blockIdx.z": "bz",
            # the preferred cluster is one that a launch may have; ours has the kernel's own
            "preferredClusterCtaIdx.x": f"(w.rank % {cx})",
            "preferredClusterCtaIdx.y": f"(w.rank // {cx} % {cy})",
            "preferredClusterCtaIdx.z": f"(w.rank // {cx * cy})",
            "clusterCtaIdx.x": f"(w.rank % {cx})",
            "clusterCtaIdx.y": f"(w.rank // {cx} % {cy})",
            "clusterCtaIdx.z": f"(w.rank // {cx * cy})",
            "clusterIdx.x": f"(bx // {cx})",
            "clusterIdx.y": f"(by // {cy})",
            "clusterIdx.z": f"(bz // {cz})",
        }
        if axis not in codes:
            raise self.refuse(f"the thread axis {axis}")
        return Value(codes[axis], "int32")

    def stmt_Bind(self, stmt: Any) -> None:
        value = self.expr(stmt.value)
        work.assigned(self, _id(stmt.var), stmt.value)
        if self.slice is not None:
            self.slice.exprs[_id(stmt.var)] = stmt.value
        if value.parts is not None:
            parts = []
            for part in value.parts:
                name = self.fresh(str(stmt.var.name))
                self.emit(f"{name} = {_held(part.code)}")
                parts.append(Value(name, part.dtype, part.lane, part.loop))
            self.vars[_id(stmt.var)] = _vector(parts, value.dtype)
            self.declare(str(stmt.var.name), self.vars[_id(stmt.var)].code, value.dtype, "vector")
            return
        # The name of a variable that the kernel may assign again is no value to keep.
        mutable = any(root.name == value.code for root in self.facts.roots.values())
        if re.fullmatch(r"\w+", value.code) and not mutable:
            self.vars[_id(stmt.var)] = value
            self.declare(str(stmt.var.name), value.code, value.dtype, _kind(value))
            return
        name = self.fresh(str(stmt.var.name))
        self.emit(f"{name} = {_held(value.code)}")
        self.vars[_id(stmt.var)] = Value(name, value.dtype, value.lane, value.loop)
        self.declare(str(stmt.var.name), name, value.dtype, _kind(value))

    def expr_Let(self, expr: Any) -> Value:
        """A value named for the rest of an expression."""
        self.stmt_Bind(expr)
        return self.expr(expr.body)

    def stmt_AllocBuffer(self, stmt: Any) -> None:
        buffer = stmt.buffer
        scope, name = str(buffer.scope()), str(buffer.name)
        dtype, lanes = element(str(buffer.dtype))
        if scope.startswith("shared"):
            if scope == "shared.dyn":
                base = "GB"
            else:
                size = _size(buffer) * lanes * BYTES[dtype]
                start = (self.static_shared + 127) // 128 * 128
                self.static_shared = start + size
                base = f"(GB + {(self.lowered.launch.shared_bytes + 127) // 128 * 128 + start})"
                self.static_shared += (-self.lowered.launch.shared_bytes) % 128
            self.buffers[_id(buffer)] = Buffer(name, dtype, "shared", base=base, lanes=lanes)
            return
        if not scope.startswith(("local", "")) or scope == "global":
            raise self.refuse(f"an allocation in {scope} memory")
        root = self.facts.roots[_id(buffer)]
        if self.slice is not None:
            self.slice.inner.add(_id(buffer))
        root.name = self.fresh(name)
        self.assigned.discard(_id(root.var))
        self.filled.pop(_id(root.var), None)
        self.buffers[_id(buffer)] = Buffer(name, dtype, "local", root=root, lanes=lanes)
        if root.unused:
            return
        self.declare(name, root.name, dtype, root.kind, root.size)
        if self.slice is not None and root.size == 1:
            return
        if root.kind == "array":
            self.emit(f'{root.name} = fresh({root.size}, "{dtype}")')
        elif root.kind == "list":
            self.emit(f"{root.name} = [{self.unwritten(dtype)}] * {root.size}")
        else:
            self.emit(f"{root.name} = {self.widened(root, self.unwritten(dtype))}")

    def stmt_DeclBuffer(self, stmt: Any) -> None:
        buffer = stmt.buffer
        scope, name = str(buffer.scope()), str(buffer.name)
        dtype, lanes = element(str(buffer.dtype))
        if scope.startswith("tmem"):
            address = buffer.allocated_addr
            first = int(address[0].value) if address else None
            self.buffers[_id(buffer)] = Buffer(name, dtype, "tmem", declared_at=first)
            return
        source = _source_buffer(stmt.data)
        if source is not None and _id(source) in self.buffers:
            held = self.buffers[_id(source)]
            if dtype == "uint128" and held.root is not None and held.root.dtype != dtype:
                dtype, lanes = "uint64", 2
            self.buffers[_id(buffer)] = Buffer(
                name, dtype, held.scope, held.root, held.base, lanes=lanes
            )
            return
        base = self.expr(stmt.data)
        kind = "shared" if scope.startswith("shared") else "global"
        if not re.fullmatch(r"\w+", base.code):
            held_name = self.fresh(name + "_base")
            self.emit(f"{held_name} = {base.code}")
            base = Value(held_name, "handle", base.lane, base.loop)
        self.buffers[_id(buffer)] = Buffer(name, dtype, kind, base=base.code, lanes=lanes)

    def stmt_Evaluate(self, stmt: Any) -> None:
        value = stmt.value
        if type(value).__name__ == "Call":
            self.call(value, statement=True)

    def stmt_BufferStore(self, stmt: Any) -> None:
        buffer = self.buffer_of(stmt.buffer)
        unused = buffer.root is not None and buffer.root.unused
        if unused and not analysis.effects(stmt.value):
            return
        self.tally.share = 0.5 if work.paired(buffer, stmt) else 1
        value = self.expr(stmt.value)
        self.tally.share = 1
        if unused:
            self.emit(value.code)
            return
        if buffer.root is not None and buffer.root.size == 1:
            work.assigned(self, _id(buffer.root.var), stmt.value)
        index = self.subscript(buffer, stmt.indices)
        if buffer.scope == "local" and type(index).__name__ == "Ramp":
            if self.slice is not None:
                raise NotVectorizable("a vector subscript")
            first = self.expr(self.unit_ramp(buffer, index))
            for i in range(_lanes(index)):
                element = Known(Value(f"({first.code} + {i})", first.dtype, first.lane))
                self.store_register(buffer, element, _part(value, i))
            return
        if buffer.scope == "local":
            self.store_register(buffer, index, value, stmt.value)
            return
        if buffer.scope == "tmem":
            raise self.refuse("a store into tensor memory by subscript")
        self.store_memory(buffer, index, value)

    def stmt_IfThenElse(self, stmt: Any) -> None:
        control.if_then_else(self, stmt)

    def stmt_For(self, stmt: Any) -> None:
        control.for_loop(self, stmt)

    def stmt_While(self, stmt: Any) -> None:
        control.while_loop(self, stmt)

    def stmt_Break(self, stmt: Any) -> None:
        self.leave("break")

    def stmt_Continue(self, stmt: Any) -> None:
        self.leave("continue")

    def stmt_Return(self, stmt: Any) -> None:
        self.leave("return")

    def leave(self, how: str) -> None:
        control.leave(self, how)

    def stmt_AssertStmt(self, stmt: Any) -> None:
        return  # host-side checks; the device function has none of its own

    # ------------------------------------------------------------------------ slices of loops

    def try_slice(self, stmt: Any) -> bool:
        """Emit the loop as one slice where its iterations are independent."""
        extent, low = stmt.extent, stmt.min
        known = all(type(n).__name__ == "IntImm" for n in (extent, low))
        if not known or stmt.step is not None:
            return False
        count = int(extent.value)
        if count < 2 or self.context.lane is not None or not analysis.could_slice(stmt):
            return False
        if self.debug and self.override is None and str(stmt.loop_var.name) in self.lowered.names:
            return False  # a loop of the author's: a debugger stops in each of its iterations
        saved = (len(self.lines), dict(self.vars), dict(self.buffers), self.emitted_site, self.site)
        debug = (len(self.stops), len(self.scopes), self.scope, self.stopped)
        known, counted = self.known(), self.tally.save()
        name = self.fresh(str(stmt.loop_var.name))
        self.slice = SliceLoop(stmt.loop_var, name, count)
        start = int(low.value)
        self.emit(f"{name} = np.arange({start}, {start + count})[None, :]")
        self.vars[_id(stmt.loop_var)] = Value(name, str(stmt.loop_var.ty), loop=True)
        if start:
            self.slice.exprs[_id(stmt.loop_var)] = None
        self.slice.tables = self.rerolled.get(_id(stmt), {})
        for key, values in self.slice.tables.items():
            self.vars[key] = Value(f"{self.array(values)}[None, :]", "int32", loop=True)
        try:
            self.stmt(stmt.body)
            self.finish_slice(self.slice)
        except NotVectorizable:
            lines, self.vars, self.buffers, self.emitted_site, self.site = saved
            self.settled, self.filled, self.assigned = known
            self.tally.restore(counted)
            del self.lines[lines:]
            stops, scopes, self.scope, self.stopped = debug
            del self.stops[stops:], self.scopes[scopes:]
            self.slice = None
            return False
        self.slice = None
        self.scope = debug[2]
        lines = saved[0]
        if not any(re.search(rf"\b{name}\b", line) for line in self.lines[lines + 1 :]):
            del self.lines[lines]
        return True

    def array(self, numbers: Any) -> str:
        """The name of an array of numbers."""
        code = f"np.array([{', '.join(map(str, numbers))}])"
        return self.arrays.setdefault(code, f"numbers_{len(self.arrays)}")

    def finish_slice(self, loop: SliceLoop) -> None:
        """Refuse loops that carry a value from one iteration to the next; keep last values."""
        for root, spans in loop.writes.items():
            for span in loop.reads.get(root, set()):
                if span not in spans and any(_overlap(span, other, loop.extent) for other in spans):
                    raise NotVectorizable("a register read and written by different iterations")
            ordered = sorted(spans)
            for i, one in enumerate(ordered):
                for other in ordered[i + 1 :]:
                    if _overlap(one, other, loop.extent):
                        raise NotVectorizable("registers written by several iterations")
        both = loop.loads | loop.stores
        if loop.stores and (loop.loads & loop.stores or (len(both) > 1 and "generic" in both)):
            raise NotVectorizable("loads and stores of one memory")
        self.check_groups(loop)
        for (key, dtype, first, count), value in loop.groups.items():
            root = self.facts.by_id[key]
            if key in loop.inner:
                continue
            last = value.code
            if value.loop:
                last = _rows(f"{last}[:, -1]", count)
            elif value.lane:
                last = _rows(f"{last}[:, 0]", count)
            view = self.view(root, dtype)
            self.emit(f"{view}[:, {first}:{first} + {count}] = {last}")
            if first.isdigit():
                self.fill(Registers(root, dtype, first, count, 0, int(first)))
        for key, value in loop.temps.items():
            if key in loop.inner:
                continue
            root = self.facts.by_id[key]
            code = value.code
            if value.loop and value.lane:
                code = f"{code}[:, -1]"
            elif value.loop:
                code = f"{code}[0, -1]"
            elif value.lane:
                code = f"{code}[:, 0]"
            if not value.lane:
                code = self.widened(root, code)
            if self.context.kept is not None and root.kind == "lane":
                code = f"np.where({self.context.kept}, {code}, {root.name})"
            self.emit(f"{root.name} = {code}")
            if self.context.everyone:
                self.assigned.add(key)

    def check_groups(self, loop: SliceLoop) -> None:
        """Refuse loops in which registers that every iteration writes meet others of the array."""
        groups: dict[int, list[tuple]] = {}
        for key, dtype, first, count in loop.groups:
            others = loop.writes.get(key, set()) | loop.reads.get(key, set())
            if not others and sum(k[0] == key for k in loop.groups) == 1:
                continue
            try:
                size = BYTES[dtype]
                span = ("", int(first) * size, count * size, 0)
            except ValueError:
                raise NotVectorizable("registers at an offset known only at run time") from None
            met = [*others, *groups.get(key, [])]
            if any(_overlap(span, other, loop.extent) for other in met):
                raise NotVectorizable("a register written by several statements of a loop")
            groups.setdefault(key, []).append(span)

    # ---------------------------------------------------------------------------- registers

    def buffer_of(self, var: Any) -> Buffer:
        found = self.buffers.get(_id(var))
        if found is None:
            raise self.refuse(f"the buffer {var}, which nothing declares")
        return found

    def subscript(self, buffer: Buffer, indices: Any) -> Any:
        """A subscript in numbers, where one element of the buffer may be several."""
        (index,) = indices
        return index if buffer.lanes == 1 else analysis.widened_index(index, buffer.lanes)

    def view(self, root: Root, dtype: str) -> str:
        """Source of a root's array seen as ``dtype``."""
        if dtype == root.dtype:
            return root.name
        if "uint128" in (dtype, root.dtype):
            raise self.refuse(f"{root.dtype} registers seen as {dtype}")
        return f"{root.name}.view({NUMPY[dtype]})"

    def touch(self, root: Root, write: bool, span: tuple[str, str, str] | None = None) -> None:
        """Registers of an asynchronous operation may be under way: ask before threads touch them.

        ``span``: source of the first and one past the last register touched, and the dtype that
        they are seen as; None for all of them.
        """
        if root.fragment:
            self.mark()
            where = f", {span[0]}, {span[1]}, {BYTES[span[2]]}" if span is not None else ""
            self.emit(f"wgmma_touch(w, {root.name}, {write}, {str(root.var.name)!r}{where})")
        if root.loaded and not self.settle(root, write, span):
            self.mark()
            where = f", {span[0]}, {span[1]}, {BYTES[span[2]]}" if span is not None else ""
            self.emit(f"tcgen05_touch(w, {root.name}, {write}{where})")

    def settle(self, root: Root, write: bool, span: tuple[str, str, str] | None) -> bool:
        """Whether all registers of a span have been read since the last load into the array, on
        every path that leads here; a read makes it so from now on."""
        asked = self.settled.setdefault(_id(root.var), [])
        whole = root.size * BYTES[root.dtype]
        low, high = 0, whole
        if span is not None:
            size = BYTES[span[2]]
            first, _, more = span[1].partition(" + ")
            if not (first.isdigit() and more.isdigit()):
                return _covered(asked, 0, whole)
            low, high = int(first) * size, (int(first) + int(more)) * size
        if _covered(asked, low, high):
            return True
        if not write:
            asked.append((low, high))
        return False

    def known(self) -> tuple[Any, Any, Any]:
        """What is known of registers here (a copy): what has been asked for, what is written."""
        settled = {key: list(parts) for key, parts in self.settled.items()}
        filled = {key: list(parts) for key, parts in self.filled.items()}
        return settled, filled, set(self.assigned)

    def unsettle(self, root: Root) -> None:
        """A load into an array has been issued: its registers are to be asked for again."""
        self.settled.pop(_id(root.var), None)
        self.unsettled.add(_id(root.var))

    def touch_registers(self, registers: Registers, write: bool) -> None:
        """:meth:`touch` for consecutive registers, in all iterations of a slice."""
        n = registers.count
        if self.slice is not None:
            n += _last(registers.step, self.slice.extent)
        span = (registers.first, f"{registers.first} + {n}", registers.dtype)
        self.touch(registers.root, write, span)

    def load_register(self, buffer: Buffer, index: Any) -> Value:
        root = buffer.root
        assert root is not None
        loop = self.slice
        if root.kind != "array" and root.size == 1:
            if loop is not None and _id(root.var) in loop.temps:
                return loop.temps[_id(root.var)]
            if loop is not None and analysis.written_in_loop(loop.var, root.var, self.facts):
                raise NotVectorizable("a value carried to the next iteration")
            code, lane = root.name, root.kind == "lane"
            if lane and self.context.lane is not None:
                code, lane = self.pick(code, buffer.dtype), False
            if _id(root.var) not in self.assigned:
                code = self.written(code, buffer)
            if lane and loop is not None:
                code = f"column({code})"
            return Value(code, buffer.dtype, lane)
        if root.kind == "list":
            if loop is not None:
                raise NotVectorizable("a list of scalars")
            where = self.register_index(buffer, index)
            return Value(self.written(f"{root.name}[{where.code}]", buffer), buffer.dtype)
        if loop is not None:
            registers = self.registers_of(buffer, [index])
            if registers is None:
                raise NotVectorizable("an index that is no arithmetic progression")
            self.touch_registers(registers, False)
            value = self.read_registers(registers, 1)
            code = value.code
            own = (_id(root.var), registers.dtype, registers.first, 1) in loop.groups
            if not own and not self.has_filled(registers):
                code = self.written(code, buffer)
            return Value(code, value.dtype, value.lane, value.loop)
        where = self.register_index(buffer, index)
        view = self.view(root, buffer.dtype)
        self.touch(root, False, self._one_register(where, buffer.dtype))
        if where.lane:
            code = self.written(f"{view}[w.lanes, {where.code}]", buffer)
            return self.integer(Value(code, buffer.dtype, True))
        if self.context.lane is not None:
            code = self.written(f"{view}[{self.context.lane}, {where.code}]", buffer)
            return self.integer(Value(code, buffer.dtype))
        code = f"{view}[:, {where.code}]"
        constant = where.code.isdigit()
        one = Registers(root, buffer.dtype, where.code, 1, 0, int(where.code) if constant else 0)
        if not (constant and self.has_filled(one)):
            code = self.written(code, buffer)
        return self.integer(Value(code, buffer.dtype, True))

    def extent_of(self, registers: Registers) -> tuple[int, int]:
        """First and past the last byte that registers occupy, in all iterations of a slice."""
        size, n = BYTES[registers.dtype], registers.count
        if self.slice is not None:
            n += _last(registers.step, self.slice.extent)
        return registers.offset * size, (registers.offset + n) * size

    def fill(self, registers: Registers, gaps: bool = False) -> None:
        """Registers have been written, for all lanes. ``gaps``: with others between them."""
        if registers.rest or not self.context.everyone:
            return
        parts = self.filled.setdefault(_id(registers.root.var), [])
        low, high = self.extent_of(registers)
        size = BYTES[registers.dtype]
        wide = registers.count * size
        if gaps and registers.step != registers.count and self.slice is not None:
            starts = _starts(registers.step, self.slice.extent)
            parts += [(low + at * size, low + at * size + wide) for at in starts]
        else:
            parts.append((low, high))
        parts.sort()
        merged = [parts[0]]
        for first, last in parts[1:]:
            if first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        parts[:] = merged

    def has_filled(self, registers: Registers) -> bool:
        """Whether registers have been written on every path that leads here."""
        parts = self.filled.get(_id(registers.root.var))
        if not parts:
            return False
        if registers.rest:
            return _covered(parts, 0, registers.root.size * BYTES[registers.root.dtype])
        low, high = self.extent_of(registers)
        size = BYTES[registers.dtype]
        if registers.step in (0, registers.count) or self.slice is None:
            return _covered(parts, low, high)
        wide = registers.count * size
        starts = [low + at * size for at in _starts(registers.step, self.slice.extent)]
        return all(_covered(parts, at, at + wide) for at in starts)

    def written(self, code: str, buffer: Buffer) -> str:
        """The code of a register's value, checked where an unwritten one can be told apart."""
        if self.moved or buffer.root is None or buffer.dtype != buffer.root.dtype:
            return code
        if buffer.dtype not in ("float32", "int32", "uint32"):
            return code
        self.mark()
        mask = f", {self.context.mask}" if self.context.mask and self.context.lane is None else ""
        return f"written(w, {code}, {buffer.name!r}{mask})"

    def carried(self, expr: Any) -> Value:
        """A value that an operation moves and does not use: lanes that nobody reads may be
        unwritten (a shuffle's source)."""
        before, self.moved = self.moved, True
        try:
            return self.expr(expr)
        finally:
            self.moved = before

    def register_index(self, buffer: Buffer, index: Any) -> Value:
        """An index into a local array, checked at run time unless it is a number within."""
        self.tally.still += 1
        where, root = self.expr(index), buffer.root
        assert root is not None
        self.tally.still -= 1
        size = root.size * BYTES[root.dtype] // BYTES[buffer.dtype]
        if re.fullmatch(r"\d+", where.code) and int(where.code) < size:
            return where
        self.mark()
        name = self.fresh("i")
        mask = f", {self.context.mask}" if self.context.mask else ""
        self.emit(f"{name} = register_index(w, {where.code}, {size}, {buffer.name!r}{mask})")
        return Value(name, where.dtype, where.lane, where.loop)

    def integer(self, value: Value) -> Value:
        """Integers narrower than 64 bits are computed as int64 (lanes) or Python ints."""
        if value.dtype in FLOATS or value.dtype in ("bool", "uint64", "handle"):
            if value.dtype == "uint64" and value.uniform:
                return Value(f"int({value.code})", value.dtype)
            return value
        if value.lane or value.loop:
            return Value(f"{value.code}.astype(np.int64)", value.dtype, value.lane, value.loop)
        return Value(f"int({value.code})", value.dtype)

    def pick(self, code: str, dtype: str) -> str:
        """One lane's value of a variable that holds 32 (or one for all)."""
        lane = self.context.lane
        picked = f"(({code})[{lane}] if isinstance({code}, np.ndarray) else {code})"
        if dtype in FLOATS or dtype == "bool":
            return picked
        return f"int({picked})"

    def store_register(self, buffer: Buffer, index: Any, value: Value, source: Any = None) -> None:
        root = buffer.root
        assert root is not None
        value = self.cast_storage(value, buffer.dtype, source)
        self.tally.stored = value
        self.tally.overwritten(_id(root.var))
        if root.size == 1 and self.tally.data and value.lane:
            self.tally.variables.add(_id(root.var))
        loop = self.slice
        if root.kind != "array" and root.size == 1:
            if loop is not None:
                name = self.fresh(root.name or "t")
                self.emit(f"{name} = {_held(value.code)}")
                loop.temps[_id(root.var)] = Value(name, buffer.dtype, value.lane, value.loop)
                loop.exprs[_id(root.var)] = source
                return
            if root.kind == "lane" and self.context.lane is not None:
                self.emit(f"{root.name} = set_lane({root.name}, {self.context.lane}, {value.code})")
            elif root.kind == "lane" and self.context.kept is not None:
                self.emit(f"{root.name} = np.where({self.context.kept}, {value.code}, {root.name})")
            else:
                code = self.widened(root, value.code) if value.uniform else _held(value.code)
                self.emit(f"{root.name} = {code}")
            if self.context.everyone:
                self.assigned.add(_id(root.var))
            return
        if root.kind == "list":
            if loop is not None:
                raise NotVectorizable("a list of scalars")
            self.emit(f"{root.name}[{self.register_index(buffer, index).code}] = {value.code}")
            return
        if loop is not None:
            registers = self.registers_of(buffer, [index])
            if registers is None:
                raise NotVectorizable("an index that is no arithmetic progression")
            self.touch_registers(registers, True)
            self.write_registers(registers, value)
            return
        view, where = self.view(root, buffer.dtype), self.register_index(buffer, index)
        self.touch(root, True, self._one_register(where, buffer.dtype))
        if self.context.lane is not None:
            self.emit(f"{view}[{self.context.lane}, {where.code}] = {value.code}")
        elif where.lane:
            rows = "w.lanes"
            if self.context.kept is not None:
                mask = self.context.kept
                picked = f"({value.code})[{mask}]" if value.lane else value.code
                self.emit(f"{view}[w.lanes[{mask}], ({where.code})[{mask}]] = {picked}")
            else:
                self.emit(f"{view}[{rows}, {where.code}] = {value.code}")
        elif self.context.kept is not None:
            mask = self.context.kept
            picked = f"({value.code})[{mask}]" if value.lane else value.code
            self.emit(f"{view}[{mask}, {where.code}] = {picked}")
        else:
            self.emit(f"{view}[:, {where.code}] = {value.code}")
            if where.code.isdigit():
                self.fill(Registers(root, buffer.dtype, where.code, 1, 0, int(where.code)))

    def unwritten(self, dtype: str) -> str:
        """The value of a variable before it is written; addresses have none to tell it by."""
        if dtype == "handle":
            return "0"
        code = f'poison("{dtype}")'
        return code if dtype in FLOATS else f"int({code})"

    def widened(self, root: Root, code: str) -> str:
        """A value that all lanes share, as a variable of this kind holds it."""
        return f'spread({code}, "{root.dtype}")' if root.kind == "lane" else code

    def _one_register(self, where: Value, dtype: str) -> tuple[str, str, str] | None:
        return (where.code, f"{where.code} + 1", dtype) if where.uniform else None

    def cast_storage(self, value: Value, dtype: str, source: Any = None) -> Value:
        """A value as a register of ``dtype`` holds it: integers wrap.

        Where int32 may overflow, C leaves it undefined and the hardware wraps; sums of a few
        addresses do not overflow, and are left as they are.
        """
        if value.dtype == "bool" or dtype in FLOATS or dtype in ("bool", "handle", "uint64"):
            return value
        narrow = BYTES.get(dtype, 8) < 4
        if not narrow and not (source is not None and analysis.may_overflow(source)):
            return value
        if re.fullmatch(r"-?\d+", value.code):
            return value
        code = f"wrap({value.code}, {8 * BYTES[dtype]}, {dtype.startswith('int')})"
        return Value(code, value.dtype, value.lane, value.loop)

    def registers(self, loads: list[Any]) -> Registers | None:
        """Consecutive registers that a list of subscripts names, or None."""
        first = loads[0]
        if any(type(x).__name__ != "TensorLoad" for x in loads):
            return None
        buffer = self.buffers.get(_id(first.source))
        if buffer is None or buffer.scope != "local":
            return None
        if any(_id(x.source) != _id(first.source) for x in loads):
            return None
        return self.registers_of(buffer, [x.indices[0] for x in loads])

    def wide_registers(self, load: Any) -> Registers | None:
        """The two words of a 128-bit register that is a view of registers of another type."""
        buffer = self.buffer_of(load.source)
        if buffer.root is None or buffer.lanes != 2:
            return None
        first = self.expr(self.subscript(buffer, load.indices).base)
        if not first.uniform:
            raise self.refuse("128-bit registers that each lane chooses")
        return Registers(buffer.root, buffer.dtype, first.code, 2)

    def registers_of(self, buffer: Buffer, indices: list[Any]) -> Registers | None:
        root = buffer.root
        if root is None or root.kind != "array":
            return None
        terms = []
        for index in indices:
            term = self.affine(index)
            if term is None:
                return None
            terms.append(term)
        terms = [_normal(*term) for term in terms]
        step, constant, rest = terms[0]
        for i, (s, c, r) in enumerate(terms):
            if s != step or c != constant + i or r != rest:
                return None
        first = str(constant) if not rest else f"({rest} + {constant})"
        return Registers(root, buffer.dtype, first, len(indices), step, constant, rest)

    def affine(self, expr: Any) -> tuple[Any, int, str] | None:
        """An index as ``step * loop + constant + rest`` with a uniform source ``rest``.

        ``step`` may be a number for each iteration instead (see :class:`Registers`).
        """
        kind = type(expr).__name__
        if kind == "IntImm":
            return 0, int(expr.value), ""
        if kind == "Var":
            loop = self.slice
            if loop is not None and _id(expr) == _id(loop.var) and _id(expr) not in loop.exprs:
                return 1, 0, ""
            if loop is not None and loop.exprs.get(_id(expr)) is not None:
                return self.affine(loop.exprs[_id(expr)])
            if loop is not None and _id(expr) in loop.tables:
                return loop.tables[_id(expr)], 0, ""
        if kind == "TensorLoad" and self.slice is not None:
            buffer = self.buffers.get(_id(expr.source))
            if buffer is not None and buffer.root is not None:
                held = self.slice.exprs.get(_id(buffer.root.var))
                if held is not None:
                    return self.affine(held)
        if kind in ("Add", "Sub"):
            a, b = self.affine(expr.a), self.affine(expr.b)
            if a is None or b is None:
                return None
            if kind == "Add":
                step = _each(lambda x, y: x + y, a[0], b[0], self.slice)
                return step, a[1] + b[1], " + ".join(x for x in (a[2], b[2]) if x)
            return (
                _each(lambda x, y: x - y, a[0], b[0], self.slice),
                a[1] - b[1],
                (a[2] or "0" if b[2] else a[2]) + (f" - ({b[2]})" if b[2] else ""),
            )
        if kind == "Mul":
            for x, y in ((expr.a, expr.b), (expr.b, expr.a)):
                if type(y).__name__ == "IntImm":
                    a = self.affine(x)
                    n = int(y.value)
                    if a is None:
                        return None
                    step = _each(lambda x, y: x * y, a[0], n, None)
                    return step, a[1] * n, f"({a[2]}) * {n}" if a[2] else ""
        if kind in ("FloorDiv", "Div") and type(expr.b).__name__ == "IntImm":
            a, n = self.affine(expr.a), int(expr.b.value)
            if a is not None and isinstance(a[0], int) and n > 0 and a[0] % n == 0 and not a[2]:
                return a[0] // n, a[1] // n, ""
        self.tally.still += 1
        value = self.expr(expr)
        self.tally.still -= 1
        if value.uniform and value.parts is None:
            return 0, 0, value.code
        return None

    def read_registers(self, registers: Registers, count: int) -> Value:
        """The values of consecutive registers; a last axis for ``count`` > 1."""
        root, loop = registers.root, self.slice
        view = self.view(root, registers.dtype)
        first, g = registers.first, registers.count
        if loop is None:
            if self.context.lane is not None:
                code = f"{view}[{self.context.lane}, {first}:{first} + {g}]"
                return Value(
                    code if g > 1 else f"{view}[{self.context.lane}, {first}]", registers.dtype
                )
            code = f"{view}[:, {first}:{first} + {g}]" if g > 1 else f"{view}[:, {first}]"
            return self._wide(Value(code, registers.dtype, True), g)
        key = (_id(root.var), registers.dtype, first, g)
        if registers.step == 0:
            if key in loop.groups:
                return loop.groups[key]
            if analysis.written_in_loop(loop.var, root.var, self.facts):
                raise NotVectorizable("registers carried to the next iteration")
            code = (
                f"{view}[:, None, {first}:{first} + {g}]"
                if g > 1
                else f"{view}[:, {first}][:, None]"
            )
            return self._wide(Value(code, registers.dtype, True), g)
        loop.reads.setdefault(_id(root.var), set()).add(self._span(registers))
        return self._wide(
            Value(self._slice_code(view, registers, loop), registers.dtype, True, True), g
        )

    def _wide(self, value: Value, count: int) -> Value:
        return self.integer(value) if count == 1 else value

    def _span(self, registers: Registers) -> tuple:
        size = BYTES[registers.dtype]
        first, count, step = registers.offset, registers.count, registers.step
        return (
            registers.rest,
            first * size,
            count * size,
            _each(lambda x, y: x * y, step, size, None),
        )

    def within(self, registers: Registers, loop: SliceLoop) -> str:
        """Source of the first register of a slice; the slice lies inside the array.

        Indices that run past it are left to the ordinary loop, which reports them.
        """
        rest, first, count, step = self._span(registers)
        if registers.root.fragment and rest:
            raise NotVectorizable("registers of a wgmma at an offset known only at run time")
        whole = registers.root.size * BYTES[registers.root.dtype]
        length = _last(step, loop.extent) + count
        if length > whole or (not rest and (first < 0 or first + length > whole)):
            raise NotVectorizable("registers past the end of their array")
        if not rest:
            return registers.first
        size = BYTES[registers.dtype]
        self.mark()
        name = self.fresh("i")
        call = f"{registers.first}, {length // size}, {whole // size}, {registers.root.name!r}"
        self.emit(f"{name} = register_range(w, {call})")
        return name

    def places(self, registers: Registers, first: str) -> str:
        """Source of the indices of registers without a fixed step, ``count`` for each iteration."""
        assert isinstance(registers.step, tuple)
        offset = 0 if registers.rest else registers.offset
        numbers = [offset + at + i for at in registers.step for i in range(registers.count)]
        name = self.array(numbers)
        return f"{first} + {name}" if registers.rest else name

    def _slice_code(self, view: str, registers: Registers, loop: SliceLoop) -> str:
        n, g, step = loop.extent, registers.count, registers.step
        if not _apart(step, g):
            raise NotVectorizable("registers that overlap between iterations")
        first = self.within(registers, loop)
        if isinstance(step, tuple):
            code = f"{view}[:, {self.places(registers, first)}]"
            return code if g == 1 else f"{code}.reshape(32, {n}, {g})"
        if g == 1:
            return f"{view}[:, {first}:{first} + {(n - 1) * step + 1}:{step}]"
        if step == g:
            return f"{view}[:, {first}:{first} + {n * g}].reshape(32, {n}, {g})"
        raise NotVectorizable("registers with gaps between iterations")

    def write_registers(self, registers: Registers, value: Value) -> None:
        """Assign consecutive registers; a value with a last axis for more than one."""
        root, loop, g = registers.root, self.slice, registers.count
        self.tally.overwritten(_id(root.var))
        view = self.view(root, registers.dtype)
        first = registers.first
        if loop is None:
            where = f"{first}:{first} + {g}" if g > 1 else first
            if self.context.lane is not None:
                self.emit(f"{view}[{self.context.lane}, {where}] = {value.code}")
            elif self.context.kept is not None:
                mask = self.context.kept
                picked = f"({value.code})[{mask}]" if value.lane else value.code
                self.emit(f"{view}[{mask}, {where}] = {picked}")
            else:
                self.emit(f"{view}[:, {where}] = {value.code}")
                self.fill(registers)
            return
        if self.context.kept is not None:
            raise NotVectorizable("registers written under a mask")
        if registers.step:
            self.fill(registers, gaps=True)
        if registers.step == 0:
            name = self.fresh("g")
            self.emit(f"{name} = {value.code}")
            key = (_id(root.var), registers.dtype, first, g)
            loop.groups[key] = Value(name, registers.dtype, value.lane, value.loop)
            return
        loop.writes.setdefault(_id(root.var), set()).add(self._span(registers))
        n, step = loop.extent, registers.step
        if not _apart(step, g):
            raise NotVectorizable("registers that overlap between iterations")
        first = self.within(registers, loop)
        if isinstance(step, tuple):
            code = value.code
            if g > 1:
                code = f"np.broadcast_to({code}, (32, {n}, {g})).reshape(32, {n * g})"
            self.emit(f"{view}[:, {self.places(registers, first)}] = {code}")
        elif g == 1:
            self.emit(f"{view}[:, {first}:{first} + {(n - 1) * step + 1}:{step}] = {value.code}")
        elif step == g:
            flat = f"np.broadcast_to({value.code}, (32, {n}, {g})).reshape(32, {n * g})"
            self.emit(f"{view}[:, {first}:{first} + {n * g}] = {flat}")
        else:
            raise NotVectorizable("registers with gaps between iterations")

    # ------------------------------------------------------------------------------- memory

    def address(self, buffer: Buffer, index: Any, elements: bool = False) -> Value:
        """The generic address of a buffer's number; ``elements``: the index counts those."""
        self.tally.still += 1
        where = self.expr(index)
        self.tally.still -= 1
        size = BYTES[buffer.dtype]
        if elements:
            size *= buffer.lanes
        offset = where.code if size == 1 else f"{where.code} * {size}"
        if where.code == "0":
            return Value(buffer.base, "handle")
        return Value(f"({buffer.base} + {offset})", "handle", where.lane, where.loop)

    def load_memory(self, buffer: Buffer, index: Any) -> Value:
        if type(index).__name__ == "Ramp":
            return self.load_vector(buffer, index)
        where = self.address(buffer, index)
        size = BYTES[buffer.dtype]
        self.note_memory(buffer.scope, store=False, width=size)
        self.mark()
        address = self.shared_address(buffer.scope, where)
        code = f"ld_{buffer.scope}(w, {address}, {size}, 1{self.mask(where)})"
        return self.typed(Value(code, buffer.dtype, where.lane, where.loop))

    def load_vector(self, buffer: Buffer, index: Any) -> Value:
        """Consecutive elements in one access."""
        if self.slice is not None:
            raise NotVectorizable("a vector subscript")
        where, lanes = self.address(buffer, self.unit_ramp(buffer, index)), _lanes(index)
        size = BYTES[buffer.dtype]
        self.note_memory(buffer.scope, store=False, width=size * lanes)
        self.mark()
        name = self.fresh("v")
        address = self.shared_address(buffer.scope, where)
        self.emit(f"{name} = ld_{buffer.scope}(w, {address}, {size}, {lanes}{self.mask(where)})")
        parts = [
            self.typed(Value(f"{name}[..., {i}]", buffer.dtype, where.lane)) for i in range(lanes)
        ]
        return _vector(parts, f"{buffer.dtype}x{lanes}")

    def unit_ramp(self, buffer: Buffer, index: Any) -> Any:
        """The first index of a vector subscript, whose elements must be consecutive."""
        stride = index.stride
        if not (hasattr(stride, "value") and int(stride.value) == 1):
            raise self.refuse(f"a strided vector subscript of {buffer.name}")
        return index.base

    def store_memory(self, buffer: Buffer, index: Any, value: Value) -> None:
        vector = type(index).__name__ == "Ramp"
        if vector and self.slice is not None:
            raise NotVectorizable("a vector subscript")
        first = self.unit_ramp(buffer, index) if vector else index
        lanes = _lanes(index) if vector else 1
        where = self.address(buffer, first)
        if self.slice is not None and value.loop and not where.loop:
            raise NotVectorizable("a store to one place")
        size = BYTES[buffer.dtype]
        self.note_memory(buffer.scope, store=True, width=size * lanes)
        self.mark()
        if lanes == 1:
            raw = self.raw(value, buffer.dtype)
        else:
            raws = [self.raw(_part(value, i), buffer.dtype) for i in range(lanes)]
            unsigned = {1: "np.uint8", 2: "np.uint16", 4: "np.uint32", 8: "np.uint64"}[size]
            raw = f"stacked([{', '.join(raws)}], {unsigned})"
        target = self.shared_address(buffer.scope, where)
        self.emit(f"st_{buffer.scope}(w, {target}, {raw}, {size}, {lanes}{self.mask(where)})")

    def address_name(self, where: Value) -> Value:
        """An address on a line of its own, so that a loop need not compute it again."""
        if where.uniform or re.fullmatch(r"\w+", where.code):
            return where
        name = self.fresh("at")
        self.emit(f"{name} = {where.code}")
        return Value(name, where.dtype, where.lane, where.loop)

    def shared_address(self, space: str, where: Value) -> str:
        return f"{where.code} - (1 << 40)" if space == "shared" else where.code

    def note_memory(self, space: str, store: bool, width: int = 4) -> None:
        """An access of ``width`` bytes: its width for the shadow, its space for slices.

        Two stores of a loop into one memory must keep their order: no slice.
        """
        self.grain = min(self.grain, width)
        if self.slice is None:
            return
        if store and self.slice.stores & {space, "generic"}:
            raise NotVectorizable("several stores")
        (self.slice.stores if store else self.slice.loads).add(space)

    def mask(self, where: Value | None = None) -> str:
        """The mask argument of an operation; of a memory access also the one lane that makes it."""
        if self.context.lane is not None:
            return "" if where is None else f", lane={self.context.lane}"
        if self.context.mask is not None:
            return f", mask={self.context.mask}"
        return ""

    def typed(self, value: Value, raw: bool = False) -> Value:
        """Unsigned bits of a load as values of their dtype."""
        dtype = value.dtype
        if dtype in ("float16", "float32", "float64"):
            return Value(f"{value.code}.view({NUMPY[dtype]})", dtype, value.lane, value.loop)
        if dtype == "bfloat16":
            return value
        if dtype in ("int8", "int16", "int32", "int64"):
            viewed = Value(f"{value.code}.view({NUMPY[dtype]})", dtype, value.lane, value.loop)
            return self.integer(viewed)
        if dtype == "bool":
            return Value(f"({value.code} != 0)", dtype, value.lane, value.loop)
        return self.integer(value)

    def raw(self, value: Value, dtype: str) -> str:
        """A value as the unsigned bits of ``dtype``."""
        unsigned = {1: "np.uint8", 2: "np.uint16", 4: "np.uint32", 8: "np.uint64"}[BYTES[dtype]]
        if dtype == "bfloat16":
            return value.code
        if value.lane or value.loop:
            if dtype in FLOATS:
                return f"np.ascontiguousarray({value.code}).view({unsigned})"
            return f"({value.code}).astype({NUMPY[dtype]}).view({unsigned})"
        number = _LITERAL.fullmatch(value.code)
        if dtype == "float32" and number is not None:
            return str(int(np.float32(float(number[1])).view(np.uint32)))
        if dtype in FLOATS:
            return f"{NUMPY[dtype]}({value.code}).view({unsigned})"
        if dtype == "bool":
            return f"int({value.code})"
        return f"wrap({value.code}, {8 * BYTES[dtype]}, False)"

    # --------------------------------------------------------------------------- expressions

    def capture(self, expr: Any, counted: bool = False) -> tuple[Value, list[str]]:
        """An expression, and the lines that computing it needs first, which are not emitted.

        ``counted``: its instructions count here; else they count where it is translated again.
        """
        start, site, saved = len(self.lines), self.emitted_site, self.tally.save()
        self.tally.muted += 1
        value = self.expr(expr)
        self.tally.muted -= 1
        if not counted:
            self.tally.restore(saved)
        lines = self.lines[start:]
        del self.lines[start:]
        self.emitted_site = site
        return value, lines

    def expr(self, expr: Any) -> Value:
        handler = getattr(self, "expr_" + type(expr).__name__, None)
        if handler is None:
            raise self.refuse(f"the expression {type(expr).__name__}")
        lanes = _lanes(expr)
        if lanes > 1 and type(expr).__name__ in _ELEMENTWISE:
            return self.elementwise(expr, lanes)
        tally = self.tally
        outer, tally.data = tally.data, False
        value = handler(expr)
        tally.data = outer or (tally.data and value.lane)
        if len(value.code) > _LONG and value.parts is None and _depth(value.code) > _DEPTH:
            name = self.fresh("long")
            self.emit(f"{name} = {value.code}")
            return Value(name, value.dtype, value.lane, value.loop)
        return value

    def elementwise(self, expr: Any, lanes: int) -> Value:
        """A short vector's expression, element by element."""
        children: dict[str, Any] = {}
        for name in ("a", "b", "value", "condition", "true_value", "false_value"):
            child = getattr(expr, name, None)
            if child is not None and hasattr(child, "ty"):
                children[name] = self.expr(child)
        args = [self.expr(a) for a in getattr(expr, "args", None) or ()]
        dtype = _scalar_type(str(expr.ty))
        parts = []
        share, self.tally.share = self.tally.share, 0.5
        for i in range(lanes):
            fields: dict[str, Any] = {n: Known(_part(v, i)) for n, v in children.items()}
            if args:
                fields["args"] = [Known(_part(value, i)) for value in args]
                fields["op"] = expr.op
            element = type(type(expr).__name__, (), {"ty": dtype, **fields})()
            parts.append(self.expr(element))
        self.tally.share = share
        return _vector(parts, str(expr.ty))

    def expr_Known(self, expr: Any) -> Value:
        self.tally.data = True
        return expr.value_of

    def expr_Ramp(self, expr: Any) -> Value:
        base, stride = self.expr(expr.base), self.expr(expr.stride)
        parts = [
            Value(f"({base.code} + {i} * {stride.code})", base.dtype, base.lane, base.loop)
            for i in range(_lanes(expr))
        ]
        return _vector(parts, str(expr.ty))

    def expr_Broadcast(self, expr: Any) -> Value:
        return _vector([self.expr(expr.value)] * _lanes(expr), str(expr.ty))

    def expr_IntImm(self, expr: Any) -> Value:
        dtype = str(expr.ty)
        if dtype == "bool":
            return Value(str(bool(expr.value)), dtype)
        value = int(expr.value)
        if dtype.startswith("uint") and value < 0:
            value &= (1 << int(dtype[4:])) - 1
        return Value(str(value), dtype)

    def expr_FloatImm(self, expr: Any) -> Value:
        dtype = str(expr.ty)
        value = float(expr.value)
        text = repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
        if dtype == "bfloat16":
            return Value(f"f32_to_bf16(np.float32({text}))", dtype)
        if dtype in STORED:
            return Value(str(int(formats.encode(value, STORED[dtype], satfinite=True))), dtype)
        if dtype not in FLOATS:
            raise UnknownType(dtype)
        return Value(f"{NUMPY[dtype]}({text})", dtype)

    def expr_Var(self, expr: Any) -> Value:
        key = _id(expr)
        found = self.vars.get(key)
        if key in self.tally.variables:
            self.tally.data = True
        if found is None:
            buffer = self.buffers.get(_id(expr))
            if buffer is not None and buffer.scope in ("global", "shared"):
                return Value(buffer.base, "handle")
            raise self.refuse(f"the variable {expr}")
        if found.lane and self.context.lane is not None:
            if found.code == "tid":
                return Value(f"(w.tid0 + {self.context.lane})", found.dtype)
            return Value(self.pick(found.code, found.dtype), found.dtype)
        if found.lane and self.slice is not None and not found.loop:
            if found.code == "tid":
                return Value("tidc", found.dtype, lane=True)
            if found.code not in self._slice_locals():
                return Value(f"column({found.code})", found.dtype, lane=True)
        return found

    def _slice_locals(self) -> set[str]:
        """Names bound inside the slice: they have their axes already."""
        loop = self.slice
        assert loop is not None
        return {self.vars[key].code for key in loop.exprs if key in self.vars}

    def expr_TensorLoad(self, expr: Any) -> Value:
        buffer = self.buffer_of(expr.source)
        index = self.subscript(buffer, expr.indices)
        try:
            return self.subscripted(expr, buffer, index)
        finally:
            root = buffer.root
            one = root if root is not None and root.size == 1 else None
            self.tally.data = one is None or _id(one.var) in self.tally.variables

    def subscripted(self, expr: Any, buffer: Buffer, index: Any) -> Value:
        """What a subscript of a buffer reads."""
        if buffer.scope == "local" and type(index).__name__ == "Ramp":
            if self.slice is not None:
                raise NotVectorizable("a vector subscript")
            first = self.expr(self.unit_ramp(buffer, index))
            parts = [
                self.load_register(
                    buffer, Known(Value(f"({first.code} + {i})", first.dtype, first.lane))
                )
                for i in range(_lanes(index))
            ]
            return _vector(parts, str(expr.ty))
        if buffer.scope == "local":
            return self.load_register(buffer, index)
        if buffer.scope == "tmem":
            raise self.refuse("a load from tensor memory by subscript")
        return self.load_memory(buffer, index)

    def binary(self, expr: Any) -> tuple[Value, Value, bool, bool]:
        a, b = self.expr(expr.a), self.expr(expr.b)
        if a.dtype in STORED:  # nor does CUDA have operators for them
            raise self.refuse(f"arithmetic on {a.dtype}")
        if a.parts is not None or b.parts is not None:
            raise self.refuse(f"arithmetic on {expr.a.ty}")
        return a, b, a.lane or b.lane, a.loop or b.loop

    def arithmetic(self, expr: Any, sign: str) -> Value:
        a, b, lane, loop = self.binary(expr)
        dtype = str(expr.ty)
        work.arithmetic(self, expr, sign, a, b)
        if dtype == "bfloat16":
            code = f"f32_to_bf16(bf16_to_f32({a.code}) {sign} bf16_to_f32({b.code}))"
            return Value(code, dtype, lane, loop)
        if sign == "+" and "0" in (a.code, b.code):
            return b if a.code == "0" else a
        if a.code.isdigit() and b.code.isdigit() and not dtype.startswith(("float", "uint")):
            number = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}.get(sign)
            if number is not None:
                return Value(str(number(int(a.code), int(b.code))), dtype)
        code = f"({a.code} {sign} {b.code})"
        if dtype == "uint32":
            code = f"({code} & 0xFFFFFFFF)"
        elif dtype == "uint64" and not lane and not loop:
            code = f"({code} & 0xFFFFFFFFFFFFFFFF)"
        return Value(code, dtype, lane, loop)

    def expr_Add(self, expr: Any) -> Value:
        return self.arithmetic(expr, "+")

    def expr_Sub(self, expr: Any) -> Value:
        return self.arithmetic(expr, "-")

    def expr_Mul(self, expr: Any) -> Value:
        if not self.products.unbounded(expr):
            return self.arithmetic(expr, "*")
        a, b, lane, loop = self.binary(expr)
        work.arithmetic(self, expr, "*", a, b)
        self.mark()
        mask = f", {self.context.mask}" if lane and self.context.mask else ""
        return Value(f"product32(w, {a.code}, {b.code}{mask})", "int32", lane, loop)

    def expr_Div(self, expr: Any) -> Value:
        dtype = str(expr.ty)
        self.tally.still += dtype in FLOATS  # of floats, arithmetic translates the operands again
        a, b, lane, loop = self.binary(expr)
        self.tally.still -= dtype in FLOATS
        if dtype in FLOATS:
            return self.arithmetic(expr, "/")
        work.divided(self, expr, a, b)
        return Value(f"tdiv({a.code}, {b.code})", dtype, lane, loop)

    def expr_Mod(self, expr: Any) -> Value:
        a, b, lane, loop = self.binary(expr)
        work.divided(self, expr, a, b)
        return Value(f"tmod({a.code}, {b.code})", str(expr.ty), lane, loop)

    def expr_FloorDiv(self, expr: Any) -> Value:
        warp = self.facts.warp_uniform(expr)
        if warp is not None:
            return Value(warp, str(expr.ty))
        a, b, lane, loop = self.binary(expr)
        work.divided(self, expr, a, b)
        return Value(f"({a.code} // {b.code})", str(expr.ty), lane, loop)

    def expr_FloorMod(self, expr: Any) -> Value:
        a, b, lane, loop = self.binary(expr)
        work.divided(self, expr, a, b)
        return Value(f"({a.code} % {b.code})", str(expr.ty), lane, loop)

    def bits(self, expr: Any, sign: str) -> Value:
        a, b, lane, loop = self.binary(expr)
        dtype = str(expr.ty)
        work.bits(self, expr, a, b)
        if dtype == "bool":
            return Value(f"({a.code} {sign} {b.code})", dtype, lane, loop)
        code = f"({a.code} {sign} {b.code})"
        if sign == "<<" and dtype in ("int32", "uint32", "uint64", "int64"):
            width = 8 * BYTES[dtype]
            if dtype == "uint64" and (lane or loop):
                return Value(code, dtype, lane, loop)
            code = f"wrap({code}, {width}, {dtype.startswith('int')})"
        return Value(code, dtype, lane, loop)

    def expr_BitwiseAnd(self, expr: Any) -> Value:
        return self.bits(expr, "&")

    def expr_BitwiseOr(self, expr: Any) -> Value:
        return self.bits(expr, "|")

    def expr_BitwiseXor(self, expr: Any) -> Value:
        return self.bits(expr, "^")

    def expr_LShift(self, expr: Any) -> Value:
        return self.bits(expr, "<<")

    def expr_RShift(self, expr: Any) -> Value:
        warp = self.facts.warp_uniform(expr)
        if warp is not None:
            return Value(warp, str(expr.ty))
        return self.bits(expr, ">>")

    def expr_BitwiseNot(self, expr: Any) -> Value:
        a = self.expr(expr.a)
        return Value(
            f"wrap(~({a.code}), {8 * BYTES[str(expr.ty)]}, {str(expr.ty).startswith('int')})",
            str(expr.ty),
            a.lane,
            a.loop,
        )

    def extreme(self, expr: Any, which: str) -> Value:
        a, b, lane, loop = self.binary(expr)
        dtype = str(expr.ty)
        work.extreme(self, dtype, a, b)
        if dtype == "bfloat16":
            name = "np.fmin" if which == "min" else "np.fmax"
            code = f"f32_to_bf16({name}(bf16_to_f32({a.code}), bf16_to_f32({b.code})))"
            return Value(code, dtype, lane, loop)
        if dtype in FLOATS:
            return Value(f"np.f{which}({a.code}, {b.code})", dtype, lane, loop)
        name = f"np.{which}imum" if lane or loop else which
        return Value(f"{name}({a.code}, {b.code})", dtype, lane, loop)

    def expr_Min(self, expr: Any) -> Value:
        return self.extreme(expr, "min")

    def expr_Max(self, expr: Any) -> Value:
        return self.extreme(expr, "max")

    def compare(self, expr: Any, sign: str) -> Value:
        a, b, lane, loop = self.binary(expr)
        work.compared(self, a, b)
        if a.dtype == "bfloat16":
            a = Value(f"bf16_to_f32({a.code})", "float32", a.lane, a.loop)
            b = Value(f"bf16_to_f32({b.code})", "float32", b.lane, b.loop)
        return Value(f"({a.code} {sign} {b.code})", "bool", lane, loop)

    def expr_EQ(self, expr: Any) -> Value:
        return self.compare(expr, "==")

    def expr_NE(self, expr: Any) -> Value:
        return self.compare(expr, "!=")

    def expr_LT(self, expr: Any) -> Value:
        return self.compare(expr, "<")

    def expr_LE(self, expr: Any) -> Value:
        return self.compare(expr, "<=")

    def expr_GT(self, expr: Any) -> Value:
        return self.compare(expr, ">")

    def expr_GE(self, expr: Any) -> Value:
        return self.compare(expr, ">=")

    def guarded(self, expr: Any, test: Value, wanted: bool) -> Value:
        """An expression that counts only for the lanes where ``test`` is ``wanted``.

        C evaluates it for those alone; where it loads, so must we.
        """
        if test.uniform or not analysis.loads(expr):
            return self.expr(expr)
        if self.slice is not None:
            if not analysis.only_registers(expr):
                raise NotVectorizable("a load that a condition guards")
            return self.carried(expr)  # what other lanes hold is read, and dropped
        outer = self.context
        mask = self.fresh("m")
        within = f" & {outer.mask}" if outer.mask else ""
        self.emit(f"{mask} = {'' if wanted else '~'}({test.code}){within}")
        self.context = Context(mask=mask)
        try:
            return self.expr(expr)
        finally:
            self.context = outer

    def named(self, value: Value) -> Value:
        """A value that several expressions use, computed once."""
        if value.uniform or self.slice is not None or re.fullmatch(r"\w+", value.code):
            return value
        name = self.fresh("c")
        self.emit(f"{name} = {value.code}")
        return Value(name, value.dtype, value.lane, value.loop)

    def behind(self, expr: Any) -> tuple[Value, list[str]]:
        """An expression that a condition of all lanes guards, and lines to run under the condition.

        What must be computed beforehand, such as a checked index, counts only where it holds.
        """
        if not analysis.loads(expr):
            return self.expr(expr), []
        known, before = self.known(), self.emitted_site
        value, lines = self.capture(expr, counted=True)
        if all(_MARK.fullmatch(line) for line in lines):
            self.lines += lines
            self.emitted_site = self.site if lines else before
            return value, []
        if self.slice is not None:
            raise NotVectorizable("a load that a condition guards")
        self.settled, self.filled, self.assigned = known
        return value, lines

    def run_if(self, test: str, lines: list[str], name: str, code: str) -> None:
        """Compute a guarded expression under its condition."""
        self.emit(f"if {test}:")
        with self.block():
            self.lines += ["    " + line for line in lines]
            self.emit(f"{name} = {code}")

    def logic(self, expr: Any, word: str, sign: str) -> Value:
        a = self.expr(expr.a)
        if a.uniform and a.code not in ("True", "False"):
            b, lines = self.behind(expr.b)
            if lines:
                name = self.fresh("c")
                rest = {"and": ("False", "w.nobody"), "or": ("True", "w.everybody")}[word]
                self.emit(f"{name} = {rest[b.lane]}")
                self.run_if(a.code if word == "and" else f"not {a.code}", lines, name, b.code)
                return Value(name, "bool", b.lane, b.loop)
            return self.joined(expr, word, sign, a, b)
        if a.lane and analysis.loads(expr.b):
            a = self.named(a)
        b = self.guarded(expr.b, a, word == "and")
        return self.joined(expr, word, sign, a, b)

    def joined(self, expr: Any, word: str, sign: str, a: Value, b: Value) -> Value:
        """``and`` or ``or`` of two conditions."""
        lane, loop = a.lane or b.lane, a.loop or b.loop
        if a.uniform and lane and analysis.loads(expr.b):
            if loop:
                raise NotVectorizable("a load that a condition guards")
            rest = "w.nobody" if word == "and" else "w.everybody"
            first, second = (b.code, rest) if word == "and" else (rest, b.code)
            return Value(f"({first} if {a.code} else {second})", "bool", lane, loop)
        code = f"({a.code} {sign} {b.code})" if lane or loop else f"({a.code} {word} {b.code})"
        return Value(code, "bool", lane, loop)

    def expr_And(self, expr: Any) -> Value:
        return self.logic(expr, "and", "&")

    def expr_Or(self, expr: Any) -> Value:
        return self.logic(expr, "or", "|")

    def expr_Not(self, expr: Any) -> Value:
        a = self.expr(expr.a)
        code = f"(~{a.code})" if a.lane or a.loop else f"(not {a.code})"
        return Value(code, "bool", a.lane, a.loop)

    def choose(self, condition: Value, yes: Value, no: Value, dtype: str) -> Value:
        lane = condition.lane or yes.lane or no.lane
        loop = condition.loop or yes.loop or no.loop
        work.chosen(self, condition, yes, no, dtype)
        if condition.uniform:
            if lane and not loop:  # whichever is taken must be an array of lanes
                axis = "" if self.slice is None else "[:, None]"
                yes, no = (
                    v if v.lane else Value(f'spread({v.code}, "{dtype}"){axis}', dtype, True)
                    for v in (yes, no)
                )
            elif loop and not (yes.loop and no.loop and yes.lane == no.lane):
                code = f"np.where({condition.code}, {yes.code}, {no.code})"
                return Value(code, dtype, lane, loop)
            return Value(f"({yes.code} if {condition.code} else {no.code})", dtype, lane, loop)
        return Value(f"np.where({condition.code}, {yes.code}, {no.code})", dtype, lane, loop)

    def expr_Select(self, expr: Any) -> Value:
        return self.choice(expr.condition, expr.true_value, expr.false_value, str(expr.ty))

    def choice(self, condition: Any, yes: Any, no: Any, dtype: str) -> Value:
        """``condition ? yes : no``, which evaluates one of the two."""
        test = self.expr(condition)
        self.tally.guarded += 1
        try:
            return self.one_of(test, yes, no, dtype)
        finally:
            self.tally.guarded -= 1

    def one_of(self, test: Value, yes: Any, no: Any, dtype: str) -> Value:
        """One of two expressions, by a condition that has been translated."""
        if test.uniform and test.code not in ("True", "False"):
            one, first = self.behind(yes)
            other, second = self.behind(no)
            if not first and not second:
                return self.choose(test, one, other, dtype)
            lane = one.lane or other.lane
            name = self.fresh("c")
            codes = [
                f'spread({v.code}, "{dtype}")' if lane and not v.lane else v.code
                for v in (one, other)
            ]
            once = self.fresh("c")
            self.emit(f"{once} = {test.code}")
            self.run_if(once, first, name, codes[0])
            self.run_if(f"not {once}", second, name, codes[1])
            return Value(name, dtype, lane)
        if analysis.loads(yes) or analysis.loads(no):
            test = self.named(test)
        return self.choose(
            test, self.guarded(yes, test, True), self.guarded(no, test, False), dtype
        )

    def expr_Cast(self, expr: Any) -> Value:
        return self.cast(self.expr(expr.value), str(expr.ty))

    def cast(self, value: Value, dtype: str) -> Value:
        """C's conversion of a value to another type; floats round to nearest even."""
        source = value.dtype
        if source == dtype:
            return value
        work.cast(self, value, dtype)
        many = value.lane or value.loop
        code = value.code
        if source == "bfloat16":
            code, source = f"bf16_to_f32({code})", "float32"
        if source in STORED:
            code, source = f'decoded({code}, "{STORED[source]}")', "float32"
        if dtype in STORED:
            return Value(f'encoded({code}, "{STORED[dtype]}")', dtype, value.lane, value.loop)
        if dtype == "bfloat16":
            if source != "float32":
                code = f"({code}).astype(np.float32)" if many else f"np.float32({code})"
            return Value(f"f32_to_bf16({code})", dtype, value.lane, value.loop)
        if dtype in FLOATS:
            code = f"({code}).astype({NUMPY[dtype]})" if many else f"{NUMPY[dtype]}({code})"
            return Value(code, dtype, value.lane, value.loop)
        if dtype == "bool":
            return Value(f"({code} != 0)", dtype, value.lane, value.loop)
        if dtype == "handle":
            return Value(code, dtype, value.lane, value.loop)
        if source in FLOATS:
            bits, signed = max(32, 8 * BYTES[dtype]), dtype.startswith("int")
            code = f"to_integer({code}, {bits}, {signed})"
            if BYTES[dtype] in (4, 8):
                return Value(code, dtype, value.lane, value.loop)
        elif source == "bool":
            code = f"({code}).astype(np.int64)" if many else f"int({code})"
        if dtype == "uint64":
            code = f"({code}).astype(np.uint64)" if many else f"({code} & 0xFFFFFFFFFFFFFFFF)"
            return Value(code, dtype, value.lane, value.loop)
        if source == "uint64" and many:
            code = f"({code}).astype(np.int64)"
        narrower = BYTES[dtype] < BYTES.get(source, 8)
        resigned = dtype.startswith("uint") != source.startswith("uint")
        if (narrower or resigned) and not (dtype == "int64" and source != "uint64"):
            code = f"wrap({code}, {8 * BYTES[dtype]}, {dtype.startswith('int')})"
        return Value(code, dtype, value.lane, value.loop)

    def expr_Shuffle(self, expr: Any) -> Value:
        parts: list[Value] = []
        for vector in expr.vectors:
            value = self.expr(vector)
            parts.extend(value.parts if value.parts is not None else [value])
        chosen = [parts[int(i.value)] for i in expr.indices]
        if len(chosen) == 1:
            return chosen[0]
        return _vector(chosen, str(expr.ty))

    def expr_StringImm(self, expr: Any) -> Value:
        return Value(repr(str(expr.value)), "string")

    def expr_Call(self, expr: Any) -> Value:
        value = self.call(expr, statement=False)
        if value is None:
            raise self.refuse(f"{expr.op.name} as an expression")
        return value

    # --------------------------------------------------------------------------------- calls

    def call(self, call: Any, statement: bool) -> Value | None:
        name = str(getattr(call.op, "name", call.op))
        row = table.ROWS.get(name)
        if row is None:
            known = coverage.left(name.removeprefix("tirx."))
            why = f", left for later: {known.why}" if known else ""
            raise self.refuse(_readable(name, call) + why)
        if self.slice is not None and not row.vectorizable:
            raise NotVectorizable(name)
        if not name.startswith("tirx.ptx.") or name == "tirx.ptx.addr":
            return self.operation(name, row, call)
        operation = self.ptx(call, name)
        if operation.pred is None:
            return self.operation(name, row, operation)
        if self.slice is not None:
            raise NotVectorizable("a predicated operation")
        with self.predicated(operation):
            operation.pred = None
            return self.operation(name, row, operation)

    def operation(self, name: str, row: table.Row, call: Any) -> Value | None:
        """Emit an operation, and count its instructions where it is one on registers."""
        tally = self.tally
        outer = tally.data
        if work.begin(self, name, row):
            value = row.emit(self, call)
            tally.still -= 1
            tally.data = outer
            return value
        value = row.emit(self, call)
        work.called(self, name, call, value, row)
        tally.data = outer or tally.data
        return value

    def ptx(self, call: Any, name: str) -> PtxCall:
        """Operands and modifiers of a PTX call, by the names of TVM's instruction table.

        A lane of a register group that is sunk (``_``) stands as None.
        """
        operands, modifiers, flags = analysis.ptx_operands(call)
        registers = {slot.name: [arg for _, arg in group] for slot, group in operands}
        pred = None
        if "pred" in flags:
            last = len(call.args) - len(modifiers) - 2
            pred = call.args[last]
        return PtxCall(name, registers, modifiers, pred, call)

    def blocking(self, code: str) -> None:
        """Emit an operation that may make the warp wait."""
        self.mark()
        name = self.fresh("t")
        self.emit(f"{name} = {code}")
        self.emit(f"if {name} is not None: yield {name}")

    def predicated(self, call: PtxCall):
        """A context in which only the lanes of the call's predicate act."""
        return _Predicate(self, call.pred)


class _Predicate:
    """Runs emission under ``@p``: a condition for a uniform predicate, else a mask."""

    def __init__(self, t: Translator, pred: Any):
        self.t = t
        self.pred = pred

    def __enter__(self) -> None:
        self.saved = self.t.context
        self.indent = False
        if self.pred is None:
            return
        value = self.t.expr(self.pred)
        if value.uniform:
            self.t.emit(f"if {value.code}:")
        else:
            mask = self.t.fresh("m")
            outer = f" & {self.saved.mask}" if self.saved.mask else ""
            test = value.code if value.dtype == "bool" else f"({value.code} != 0)"
            self.t.emit(f"{mask} = {test}{outer}")
            self.t.emit(f"if {mask}.any():")
            self.t.context = Context(mask=mask)
        self.t.depth += 1
        self.t.emitted_site = None
        self.known = self.t.known()
        self.t.emit("pass")
        self.indent = True

    def __exit__(self, *error: Any) -> None:
        self.t.context = self.saved
        if self.indent and error[0] is None:
            self.t.flush()
        if self.indent:
            self.t.depth -= 1
            self.t.emitted_site = None
            self.t.settled, self.t.filled, self.t.assigned = self.known


class _Indent:
    """An indented block; the site that was current outside is unknown after it."""

    def __init__(self, t: Translator, again: Any = None):
        self.t = t
        self.again = again

    def __enter__(self) -> None:
        self.t.depth += 1
        self.t.emitted_site = None
        self.start = len(self.t.lines)
        self.scope, self.t.stopped = self.t.scope, None
        self.known, self.unsettled = self.t.known(), self.t.unsettled
        self.t.unsettled = set()
        self.t.tally.divisors.clear()
        if self.again is not None and analysis.loads_tensor_memory(self.again):
            self.t.settled = {}

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.t.flush()
        self.t.tally.divisors.clear()
        if all("#work " in line for line in self.t.lines[self.start :]):
            self.t.emit("pass")
        self.t.depth -= 1
        self.t.emitted_site = None
        self.t.scope, self.t.stopped = self.scope, None
        inside = self.t.unsettled
        settled, self.t.filled, self.t.assigned = self.known
        self.t.settled = {k: parts for k, parts in settled.items() if k not in inside}
        self.t.unsettled = self.unsettled | inside


# ------------------------------------------------------------------------------------- helpers


class Known:
    """An expression that has been translated already, to stand in another one."""

    def __init__(self, value: Value):
        self.value_of = value
        self.ty = value.dtype


#: Expressions that mean the same for each element of a short vector.
_ELEMENTWISE = {
    "Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "EQ", "NE", "LT",
    "LE", "GT", "GE", "And", "Or", "Not", "Cast", "Select", "BitwiseAnd", "BitwiseOr",
    "BitwiseXor", "LShift", "RShift",
}  # fmt: skip


#: Expressions longer than this, with more brackets inside each other, become several lines:
#: Python takes 200 brackets.
_LONG, _DEPTH = 400, 60


def _depth(code: str) -> int:
    """How many brackets an expression opens inside each other."""
    depth = most = 0
    for letter in code:
        if letter in "([{":
            depth += 1
            most = max(most, depth)
        elif letter in ")]}":
            depth -= 1
    return most


def _lanes(expr: Any) -> int:
    """Elements of an expression's type (``float16x8`` has 8)."""
    match = re.fullmatch(r"[a-z]+\d+(?:_[a-z0-9]+?)?x(\d+)", str(getattr(expr, "ty", "")))
    return int(match.group(1)) if match else 1


def _scalar_type(dtype: str) -> str:
    return re.sub(r"x\d+$", "", dtype)


def _part(value: Value, i: int) -> Value:
    """Element ``i`` of a short vector; a scalar is its own every element."""
    return value.parts[i] if value.parts is not None else value


def _kind(value: Value) -> str:
    """What a debugger shows a variable of this value as."""
    return "loop" if value.loop else "lane" if value.lane else "scalar"


def _id(node: Any) -> int:
    """Identity of an IR node: TVM hands out fresh Python objects for one handle."""
    return analysis.node_id(node)


def _source_buffer(data: Any) -> Any:
    """The buffer that a DeclBuffer's data expression is a plain view of, or None."""
    if type(data).__name__ == "Call" and "buffer_data" in str(data.op.name):
        return data.args[0]
    if type(data).__name__ == "Var":
        return data
    return None


def _size(buffer: Any) -> int:
    size = 1
    for dim in buffer.shape:
        size *= int(dim.value)
    return size


def _overlap(one: tuple, other: tuple, extent: int) -> bool:
    """Whether two register spans (rest, first, bytes, step) meet in different iterations.

    Spans with different rests may lie anywhere.
    """
    (ra, a, na, sa), (rb, b, nb, sb) = one, other
    if ra != rb:
        return True
    if isinstance(sa, tuple) or isinstance(sb, tuple):
        ours, theirs = ([x + at for at in _starts(s, extent)] for x, s in ((a, sa), (b, sb)))
        return any(
            lo < hi + nb and hi < lo + na
            for i, lo in enumerate(ours)
            for j, hi in enumerate(theirs)
            if i != j or one != other
        )
    if sa == sb:
        apart = range(1 if one == other else 0, extent)
        return any(-na < a - b + sign * i * sa < nb for i in apart for sign in (1, -1))
    starts = [b + j * sb for j in range(extent)]
    return any(
        lo < hi + nb and hi < lo + na
        for i in range(extent)
        for lo in (a + i * sa,)
        for hi in starts
    )


def _starts(step: int | tuple[int, ...], extent: int) -> list[int]:
    """How far each iteration's registers are from the first one's."""
    return list(step) if isinstance(step, tuple) else [i * step for i in range(extent)]


def _last(step: int | tuple[int, ...], extent: int) -> int:
    return max(step) if isinstance(step, tuple) else (extent - 1) * step


def _apart(step: int | tuple[int, ...], count: int) -> bool:
    """Whether ``count`` registers of each iteration are no other iteration's."""
    if not isinstance(step, tuple):
        return step >= count
    order = sorted(step)
    return order[0] == 0 and all(b - a >= count for a, b in itertools.pairwise(order))


def _each(function: Any, a: Any, b: Any, loop: SliceLoop | None) -> Any:
    """A function of two steps, either of which may be a number for each iteration."""
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        return function(a, b)
    if loop is not None:
        a, b = _starts(a, loop.extent), _starts(b, loop.extent)
        return tuple(function(x, y) for x, y in zip(a, b, strict=True))
    return tuple(function(x, b) for x in a)


def _normal(step: Any, constant: int, rest: str) -> tuple[Any, int, str]:
    """An index whose numbers for each iteration begin at 0; a progression as its step."""
    if not isinstance(step, tuple):
        return step, constant, rest
    low = min(step)
    moved = tuple(x - low for x in step)
    by = moved[1] - moved[0]
    if by >= 0 and all(x == i * by for i, x in enumerate(moved)):
        return by, constant + low, rest
    return moved, constant + low, rest


#: A line that says only where the kernel is.
_MARK = re.compile(r" *w\.s = \d+")

#: A float32 constant in the emitted source.
_LITERAL = re.compile(r"np\.float32\((?:float\(\")?(-?[\w.+-]+)(?:\"\))?\)")

#: Calls whose results are arrays of their own, and arithmetic.
_FRESH = re.compile(
    r"(f32x2|f32|pack64|pairs64|extreme|approximate|pack_pair|spread|"
    r"np\.(where|fmax|fmin|maximum|minimum|abs|exp|exp2|log|log2|sqrt|tanh))\("
)


def _held(code: str) -> str:
    """An expression whose value is kept: a copy where it may be a view of what changes later."""
    if _FRESH.match(code) or (code.startswith("(") and " if " not in code):
        depth = 0
        operator = False
        for i, letter in enumerate(code):
            if letter in "([":
                depth += 1
            elif letter in ")]":
                depth -= 1
                if depth == 0 and i < len(code) - 1:
                    return f"held({code})"
            elif letter in "+-*/&|^<>" and depth == 1 and code[i - 1] == " ":
                operator = True
        if operator or not code.startswith("("):
            return code
    return f"held({code})"


def _covered(parts: list[tuple[int, int]], low: int, high: int) -> bool:
    """Whether intervals cover ``low`` to ``high``."""
    for first, last in sorted(parts):
        if first <= low < last:
            low = last
    return low >= high


def _rows(code: str, count: int) -> str:
    return code if count > 1 else f"({code})[:, None]"


def _vector(parts: list[Value], dtype: str) -> Value:
    lane, loop = any(p.lane for p in parts), any(p.loop for p in parts)
    return Value(f"({', '.join(p.code for p in parts)})", dtype, lane, loop, tuple(parts))


def _authors(places: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The places that are not in TVM's own library: lines that the kernel's author can change."""
    return [place for place in places if not place[0].startswith(_library())]


@lru_cache(maxsize=1)
def _library() -> str:
    import tvm

    return str(Path(tvm.__file__).resolve().parent)


def _texts(sites: list[list[list[Any]]], whole: bool = False) -> dict[str, dict[str, str]]:
    """The source text of every line that a site names, so that a Program explains itself.

    ``whole``: all lines of the files that sites name.
    """
    wanted: dict[str, set[int]] = {}
    for places in sites:
        for file, line in places:
            wanted.setdefault(file, set()).add(line)
    texts: dict[str, dict[str, str]] = {}
    for file, lines in wanted.items():
        source = _source_lines(file)
        if whole:
            lines = set(range(1, len(source) + 1))
        texts[file] = {str(n): source[n - 1] for n in sorted(lines) if 0 < n <= len(source)}
    return texts


def _source_lines(file: str) -> list[str]:
    import linecache

    lines = linecache.getlines(file)  # a notebook's cells are there, and nowhere on disk
    if lines:
        return [line.rstrip("\n") for line in lines]
    try:
        return Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _readable(name: str, call: Any) -> str:
    """An operation's name as PTX spells it, with its modifiers."""
    short = name.removeprefix("tirx.")
    if short.startswith("ptx."):
        tokens = [str(a.value) for a in call.args if type(a).__name__ == "StringImm"]
        family = short.removeprefix("ptx.").split("_")[0]
        return ".".join([family, *[t for t in tokens[:-1] if t]])
    return short
