"""Branches, loops, and the ways out of them, as Python that runs for a whole warp.

What all lanes do alike becomes Python's own control flow. Where the lanes of a warp part, code runs
under a mask, a Python variable that holds 32 truths:

* a branch that some lanes take runs under the mask of those lanes, one that a single lane takes
  runs on scalars (a *region*);
* a loop that lanes leave at different times keeps two masks: ``live``, the lanes that are still in
  it, and one of the lanes that take part in the current iteration;
* a kernel from which some lanes return keeps a mask of those that have not.

``break``, ``continue`` and ``return`` take the lanes that leave out of every mask between the
statement and what it leaves. The statements behind run under what is left, and not at all where
that is nobody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from mlsys_gpu.sim.frontend import analysis, work
from mlsys_gpu.sim.frontend.analysis import node_id
from mlsys_gpu.sim.frontend.values import NotVectorizable, Value


@dataclass
class Context:
    """How the code being emitted runs: for all lanes, for those in a mask, or for one lane.

    ``full``: lanes outside the mask have returned, or never were. Nobody sees their registers
    again, so these may be written for all.
    """

    mask: str | None = None
    lane: str | None = None  # source of the one lane's number
    region: int | None = None
    full: bool = False

    @property
    def kept(self) -> str | None:
        """The mask outside of which registers must keep their values."""
        return None if self.full else self.mask

    @property
    def everyone(self) -> bool:
        """Whether all lanes that there are run the code."""
        return self.kept is None and self.lane is None


@dataclass(frozen=True)
class Frame:
    """Something that a statement may leave, or whose mask shrinks where lanes leave more.

    ``kind``: ``function``, ``branch``, ``loop`` (with masks), ``plain`` (a loop that all lanes, or
    one lane, leave together), or ``region`` (one lane's code; ``flag`` names the variable that says
    that the lane has left it).
    """

    kind: str
    mask: str = ""
    live: str = ""
    flag: str = ""


def begin(t: Any) -> None:
    """Set up the masks of a kernel's outermost code."""
    if t.lowered.launch.threads % 32:  # the last warp is not full
        t.emit("m_all = w.present")
        t.context = Context(mask="m_all", full=True)
    mask = ""
    if t.facts.divergent_return:
        mask = "alive"
        t.emit(f"alive = {t.context.mask or 'w.everybody'}")
        t.context = Context(mask="alive", full=True)
    t.frames = [Frame("function", mask)]


def sequence(t: Any, statements: list[Any]) -> None:
    """Statements in order; behind one that lanes leave by, only for those that have stayed."""
    for i, child in enumerate(statements):
        t.stmt(child)
        rest = statements[i + 1 :]
        if not rest or t.context.lane is not None or node_id(child) not in t.facts.leaves:
            continue
        frame = t.frames[-1]
        if frame.kind == "branch":
            t.emit(f"if {frame.mask}.any():")
            with t.block():
                sequence(t, rest)
            return
        out = "continue" if frame.kind == "loop" else "return"
        t.emit(f"if not {frame.mask}.any(): {out}")


# ------------------------------------------------------------------------------------ branches


def if_then_else(t: Any, stmt: Any) -> None:
    if t.slice is not None:
        raise NotVectorizable("a branch")
    single = _single(t, stmt)
    if single is not None:
        _region(t, stmt, single)
        return
    condition = t.expr(stmt.condition)
    if condition.uniform:
        _chain(t, stmt, condition)
        return
    outer = t.context
    taken, other = t.fresh("m"), ""
    within = f" & {outer.mask}" if outer.mask else ""
    if stmt.else_case is not None:  # the first branch may change what the condition reads
        test, other = t.fresh("c"), t.fresh("m")
        t.emit(f"{test} = {condition.code}")
        t.emit(f"{taken} = {test}{within}")
        t.emit(f"{other} = ~{test}{within}")
    else:
        t.emit(f"{taken} = {condition.code}{within}")
    _masked(t, taken, stmt.then_case)
    if stmt.else_case is not None:
        _masked(t, other, stmt.else_case)


def _single(t: Any, stmt: Any) -> analysis.SingleLane | None:
    """What says that one lane takes a branch, where the code around it runs for several."""
    return t.facts.single.get(node_id(stmt)) if t.context.lane is None else None


def _masked(t: Any, mask: str, body: Any) -> None:
    """A branch under a mask; where all lanes take it, as mostly, worthwhile code runs without."""
    t.flush()
    outer, start, shared = t.context, len(t.lines), t.static_shared
    t.emit(f"if {mask}.any():")
    with t.block():
        t.context = Context(mask=mask)
        t.frames.append(Frame("branch", mask))
        t.stmt(body)
        t.frames.pop()
    t.context = outer
    if not outer.everyone or outer.mask or node_id(body) in t.facts.leaves or t.debug:
        return
    if shared != t.static_shared or not _worth_twice(mask, t.lines[start + 1 :]):
        return
    _, *masked = t.lines[start:]
    del t.lines[start:]
    t.emit(f"if {mask}.all():")
    with t.block():
        t.stmt(body)
    t.emit(f"elif {mask}.any():")
    t.lines += masked


#: What code may call that stands twice, with a mask and without.
_TWICE = {
    "ld_shared", "st_shared", "ld_global", "st_global", "ld_generic", "st_generic", "written",
    "product32", "register_index", "register_range",
}  # fmt: skip


def _worth_twice(mask: str, lines: list[str]) -> bool:
    """Whether a branch is long, works on registers under its mask, and synchronises with nobody."""
    text = "\n".join(lines)
    if not set(re.findall(r"(\w+)\(w\b", text)) <= _TWICE or re.search(r"\byield\b", text):
        return False
    return len(re.findall(rf"\[{mask}\b|np\.where\({mask}\b", text)) >= 8


def _chain(t: Any, stmt: Any, condition: Value) -> None:
    """A branch that all lanes take alike; ``else: if …`` becomes ``elif`` where it can."""
    t.emit(f"if {condition.code}:")
    with t.block():
        t.stmt(stmt.then_case)
    other = stmt.else_case
    while other is not None:
        nested = type(other).__name__ == "IfThenElse" and _single(t, other) is None
        if nested and not t.debug:  # a debugger can stop before the inner one
            value, lines = t.capture(other.condition)
            if value.uniform and not lines:
                t.emit(f"elif {value.code}:")
                with t.block():
                    t.stmt(other.then_case)
                other = other.else_case
                continue
        t.emit("else:")
        with t.block():
            t.stmt(other)
        return


def _region(t: Any, stmt: Any, single: analysis.SingleLane) -> None:
    """A branch that exactly one lane of the warp can take: run it on scalars."""
    outer = t.context
    tests = [t.expr(e).code for e in single.uniform]
    lane = t.fresh("L")
    if single.elected is not None:
        t.emit(f"{lane} = elected({t.expr(single.elected).code}, {outer.mask})")
        tests.insert(0, f"{lane} >= 0")
    elif single.lane is None:  # elect.sync
        if outer.mask:
            t.mark()
            whole = f"whole_warp(w, {outer.mask}, 'elect.sync of all 32 lanes')"
            t.emit(f"if {' and '.join(tests) or 'True'}: {whole}")
        t.emit(f"{lane} = leader({outer.mask})")
    else:
        t.emit(f"{lane} = {single.lane % 32}")
        if single.warp is not None:
            tests.insert(0, single.warp)
        if outer.mask:
            tests.append(f"{outer.mask}[{lane}]")
    test = " and ".join(tests) or "True"
    if stmt.else_case is not None and tests:  # the branch may change what the condition reads
        name = t.fresh("c")
        t.emit(f"{name} = {test}")
        test = name
    t.emit(f"if {test}:")
    with t.block():
        t.context = Context(lane=lane, region=node_id(stmt))
        t.emit(f"w.one = {lane}")
        _region_body(t, stmt.then_case)
    t.emit(f"w.one = {-1 if outer.lane is None else outer.lane}")
    t.context = outer
    if stmt.else_case is not None:
        taken = t.fresh("m")
        t.emit(f"{taken} = {f'{outer.mask}.copy()' if outer.mask else 'np.ones(32, dtype=bool)'}")
        t.emit(f"if {test}: {taken}[{lane}] = False")
        _masked(t, taken, stmt.else_case)


def _region_body(t: Any, body: Any) -> None:
    """One lane's code; where it may leave more than the region, in a loop that runs once."""
    if node_id(body) not in t.facts.leaves:
        t.stmt(body)
        return
    flag = t.fresh("left")
    t.emit(f"{flag} = False")
    t.emit("while True:")
    with t.block():
        t.frames.append(Frame("region", flag=flag))
        t.stmt(body)
        t.frames.pop()
        t.emit("break")


# --------------------------------------------------------------------------------------- loops


def for_loop(t: Any, stmt: Any) -> None:
    if t.slice is not None:
        raise NotVectorizable("a loop inside")
    kind = int(stmt.kind)
    if kind not in (0, 1, 2, 3):  # serial, parallel, vectorized, unrolled
        raise t.refuse(f"a loop of kind {stmt.kind}")
    if t.try_slice(stmt):
        return
    if node_id(stmt) in t.rerolled:  # as its author wrote it
        for i in range(int(stmt.extent.value)):
            t.vars[node_id(stmt.loop_var)] = Value(str(i), str(stmt.loop_var.ty))
            for key, values in t.rerolled[node_id(stmt)].items():
                t.vars[key] = Value(str(values[i]), "int32")
            t.stmt(stmt.body)
        return
    polls = analysis.leaves_loop(stmt.body) and analysis.asks(stmt.body)
    name, dtype = t.fresh(str(stmt.loop_var.name)), str(stmt.loop_var.ty)
    low, extent = t.expr(stmt.min), t.expr(stmt.extent)
    step = t.expr(stmt.step) if stmt.step is not None else Value("1", "int32")
    moving = analysis.moving_bounds(stmt, t.facts)
    if extent.uniform and low.uniform and step.uniform and not moving:
        stop = extent.code if low.code == "0" else f"{low.code} + {extent.code}"
        by = "" if step.code == "1" else f", {step.code}"
        live = _enter(t, stmt)
        t.emit(f"for {name} in range({low.code}, {stop}{by}):")
        head = len(t.lines) - 1
        t.vars[node_id(stmt.loop_var)] = Value(name, dtype)
        with t.block(stmt):
            t.declare(str(stmt.loop_var.name), name, dtype, "scalar")
            once = _iteration(t, stmt, live, polls)
        work.once(t, head, once)
        _left(t, stmt)
        return
    first, last, turn = t.fresh("first"), t.fresh("last"), t.fresh("turn")
    t.emit(f"{first} = held({low.code})")
    by = ""
    if step.code != "1":
        by = f" * {t.fresh('step')}"
        t.emit(f"{by[3:]} = held({step.code})")
    if not moving:
        t.emit(f"{last} = {first} + {extent.code}")
    parts = low.lane or extent.lane or step.lane
    live = _enter(t, stmt, parts)
    t.emit(f"{turn} = -1")
    t.emit("while True:")
    t.vars[node_id(stmt.loop_var)] = Value(name, dtype, lane=low.lane or step.lane)
    with t.block(stmt):
        t.emit(f"{turn} += 1")
        t.emit(f"{name} = {first} + {turn}{by}")
        t.declare(
            str(stmt.loop_var.name), name, dtype, "lane" if low.lane or step.lane else "scalar"
        )
        if moving:  # C++ asks before each iteration whether to go on, with the values of then
            outer = t.context
            if live:
                t.context = _within(t, stmt, live)
            low, extent = t.expr(stmt.min), t.expr(stmt.extent)
            t.context = outer
            t.emit(f"{last} = {low.code} + {extent.code}")
        test = f"({name} < {last})"
        if not parts:
            t.emit(f"if not {test}: break")
            test = ""
        _iteration(t, stmt, live, polls, test)
    _left(t, stmt)


def while_loop(t: Any, stmt: Any) -> None:
    if t.slice is not None:
        raise NotVectorizable("a while loop")
    polls = analysis.polls(stmt)
    t.mark()
    rounds = t.fresh("rounds")
    t.emit(f"{rounds} = 0")
    condition, lines = t.capture(stmt.condition)
    live = _enter(t, stmt, not condition.uniform)
    simple = not live and not lines
    t.emit(f"while {condition.code}:" if simple else "while True:")
    with t.block(stmt):
        test = ""
        if not simple:
            outer = t.context
            if live:
                t.context = _within(t, stmt, live)
            condition = t.expr(stmt.condition)
            t.context = outer
            if condition.uniform:
                t.emit(f"if not {condition.code}: break")
            else:
                test = condition.code
        t.emit(f"{rounds} += 1")
        t.emit(f"if not {rounds} & 1023: endless(w, {rounds})")
        _iteration(t, stmt, live, polls, test)
    _left(t, stmt)


def _enter(t: Any, stmt: Any, parts: bool = False) -> str:
    """Begin a loop; the name of the mask of the lanes in it, where they may leave it one by one.

    ``parts``: they do not agree on how often it runs.
    """
    if t.context.lane is not None or not (parts or node_id(stmt) in t.facts.parting):
        return ""
    live = t.fresh("live")
    t.emit(f"{live} = {t.context.mask or 'w.everybody'}")
    return live


def _within(t: Any, stmt: Any, mask: str) -> Context:
    """The context of a loop's iteration: full where lanes leave it by returning alone."""
    full = t.context.everyone and node_id(stmt) not in t.facts.divergent
    return Context(mask=mask, full=full)


def _iteration(t: Any, stmt: Any, live: str, polls: bool, test: str = "") -> dict[str, int]:
    """One iteration: ``test`` differs between lanes, and is true for those that take part.

    The instructions that are due once for all iterations.
    """
    outer = t.context
    if live:
        mask = t.fresh("it")
        if test and type(stmt).__name__ == "While":
            t.emit(f"{live} = {live} & {test}")
            test = ""
        t.emit(f"{mask} = {live}{f' & {test}' if test else ''}")
        t.emit(f"if not {mask}.any(): break")
        t.context = _within(t, stmt, mask)
        t.frames.append(Frame("loop", mask, live))
    else:
        t.frames.append(Frame("plain"))
    if polls:
        t.emit("yield None")
    work.loop(t, stmt)
    t.stmt(stmt.body)
    once = t.tally.loops.pop()
    t.frames.pop()
    t.context = outer
    return once[1] if once else {}


def _left(t: Any, stmt: Any) -> None:
    """Behind a loop of one lane: leave further where the loop was left for more than itself."""
    if t.context.lane is not None and node_id(stmt) in t.facts.leaves:
        flag = next(f.flag for f in reversed(t.frames) if f.kind == "region")
        t.emit(f"if {flag}: break")


def leave(t: Any, how: str) -> None:
    """``break``, ``continue`` or ``return`` of the lanes that run the code being emitted."""
    if t.slice is not None:
        raise NotVectorizable(how)
    frames = t.frames
    loops = [i for i, f in enumerate(frames) if f.kind in ("loop", "plain")]
    target = 0 if how == "return" else loops[-1]
    if not (t.facts.divergent_return if how == "return" else frames[target].kind == "loop"):
        t.emit(how)
        return
    masks = []
    for i, frame in enumerate(frames[target:]):
        masks += [name for name in (frame.mask, frame.live) if name]
        if i == 0 and how == "continue":
            masks.remove(frame.live)
    gone = t.fresh("gone")
    lane = t.context.lane
    t.emit(f"{gone} = {t.context.mask if lane is None else f'w.lanes == {lane}'}")
    for mask in masks:
        t.emit(f"{mask} = {mask} & ~{gone}")
    if how == "return":
        t.emit(f"lanes_return(w, {gone})")
    if lane is not None:
        flag = next(f.flag for f in reversed(frames) if f.kind == "region")
        t.emit(f"{flag} = True")
        t.emit("break")
