"""The wait-for graph: which warp waits for what, and who would have to act.

What has happened is known: who arrived at a barrier, and where. Who would arrive next is read from
the Program's source: a call that arrives at the barrier, which a warp still reaches from where it
stands. "Reaches" is decided on the side of caution: a line counts as reached unless it lies behind
the warp, in a branch that the warp does not take, or the warp has exited.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from mlsys_gpu.sim.machine import memory
from mlsys_gpu.sim.machine.core import Cluster, Cta, Warp

# --------------------------------------------------------------------- acts, read from the source

#: Operations that bring a phase of an mbarrier nearer to its end.
_ACTS = re.compile(
    r"mbarrier_arrive|tcgen05_commit|_load$|complete_tx|^st_async|^red_async|try_cancel"
)
#: Calls that give back one of their arguments, and which.
_SAME = {
    "held": 0,
    "column": 0,
    "int": 0,
    "wrap": 0,
    "spread": 0,
    "written": 1,
    "register_index": 1,
}
_WORDS = {
    "mbarrier_arrive": "would arrive",
    "mbarrier_arrive_state": "would arrive",
    "mbarrier_complete_tx": "would complete bytes (complete_tx)",
    "st_async": "would store bytes that complete on it (st.async)",
    "clc_try_cancel": "would ask for a cluster to cancel (clusterlaunchcontrol.try_cancel)",
    "bar_red": "would come to it (bar.red)",
    "tcgen05_commit": "would commit (tcgen05.commit)",
    "tma_load": "would issue a TMA copy that completes on it",
    "bulk_load": "would issue a bulk copy that completes on it",
    "bar_sync": "would come to it (bar.sync)",
    "bar_arrive": "would arrive (bar.arrive)",
    "tcgen05_dealloc": "would give columns back (tcgen05.dealloc)",
    "tcgen05_alloc": "would allocate, as the other CTA of the pair (tcgen05.alloc)",
}


@dataclass(frozen=True)
class Act:
    """A call in a Program's source that may end somebody's wait."""

    op: str
    call: ast.Call
    stmt: ast.stmt
    site: int

    @property
    def words(self) -> str:
        return _WORDS.get(self.op, f"would execute {self.op.replace('_', '.')}")


@dataclass
class Source:
    """A Program's source, with what is asked of it: acts, positions, and names that do not change.

    ``chains`` holds for each statement the blocks that it lies in, outermost first, each with the
    statement's (or its ancestor's) place in that block.
    """

    acts: list[Act] = field(default_factory=list)
    chains: dict[ast.stmt, list[tuple[ast.stmt, str, int]]] = field(default_factory=dict)
    by_line: dict[int, ast.stmt] = field(default_factory=dict)
    values: dict[str, ast.expr | None] = field(default_factory=dict)  # of names assigned once
    fixed: set[str] = field(default_factory=set)  # once set, they keep their value
    parts: bool = False  # whether blocks of the kernel are functions of their own


@lru_cache(maxsize=16)
def read(source: str) -> Source:
    """Parse a Program's source."""
    found = Source()
    (kernel,) = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    found.parts = any(isinstance(n, ast.FunctionDef) for n in kernel.body)
    site = 0

    def visit(block: list[ast.stmt], owner: ast.stmt, name: str, chain: list) -> None:
        nonlocal site
        for i, stmt in enumerate(block):
            here = [*chain, (owner, name, i)]
            found.chains[stmt] = here
            found.by_line.setdefault(stmt.lineno, stmt)
            if (
                isinstance(stmt, ast.Assign)
                and ast.unparse(stmt.targets[0]) == "w.s"
                and isinstance(stmt.value, ast.Constant)
            ):
                site = int(str(stmt.value.value))
            inner = [child for b in _blocks(stmt) for child in getattr(stmt, b)]
            for call in _calls(stmt, inner):
                found.acts.append(Act(_callee(call), call, stmt, site))
            for part in _blocks(stmt):
                visit(getattr(stmt, part), stmt, part, here)

    visit(kernel.body, kernel, "body", [])
    counts: dict[str, int] = {}
    blank = set()  # assignments that say only that nothing has been written yet
    for node in ast.walk(kernel):
        if isinstance(node, ast.Assign) and "poison(" in ast.unparse(node.value):
            blank.update(id(name) for name in node.targets)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] = counts.get(node.id, 0) + (id(node) not in blank)
    for stmt, chain in found.chains.items():
        if not isinstance(stmt, ast.Assign) or id(stmt.targets[0]) in blank:
            continue
        for target in ast.walk(stmt.targets[0]):
            if isinstance(target, ast.Name) and counts.get(target.id) == 1:
                plain = isinstance(stmt.targets[0], ast.Name)
                found.values[target.id] = stmt.value if plain else None
                if not any(isinstance(owner, ast.For | ast.While) for owner, _, _ in chain):
                    found.fixed.add(target.id)
    return found


def _blocks(stmt: ast.stmt) -> list[str]:
    return [name for name in ("body", "orelse", "finalbody") if getattr(stmt, name, None)]


def _calls(stmt: ast.stmt, inner: list[ast.stmt]) -> Iterator[ast.Call]:
    """Calls in a statement itself, not in the blocks inside it."""
    skip = set(inner)
    stack: list[ast.AST] = [stmt]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node
        stack.extend(n for n in ast.iter_child_nodes(node) if n not in skip)


def _callee(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def reaches(source: Source, warp: Warp, act: Act) -> bool:
    """Whether a warp, from where it stands, may still come to a call."""
    if warp.exited:
        return False
    frame = warp.code.gi_frame if warp.code is not None else None
    if frame is None:
        return not warp.exited
    if source.parts:  # in which of them a warp stands, the kernel's own frame does not say
        return True
    here = source.by_line.get(frame.f_lineno)
    if here is None:  # it has not begun
        start: list[tuple[ast.stmt, str, int]] = []
    else:
        start = source.chains[here]
    goal = source.chains[act.stmt]
    common = 0
    while common < min(len(start), len(goal)) and start[common] == goal[common]:
        common += 1
    ahead = not start or (
        common < min(len(start), len(goal))
        and start[common][:2] == goal[common][:2]
        and goal[common][2] > start[common][2]
    )
    below = common
    if not ahead:
        owners = [owner for owner, _, _ in goal[: common + 1]]
        loops = [
            i
            for i, owner in enumerate(owners)
            if isinstance(owner, ast.For | ast.While) and start[i][:2] == goal[i][:2]
        ]
        if not loops:
            return False
        below = loops[-1]
    for owner, branch, _ in goal[below + 1 :]:
        if isinstance(owner, ast.If):
            taken = _test(source, warp, owner.test, frame.f_locals)
            if taken is not None and taken != (branch == "body"):
                return False
    return True


_EVALUATED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add,
    ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.LShift, ast.RShift,
    ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Constant, ast.Load,
)  # fmt: skip


def _test(source: Source, warp: Warp, test: ast.expr, values: Any) -> bool | None:
    """A condition's value for a warp, or None where it may still change or is not known."""
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute):
            if ast.unparse(node) not in ("w.id", "w.rank", "w.tid0", "w.active"):
                return None
        elif isinstance(node, ast.Name):
            if node.id != "w" and (node.id not in source.fixed or node.id not in values):
                return None
        elif not isinstance(node, _EVALUATED):
            return None
    try:
        code = compile(ast.Expression(test), "<condition>", "eval")
        return bool(eval(code, {"__builtins__": {}}, {**values, "w": warp}))
    except Exception:  # an array of lanes has no truth value
        return None


@dataclass(frozen=True)
class Value:
    """What is known of an integer: ``number``, in which what varies counts as 0 unless ``exact``.

    ``anywhere``: an address in the shared memory of a CTA that is not known.
    """

    number: int
    exact: bool = True
    anywhere: bool = False


def value_of(source: Source, warp: Warp, expr: ast.expr, depth: int = 0) -> Value | None:
    """What is known of an expression's value for a warp; None for what is no integer."""
    if depth > 12:
        return None
    again = depth + 1
    if isinstance(expr, ast.Constant):
        return Value(expr.value) if type(expr.value) is int else None
    if isinstance(expr, ast.Attribute):
        known = {"w.base": warp.base, "w.rank": warp.rank, "w.id": warp.id}
        found = known.get(ast.unparse(expr))
        return None if found is None else Value(found)
    if isinstance(expr, ast.Name):
        frame = warp.code.gi_frame if warp.code is not None else None
        held = frame.f_locals.get(expr.id) if frame is not None else None
        if expr.id in source.fixed and type(held) is int:
            return Value(held)
        value = source.values.get(expr.id)
        return value_of(source, warp, value, again) if value is not None else Value(0, False)
    if isinstance(expr, ast.IfExp):
        found = value_of(source, warp, expr.body, again)
        return None if found is None else Value(found.number, False, found.anywhere)
    if isinstance(expr, ast.Call):
        name = _callee(expr)
        if name in _SAME and len(expr.args) > _SAME[name]:
            return value_of(source, warp, expr.args[_SAME[name]], again)
        if name == "mapa" and len(expr.args) > 2:
            at, rank = (value_of(source, warp, x, again) for x in expr.args[1:3])
            if at is None:
                return None
            offset = at.number & memory.SHARED_OFFSET
            if rank is None or not rank.exact:
                return Value(offset, at.exact, True)
            return Value(rank.number << memory.RANK_BITS | offset, at.exact)
        return None
    if isinstance(expr, ast.BinOp):
        a = value_of(source, warp, expr.left, again)
        b = value_of(source, warp, expr.right, again)
        return None if a is None or b is None else _combined(expr.op, a, b)
    return None


def _combined(op: ast.operator, a: Value, b: Value) -> Value | None:
    exact, anywhere = a.exact and b.exact, a.anywhere or b.anywhere
    x, y = a.number, b.number
    if isinstance(op, ast.Add):
        return Value(x + y, exact, anywhere)
    if isinstance(op, ast.Sub):
        return Value(x - y, exact, anywhere)
    if isinstance(op, ast.Mult):
        return Value(x * y, exact, anywhere)
    if isinstance(op, ast.BitAnd) and b.exact:
        return Value(x & y, a.exact, anywhere)
    if exact and y >= 0:
        made = {
            ast.LShift: lambda: x << min(y, 64),
            ast.RShift: lambda: x >> y,
            ast.BitOr: lambda: x | y,
            ast.BitXor: lambda: x ^ y,
            ast.FloorDiv: lambda: x // y if y else x,
            ast.Mod: lambda: x % y if y else x,
        }.get(type(op))
        if made is not None:
            return Value(made(), True, anywhere)
    return Value(x, False, anywhere)


def acts_on(barrier: Any, warp: Warp, source: Source) -> list[Act]:
    """Calls by which a warp, going on from where it stands, brings an mbarrier's phase forward."""
    found = []
    for act in source.acts:
        if not _ACTS.search(act.op):
            continue
        values = [value_of(source, warp, argument) for argument in act.call.args[1:]]
        spread = _multicasts(act)
        means = any(v is not None and _means(barrier, v, spread) for v in values)
        if means and reaches(source, warp, act):
            found.append(act)
    return found


def _multicasts(act: Act) -> bool:
    """Whether a call names CTAs by a mask: it reaches the barrier at this offset in each."""
    position = {"tcgen05_commit": 3, "tma_load": 5, "bulk_load": 5, "clc_try_cancel": 3}.get(act.op)
    if position is None or len(act.call.args) <= position:
        return False
    ranks = act.call.args[position]
    return not (isinstance(ranks, ast.Constant) and ranks.value in (None, False))


def _means(barrier: Any, value: Value, spread: bool) -> bool:
    """Whether an address stands for a barrier, or for the row of barriers that it belongs to."""
    number = value.number
    if number >> memory.SPACE_BITS == memory.SHARED_SPACE:
        number -= memory.SHARED_TAG
    offset, rank = number & memory.SHARED_OFFSET, number >> memory.RANK_BITS
    if rank != barrier.cta.rank and not value.anywhere and not spread:
        return False
    if value.exact:
        return offset == barrier.offset
    at = barrier.offset - memory.RESERVED_SHARED
    for name, start, nbytes, _, _ in barrier.cta.machine.program.regions:
        if name and start <= at < start + nbytes:
            return start <= offset - memory.RESERVED_SHARED < start + nbytes
    return offset == barrier.offset


# ------------------------------------------------------------------------------------- the graph


def state_of(warp: Warp) -> str:
    """``exited``, ``waits``, ``ready`` (it goes on when its turn comes) or ``not started``."""
    if warp.exited:
        return "exited"
    if warp.waiting is not None:
        return "waits"
    frame = warp.code.gi_frame if warp.code is not None else None
    return "not started" if frame is None or frame.f_lasti <= 0 else "ready"


def warp_name(warp: Warp) -> str:
    return f"warp {warp.id} of CTA {warp.cta.label()}"


def graph(clusters: list[Cluster]) -> dict[str, Any]:
    """The wait-for graph of the warps of some clusters, as plain values for JSON.

    ``nodes``: warps (``kind`` ``warp``) and what they wait for (``mbarrier``, ``barrier``, …);
    ``edges``: ``waits`` from a warp to what it waits for, ``acts`` from there to a warp that would
    have to act, with the line where it would. ``cycles``: lists of nodes each of which depends on
    the next, and the last on the first.
    """
    warps = [w for cluster in clusters for cta in cluster.ctas for w in cta.warps]
    nodes: dict[str, dict[str, Any]] = {}
    edges: list[dict[str, Any]] = []
    for warp in warps:
        state = state_of(warp)
        place = warp.machine.program.location(warp.s)
        nodes[warp_name(warp)] = {
            "id": warp_name(warp),
            "kind": "warp",
            "cta": list(warp.block),
            "warp": warp.id,
            "state": state,
            "waits_for": warp.waiting.describe() if warp.waiting else "",
            "location": place.to_dict() if place and state != "not started" else None,
        }
    for warp in warps:
        if warp.waiting is None:
            continue
        node, acts = _target(warp)
        known = node["id"] in nodes
        nodes.setdefault(node["id"], node)
        edges.append(_edge(warp_name(warp), node["id"], "waits", "waits", warp, warp.s))
        if not known:
            node["actors"] = len({id(who) for who, _, _ in acts if not who.exited})
            for who, text, site in acts:
                edges.append(_edge(node["id"], warp_name(who), "acts", text, who, site))
    # Copies under way bring their bytes without anyone's doing.
    moving = {node["id"] for node in nodes.values() if node.get("flying")}
    stuck = [(e["from"], e["to"]) for e in edges if e["from"] not in moving]
    cycles = _cycles(list(nodes), stuck)
    return {"nodes": list(nodes.values()), "edges": edges, "cycles": cycles}


def _edge(start: str, end: str, kind: str, text: str, warp: Warp, site: int) -> dict[str, Any]:
    place = warp.machine.program.location(site)
    return {
        "from": start,
        "to": end,
        "kind": kind,
        "text": text,
        "location": place.to_dict() if place else None,
    }


def _target(warp: Warp) -> tuple[dict[str, Any], list[tuple[Warp, str, int]]]:
    """What a warp waits for, and who would have to act: each warp, in words, and its line."""
    waiting = warp.waiting
    assert waiting is not None
    kind, target, where = waiting.kind, waiting.target, f" of CTA {warp.cta.label()}"
    if kind == "mbarrier":
        return _mbarrier(target)
    source = read(warp.machine.program.source)
    acts: list[tuple[Warp, str, int]] = []
    if kind == "barrier" and hasattr(target, "members"):
        name = str(target.label)
        cluster = "cluster" in name
        missing = _missing(warp, target, source)
        acts = [(other, "not there yet", other.s) for other in missing]
        label = name if cluster else name + where
        node = {"id": label, "kind": kind, "name": name, "phase": target.phase}
        node |= {"arrived": int(target.threads), "waiting": len(target.parked)}
        return node, acts
    if kind == "wgmma" and hasattr(target, "warps"):
        wanted = int(warp.state.get("wgmma_wait", 0))
        for other in target.warps:
            state = other.state.get("wgmma")
            if state is None or state.issued < wanted:
                acts.append((other, f"wgmma {wanted} not issued yet", other.s))
        name = f"wgmma {wanted} of warpgroup {warp.id // 4}"
        return {"id": name + where, "kind": kind, "name": name}, acts
    for act in source.acts:
        if kind == "tcgen05.alloc" and act.op in ("tcgen05_dealloc", "tcgen05_alloc"):
            for other in (w for cta in warp.cluster.ctas for w in cta.warps if w is not warp):
                if reaches(source, other, act):
                    acts.append((other, act.words, act.site))
    return {"id": f"{kind or 'an event'}{where}", "kind": kind, "name": kind or "an event"}, acts


def _missing(warp: Warp, rendezvous: Any, source: Source) -> list[Warp]:
    """Warps that have not come to a CTA, named or cluster barrier and would have to."""
    if "cluster" in rendezvous.label:
        others = [w for cta in warp.cluster.ctas for w in cta.warps]
    else:
        others = warp.cta.warps
    others = [w for w in others if w not in rendezvous.members and not w.exited]
    number = next((n for n, held in warp.cta.named.items() if held is rendezvous), None)
    if number is None or rendezvous.everyone:
        return others
    places = {"bar_sync": 1, "bar_arrive": 1, "bar_red": 2}
    return [
        w
        for w in others
        if any(
            act.op in places
            and len(act.call.args) > places[act.op]
            and value_of(source, w, act.call.args[places[act.op]])
            in (Value(number), Value(0, False), None)
            and reaches(source, w, act)
            for act in source.acts
        )
    ]


def _mbarrier(barrier: Any) -> tuple[dict[str, Any], list[tuple[Warp, str, int]]]:
    cta: Cta = barrier.cta
    node = {
        "id": f"{_plain(barrier)} of CTA {cta.label()}",
        "kind": "mbarrier",
        "name": _plain(barrier),
        "phase": barrier.phase,
        "pending": barrier.pending,
        "count": barrier.count,
        "bytes": barrier.tx,
        "flying": sum(barrier.flying.values()),
    }
    source = read(cta.machine.program.source)
    acts: list[tuple[Warp, str, int]] = []
    for other in (w for one in cta.cluster.ctas for w in one.warps):
        seen: set[tuple[str, int]] = set()
        for act in acts_on(barrier, other, source):
            if (act.words, act.site) not in seen:
                seen.add((act.words, act.site))
                acts.append((other, act.words, act.site))
        if other.exited:
            for (who, site), n in barrier.arrivals.items():
                if _is(who, other):
                    acts.append((other, f"arrived {n} time{'s' * (n != 1)}, then exited", site))
    return node, acts


def _is(who: str, warp: Warp) -> bool:
    """Whether an arrival's words mean a warp itself or an engine that worked for it."""
    name = warp.name()
    return who == name or who.startswith(f"{name} (") or who.endswith(f"of {name}")


def _plain(barrier: Any) -> str:
    """A barrier's name without the rank of its CTA."""
    return str(barrier.name()).split(" of CTA rank")[0]


def _cycles(nodes: list[str], edges: list[tuple[str, str]]) -> list[list[str]]:
    """A shortest cycle of every strongly connected part of the graph, from its first node."""
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for start, end in edges:
        if end not in after[start]:
            after[start].append(end)
    reached = {node: _reached(node, after) for node in nodes}
    found: list[list[str]] = []
    covered: set[str] = set()
    for node in nodes:
        if node not in covered and node in reached[node]:
            covered.update(other for other in reached[node] if node in reached[other])
            found.append(_shortest(node, after))
    return found


def _reached(node: str, after: dict[str, list[str]]) -> set[str]:
    found: set[str] = set()
    stack = [node]
    while stack:
        for other in after[stack.pop()]:
            if other not in found:
                found.add(other)
                stack.append(other)
    return found


def _shortest(node: str, after: dict[str, list[str]]) -> list[str]:
    """The shortest way from a node back to itself (without its end), or an empty list."""
    before: dict[str, str] = {}
    edge = [node]
    while edge:
        following = []
        for one in edge:
            for other in after[one]:
                if other == node:
                    way = [one]
                    while way[-1] != node:
                        way.append(before[way[-1]])
                    return way[::-1]
                if other not in before:
                    before[other] = one
                    following.append(other)
        edge = following
    return []


def sentence(cycle: list[str]) -> str:
    """``warp 0 … -> full[0] … -> warp 1 … -> … -> warp 0 …``."""
    return " -> ".join([*cycle, cycle[0]])
