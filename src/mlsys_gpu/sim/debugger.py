"""Stop a kernel in the simulator, look at it, and step on.

>>> session = mg.debug(kernel, A, B, D)  # stands before the first line of the first warp
>>> session.run_until("Tx.gemm_async", warp=0)  # a line, by its number or by a part of its text
>>> session.variables["k"], session.smem("As"), session.barriers, session.waits
>>> session.step()  # the next line of this warp
>>> session.run_until(barrier="full[1]", phase=3)  # that phase is complete
>>> session.cont()  # on to the next breakpoint or finding, or to the end
>>> session.report

A session runs the same operations in the same order as :func:`mlsys_gpu.simulate` with the same
schedule and seed: outputs are the same, and so are the findings. (A plain run may take a loop's
iterations in one step; a session takes them one by one, so that a finding in such a loop may name
another of its elements first, and count otherwise.) While it stands, everything stands: engines
(TMA, the tensor core) go on when the session does, as the schedule says. Outputs are copied into
the caller's arrays at the end of the run. ``session.shell()`` is the same in a terminal, with
commands; so is ``mlsys-gpu debug``.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlsys_gpu.sim import inspect_state, page
from mlsys_gpu.sim.arguments import bind
from mlsys_gpu.sim.inspect_state import UNWRITTEN, DebugError, Tile, Variable
from mlsys_gpu.sim.machine import host_array, waitgraph
from mlsys_gpu.sim.machine import run as run_machine
from mlsys_gpu.sim.machine.core import Cluster, Cta, Machine, Warp, one_blas_thread, ranges
from mlsys_gpu.sim.program import Program
from mlsys_gpu.sim.report import CODES, Finding, Location, Report, graph_html, graph_lines

__all__ = ["Breakpoint", "DebugError", "Listing", "Session", "Stop", "debug"]

#: Operations at which warps meet, or one waits for another: where :meth:`Session.next_barrier`
#: stops.
_MEETINGS = re.compile(
    r"\b(cta_sync|bar_\w+|cluster_\w+|mbarrier_(?!init|inval)\w+|tcgen05_commit\w*|wgmma_wait\w*"
    r"|bulk_wait\w*|cp_async_wait\w*)\("
)


@dataclass(frozen=True)
class Stop:
    """Where a session stands, and why.

    ``reason``: ``start``, ``step``, ``line``, ``barrier``, ``finding``, ``exit`` (the warp that was
    stepped has exited), ``interrupted`` (Ctrl-C) or ``end`` (the kernel has run). ``cta`` is the
    block index, ``warp`` the index of the warp in its CTA, or None where no warp stands there.
    """

    reason: str
    text: str
    cta: tuple[int, int, int] | None = None
    warp: int | None = None
    location: Location | None = None
    finding: Finding | None = None
    breakpoint: int | None = None

    def __repr__(self) -> str:
        place = self._shown()
        return f"{self.text}\n  {place} | {place.text.strip()}" if place else self.text

    def _repr_html_(self) -> str:
        body = f"<p>{page.tag(self.reason, 'info')} {page.esc(self.text)}</p>"
        return page.page("mg-debug", body + page.source_line(self._shown()))

    def _shown(self) -> Location | None:
        """The line to show: none where nobody stands at one."""
        return self.location if self.reason not in ("end", "exit") else None


@dataclass
class Breakpoint:
    """Where a session stops; ``text`` says it in words, ``hits`` counts how often it has."""

    number: int
    place: str
    kind: str
    #: What restricts it, in words: ``, warp 0 if k == 3``.
    limits: str = ""
    #: Where it stops, and which of the lines at that stop it is for (0 the outermost caller's).
    stops: dict[int, int] = field(default_factory=dict)
    barrier: str = ""
    phase: int | None = None
    code: str | None = None
    warps: frozenset[int] | None = None
    cta: int | None = None
    when: Any = None
    temporary: bool = False
    hits: int = 0
    #: How often a warp came to its line, whatever its condition.
    came: int = 0
    #: The stop at which each warp has come to its line, and whether it has stopped there.
    visits: dict[Warp, tuple[int, bool]] = field(default_factory=dict, repr=False)
    #: Phases that have been completed, for warps that have not passed them yet.
    passed: list[tuple[Any, int, Any, set[Warp]]] = field(default_factory=list, repr=False)

    @property
    def text(self) -> str:
        """Where it stops, in words."""
        return self.place + self.limits

    def __repr__(self) -> str:
        return f"breakpoint {self.number}: {self.text} ({self.hits} hit{'s' * (self.hits != 1)})"

    def means(self, name: str) -> bool:
        """Whether it is for the barrier of this name, or for a row of them."""
        return self.kind == "barrier" and self.barrier in (name, name.partition("[")[0])

    def wants(self, warp: Warp) -> bool:
        """Whether it is for this warp."""
        if self.warps is not None and warp.id not in self.warps:
            return False
        return self.cta is None or warp.cta.index == self.cta


class Listing(list[dict[str, Any]]):
    """Rows of plain data that print as a table, or as ``text`` and ``html`` where given."""

    def __init__(
        self,
        title: str,
        rows: Iterable[dict[str, Any]],
        empty: str = "nothing",
        text: str = "",
        html: str = "",
    ):
        super().__init__(rows)
        self.title, self.empty, self.text, self.html = title, empty, text, html

    def __repr__(self) -> str:
        if self.text:
            return self.text
        if not self:
            return f"{self.title}: {self.empty}"
        names = [n for n in self[0] if any(row[n] not in ("", None) for row in self)]
        cells = [names] + [["" if row[n] is None else str(row[n]) for n in names] for row in self]
        widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
            for line in cells
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self.html:
            return page.page("mg-debug", self.html)
        if not self:
            return page.page("mg-debug", f"<p>{page.esc(repr(self))}</p>")
        names = [n for n in self[0] if any(row[n] not in ("", None) for row in self)]
        rows = [["" if row[n] is None else row[n] for n in names] for row in self]
        wide = [i for i, n in enumerate(names) if n == "waiting"]
        return page.page("mg-debug", page.table(names, rows, self.title, wide))


class Variables(dict[str, Any]):
    """A warp's variables: name to value (a number, or an array whose first axis is the lane).

    ``details`` has the same as :class:`~mlsys_gpu.sim.inspect_state.Variable`, with dtypes;
    ``none`` says why there are none; ``folded`` gives a sentence on a name that is no variable.
    """

    def __init__(
        self,
        where: str,
        details: dict[str, Variable],
        none: str = "",
        folded: Callable[[str], str] = lambda name: "",
    ):
        super().__init__({name: v.value for name, v in details.items()})
        self.where, self.details, self.folded = where, details, folded
        self.none = none or f"no variables yet where {where} stands"

    def __missing__(self, name: str) -> Any:
        there = f"there are {', '.join(self)}" if self else self.none
        raise DebugError(
            f"no variable {name!r} is set where {self.where} stands; {there}{self.folded(name)}"
        )

    def __repr__(self) -> str:
        if not self:
            return self.none
        lines = []
        for variable in self.details.values():
            text = str(variable).splitlines()
            value = " ".join(part.strip() for part in text[1:])
            lines.append(text[0] + (f" = {value}" if 0 < len(value) <= 64 else ""))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for variable in self.details.values():
            head, _, value = str(variable).partition("\n")
            name, _, rest = head.partition(": ")
            kind, _, scalar = rest.partition(" = ")
            rows.append([name, kind, scalar or " ".join(value.split())[:120]])
        title = f"variables of {self.where}"
        return page.page("mg-debug", page.table(["name", "type", "value"], rows, title, [2]))


# --------------------------------------------------------------------------------- the run itself


class _Closed(BaseException):
    """Unwinds the machine's thread when its session ends."""


class _Run:
    """One run of a Program in a thread of its own, which stands still while nobody resumes it.

    Its methods :meth:`began`, :meth:`line`, :meth:`phase`, :meth:`finding` and :meth:`exited` are
    called by the machine. Only one of the two threads runs at a time.
    """

    def __init__(self, program: Program, arrays: Sequence[Any], options: dict[str, Any]):
        self.program = program
        self.machine: Machine | None = None
        self.report: Report | None = None
        self.error: BaseException | None = None
        self.done = False
        self.stop: Stop | None = None
        self.current: Warp | None = None
        self.breakpoints: list[Breakpoint] = []
        self.ignore = False  # run to the end
        self.stepping: tuple[Warp, int | None, bool] | None = None
        self.meeting: Warp | None = None
        self.findings = True  # stop at them
        self.interrupted = False
        self.closing = False
        self.first = True
        self.last: dict[Warp, int] = {}  # the stop before the one at which a warp stands
        self.completed: dict[str, int] = {}  # the last phase that barriers of a name have completed
        self.meetings = _meetings(program)
        self.resumed, self.paused = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(
            target=self._run, args=(program, arrays, options), name="mlsys-gpu debug", daemon=True
        )

    def _run(self, program: Program, arrays: Sequence[Any], options: dict[str, Any]) -> None:
        self.resumed.acquire()
        try:
            if not self.closing:
                self.report = run_machine(program, arrays, watch=self, **options)
        except _Closed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self.paused.release()

    # ------------------------------------------------------------- called by the session's thread

    def proceed(self) -> Stop:
        """Let the machine run until it stops."""
        if self.done:
            assert self.stop is not None
            return self.stop
        if not self.thread.is_alive():
            self.thread.start()
        self.stop = None
        with one_blas_thread():
            self.resumed.release()
            self._await()
        if self.error is not None:
            error, self.error = self.error, None
            self.stop = Stop("end", f"the run ended with an error: {error}")
            raise error
        if self.stop is None:
            assert self.report is not None
            n = len(self.report.findings)
            self.stop = Stop("end", f"the kernel has run: {n or 'no'} finding{'s' * (n != 1)}")
        return self.stop

    def _await(self) -> None:
        while True:
            try:
                self.paused.acquire()
                return
            except KeyboardInterrupt:
                self.interrupted = True  # the machine stops at its next line

    def close(self) -> None:
        """End the run where it stands."""
        self.closing = self.closing or not self.done
        if self.thread.is_alive() and not self.done:
            self.resumed.release()
            if threading.current_thread() is not self.thread:
                self.thread.join(timeout=10)
        self.done = True

    # ----------------------------------------------------------------- called by the machine's one

    def began(self, machine: Machine) -> None:
        self.machine = machine

    def _pause(self, reason: str, text: str, warp: Warp | None, **more: Any) -> None:
        place = inspect_state.location(warp) if warp is not None else None
        if warp is not None:
            self.current = warp
        self.stop = Stop(
            reason,
            text,
            cta=warp.cta.block if warp is not None else None,
            warp=warp.id if warp is not None else None,
            location=more.pop("location", place),
            **more,
        )
        self.stepping = self.meeting = None
        self.paused.release()
        self.resumed.acquire()
        if self.closing:
            raise _Closed

    def line(self, warp: Warp) -> None:
        """A warp is about to run a line."""
        self.current = warp
        at = warp.at
        before, self.last[warp] = self.last.get(warp, -1), at
        if self.first:
            self.first = False
            self._pause("start", f"{_who(warp)} is about to begin", warp)
            return
        if self.interrupted:
            self.interrupted = False
            self._pause("interrupted", f"interrupted in {_who(warp)}", warp)
            return
        if self.ignore:
            return
        for one in self.breakpoints:
            if at in one.stops and one.wants(warp) and self._comes(one, warp, before):
                return
            if one.passed and one.wants(warp) and self._has_passed(one, warp):
                return
        if self.stepping is not None and self.stepping[0] is warp:
            _, before, into = self.stepping
            if before is None or self._another_line(warp, before, into):
                self._pause("step", f"{_who(warp)} goes on", warp)
        elif self.meeting is warp and at in self.meetings:
            self._pause("barrier", f"{_who(warp)} comes to a barrier", warp)

    def _another_line(self, warp: Warp, before: int, into: bool) -> bool:
        """Whether a warp stands at another line of the kernel than at the stop ``before``."""
        program = self.program
        now, then = (program.sites[program.stops[s][0]] for s in (warp.at, before))
        return (now != then if into else now[:1] != then[:1]) or warp.at <= before

    def _comes(self, one: Breakpoint, warp: Warp, before: int) -> bool:
        """Stop where a warp comes to a breakpoint's line and the condition holds.

        A line may have several stops, one for each statement in it or in a helper that it calls: it
        is come to once. ``before`` is the warp's stop before.
        """
        program, at = self.program, warp.at
        sites = [program.sites[program.stops[s][0]][: one.stops[at] + 1] for s in (at, before)]
        start, stopped = one.visits.get(warp, (at, False))
        again = before >= 0 and sites[0] == sites[1] and at > start
        if not again:
            start, stopped = at, False
            one.came += 1
        lanes = None if stopped else self._holds(one, warp)
        one.visits[warp] = (start, stopped or lanes is not None)
        if lanes is None:
            return False
        places = program.locations(program.stops[at][0])
        place = str(places[one.stops[at]])
        if one.stops[at]:
            place += f" (called at {places[0]})"
        self._hit(one, "line", f"{_who(warp)} comes to {place}{one.limits}{lanes}", warp)
        return True

    def _holds(self, one: Breakpoint, warp: Warp) -> str | None:
        """Whether a breakpoint's condition holds for an active lane; not before its variables are
        set. None where it does not, else the lanes in words where they differ."""
        if one.when is None:
            return ""
        found = inspect_state.variables(self.program, warp)
        values = {n: v.value for n, v in found.items() if v.value is not UNWRITTEN}
        if not _names(one.when) <= set(values):
            return None
        try:
            held = np.asarray(evaluate(one.when, values), dtype=bool)
        except (DebugError, ValueError) as error:
            return f": this has no truth there ({error})"
        if not held.ndim:
            return "" if held else None
        if len(held) != 32:  # no value for each lane
            return "" if held.any() else None
        active = inspect_state.active_mask(warp)
        lanes = np.flatnonzero(held.reshape(32, -1).any(axis=1) & active).tolist()
        if not lanes:
            return None
        return f": true for lane{'s' * (len(lanes) != 1)} {ranges(lanes)}"

    def _hit(self, one: Breakpoint, reason: str, text: str, warp: Warp | None, **more: Any) -> None:
        one.hits += 1
        if one.temporary:
            self.breakpoints.remove(one)
        self._pause(reason, text, warp, breakpoint=one.number, **more)

    def phase(self, barrier: Any) -> None:
        """A barrier has completed a phase."""
        done = barrier.phase - 1
        name = inspect_state.plain_name(barrier)
        self.completed[name] = max(done, self.completed.get(name, done))
        if self.ignore:
            return
        for one in self.breakpoints:
            if not one.means(name):
                continue
            if one.phase not in (None, done):
                continue
            whose = owner(barrier, self.machine.resident if self.machine is not None else ())
            if one.warps is not None:
                one.passed.append((barrier, done, whose, set()))
                continue
            cta = whose if isinstance(whose, Cta) else None
            if cta is not None and one.cta is not None and cta.index != one.cta:
                continue
            text = f"phase {done} of {name} is complete"
            if cta is not None:
                text += f" in CTA {cta.label()}"
            self._hit(one, "barrier", text, self.current)
            return

    def _has_passed(self, one: Breakpoint, warp: Warp) -> bool:
        """Stop where a warp has passed a phase that a breakpoint waits for."""
        for barrier, phase, whose, seen in one.passed:
            if warp not in seen and has_passed(warp, barrier, phase, whose):
                seen.add(warp)
                name = inspect_state.plain_name(barrier)
                self._hit(one, "barrier", f"{_who(warp)} has passed phase {phase} of {name}", warp)
                return True
        return False

    def finding(self, finding: Finding, warp: Warp | None) -> None:
        """The machine has found a fault."""
        if self.ignore:
            return
        text = f"[{finding.code}] {finding.message}"
        warp = self._concerned(finding, warp if warp is not None else self.current)
        for one in self.breakpoints:
            if one.kind == "finding" and one.code in (None, finding.code):
                more = {"finding": finding, "location": finding.location}
                self._hit(one, "finding", text, warp, **more)
                return
        if self.findings:
            self._pause("finding", text, warp, finding=finding, location=finding.location)

    def _concerned(self, finding: Finding, warp: Warp | None) -> Warp | None:
        """The warp that a finding is about: one that it names, and that stands at its line.

        A fault between two warps is found when the second of them runs.
        """
        clusters = self.machine.resident if self.machine is not None else ()
        known = {(w.id, a.label()): w for c in clusters for a in c.ctas for w in a.warps}
        named = []
        for part in re.finditer(r"\bwarp (\d+)\b", finding.threads):
            cta = re.compile(r"CTA (\([\d, ]+\))").search(finding.threads, part.end())
            one = known.get((int(part.group(1)), cta.group(1))) if cta else None
            named += [one] if one is not None else []
        candidates = [w for w in (warp, *named, self.current) if w is not None]
        for one in candidates:
            if finding.location is not None and inspect_state.location(one) == finding.location:
                return one
        return named[0] if named else warp

    def exited(self, warp: Warp) -> None:
        """A warp has run to its end."""
        if warp is self.meeting or (self.stepping is not None and warp is self.stepping[0]):
            self._pause("exit", f"{_who(warp)} has run to its end", warp)


def owner(barrier: Any, clusters: Iterable[Cluster]) -> Cta | Cluster | None:
    """The CTA whose barrier it is; the cluster, for the barrier of a cluster."""
    if hasattr(barrier, "cta"):
        return barrier.cta
    for cluster in clusters:
        if cluster.state.get("cluster_barrier") is barrier:
            return cluster
        for cta in cluster.ctas:
            if any(barrier is one for one in cta.named.values()):
                return cta
    return None


def has_passed(warp: Warp, barrier: Any, phase: int, whose: Cta | Cluster | None) -> bool:
    """Whether a warp has waited for a phase of a barrier, and gone on."""
    waited = getattr(barrier, "waited", None)
    if waited is not None:
        return barrier.cta.cluster is warp.cluster and waited.get(warp, 0) > phase
    # who arrives at other barriers waits there, until the phase is complete
    return barrier.phase > phase and whose in (warp.cta, warp.cluster)


def _who(warp: Warp) -> str:
    return waitgraph.warp_name(warp)


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(str(n) for n in sorted(numbers))


def _whole(value: Any) -> bool:
    """Whether a value is an integer; a truth is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _meetings(program: Program) -> frozenset[int]:
    """Stops behind which, before the next, the source waits for others or is waited for."""
    found, stop = set(), None
    for line in program.source.splitlines():
        match = re.match(r"\s*at\(w, (\d+)\)", line)
        if match:
            stop = int(match.group(1))
        elif stop is not None and _MEETINGS.search(line):
            found.add(stop)
    return frozenset(found)


def instrumented(program: Program) -> Program:
    """A Program that was not translated for debugging, with stops at its marked lines."""
    if program.debug or program.stops:
        return program
    lines = []
    for line in program.source.splitlines():
        lines.append(line)
        match = re.fullmatch(r"(\s*)w\.s = (\d+)", line)
        if match:
            lines.append(f"{match.group(1)}at(w, {match.group(2)})")
    stops = [[site, -1, None, None] for site in range(len(program.sites))]
    return replace(program, source="\n".join(lines) + "\n", stops=stops)


# -------------------------------------------------------------------------- expressions over lanes

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Invert,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd,
    ast.BitOr, ast.BitXor, ast.LShift, ast.RShift, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE,
    ast.Gt, ast.GtE, ast.Constant, ast.Load, ast.Name, ast.Subscript, ast.Slice, ast.Tuple,
    ast.IfExp,
)  # fmt: skip


def parsed(text: str) -> ast.Expression:
    """An expression over variables: arithmetic, comparisons and subscripts, no calls."""
    if not isinstance(text, str):
        raise DebugError(f"an expression is a string, such as 'k == 3': got {text!r}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise DebugError(f"{text.strip()!r} is no expression") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise DebugError(
                f"{text.strip()!r}: expressions have variables, numbers, operators and subscripts"
            )
    return tree


class _Elementwise(ast.NodeTransformer):
    """``and``, ``or``, ``not`` and chains of comparisons, for values that differ between lanes."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        result = node.values[0]
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        for value in node.values[1:]:
            result = self._call(name, result, value)
        return result

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self._call("not_", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        terms = [node.left, *node.comparators]
        parts: list[ast.expr] = [
            ast.Compare(left, [op], [right])
            for left, op, right in zip(terms, node.ops, terms[1:], strict=False)
        ]
        result = parts[0]
        for part in parts[1:]:
            result = self._call("and_", result, part)
        return result

    def _call(self, name: str, first: ast.expr, second: ast.expr | None = None) -> ast.expr:
        """A call of one of :data:`_LOGIC`; what ``and`` may not need stays uncomputed."""
        empty = ast.arguments([], [], None, [], [], None, [])
        later = [ast.Lambda(empty, second)] if second is not None else []
        return ast.Call(ast.Name(f"<{name}>", ast.Load()), [first, *later], [])


def _logic(first: Any, second: Any, both: bool) -> Any:
    if np.ndim(first) == 0 and bool(first) != both:
        return first
    other = second()
    if np.ndim(first) == np.ndim(other) == 0:
        return other
    return np.logical_and(first, other) if both else np.logical_or(first, other)


_LOGIC = {
    "<and_>": lambda first, second: _logic(first, second, True),
    "<or_>": lambda first, second: _logic(first, second, False),
    "<not_>": lambda value: np.logical_not(value) if np.ndim(value) else not value,
}


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def evaluate(tree: ast.Expression, values: dict[str, Any]) -> Any:
    """The value of an expression; names that are not set where the warp stands are an error."""
    for name in _names(tree):
        if name not in values:
            known = ", ".join(values) or "none yet"
            raise DebugError(f"no variable {name!r} is set there; there are {known}")
    whole = ast.fix_missing_locations(_Elementwise().visit(copy.deepcopy(tree)))
    try:
        return eval(
            compile(whole, "<expression>", "eval"), {"__builtins__": {}, **_LOGIC, **values}
        )
    except (TypeError, IndexError, ArithmeticError, ValueError) as error:
        raise DebugError(f"{ast.unparse(tree)}: {error}") from None


# ------------------------------------------------------------------------------------ the session


class Session:
    """A kernel that runs under control; made by :func:`debug`.

    What it shows is plain data: numbers, NumPy arrays, dictionaries. Every method that lets the
    kernel run returns a :class:`Stop`. A session is also a context manager.
    """

    def __init__(
        self,
        program: Program,
        arrays: Sequence[Any],
        *,
        schedule: str = "lazy",
        schedule_seed: int = 0,
        checks: bool = True,
        readings: dict[str, str] | None = None,
        findings: bool = True,
    ):
        self._called = (instrumented(program), list(arrays))
        self.program, self._arrays = bind(*self._called)
        self._options = {
            "schedule": schedule,
            "seed": schedule_seed,
            "checks": checks,
            "readings": readings,
        }
        self._stop_at_findings = findings
        self._count = 0
        self._initial: list[np.ndarray] | None = None
        if len(self._arrays) == len(self.program.params):
            self._initial = [host.copy() for host in self._hosts()]
        self.breakpoints: list[Breakpoint] = []
        self._begin()

    def _begin(self) -> None:
        self._run = _Run(*self._called, self._options)
        self._run.breakpoints = self.breakpoints
        self._run.findings = self._stop_at_findings
        self._end = weakref.finalize(self, self._run.close)
        self._selected: Warp | None = None
        #: The finding's line, while the session stands at one: its warp may have gone on.
        self._focus: Location | None = None
        self.stop = self._run.proceed()
        self._selected = self._run.current

    def _hosts(self) -> list[np.ndarray]:
        return [
            host_array(array, *param)
            for array, param in zip(self._arrays, self.program.params, strict=True)
        ]

    # ------------------------------------------------------------------------------- going on

    def _go(self) -> Stop:
        try:
            self.stop = self._run.proceed()
        finally:
            if self._run.stop is not None:
                self.stop = self._run.stop
        self._focus = None
        if self.stop.warp is not None:
            self._selected = self._run.current
            self._focus = self.stop.location if self.stop.finding is not None else None
        if self.stop.reason == "end" and not self._run.ignore:
            self._say_what_never_was()
        return self.stop

    def _say_what_never_was(self) -> None:
        """Say of breakpoints that have not stopped the run, which has ended, why they have not."""
        missed = [self._never(one) for one in self.breakpoints if not one.hits]
        if missed:
            text = "; ".join([*missed, self.stop.text])
            self.stop = self._run.stop = replace(self.stop, text=text)

    def _never(self, one: Breakpoint) -> str:
        """Why a breakpoint has not stopped a run that has ended, in words."""
        numbers = sorted(one.warps or ())
        who = f"warp{'s' * (len(numbers) > 1)} {_numbers(numbers)}" if numbers else "no warp"
        not_ = "did not" if numbers else ""
        limits = f" of CTA {one.cta}" if one.cta is not None else ""
        if one.kind == "finding":
            return f"there was no {one.text.removesuffix('s')}"
        if one.kind == "line" and one.came:
            times = f"{one.came} time{'s' * (one.came != 1)}"
            return f"{one.text}: warps came there {times}, and the condition was never true"
        if one.kind == "line":
            verb = f"{not_} come to" if numbers else "came to"
            return f"{who}{limits} {verb} {one.place}"
        rows = {n: p for n, p in self._run.completed.items() if one.means(n)}
        done = f"{one.barrier} has completed no phase"
        if rows:
            done = ", ".join(
                f"{name} has completed " + (f"phases 0 to {last}" if last else "phase 0")
                for name, last in rows.items()
            )
        if numbers:
            return f"{who}{limits} {not_} pass {one.place} ({done})"
        return f"{one.place}{limits} never came ({done})"

    def _alive(self) -> None:
        if self._run.closing:
            raise DebugError(
                "the session was closed before the end of the run: restart() runs the kernel again"
            )
        if self._run.done:
            raise DebugError("the kernel has run to its end: restart() runs it again")

    def step(self, count: int = 1, *, into: bool = False) -> Stop:
        """Run the selected warp to its next line; other warps run as the schedule says.

        ``into``: to the next line of a helper, too, that the kernel's line has called.
        """
        if not _whole(count) or count < 1:
            raise DebugError(f"step takes a positive number of lines, got {count!r}")
        for _ in range(count):
            self._alive()
            warp = self.selected
            if warp.exited:
                raise DebugError(f"{_who(warp)} has exited: select another warp, or cont()")
            self._run.stepping = (warp, warp.at if warp.at >= 0 else None, into)
            stop = self._go()
            if stop.reason != "step":
                break
        return self.stop

    def next_barrier(self) -> Stop:
        """Run the selected warp to its next line that waits at a barrier or arrives at one."""
        self._alive()
        if self.selected.exited:
            raise DebugError(f"{_who(self.selected)} has exited: select another warp, or cont()")
        self._run.meeting = self.selected
        return self._go()

    def cont(self) -> Stop:
        """Run on to the next breakpoint or finding, or to the end."""
        self._alive()
        return self._go()

    def run_until(
        self,
        where: str | int | None = None,
        *,
        barrier: str | None = None,
        phase: int | None = None,
        finding: bool | str = False,
        warp: int | Iterable[int] | None = None,
        cta: Any = None,
        when: str | None = None,
    ) -> Stop:
        """Run on until something happens, once; the arguments are those of :meth:`break_at`.

        Other breakpoints and findings stop the run too.
        """
        self._alive()
        self.break_at(
            where,
            barrier=barrier,
            phase=phase,
            finding=finding,
            warp=warp,
            cta=cta,
            when=when,
            temporary=True,
        )
        temporary = self.breakpoints[-1]
        try:
            return self._already(temporary) or self._go()
        finally:
            if temporary in self.breakpoints:
                self.breakpoints.remove(temporary)

    def _already(self, one: Breakpoint) -> Stop | None:
        """A stop where the session stands, where a phase is complete or passed already."""
        if one.phase is None:
            return None
        barriers = [
            (barrier, owner(barrier, self._clusters()))
            for barrier in self._barriers_that_are()
            if one.means(inspect_state.plain_name(barrier))
        ]
        if one.warps is not None:
            for barrier, whose in barriers:
                if barrier.phase <= one.phase:
                    continue
                one.passed.append((barrier, one.phase, whose, set()))
                for warp in (w for c in self._clusters() for a in c.ctas for w in a.warps):
                    if one.wants(warp) and has_passed(warp, barrier, one.phase, whose):
                        name = inspect_state.plain_name(barrier)
                        text = f"{_who(warp)} has passed phase {one.phase} of {name} already"
                        return self._here(text, warp)
            return None
        mine = [b for b, a in barriers if one.cta is None or getattr(a, "index", None) == one.cta]
        if not mine or any(barrier.phase <= one.phase for barrier in mine):
            return None
        machine = self._run.machine
        if one.cta is None and machine is not None and machine.queue:
            return None  # it will come in a CTA that has not begun
        return self._here(f"{one.place} is already complete", self.selected)

    def _here(self, text: str, warp: Warp) -> Stop:
        """A stop at a barrier where the session stands already."""
        self._selected, self._focus = warp, None
        place = inspect_state.location(warp)
        self.stop = self._run.stop = Stop("barrier", text, warp.cta.block, warp.id, place)
        return self.stop

    def _barriers_that_are(self) -> list[Any]:
        """The barriers of all CTAs that run."""
        found: list[Any] = []
        for cluster in self._clusters():
            for cta in cluster.ctas:
                found += [*cta.barriers.values(), *cta.named.values()]
            found += [b for b in [cluster.state.get("cluster_barrier")] if b is not None]
        return found

    def finish(self) -> Report:
        """Run to the end, past breakpoints and findings, and return the report."""
        if self._run.report is None:
            self._alive()
        if not self._run.done:
            self._run.ignore = True
            self._go()
        return self._finished()

    def restart(self) -> Stop:
        """Run again from the start: same inputs, schedule and seed. Breakpoints stay."""
        self._end()
        if self._initial is not None:
            for host, saved in zip(self._hosts(), self._initial, strict=True):
                if host.flags.writeable:
                    host[...] = saved
        for one in self.breakpoints:
            one.passed.clear()
            one.visits.clear()
        self._begin()
        return self.stop

    def close(self) -> None:
        """End the run where it stands; the caller's arrays stay as they are."""
        self._end()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    # ----------------------------------------------------------------------------- breakpoints

    def break_at(
        self,
        where: str | int | None = None,
        *,
        barrier: str | None = None,
        phase: int | None = None,
        finding: bool | str = False,
        warp: int | Iterable[int] | None = None,
        cta: Any = None,
        when: str | None = None,
        temporary: bool = False,
    ) -> Breakpoint:
        """Stop each time that something happens.

        One of: ``where``, a line (its number in the kernel's own file, ``"file.py:93"``, or a part
        of its text); ``barrier``, by its name (``"full[1]"``, ``"full"`` for any of them, ``"the
        CTA barrier"``, ``"named barrier 1"``), where it completes ``phase`` (any one if None);
        ``finding``, True or its code.

        ``warp`` (an index, or several) and ``cta`` (block index, or linear index) restrict it; for
        a barrier ``warp`` means that this warp has waited for the phase and passed it. ``when`` is
        an expression over the warp's variables: ``"k == 3"``. Where lanes differ, as in ``"lane ==
        4"``, it holds if it does for any lane that runs the line; the stop names those lanes.
        Raises :class:`DebugError` for what does not exist.
        """
        if sum((where is not None, barrier is not None, bool(finding))) != 1:
            raise DebugError("name one of: a line, a barrier, or finding=True (or its code)")
        if phase is not None and barrier is None:
            raise DebugError("a phase belongs to a barrier: name it too")
        one = Breakpoint(0, "", "", temporary=temporary)
        if where is not None:
            if not isinstance(where, str) and not _whole(where):
                raise DebugError(f"a line is a number, or a part of its text: got {where!r}")
            one.kind, (one.stops, one.place) = "line", self._stops_at(where)
        elif barrier is not None:
            if not isinstance(barrier, str):
                raise DebugError(f"barrier is a name, such as 'full[1]': got {barrier!r}")
            if phase is not None and (not _whole(phase) or phase < 0):
                raise DebugError(
                    f"phases count from 0: phase is a non-negative integer, got {phase!r}"
                )
            one.kind, one.barrier, one.phase = "barrier", self.barrier_name(barrier), phase
            one.place = (
                f"phase {phase} of {barrier}" if phase is not None else f"phases of {barrier}"
            )
        else:
            one.kind, one.code = "finding", None if finding is True else str(finding)
            if one.code is not None and one.code not in CODES:
                raise DebugError(
                    f"no finding has the code {one.code!r}; there are " + ", ".join(sorted(CODES))
                )
            one.place = f"finding {one.code}" if one.code else "findings"
        one.warps = self._warps(warp)
        one.cta = None if cta is None else self._cta_index(cta)
        if one.warps is not None:
            one.limits += f", warp {_numbers(one.warps)}"
        if one.cta is not None:
            one.limits += f", CTA {cta}"
        if when is not None:
            if one.kind != "line":
                raise DebugError("a condition goes with a line")
            one.when = parsed(when)
            self._known(one)
            one.limits += f" if {when.strip()}"
        self._count += 1
        one.number = self._count
        self.breakpoints.append(one)
        return one

    def _known(self, one: Breakpoint) -> None:
        """Refuse a condition with names that no variable at its lines has."""
        program = self.program
        if not program.debug:
            return
        names: set[str] = set()
        for stop in one.stops:
            at = program.stops[stop][1]
            while at >= 0:
                names.add(program.scopes[at][1])
                at = program.scopes[at][0]
        for name in sorted(_names(one.when) - names):
            known = ", ".join(sorted(names)) or "none"
            raise DebugError(
                f"no variable {name!r} is known there; there are {known}{self._folded(name)}"
            )

    def _folded(self, name: str) -> str:
        """A sentence on a name that the kernel assigns and that is no variable of it."""
        if not self.program.debug or any(scope[1] == name for scope in self.program.scopes):
            return ""
        assigned = re.compile(rf"\s*{re.escape(name)}\s*(?::[^=]+)?=(?!=)")
        for file, lines in self.program.texts.items():
            for number, text in lines.items():
                if assigned.match(text):
                    place = Location(file, int(number), text)
                    return (
                        f". At {place}, {text.strip()!r} gives a name to what was folded into the "
                        "lines that use it: ask for its parts"
                    )
        return ""

    def clear(self, number: int | None = None) -> None:
        """Remove a breakpoint, or all."""
        if number is None:
            self.breakpoints.clear()
            return
        for one in self.breakpoints:
            if one.number == number:
                self.breakpoints.remove(one)
                return
        known = ", ".join(str(one.number) for one in self.breakpoints) or "none"
        raise DebugError(f"there is no breakpoint {number}; there are {known}")

    def _stops_at(self, where: str | int) -> tuple[dict[int, int], str]:
        """The stops that a line, or a part of one, means (each with which of its lines that is),
        and the line in words."""
        places = [(i, p) for i, s in enumerate(self.program.stops) for p in self._places(s[0])]
        text = str(where).strip()
        by_line = re.fullmatch(r"(?:(.+):)?(\d+)", text)
        if by_line:
            file, line = by_line.group(1), int(by_line.group(2))
            own = [(i, p) for i, p in places if self._in_file(p, file)]
            if file is not None and not own:
                files = sorted({Path(p.file).name for _, p in places})
                raise DebugError(
                    f"no line of the kernel is in {file}; there are {', '.join(files)}"
                )
            lines = sorted({p.line for _, p in own})
            after = [n for n in lines if n >= line]
            if not after or (line < lines[0] and line not in lines):
                raise DebugError(
                    f"line {line} is no statement of the kernel: they are in lines {lines[0]} to "
                    f"{lines[-1]}"
                )
            chosen = [(i, p) for i, p in own if p.line == after[0]]
        else:
            chosen = [(i, p) for i, p in places if text and text in p.text]
            if not chosen:
                raise DebugError(f"no line of the kernel contains {text!r} (source() shows them)")
        lines = list(dict.fromkeys(str(p) for _, p in chosen))
        shown = ", ".join(lines[:3]) + (", …" if len(lines) > 3 else "")
        # where both a call and a line of what it calls are meant, each of the latter stops
        stops = {i: self._places(self.program.stops[i][0]).index(p) for i, p in chosen}
        return stops, shown

    def _places(self, site: int) -> list[Location]:
        return self.program.locations(site)

    def _in_file(self, place: Location, file: str | None) -> bool:
        if file is None:
            return place.file == self.file
        return place.file == file or Path(place.file).name == Path(file).name

    @property
    def file(self) -> str:
        """The kernel's own file: the one that most of its lines are in."""
        counts: dict[str, int] = {}
        for places in self.program.sites:
            for file, _ in places[:1]:
                counts[file] = counts.get(file, 0) + 1
        return max(counts, key=lambda f: counts[f]) if counts else ""

    def barrier_name(self, name: str) -> str:
        """A barrier's name as :attr:`barriers` spells it; :class:`DebugError` if there is none."""
        name = name.strip()
        named = re.fullmatch(r"(?:named barrier|bar|named) *(\d+)", name)
        if named:
            return f"named barrier {named.group(1)}"
        if name.removeprefix("the ") in ("CTA barrier", "cta barrier", "cluster barrier"):
            return "the " + name.removeprefix("the ").replace("cta", "CTA")
        live = {
            inspect_state.plain_name(b)
            for cluster in self._clusters()
            for cta in cluster.ctas
            for b in cta.barriers.values()
        }
        # one that is not initialised yet is a row of 8-byte words like any other
        rows = {n.partition("[")[0] for n in live}
        rows.update(inspect_state.barrier_names(self.program))
        name = inspect_state.called(name, rows)
        base = name.partition("[")[0]
        if name in live or base in rows:
            return self._one_of_row(name, base)
        known = sorted({n.partition("[")[0] for n in live}) or sorted(rows)
        known += ["the CTA barrier", "the cluster barrier", "named barrier N"]
        what = f"no barrier is called {name!r}"
        if base in inspect_state.shared_names(self.program):
            what = f"{base} is no barrier"
        raise DebugError(f"{what}; there are {', '.join(known)}")

    def _one_of_row(self, name: str, base: str) -> str:
        """``full[0]`` of a row of one barrier is called ``full``."""
        names = inspect_state.shared_names(self.program)
        shape = self.program.regions[names.index(base)][3] if base in names else []
        size = int(np.prod(shape)) if shape else 1
        rest = name.removeprefix(base)
        if not rest:
            return name
        index = re.fullmatch(r"\[(\d+)\]", rest)
        if index is None or int(index.group(1)) >= size:
            held = f"barriers 0 to {size - 1}" if size > 1 else "one barrier"
            raise DebugError(f"{base} has {held}: there is no {name}")
        return base if size == 1 else name

    def _warps(self, warp: int | Iterable[int] | None) -> frozenset[int] | None:
        if warp is None:
            return None
        several = isinstance(warp, Iterable) and not isinstance(warp, str)
        numbers: list[Any] = list(warp) if several else [warp]  # pyright: ignore[reportArgumentType]
        if not numbers or not all(_whole(n) for n in numbers):
            raise DebugError(f"warp is the index of a warp in its CTA, or several: got {warp!r}")
        count = (self.program.launch["threads"] + 31) // 32
        for n in numbers:
            if not 0 <= n < count:
                there = f"warps 0 to {count - 1}" if count > 1 else "one warp, 0"
                raise DebugError(f"a CTA has {there}, no warp {n}")
        return frozenset(int(n) for n in numbers)

    def _cta_index(self, cta: Any) -> int:
        """A CTA's linear index, from that or from its block index."""
        grid = self.program.launch["grid"]
        if _whole(cta):
            count = int(np.prod(grid))
            if not 0 <= cta < count:
                there = f"CTAs 0 to {count - 1}" if count > 1 else "one CTA, 0"
                raise DebugError(f"the grid has {there}, no CTA {cta}")
            return int(cta)
        block = list(cta) if isinstance(cta, Iterable) and not isinstance(cta, str) else []
        if not 1 <= len(block) <= 3 or not all(_whole(n) for n in block):
            raise DebugError(f"cta is a block index such as (1, 0), or a linear one: got {cta!r}")
        block = [int(n) for n in block] + [0] * (3 - len(block))
        if any(not 0 <= b < g for b, g in zip(block, grid, strict=True)):
            size = " x ".join(str(g) for g in grid)
            raise DebugError(f"the grid is {size} CTAs: there is no CTA {tuple(cta)}")
        return block[0] + grid[0] * (block[1] + grid[1] * block[2])

    # ------------------------------------------------------------------------------- selection

    def _clusters(self) -> list[Cluster]:
        machine = self._run.machine
        return list(machine.resident) if machine is not None else []

    def select(self, warp: int | None = None, cta: Any = None) -> str:
        """Choose the warp that is shown and stepped: its index, and its CTA (of those that run)."""
        index = self._cta_index(cta) if cta is not None else self.selected.cta.index
        found = next(
            (c for cluster in self._clusters() for c in cluster.ctas if c.index == index), None
        )
        if found is None:
            raise DebugError(
                f"CTA {cta} does not run now; these do: "
                + ", ".join(c.label() for cluster in self._clusters() for c in cluster.ctas)
            )
        number = self.selected.id if warp is None else warp
        if not _whole(number):
            raise DebugError(f"warp is the index of a warp in its CTA: got {number!r}")
        self._warps(number)
        self._selected, self._focus = found.warps[number], None
        return self.where

    @property
    def selected(self) -> Warp:
        """The machine's own object for the selected warp (for those who know the simulator)."""
        if self._selected is None:
            raise DebugError("no warp has run a line yet")
        return self._selected

    @property
    def warp(self) -> int:
        """Index of the selected warp in its CTA."""
        return self.selected.id

    @property
    def cta(self) -> tuple[int, int, int]:
        """Block index of the selected warp's CTA."""
        return self.selected.cta.block

    @property
    def location(self) -> Location | None:
        """The kernel's line at which the selected warp stands: the one that it runs next, or the
        one at which it waits. At a finding it is the finding's line, which the warp may have passed
        before something else showed the fault."""
        return self._focus or inspect_state.location(self.selected)

    # ------------------------------------------------------------------------------ inspection

    @property
    def finished(self) -> bool:
        """Whether the kernel has run to its end."""
        return self._run.done and self._run.report is not None

    def _finished(self) -> Report:
        if self._run.report is None and self._run.closing:
            raise DebugError(
                "there is no report before the end of the run, and the session was closed before "
                "it: restart() runs the kernel again"
            )
        if self._run.report is None:
            raise DebugError("there is no report before the end of the run: finish() goes there")
        return self._run.report

    @property
    def report(self) -> Report:
        """The report of the run, once it has ended; as :func:`mlsys_gpu.simulate` gives it."""
        return self._finished()

    @property
    def findings(self) -> list[Finding]:
        """What has been found so far."""
        if self._run.report is not None:
            return list(self._run.report.findings)
        machine = self._run.machine
        return list(machine.findings.values()) if machine is not None else []

    @property
    def variables(self) -> Variables:
        """The selected warp's variables, under the kernel author's names.

        A scalar that all lanes share is a number; one that differs has shape ``[32]``; registers
        are ``[32, n]``. bfloat16 is shown as float32.
        """
        where, none = _who(self.selected), ""
        if self._run.closing:
            none = "no variables: the session is closed"
        elif self._run.done:
            none = "no variables: the kernel has run to its end"
        elif self.selected.exited:
            none = f"no variables: {where} has exited"
        found = inspect_state.variables(self.program, self.selected)
        return Variables(where, found, none, self._folded)

    def print(self, expression: str) -> Any:
        """The value of a variable, or of an expression such as ``acc[0, 3] * 2``.

        Buffers and tensors stand for their values as :meth:`smem`, :meth:`tmem`, :meth:`tile` and
        :meth:`tensor` show them: ``As[0, 3]``, ``A[r, lane]``.
        """
        values = self.variables
        tree = parsed(expression)
        found = {name: self._named(name, values) for name in sorted(_names(tree))}
        return evaluate(tree, found)

    def _named(self, name: str, values: Variables) -> Any:
        """The value that a name has in an expression."""
        if name in values:
            return values[name]
        program, machine = self.program, self._run.machine
        shared = inspect_state.shared_names(program)
        if machine is not None and name in [t.name for t in machine.tensors]:
            return self.tensor(name).values
        if inspect_state.called(name, shared) in shared:
            return self.smem(name).values
        if name in inspect_state.tensor_memory_names(program):
            return self.tmem(name).values
        if any(view[:2] == [name, "local"] for view in program.views):
            return self.tile(name).values
        return values[name]  # says what there is

    def smem(self, name: str, stage: int | None = None, cta: Any = None) -> Tile:
        """A buffer in shared memory as its logical matrix, through its layout.

        ``stage``: one stage of a ``[stages, …]`` buffer; ``cta``: by default the selected warp's.
        """
        return inspect_state.shared_tile(self._cta_of(cta), name, stage)

    def tmem(
        self,
        column: int | str,
        n: int | None = None,
        dtype: str | None = None,
        cta: Any = None,
    ) -> Tile:
        """``n`` columns of tensor memory from ``column`` on, ``[128, n]``; or a named buffer.

        ``dtype``: float32, or a 16-bit one with two elements in a column.
        """
        return inspect_state.tensor_memory(self._cta_of(cta), column, n, dtype)

    @property
    def tmem_allocations(self) -> Listing:
        """Allocations of tensor memory in the CTAs that run."""
        rows = [r for c in self._clusters() for a in c.ctas for r in inspect_state.allocations(a)]
        return Listing("allocations of tensor memory", rows, "none")

    def tensor(self, name: str) -> Tile:
        """A tensor in global memory, as the kernel sees it now."""
        machine = self._run.machine
        assert machine is not None
        return inspect_state.tensor(machine, name)

    def tile(self, name: str) -> Tile:
        """A view of registers that a warpgroup or CTA shares, through its layout."""
        return inspect_state.register_tile(self.program, self.selected, name)

    def _cta_of(self, cta: Any) -> Any:
        if cta is None:
            return self.selected.cta
        index = self._cta_index(cta)
        for one in (c for cluster in self._clusters() for c in cluster.ctas):
            if one.index == index:
                return one
        raise DebugError(f"CTA {cta} does not run now")

    @property
    def barriers(self) -> Listing:
        """The barriers of the selected warp's cluster: phase, pending arrivals and bytes, waiters.

        Rows as :func:`mlsys_gpu.sim.inspect_state.barrier_rows` describes them.
        """
        rows = inspect_state.barrier_rows(self.selected.cluster)
        return Listing("barriers", rows, "none has been initialised or reached")

    @property
    def graph(self) -> dict[str, Any]:
        """The wait-for graph (nodes, edges, cycles) of the selected warp's cluster."""
        return waitgraph.graph([self.selected.cluster])

    @property
    def waits(self) -> Listing:
        """Who waits for what, and who would have to act: all warps of the cluster."""
        graph = self.graph
        acts: dict[str, list[str]] = {}
        for edge in graph["edges"]:
            if edge["kind"] == "acts":
                line = f" at line {edge['location']['line']}" if edge["location"] else ""
                acts.setdefault(edge["from"], []).append(f"{edge['to']} {edge['text']}{line}")
        target = {e["from"]: e["to"] for e in graph["edges"] if e["kind"] == "waits"}
        rows = []
        for node in graph["nodes"]:
            if node["kind"] == "warp":
                place = node["location"]
                rows.append(
                    {
                        "warp": node["id"],
                        "state": node["state"],
                        "line": place["line"] if place else "",
                        "waits for": node["waits_for"].removeprefix("waits for "),
                        "who would have to act": "; ".join(
                            acts.get(target.get(node["id"], ""), [])
                        ),
                    }
                )
        text = "\n".join(graph_lines(graph)) or "no warp waits"
        return Listing("who waits for what", rows, text=text, html=graph_html(graph))

    @property
    def positions(self) -> Listing:
        """Where every warp of the selected warp's cluster stands."""
        rows = inspect_state.positions(self.selected.cluster)
        return Listing("where the warps stand", rows)

    @property
    def where(self) -> str:
        """Where the selected warp stands, in words, with the lines around."""
        warp = self.selected
        place = self.location
        lanes = inspect_state.active_lanes(warp)
        state = waitgraph.state_of(warp)
        head = f"{_who(warp)}, {place}" if place else f"{_who(warp)}, before its first line"
        now = inspect_state.location(warp)
        if self._focus is not None and (state == "exited" or now != self._focus):
            since = "has exited since" if state == "exited" else f"stands at {now} by now"
            return "\n".join([f"{head} (it {since})", self.source(2)])
        if state == "waits" and warp.waiting is not None:
            head += f", {warp.waiting.describe()}"
        elif state == "exited":
            head = f"{_who(warp)}, exited"
        elif lanes and lanes != "all lanes":
            head += f", {lanes}"
        return "\n".join([head, self.source(2)]) if place and state != "exited" else head

    def source(self, around: int = 5, line: int | None = None) -> str:
        """The kernel's source around the selected warp's line; ``>`` marks it, ``*`` a
        breakpoint."""
        if not _whole(around) or around < 0:
            raise DebugError(f"around is a non-negative integer, got {around!r}")
        if line is not None and not _whole(line):
            raise DebugError(f"line is the number of a line, got {line!r}")
        place = self.location
        if place is None and line is None:
            file, here = self.file, None
            line = min((p.line for p in self._places(1)), default=1)
        elif place is not None:
            file, here = place.file, place.line
        else:
            file, here = self.file, None
        texts = self.program.texts.get(file, {})
        middle = line if line is not None else here
        assert middle is not None
        broken = {
            p.line
            for one in self.breakpoints
            for stop in one.stops
            for p in self._places(self.program.stops[stop][0])
            if p.file == file
        }
        lines = []
        for number in range(middle - around, middle + around + 1):
            text = texts.get(str(number))
            if text is not None:
                mark = ">" if number == here else " "
                lines.append(f"{mark}{'*' if number in broken else ' '}{number:>4} | {text}")
        if not lines:
            raise DebugError(f"there is no line {middle} in {Path(file).name}")
        return "\n".join(lines)

    def shell(self) -> None:
        """The same in a terminal: commands until ``quit``."""
        from mlsys_gpu.sim.shell import Shell

        Shell(self).cmdloop()

    # ----------------------------------------------------------------------------------- forms

    def __repr__(self) -> str:
        lines = [f"{self.program.name} in the debugger: {self.stop.text}"]
        if self.finished:
            return "\n".join([*lines, str(self.report)])
        if self._selected is not None:
            lines.append(self.where)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = f"<strong>{page.esc(self.program.name)}</strong> in the debugger"
        body = f'<p class="o-head">{page.tag(self.stop.reason, "info")} {head}</p>'
        body += f"<p>{page.esc(self.stop.text)}</p>"
        if self.finished:
            return page.page("mg-debug", body) + self.report._repr_html_()
        if self._selected is not None:
            first, _, rest = self.where.partition("\n")
            body += f"<p>{page.esc(first)}</p>"
            if rest:
                body += page.source_lines(rest.splitlines())
            positions = self.positions
            rows = [[r["warp"], r["cta"], r["state"], r["at"], r["line"]] for r in positions]
            header = ["warp", "CTA", "state", "at", "line"]
            body += page.table(header, rows, positions.title)
        return page.page("mg-debug", body)


def debug(
    kernel: Any,
    *arrays: Any,
    at: str | int | None = None,
    warp: int | Iterable[int] | None = None,
    cta: Any = None,
    schedule: str = "lazy",
    schedule_seed: int = 0,
    checks: bool = True,
    arch: str | None = None,
    readings: dict[str, str] | None = None,
    findings: bool = True,
) -> Session:
    """Run a kernel in the simulator under control.

    Args:
        kernel: any TIRx ``PrimFunc``, or a Program (which stops at fewer lines, and knows the
            variables by the simulator's names).
        arrays: as for :func:`mlsys_gpu.simulate`. Outputs are filled when the run ends.
        at: run to this line first (its number, ``file:line``, or a part of its text), ``warp`` and
            ``cta`` say whose; without it the session stands before the first line.
        schedule, schedule_seed, checks, arch, readings: as for :func:`mlsys_gpu.simulate`.
        findings: stop at every finding.

    Returns:
        A :class:`Session`.

    Raises:
        Unsupported: the kernel uses something that the simulator does not model.
        DebugError: ``at``, ``warp`` or ``cta`` do not exist.
        ValueError, TypeError: an array that the kernel cannot take.
    """
    from mlsys_gpu import sim

    session = Session(
        sim.compile(kernel, arch, debug=True),
        arrays,
        schedule=schedule,
        schedule_seed=schedule_seed,
        checks=checks,
        readings=readings,
        findings=findings,
    )
    if at is not None:
        with contextlib.ExitStack() as on_error:
            on_error.callback(session.close)
            session.run_until(at, warp=warp, cta=cta)
            on_error.pop_all()
    elif warp is not None or cta is not None:
        session.close()
        raise DebugError("warp and cta say who stops at a line: name it with at=")
    return session
