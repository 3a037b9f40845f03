"""Unrolled code rolled up again, before it is translated.

Kernels unroll their loops over registers: hundreds of statements that differ in a register's index
and in the names of their temporaries. A run of them becomes a loop, which the translator emits as
one slice where the iterations are independent, and otherwise unrolled as it was.

A run is ``count`` times ``period`` statements. Corresponding statements have the same shape and
source line; their integers advance by a fixed step from one iteration to the next; their variables
are the same, or are temporaries that one iteration alone knows. Runs of the same statements that
nothing between them depends on become one loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mlsys_gpu.lowering import span_lines
from mlsys_gpu.sim.frontend import table
from mlsys_gpu.sim.frontend.analysis import destinations, node_id

#: Statements of one iteration, at most; those of a whole run, at least; and leaves of a let that is
#: looked through, at most.
LONGEST_PERIOD, SHORTEST_RUN, LONGEST_LET = 96, 3, 16
#: How far apart two runs may be that become one, in runs and statements between them.
FARTHEST = 64

_FIELDS = {
    "Cast": ("value",), "Select": ("condition", "true_value", "false_value"), "Not": ("a",),
    "BitwiseNot": ("a",),
}  # fmt: skip
_BINARY = {
    "Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "EQ", "NE", "LT",
    "LE", "GT", "GE", "And", "Or", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "LShift", "RShift",
}  # fmt: skip
_CHILDREN = ("body", "then_case", "else_case")

#: Families whose operations take registers and give registers, and other such operations.
_PURE_FAMILIES = ("families_math", "families_integer", "families_convert")
_PURE = ("if_then_else", "reinterpret", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "fabs")


class _Fixed(Exception):
    """A statement that no run takes in."""


@dataclass
class _Item:
    """A statement as runs see it."""

    stmt: Any
    shape: Any = None  # None: no run takes it in
    numbers: list[int] = field(default_factory=list)
    variables: list[int] = field(default_factory=list)
    defines: int | None = None  # the variable that an allocation or a let introduces
    free: bool = False  # an allocation or a pure let: it may stand anywhere before its uses
    #: What it reads and writes: a variable, the position of the index among ``numbers`` (None for
    #: any), and whether it writes. Only where it touches registers alone.
    accesses: list[tuple[int, int | None, bool]] = field(default_factory=list)
    registers: bool = True  # it touches registers alone


#: The registers of a variable that something touches; None for any of them.
_Touched = dict[int, "set[int] | None"]


@dataclass
class _Node:
    """A part of a block: a run, or one statement. ``before``: what is free and comes first."""

    items: list[_Item]
    #: For each iteration the numbers of each statement; empty for a statement that no run takes in.
    numbers: list[list[list[int]]]
    own: list[int] = field(default_factory=list)
    before: list[Any] = field(default_factory=list)
    reads: _Touched | None = None
    writes: _Touched | None = None

    def look(self) -> None:
        """Collect what it reads and writes."""
        self.reads, self.writes = {}, {}
        for numbers in self.numbers:
            for item, given in zip(self.items, numbers, strict=True):
                for variable, position, write in item.accesses:
                    touched = self.writes if write else self.reads
                    known = touched.setdefault(variable, set())
                    if position is None or known is None:
                        touched[variable] = None
                    else:
                        known.add(given[position])

    @property
    def still(self) -> bool:
        """Whether it must stay where it is, and nothing may pass it."""
        return not self.numbers or not all(item.registers for item in self.items)


def reroll(body: Any) -> tuple[Any, dict[int, dict[int, tuple[int, ...]]]]:
    """A function's body with its runs as loops, and for each loop (its id) the variables that stand
    for numbers without a fixed step, with their values."""
    roller = _Reroller()
    roller.look_at(body)
    rolled = roller.rolled(body)
    if not roller.loops:
        return body, {}
    return _without(rolled, roller.own, set(roller.loops)), roller.loops


class _Reroller:
    def __init__(self) -> None:
        self.lets: dict[int, Any] = {}  # short pure lets, by variable: they are looked through
        self.bound: set[int] = set()  # variables of lets that are not pure
        self.temporaries: set[int] = set()  # local allocations and lets
        self.allocations: dict[int, Any] = {}  # the statement of each local allocation
        self.own: set[int] = set()  # variables that are allocated in a loop of ours
        self.uses: Counter[int] = Counter()  # how often each variable is named in the function
        self.items: dict[int, _Item] = {}
        self.loops: dict[int, dict[int, tuple[int, ...]]] = {}
        self.aliased: set[int] = set()  # buffers that have views of another type or shape

    # --------------------------------------------------------------------------- reading the IR

    def look_at(self, stmt: Any) -> None:
        """Describe every statement."""
        kind = type(stmt).__name__
        if kind == "SeqStmt":
            for child in stmt.seq:
                self.look_at(child)
            return
        item = self.items[node_id(stmt)] = _Item(stmt)
        if kind == "DeclBuffer":
            self.aliased.update(_names(stmt))
        try:
            item.shape = self.shape(stmt, kind, item)
        except _Fixed:
            item.shape, item.numbers, item.variables = None, [], list(_names(stmt))
            item.registers = False
        self.uses.update(item.variables)
        for name in _CHILDREN:
            child = getattr(stmt, name, None)
            if child is not None:
                self.look_at(child)

    def shape(self, stmt: Any, kind: str, item: _Item) -> Any:
        """The shape of a statement; its numbers and variables go into ``item``."""
        if kind == "AllocBuffer" and str(stmt.buffer.scope()) in ("local", ""):
            item.defines, item.free = node_id(stmt.buffer), True
            self.temporaries.add(item.defines)
            self.allocations[item.defines] = stmt
            return None
        if kind == "Bind":
            item.defines = node_id(stmt.var)
            if self.pure(stmt.value):
                item.free = True
                item.variables = list(_names(stmt))
                if self.size(stmt.value) <= LONGEST_LET:
                    self.lets[item.defines] = stmt.value
                return None
            self.bound.add(item.defines)
            self.temporaries.add(item.defines)
        elif kind not in ("Evaluate", "BufferStore"):
            raise _Fixed
        places = tuple(span_lines(stmt.span))
        if kind == "Evaluate" and type(stmt.value).__name__ == "Call":
            return kind, places, self.called(stmt.value, item, destinations(stmt.value))
        parts = [self.expression(stmt.value, item)]
        if kind == "BufferStore":
            parts.append(self.element(stmt.buffer, stmt.indices, item, write=True))
        elif item.defines is not None:
            item.accesses.append((item.defines, None, True))
        return (kind, places, *parts)

    def called(self, call: Any, item: _Item, written: Sequence[int] | set[int] = ()) -> Any:
        """The shape of a call; ``written``: the positions of the arguments that it writes."""
        name = str(call.op.name)
        row = table.ROWS.get(name)
        if row is None or not row.vectorizable or call.attrs is not None:
            raise _Fixed
        if row.family not in _PURE_FAMILIES and name.split(".")[-1] not in _PURE:
            item.registers = False
        parts = []
        for i, argument in enumerate(call.args):
            if i in written and type(argument).__name__ == "TensorLoad":
                parts.append(self.element(argument.source, argument.indices, item, write=True))
            else:
                parts.append(self.expression(argument, item))
        return (name, str(call.ty), *parts)

    def element(self, source: Any, indices: Any, item: _Item, write: bool = False) -> Any:
        """The shape of an element of a buffer. What is written is taken as read, too."""
        key = node_id(source)
        item.variables.append(key)
        position = len(item.numbers)
        parts = [self.expression(i, item) for i in indices]
        if len(parts) != 1 or type(indices[0]).__name__ != "IntImm":
            position = None
        if not str(source.scope()).startswith("local") or key in self.aliased:
            item.registers = False
        item.accesses.append((key, position, False))
        if write:
            item.accesses.append((key, position, True))
        return ("load", *parts)

    def pure(self, expr: Any) -> bool:
        """Whether an expression is arithmetic on numbers and variables that never change."""
        kind = type(expr).__name__
        if kind in ("IntImm", "FloatImm"):
            return True
        if kind == "Var":
            return node_id(expr) not in self.bound
        if kind in ("Div", "Mod", "FloorDiv", "FloorMod") and type(expr.b).__name__ != "IntImm":
            return False  # elsewhere it might divide by zero
        if kind in _BINARY:
            return self.pure(expr.a) and self.pure(expr.b)
        return kind == "Cast" and self.pure(expr.value)

    def size(self, expr: Any) -> int:
        """Numbers and variables of a pure expression, lets looked through."""
        kind = type(expr).__name__
        if kind == "Var":
            held = self.lets.get(node_id(expr))
            return 1 if held is None else self.size(held)
        if kind in _BINARY:
            return self.size(expr.a) + self.size(expr.b)
        return self.size(expr.value) if kind == "Cast" else 1

    def expression(self, expr: Any, item: _Item) -> Any:
        kind = type(expr).__name__
        if kind == "IntImm":
            item.numbers.append(int(expr.value))
            return "#", str(expr.ty)
        if kind == "Var":
            key = node_id(expr)
            if key in self.lets:
                return self.expression(self.lets[key], item)
            item.variables.append(key)
            item.accesses.append((key, None, False))
            return "var"
        if kind == "TensorLoad":
            return self.element(expr.source, expr.indices, item)
        if kind in _BINARY:
            return kind, self.expression(expr.a, item), self.expression(expr.b, item)
        if kind == "FloatImm":
            return "f", float(expr.value), str(expr.ty)
        if kind == "StringImm":
            return str(expr.value)
        if kind == "Call":
            return self.called(expr, item)
        if kind in _FIELDS:
            parts = [self.expression(getattr(expr, name), item) for name in _FIELDS[kind]]
            return (kind, str(expr.ty), *parts)
        raise _Fixed

    # ------------------------------------------------------------------------------ finding runs

    def rolled(self, stmt: Any) -> Any:
        """A statement with the runs below it as loops."""
        from tvm import tirx

        if type(stmt).__name__ == "SeqStmt":
            before = _flat(stmt)
            known = len(self.loops)
            after = self.sequence([self.items[node_id(s)] for s in before])
            if len(self.loops) == known:
                return stmt
            return tirx.SeqStmt(after, stmt.span) if len(after) > 1 else after[0]
        changed = {}
        for name in _CHILDREN:
            child = getattr(stmt, name, None)
            if child is not None:
                known = len(self.loops)
                new = self.rolled(child)
                if len(self.loops) != known:
                    changed[name] = new
        return _with(stmt, changed) if changed else stmt

    def sequence(self, items: list[_Item]) -> list[Any]:
        """The statements of a block with its runs as loops."""
        core = [k for k, item in enumerate(items) if not item.free]
        steady = [items[k] for k in core]
        nodes: list[_Node] = []
        done = i = 0  # positions in items, in core
        while i < len(core):
            run = self.run_at(steady, i)
            if run is None:
                item = steady[i]
                run = _Node([item], [[item.numbers]] if item.shape is not None else [])
            length = len(run.items) * max(1, len(run.numbers))
            last = core[i + length - 1]
            # allocations and pure lets come first; those of no use are dropped at the end
            run.before = [items[k].stmt for k in range(done, last) if items[k].free]
            nodes.append(run)
            i += length
            done = last + 1
        result: list[Any] = []
        for node in self.merged(nodes):
            result += node.before
            if len(node.numbers) > 1:
                result.append(self.loop(node))
            else:
                result.append(self.rolled(node.items[0].stmt))
        return result + [item.stmt for item in items[done:]]

    def merged(self, nodes: list[_Node]) -> list[_Node]:
        """Runs of the same statements as one, where the order of what lies between allows it."""
        if sum(len(node.numbers) > 1 for node in nodes) < 2:
            return nodes
        for node in nodes:
            node.look()
        at = 0
        while at < len(nodes):
            node = nodes[at]
            if len(node.numbers) < 2 or node.still:
                at += 1
                continue
            for back in range(at - 1, max(-1, at - FARTHEST), -1):
                other = nodes[back]
                if other.still:
                    break
                if not self.alike(other, node):
                    continue
                between = nodes[back + 1 : at]
                up = not any(_conflict(node, x) for x in (other, *between))
                if not up and any(_conflict(other, x) for x in (*between, node)):
                    continue
                other.numbers += node.numbers
                self.own.update(node.own)
                if up:
                    for x in (*between, node):
                        other.before += x.before
                        x.before = []
                    del nodes[at]
                else:
                    first = between[0] if between else node
                    first.before = other.before + first.before
                    other.before = node.before
                    nodes[at] = other
                    del nodes[back]
                other.look()
                at = back if up else at - 1
                break
            at += 1
        return nodes

    def alike(self, one: _Node, other: _Node) -> bool:
        """Whether two runs have the same iterations, but for their numbers and own variables."""
        if len(one.items) != len(other.items) or len(one.numbers) < 2:
            return False
        if any(a.shape != b.shape for a, b in zip(one.items, other.items, strict=True)):
            return False
        inner = Counter(v for item in one.items for v in item.variables)
        renamed = self.same_variables(one.items, other.items, inner)
        return renamed is not None and all(
            x == y or (x in one.own and y in other.own) or x not in self.allocations
            for x, y in renamed.items()
        )

    def run_at(self, items: list[_Item], start: int) -> _Node | None:
        """The longest run that begins at ``start``."""
        first = items[start].shape
        if first is None:
            return None
        best = None
        covered = SHORTEST_RUN - 1
        for period in range(1, min(LONGEST_PERIOD, (len(items) - start) // 2) + 1):
            if items[start + period - 1].shape is None:
                break
            if items[start + period].shape != first:
                continue
            if any(
                items[start + j].shape != items[start + period + j].shape for j in range(1, period)
            ):
                continue
            run = self.iterations(items, start, period)
            if len(run.numbers) > 1 and period * len(run.numbers) > covered:
                best, covered = run, period * len(run.numbers)
        return best

    def iterations(self, items: list[_Item], start: int, period: int) -> _Node:
        """The run of a period, as far as it goes."""
        base = items[start : start + period]
        inner = Counter(v for item in base for v in item.variables)
        steps: list[list[int]] = []
        run = _Node(base, [[item.numbers for item in base]])
        while start + (len(run.numbers) + 1) * period <= len(items):
            count = len(run.numbers)
            other = items[start + count * period : start + (count + 1) * period]
            if any(a.shape != b.shape for a, b in zip(base, other, strict=True)):
                break
            renamed = self.same_variables(base, other, inner)
            if renamed is None:
                break
            moved = [
                [y - x for x, y in zip(a.numbers, b.numbers, strict=True)]
                for a, b in zip(base, other, strict=True)
            ]
            if count == 1:
                steps = moved
                run.own = [x for x, y in renamed.items() if x != y and x in self.allocations]
            elif any(
                y != count * x
                for a, b in zip(steps, moved, strict=True)
                for x, y in zip(a, b, strict=True)
            ):
                break
            run.numbers.append([item.numbers for item in other])
        return run

    def same_variables(
        self, base: list[_Item], other: list[_Item], inner: Counter[int]
    ) -> dict[int, int] | None:
        """The variables of one iteration and their counterparts in another, where they are the same
        but for temporaries of each iteration's own."""
        renamed: dict[int, int] = {}
        for a, b in zip(base, other, strict=True):
            pairs = list(zip(a.variables, b.variables, strict=True))
            if a.defines is not None and b.defines is not None:
                pairs.append((a.defines, b.defines))
            for x, y in pairs:
                if renamed.setdefault(x, y) != y:
                    return None
        again = Counter(v for item in other for v in item.variables)
        for x, y in renamed.items():
            apart = {x, y} <= self.temporaries
            if x != y and not (apart and self.uses[x] == inner[x] and self.uses[y] == again[y]):
                return None
        return renamed

    # ----------------------------------------------------------------------------- making loops

    def loop(self, node: _Node) -> Any:
        from tvm import tirx

        counter = _Numbers(tirx.Var("u", "int32"))
        body = [self.allocations[key] for key in node.own]
        self.own.update(node.own)
        for j, item in enumerate(node.items):
            given = [numbers[j] for numbers in node.numbers]
            columns = list(zip(*given, strict=True))
            changes = any(len(set(column)) > 1 for column in columns)
            body.append(self.advanced(item.stmt, counter, columns) if changes else item.stmt)
        made = tirx.For(
            counter.variable,
            tirx.IntImm("int32", 0),
            tirx.IntImm("int32", len(node.numbers)),
            tirx.ForKind.SERIAL,
            tirx.SeqStmt(body) if len(body) > 1 else body[0],
            span=node.items[0].stmt.span,
        )
        self.loops[node_id(made)] = counter.tables
        return made

    def advanced(self, stmt: Any, counter: _Numbers, columns: list[Any]) -> Any:
        """A statement whose numbers are those of ``columns`` (one for each iteration) in turn."""
        from tvm import tirx

        rebuild = _Rebuild(self.lets, counter, iter(columns))
        kind = type(stmt).__name__
        value = rebuild.expression(stmt.value)
        if kind == "Evaluate":
            return tirx.Evaluate(value, stmt.span)
        if kind == "Bind":
            return tirx.Bind(stmt.var, value, stmt.span)
        indices = [rebuild.expression(i) for i in stmt.indices]
        return tirx.BufferStore(stmt.buffer, value, indices, stmt.span)


def _conflict(one: _Node, other: _Node) -> bool:
    """Whether two parts of a block must keep their order."""
    if one.still or other.still:
        return True
    pairs = ((one.writes, other.writes), (one.writes, other.reads), (one.reads, other.writes))
    for a, b in pairs:
        if a is None or b is None:
            return True
        for variable in a.keys() & b.keys():
            x, y = a[variable], b[variable]
            if x is None or y is None or x & y:
                return True
    return False


class _Numbers:
    """The numbers of a loop's iterations: steps of its variable, or variables of their own."""

    def __init__(self, variable: Any):
        self.variable = variable
        self.tables: dict[int, tuple[int, ...]] = {}
        self.known: dict[tuple[str, tuple[int, ...]], Any] = {}

    def expression(self, expr: Any, values: tuple[int, ...]) -> Any:
        """An expression for a number that takes ``values`` in turn."""
        from tvm import tirx

        first, step = values[0], values[1] - values[0]
        if step == 0 and len(set(values)) == 1:
            return expr
        dtype = str(expr.ty)
        if any(value != first + step * i for i, value in enumerate(values)):
            made = self.known.get((dtype, values))
            if made is None:
                made = self.known[dtype, values] = tirx.Var("t", dtype)
                self.tables[node_id(made)] = values
            return made
        moved = self.variable if dtype == "int32" else tirx.Cast(dtype, self.variable)
        if step < 0 and dtype.startswith("uint"):
            return tirx.Sub(expr, tirx.Mul(moved, tirx.IntImm(dtype, -step)))
        if step != 1:
            moved = tirx.Mul(moved, tirx.IntImm(dtype, step))
        return moved if first == 0 else tirx.Add(moved, expr)


class _Rebuild:
    """Rebuilds expressions with other numbers, in the order in which they were read."""

    def __init__(self, lets: dict[int, Any], counter: _Numbers, columns: Any):
        self.lets, self.counter, self.columns = lets, counter, columns

    def expression(self, expr: Any) -> Any:
        from tvm import tirx
        from tvm.ir import Call

        kind = type(expr).__name__
        if kind == "IntImm":
            return self.counter.expression(expr, next(self.columns))
        if kind == "Var" and node_id(expr) in self.lets:
            held = self.lets[node_id(expr)]
            new = self.expression(held)
            return expr if new is held else new
        if kind == "TensorLoad":
            old = list(expr.indices)
            new = [self.expression(i) for i in old]
            return expr if _same(new, old) else tirx.BufferLoad(expr.source, new)
        if kind in _BINARY:
            a, b = expr.a, expr.b
            new = [self.expression(a), self.expression(b)]
            return expr if _same(new, [a, b]) else type(expr)(*new)
        if kind == "Call":
            old = list(expr.args)
            new = [self.expression(a) for a in old]
            return expr if _same(new, old) else Call(expr.op, new, ret_ty=expr.ty)
        if kind in _FIELDS:
            old = [getattr(expr, name) for name in _FIELDS[kind]]
            new = [self.expression(x) for x in old]
            if _same(new, old):
                return expr
            return type(expr)(str(expr.ty), *new) if kind == "Cast" else type(expr)(*new)
        return expr


def _same(new: list[Any], old: list[Any]) -> bool:
    return all(a is b for a, b in zip(new, old, strict=True))


def _arithmetic(expr: Any) -> bool:
    """Whether an expression loads nothing and calls nothing."""
    kind = type(expr).__name__
    if kind in ("IntImm", "FloatImm", "Var"):
        return True
    if kind in _BINARY:
        return _arithmetic(expr.a) and _arithmetic(expr.b)
    return kind == "Cast" and _arithmetic(expr.value)


def _names(stmt: Any):
    """The variables that a statement names itself, in whatever expressions it has."""
    if type(stmt).__name__ in ("BufferStore", "DeclBuffer"):
        yield node_id(stmt.buffer)
    stack = [
        getattr(stmt, name, None)
        for name in ("value", "condition", "data", "min", "extent", "step", "node")
    ]
    stack += list(getattr(stmt, "indices", None) or ())
    while stack:
        expr = stack.pop()
        if expr is None or not hasattr(expr, "ty"):
            continue
        kind = type(expr).__name__
        if kind == "Var":
            yield node_id(expr)
        elif kind == "TensorLoad":
            yield node_id(expr.source)
        for name in ("a", "b", "value", "condition", "true_value", "false_value", "base"):
            stack.append(getattr(expr, name, None))
        for name in ("args", "vectors", "indices"):
            stack.extend(getattr(expr, name, None) or ())


def _flat(stmt: Any) -> list[Any]:
    """The statements of a block, blocks in it opened up."""
    found: list[Any] = []
    for child in stmt.seq:
        found += _flat(child) if type(child).__name__ == "SeqStmt" else [child]
    return found


def _with(stmt: Any, changed: dict[str, Any]) -> Any:
    """A statement with other statements in it."""
    from tvm import tirx

    kind = type(stmt).__name__
    body: Any = changed.get("body")
    if kind == "AttrStmt":
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body, stmt.span)
    if kind == "IfThenElse":
        then, other = (changed.get(n, getattr(stmt, n)) for n in ("then_case", "else_case"))
        return tirx.IfThenElse(stmt.condition, then, other, stmt.span)
    if kind == "While":
        return tirx.While(stmt.condition, body, stmt.span)
    assert kind == "For", kind
    return tirx.For(
        stmt.loop_var,
        stmt.min,
        stmt.extent,
        stmt.kind,
        body,
        stmt.thread_binding,
        stmt.annotations,
        stmt.step,
        stmt.span,
    )


def _unused(body: Any) -> set[int]:
    """Local allocations and pure lets that nothing names."""
    from mlsys_gpu.sim.frontend.analysis import statements

    named: set[int] = set()
    defined: set[int] = set()
    for stmt in statements(body):
        kind = type(stmt).__name__
        named.update(_names(stmt))
        if kind == "AllocBuffer" and str(stmt.buffer.scope()) in ("local", ""):
            defined.add(node_id(stmt.buffer))
        elif kind == "Bind" and _arithmetic(stmt.value):
            defined.add(node_id(stmt.var))
    return defined - named


def _without(stmt: Any, own: set[int], loops: set[int]) -> Any:
    """A statement without allocations and pure lets that nothing names, and without those that are
    in the loops of a run."""
    before: set[int] = set()
    while True:  # a let that has gone may have been the last to name another
        unused = _unused(stmt)
        pruned = _pruned(stmt, unused, own, loops)
        if unused <= before:  # the runs' own stay
            return pruned
        before, stmt, own = unused, pruned, set()


def _pruned(stmt: Any, unused: set[int], own: set[int], loops: set[int]) -> Any:
    from tvm import tirx

    kind = type(stmt).__name__
    if kind == "For" and node_id(stmt) in loops:
        return stmt
    if kind == "SeqStmt":
        before = list(stmt.seq)
        kept: list[Any] = []
        for child in before:
            name = {"AllocBuffer": "buffer", "Bind": "var"}.get(type(child).__name__)
            key = None if name is None else node_id(getattr(child, name))
            if key is None or (key not in unused and key not in own):
                kept.append(_pruned(child, unused, own, loops))
        if len(kept) == len(before) and _same(kept, before):
            return stmt
        if not kept:
            kept = [tirx.Evaluate(tirx.IntImm("int32", 0))]
        return tirx.SeqStmt(kept, stmt.span) if len(kept) > 1 else kept[0]
    changed = {}
    for name in _CHILDREN:
        child = getattr(stmt, name, None)
        if child is not None:
            new = _pruned(child, unused, own, loops)
            if new is not child:
                changed[name] = new
    return _with(stmt, changed) if changed else stmt
