"""What differs between the lanes of a warp, found before any code is emitted.

A value is *uniform* where all 32 lanes have the same. Uniform values are Python scalars in the
emitted code, which is what makes it fast; so the analysis looks for as many as it can prove. It is
a fixpoint: a variable starts uniform, and is demoted where a differing value, or a branch that only
some lanes take, reaches it.

A branch that exactly one lane takes (``elect.sync``, ``lane == 0``, ``tid == 0``) is a *region*:
its body runs on scalars. A variable that only one region reads may stay a scalar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from mlsys_gpu.lowering import LINE_KEY
from mlsys_gpu.sim.frontend import table
from mlsys_gpu.sim.frontend.values import Root, element

#: Attributes of the lowered function that change nothing for the simulator.
SILENT_ATTRIBUTES = {
    "tirx.dyn_smem_bytes",
    "tirx.launch_bounds_min_blocks_per_sm",
    "tirx.device_entry",
    "compute_scope",
    "storage_alignment",
    "pragma_unroll_explicit",
    "pragma_auto_unroll_max_step",
}

_CHILDREN = ("a", "b", "value", "condition", "true_value", "false_value", "base", "stride")
_LISTS = ("args", "vectors", "indices")

#: Operations that a loop may repeat until another thread or an engine has acted.
_POLLS = (
    "mbarrier_test_wait",
    "mbarrier_try_wait",
    "ptx.ld",
    "cuda.ldg",
    "cuda.wait_until",
    "atom",
    "nano_sleep",
)


def node_id(node: Any) -> int:
    """Identity of an IR node (Python objects are made afresh for each access)."""
    return int(node.__chandle__())


def children(expr: Any):
    """The sub-expressions of an expression."""
    for name in _CHILDREN:
        child = getattr(expr, name, None)
        if child is not None and hasattr(child, "ty"):
            yield child
    for name in _LISTS:
        for child in getattr(expr, name, None) or ():
            if hasattr(child, "ty"):
                yield child


def statements(stmt: Any):
    """All statements below ``stmt``, itself included, in order."""
    yield stmt
    if type(stmt).__name__ == "SeqStmt":
        for child in stmt.seq:
            yield from statements(child)
    for name in ("body", "then_case", "else_case"):
        child = getattr(stmt, name, None)
        if child is not None:
            yield from statements(child)


def may_overflow(expr: Any) -> bool:
    """Whether an int32 expression multiplies or shifts by much: a hash rather than an index."""
    kind = type(expr).__name__
    if kind == "Mul":
        sizes = [abs(int(x.value)) for x in (expr.a, expr.b) if type(x).__name__ == "IntImm"]
        if not sizes or max(sizes) >= 1 << 16:
            return True
    if kind == "LShift" and type(expr.b).__name__ != "IntImm":
        return True
    return any(may_overflow(child) for child in children(expr))


def loads(expr: Any) -> bool:
    """Whether an expression loads from a buffer, or calls something that may."""
    if type(expr).__name__ in ("TensorLoad", "Call"):
        return True
    return any(loads(child) for child in children(expr))


def loads_tensor_memory(stmt: Any) -> bool:
    """Whether a statement issues a tcgen05.ld."""
    return any("tcgen05_ld" in str(call.op.name) for call in calls(stmt))


def only_registers(expr: Any) -> bool:
    """Whether all that an expression loads is in registers, and it calls nothing."""
    if type(expr).__name__ == "Call":
        return False
    if type(expr).__name__ == "TensorLoad" and not str(expr.source.scope()).startswith("local"):
        return False
    return all(only_registers(child) for child in children(expr))


def expressions(stmt: Any):
    """The expressions of one statement."""
    for name in ("value", "condition", "data", "min", "extent", "step"):
        value = getattr(stmt, name, None)
        if value is not None and hasattr(value, "ty"):
            yield value
    yield from getattr(stmt, "indices", None) or ()


def effects(expr: Any) -> bool:
    """Whether evaluating an expression does more than read registers: a call, a load of memory."""
    return type(expr).__name__ == "Call" or _reads_memory(expr) or any(map(effects, children(expr)))


def calls(stmt: Any):
    """All calls in the expressions of ``stmt`` and below."""
    for one in statements(stmt):
        for value in expressions(one):
            stack = [value]
            while stack:
                expr = stack.pop()
                if type(expr).__name__ == "Call":
                    yield expr
                stack.extend(children(expr))


def asks(stmt: Any) -> bool:
    """Whether a statement asks for something that others change."""
    if any(word in str(call.op.name) for call in calls(stmt) for word in _POLLS):
        return True
    return any(_reads_memory(expr) for one in statements(stmt) for expr in expressions(one))


def polls(stmt: Any) -> bool:
    """Whether a while loop goes round until others have changed something."""
    if any(word in str(call.op.name) for call in calls(stmt) for word in _POLLS):
        return True
    if _reads_memory(stmt.condition) or (leaves_loop(stmt.body) and asks(stmt.body)):
        return True
    asked = _locals(stmt.condition)
    return any(
        type(one).__name__ == "BufferStore"
        and node_id(one.buffer) in asked
        and _reads_memory(one.value)
        for one in statements(stmt.body)
    )


_LEAVES = {"break_loop": "break", "continue_loop": "continue", "thread_return": "return"}


def leaving(stmt: Any) -> str:
    """``break``, ``continue`` or ``return`` for a statement that is one, else an empty string."""
    kind = type(stmt).__name__
    if kind in ("Break", "Continue", "Return"):
        return kind.lower()
    if kind == "Evaluate" and type(stmt.value).__name__ == "Call":
        return _LEAVES.get(str(stmt.value.op.name).removeprefix("tirx."), "")
    return ""


def leaves_loop(body: Any) -> bool:
    """Whether a loop's body may end the loop."""
    return any(leaving(one) in ("break", "return") for one in statements(body))


def _locals(expr: Any) -> set[int]:
    """The local variables that an expression reads."""
    found = {node_id(expr.source)} if type(expr).__name__ == "TensorLoad" else set()
    return found.union(*(_locals(child) for child in children(expr)))


def _reads_memory(expr: Any) -> bool:
    """Whether an expression subscripts a buffer that other threads can write."""
    if type(expr).__name__ == "TensorLoad" and not str(expr.source.scope()).startswith("local"):
        return True
    return any(_reads_memory(child) for child in children(expr))


_SLICEABLE = ("SeqStmt", "Bind", "AllocBuffer", "DeclBuffer", "BufferStore", "Evaluate", "AttrStmt")


def could_slice(loop: Any) -> bool:
    """Whether a loop's body is straight-line code."""
    return all(
        type(s).__name__ in _SLICEABLE
        and (type(s).__name__ != "AttrStmt" or str(s.attr_key) == LINE_KEY)
        for s in statements(loop.body)
    )


@dataclass(frozen=True)
class SingleLane:
    """A condition that one lane of a warp can satisfy.

    ``lane``: its number, or None for the lane that ``elect.sync`` picks; ``warp``: a test on the
    warp's index, in Python, or None for any warp; ``uniform``: further conditions; ``elected``: the
    register that holds what ``elect.sync`` found, or None.
    """

    lane: int | None
    warp: str | None
    uniform: tuple[Any, ...]
    elected: Any = None


@dataclass
class Facts:
    """The result of :func:`analyse`."""

    flat: bool  # threads have one dimension
    roots: dict[int, Root] = field(default_factory=dict)
    root_of: dict[int, int] = field(default_factory=dict)  # any local buffer to its root
    single: dict[int, SingleLane] = field(default_factory=dict)
    bound: dict[int, Any] = field(default_factory=dict)  # lets, by variable
    threads: dict[int, str] = field(default_factory=dict)  # thread variables
    lane_vars: set[int] = field(default_factory=set)
    loop_writes: dict[int, set[int]] = field(default_factory=dict)
    #: Registers that nothing but elect.sync of the whole warp sets: one lane's is 1.
    elected: set[int] = field(default_factory=set)
    #: Loops that the lanes of a warp leave, or whose iterations they end, at different times.
    divergent: set[int] = field(default_factory=set)
    divergent_return: bool = False  # some lanes return, and others go on
    returning: set[int] = field(default_factory=set)  # loops around such a return
    #: Statements that some lanes may leave for something further out.
    leaves: set[int] = field(default_factory=set)

    @property
    def parting(self) -> set[int]:
        """Loops that need masks of the lanes in them."""
        return self.divergent | self.returning

    @property
    def by_id(self) -> dict[int, Root]:
        return self.roots

    def root_at(self, expr: Any) -> Root | None:
        """The local allocation that an expression is a register of (or the address of one)."""
        place = pointed_at(expr)
        expr = expr if place is None else place
        if type(expr).__name__ != "TensorLoad":
            return None
        return self.roots.get(self.root_of.get(node_id(expr.source), -1))

    def resolve(self, expr: Any) -> Any:
        """An expression with lets looked through."""
        while type(expr).__name__ == "Var" and node_id(expr) in self.bound:
            expr = self.bound[node_id(expr)]
        return expr

    def thread(self, expr: Any) -> int | None:
        """0 for the thread's index in the CTA, n for that index modulo n, else None."""
        expr = self.resolve(expr)
        kind = type(expr).__name__
        if kind == "Var":
            axis = self.threads.get(node_id(expr))
            return 0 if axis == "threadIdx.x" and self.flat else None
        if kind == "Call" and str(expr.op.name) == "tirx.cuda.thread_rank":
            return 0
        if kind == "FloorMod" and type(expr.b).__name__ == "IntImm":
            inner, n = self.thread(expr.a), int(expr.b.value)
            if inner is not None and n > 0 and (inner == 0 or inner % n == 0):
                return n
        if kind == "BitwiseAnd" and type(expr.b).__name__ == "IntImm":
            inner, n = self.thread(expr.a), int(expr.b.value) + 1
            if inner is not None and n & (n - 1) == 0 and (inner == 0 or inner % n == 0):
                return n
        return None

    def warp_uniform(self, expr: Any) -> str | None:
        """Python source of a quotient of the thread's index that is the same for a whole warp."""
        kind = type(expr).__name__
        if kind not in ("FloorDiv", "Div", "RShift") or type(expr.b).__name__ != "IntImm":
            return None
        by = int(expr.b.value) if kind != "RShift" else 1 << int(expr.b.value)
        modulus = self.thread(expr.a)
        if modulus is None or by % 32 or (modulus and modulus % 32):
            return None
        code = "wid" if modulus == 0 else f"wid % {modulus // 32}"
        return f"({code} // {by // 32})" if by > 32 else f"({code})"

    def single_lane(self, condition: Any) -> SingleLane | None:
        """The condition as a test that one lane satisfies, or None."""
        terms: list[Any] = []
        stack = [condition]
        while stack:
            term = self.resolve(stack.pop())
            if type(term).__name__ == "And":
                stack += [term.b, term.a]
            else:
                terms.append(term)
        found: SingleLane | None = None
        others = []
        for term in terms:
            one = None if found else self._one_lane(term)
            if one is not None:
                found = one
            else:
                others.append(term)
        if found is None or any(self.lane(term, None) for term in others):
            return None
        return SingleLane(found.lane, found.warp, tuple(others), found.elected)

    def _one_lane(self, term: Any) -> SingleLane | None:
        kind = type(term).__name__
        if kind == "Cast":
            return self._one_lane(self.resolve(term.value))
        if kind == "Call" and str(term.op.name) == "tirx.cuda.elect_sync":
            return SingleLane(None, None, ())
        if kind == "TensorLoad" and self.root_of.get(node_id(term.source)) in self.elected:
            return SingleLane(None, None, (), term)
        if kind == "NE" and _constant(term.b) == 0:
            return self._one_lane(self.resolve(term.a))
        if kind == "EQ" and _constant(term.b) == 1 and type(term.a).__name__ == "TensorLoad":
            return self._one_lane(term.a)
        if kind == "EQ":
            for a, b in ((term.a, term.b), (term.b, term.a)):
                value, modulus = _constant(b), self.thread(a)
                if value is None or modulus is None or value < 0:
                    continue
                if modulus == 0:
                    return SingleLane(value, f"wid == {value // 32}", ())
                if modulus == 32:
                    return SingleLane(value, None, ()) if value < 32 else None
                if modulus % 32 == 0:
                    return SingleLane(value, f"wid % {modulus // 32} == {value // 32}", ())
        return None

    def lane(self, expr: Any, region: int | None) -> bool:
        """Whether an expression differs between lanes, by what is known so far."""
        if region is not None:
            return False
        kind = type(expr).__name__
        if kind == "Var":
            key = node_id(expr)
            axis = self.threads.get(key)
            if axis is not None:
                return axis.startswith("threadIdx")
            return key in self.lane_vars
        if self.warp_uniform(expr) is not None:
            return False
        if kind == "TensorLoad":
            root = self.roots.get(self.root_of.get(node_id(expr.source), -1))
            if root is not None:
                return root.kind in ("array", "lane")
            return any(self.lane(i, region) for i in expr.indices)
        if kind == "Call":
            row = table.ROWS.get(str(expr.op.name))
            if row is not None and not isinstance(row.result, str):
                return row.result(self, expr, region)
            if row is not None and row.result == "shuffle":
                return self.shuffled(expr, region)
            if row is not None and row.result != "args":
                return row.result == "lane"
            if str(expr.op.name) == "tirx.cuda.func_call":
                inline = table.INLINE.get(str(expr.args[0].value))
                if inline is not None and inline.result != "args":
                    return inline.result == "lane"
        return any(self.lane(child, region) for child in children(expr))

    def shuffled(self, call: Any, region: int | None) -> bool:
        """Whether a shuffle of ``(mask, value, source, width)`` differs between lanes: not where
        all lanes read one lane."""
        _, value, source, width = list(call.args)[:4]
        if not self.lane(value, region):
            return False
        one = str(call.op.name) in ("tirx.tvm_warp_shuffle", "tirx.cuda.__shfl_sync")
        return not (one and not self.lane(source, region) and _constant(width) == 32)


def _constant(expr: Any) -> int | None:
    return int(expr.value) if type(expr).__name__ == "IntImm" else None


def written_in_loop(loop_var: Any, root_var: Any, facts: Facts) -> bool:
    """Whether a loop's body writes a local allocation."""
    return node_id(root_var) in facts.loop_writes.get(node_id(loop_var), set())


def moving_bounds(loop: Any, facts: Facts) -> bool:
    """Whether a loop's body may change what its bounds are computed from.

    The code that TVM emits (``for (i = min; i < min + extent; ++i)``) computes the end again for
    every iteration.
    """
    stored = {node_id(s.buffer) for s in statements(loop.body) if type(s).__name__ == "BufferStore"}
    stack = [loop.min, loop.extent]
    while stack:
        expr = stack.pop()
        if type(expr).__name__ == "TensorLoad":
            key = node_id(expr.source)
            root = facts.root_of.get(key)
            written = facts.loop_writes.get(node_id(loop.loop_var), set())
            if key in stored or (root is not None and node_id(facts.roots[root].var) in written):
                return True
        stack.extend(children(expr))
    return False


def analyse(device: Any, launch: Any) -> Facts:
    """Find roots, single-lane branches, and what differs between lanes."""
    facts = Facts(flat=launch.block[1] == launch.block[2] == 1)
    body = device.body
    for stmt in statements(body):
        kind = type(stmt).__name__
        if kind == "AttrStmt" and str(stmt.attr_key) == "thread_extent":
            facts.threads[node_id(stmt.node.var)] = str(stmt.node.thread_tag)
        elif kind == "Bind":
            facts.bound[node_id(stmt.var)] = stmt.value
        elif kind == "AllocBuffer" and not _placed(stmt.buffer):
            _add_root(facts, stmt.buffer)
        elif kind == "DeclBuffer":
            _alias(facts, stmt)
    for call in calls(body):
        name = str(call.op.name)
        if name.startswith("tirx.ptx.wgmma_") and name.endswith(("_ss", "_rs")):
            for slot, group in ptx_operands(call)[0]:
                for _, argument in group if slot.name in ("d", "a") else ():
                    root = facts.root_at(argument)
                    if root is not None:
                        root.fragment = True
                        root.kind = "array"
        elif name in ("tirx.ptx.tcgen05_ld", "tirx.ptx.tcgen05_ld_split"):
            for position in destinations(call):
                root = facts.roots.get(facts.root_of.get(node_id(call.args[position].source), -1))
                if root is not None:
                    root.loaded = True
                    root.kind = "array"  # it is filled later, at the wait: it needs a place
    facts.elected = _elected(facts, body)
    walker = _Walker(facts)
    while walker.walk(body):
        pass
    _note_leaves(facts, body, [])
    return facts


def _elected(facts: Facts, body: Any) -> set[int]:
    """The registers that hold an election of the whole warp, and nothing else but 0."""
    chosen, others = set(), set()
    for call in calls(body):
        for position in destinations(call):
            argument = call.args[position]
            if type(argument).__name__ == "Call":  # the address of a register
                argument = argument.args[0]
            root = facts.root_of.get(node_id(getattr(argument, "source", argument)))
            whole = (
                str(call.op.name) == "tirx.ptx.elect_sync"
                and position == 1
                and _constant(call.args[2]) in (0xFFFFFFFF, -1)
            )
            (chosen if whole else others).add(root)
    for stmt in statements(body):
        if type(stmt).__name__ == "BufferStore" and _constant(stmt.value) != 0:
            others.add(facts.root_of.get(node_id(stmt.buffer)))
    return {root for root in chosen - others if root is not None and facts.roots[root].size == 1}


def _note_leaves(facts: Facts, stmt: Any, loops: list[int]) -> set[int]:
    """Note the statements that lanes leave under a mask; what they leave, 0 for the kernel."""
    how = leaving(stmt)
    left: set[int] = set()
    if how == "return":
        left = {0} if facts.divergent_return else set()
    elif how:
        left = {loops[-1]} & facts.parting
    elif type(stmt).__name__ == "SeqStmt":
        for child in stmt.seq:
            left |= _note_leaves(facts, child, loops)
    else:
        key = node_id(stmt)
        inner = [*loops, key] if type(stmt).__name__ in ("For", "While") else loops
        for name in ("body", "then_case", "else_case"):
            child = getattr(stmt, name, None)
            if child is not None:
                left |= _note_leaves(facts, child, inner)
        left -= {key}
    if left:
        facts.leaves.add(node_id(stmt))
    return left


def _in_memory(buffer: Any) -> bool:
    """Whether a buffer lies in memory rather than in registers."""
    return str(buffer.scope()).startswith(("shared", "global", "tmem"))


def _placed(buffer: Any) -> bool:
    scope = str(buffer.scope())
    return scope.startswith("shared") or scope in ("global", "tmem")


def _add_root(facts: Facts, buffer: Any) -> None:
    size = 1
    for dim in buffer.shape:
        size *= int(dim.value)
    key = node_id(buffer)
    dtype, lanes = element(str(buffer.dtype))
    root = Root(str(buffer.name), dtype, size * lanes, buffer, None)
    root.kind = "array" if lanes > 1 else "scalar" if size == 1 else "list"
    facts.roots[key] = root
    facts.root_of[key] = key


def widened_index(index: Any, lanes: int) -> Any:
    """The subscript of a vector's numbers, from that of vectors."""
    from tvm import tirx

    dtype = element(str(index.ty))[0]

    def number(n: int) -> Any:
        return tirx.IntImm(dtype, n)

    if type(index).__name__ == "Ramp":  # consecutive vectors
        base, count = index.base, int(getattr(index.lanes, "value", index.lanes))
        ramp = tirx.Ramp(base * number(lanes), number(1), number(count * lanes))
        stride = getattr(index.stride, "value", None)
        return ramp if stride == 1 else index
    return tirx.Ramp(index * number(lanes), number(1), number(lanes))


def _alias(facts: Facts, stmt: Any) -> None:
    """A DeclBuffer over a local allocation is another name of it."""
    data = stmt.data
    if type(data).__name__ == "Call" and "buffer_data" in str(data.op.name):
        data = data.args[0]
    if type(data).__name__ != "Var":
        return
    root = facts.root_of.get(node_id(data))
    if root is None:
        return
    facts.root_of[node_id(stmt.buffer)] = root
    held = facts.roots[root]
    if element(str(stmt.buffer.dtype))[0] != held.dtype:
        held.kind = "array"


@dataclass
class _Loop:
    """A loop around the statement being visited: its region, and whether lanes part within it."""

    key: int
    region: int | None
    parted: bool = False


class _Walker:
    """One pass of the fixpoint: demote what differs between lanes."""

    def __init__(self, facts: Facts):
        self.facts = facts

    def walk(self, body: Any) -> bool:
        self.changed = False
        for root in self.facts.roots.values():
            root.read_in, root.written_in = set(), set()
        self.loops: list[int] = []
        self.around: list[_Loop] = []
        self.visit(body, None, False)
        for root in self.facts.roots.values():
            if root.kind == "scalar" and not _one_region(root):
                self.demote(root)
            if root.kind == "list" and not _one_region(root):
                self.demote(root)
        return self.changed

    def demote(self, root: Root) -> None:
        better = {"scalar": "lane", "list": "array"}.get(root.kind)
        if better is not None:
            root.kind = better
            self.changed = True

    def visit(self, stmt: Any, region: int | None, divergent: bool) -> None:
        facts, kind = self.facts, type(stmt).__name__
        if kind == "SeqStmt":
            for child in stmt.seq:
                self.visit(child, region, divergent)
        elif kind == "AttrStmt":
            self.visit(stmt.body, region, divergent)
        elif kind == "Bind":
            self.reads(stmt.value, region)
            if facts.lane(stmt.value, region) and node_id(stmt.var) not in facts.lane_vars:
                facts.lane_vars.add(node_id(stmt.var))
                self.changed = True
        elif kind == "BufferStore":
            self.reads(stmt.value, region)
            for index in stmt.indices:
                self.reads(index, region)
            root = facts.roots.get(facts.root_of.get(node_id(stmt.buffer), -1))
            if root is not None:
                lane = facts.lane(stmt.value, region) or any(
                    facts.lane(i, region) for i in stmt.indices
                )
                self.write(root, region, divergent or lane)
        elif leaving(stmt):
            self.leave(leaving(stmt), region, divergent)
        elif kind == "Evaluate":
            self.evaluate(stmt.value, region, divergent)
        elif kind == "IfThenElse":
            self.branch(stmt, region, divergent)
        elif kind == "For":
            bounds = [stmt.min, stmt.extent] + ([] if stmt.step is None else [stmt.step])
            for expr in bounds:
                self.reads(expr, region)
            var = node_id(stmt.loop_var)
            varying = [facts.lane(expr, region) for expr in bounds]
            if any(varying[::2]) and var not in facts.lane_vars:  # where it starts, or its step
                facts.lane_vars.add(var)
                self.changed = True
            self.loops.append(var)
            facts.loop_writes.setdefault(var, set())
            self.loop(stmt, region, divergent, any(varying))
            self.loops.pop()
        elif kind == "While":
            self.reads(stmt.condition, region)
            self.loop(stmt, region, divergent, facts.lane(stmt.condition, region))

    def loop(self, stmt: Any, region: int | None, divergent: bool, parts: bool) -> None:
        """A loop's body; ``parts``: the lanes do not agree on how often it runs."""
        key = node_id(stmt)
        if parts:
            self.note(self.facts.divergent, key)
        self.around.append(_Loop(key, region))
        self.visit(stmt.body, region, divergent or key in self.facts.divergent)
        self.around.pop()

    def note(self, known: set[int], key: int) -> None:
        if key not in known:
            known.add(key)
            self.changed = True

    def leave(self, how: str, region: int | None, divergent: bool) -> None:
        facts = self.facts
        if how != "return":
            if self.around[-1].parted:
                self.note(facts.divergent, self.around[-1].key)
            return
        if (divergent or region is not None) and not facts.divergent_return:
            facts.divergent_return = self.changed = True
        if facts.divergent_return:
            for loop in self.around:
                if loop.region is None:
                    self.note(facts.returning, loop.key)

    def branch(self, stmt: Any, region: int | None, divergent: bool) -> None:
        facts = self.facts
        self.reads(stmt.condition, region)
        inside = region
        if region is None and facts.lane(stmt.condition, None):
            single = facts.single_lane(stmt.condition)
            key = node_id(stmt)
            if single is not None:
                facts.single[key] = single
                inside = key
            else:
                facts.single.pop(key, None)
                divergent = True
        elif region is None:
            facts.single.pop(node_id(stmt), None)
        around = self.around[-1] if self.around else _Loop(0, None)
        before = around.parted
        around.parted = before or (region is None and facts.lane(stmt.condition, None))
        self.visit(stmt.then_case, inside, divergent)
        if stmt.else_case is not None:
            self.visit(stmt.else_case, region, divergent or inside != region)
        around.parted = before

    def write(self, root: Root, region: int | None, lane: bool) -> None:
        root.written_in.add(region)
        for loop in self.loops:
            self.facts.loop_writes[loop].add(node_id(root.var))
        if lane and region is None:
            self.demote(root)

    def reads(self, expr: Any, region: int | None) -> None:
        if type(expr).__name__ == "TensorLoad":
            root = self.facts.roots.get(self.facts.root_of.get(node_id(expr.source), -1))
            if root is not None:
                root.read_in.add(region)
                if root.kind == "list" and any(self.facts.lane(i, region) for i in expr.indices):
                    self.demote(root)
        for child in children(expr):
            self.reads(child, region)

    def evaluate(self, value: Any, region: int | None, divergent: bool) -> None:
        """A call as a statement: its destinations are written, the rest is read."""
        if type(value).__name__ != "Call":
            return
        facts, name = self.facts, str(value.op.name)
        targets = destinations(value)
        inputs = [a for i, a in enumerate(value.args) if i not in targets]
        for argument in value.args:
            self.reads(argument, region)
        row = table.ROWS.get(name)
        if name == "tirx.cuda.func_call" and type(value.args[0]).__name__ == "StringImm":
            row = table.INLINE.get(str(value.args[0].value), row)
        result = row.result if row is not None else "args"
        if not isinstance(result, str):
            lane = result(facts, value, region)
        else:
            lane = result == "lane" or (
                result == "args" and any(facts.lane(a, region) for a in inputs if hasattr(a, "ty"))
            )
        for position in targets:
            root = facts.root_at(value.args[position])
            if root is None:
                continue
            if root.kind == "list":
                self.demote(root)
            self.write(root, region, lane or divergent)


def destinations(call: Any) -> set[int]:
    """Positions of a call's arguments that it writes (or may write, through an address)."""
    name = str(call.op.name)
    if name == "tirx.cuda.wait_until":
        return {0}
    positions = {
        i
        for i, a in enumerate(call.args)
        if (load := pointed_at(a)) is not None and not _in_memory(load.source)
    }
    if name.startswith("tirx.ptx.") and name != "tirx.ptx.addr":
        for slot, group in ptx_operands(call)[0]:
            if slot.rw in ("w", "rw"):
                positions |= {position for position, _ in group if position is not None}
    return positions


def pointed_at(pointer: Any) -> Any:
    """The element whose address an expression is (``address_of``, or a buffer's data), or None."""
    if type(pointer).__name__ != "Call" or not pointer.args:
        return None
    name, target = str(getattr(pointer.op, "name", "")), pointer.args[0]
    if name == "tirx.buffer_data":
        from tvm import tirx

        return tirx.BufferLoad(target, [tirx.IntImm("int32", 0)])
    return target if name == "tirx.address_of" and type(target).__name__ == "TensorLoad" else None


def ptx_operands(call: Any) -> tuple[list[Any], dict[str, str], list[str]]:
    """Operands, modifiers and flags of a call of the PTX dialect, by TVM's instruction table.

    Each operand is its slot and, for each register of it, the position among the call's arguments
    and the argument. A register that is sunk (``_``) has left no argument: both are None.
    """
    from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout

    entry = TABLE[str(call.op.name).removeprefix("tirx.ptx.")]
    args = list(call.args)
    first_token = len(args) - len(entry.slots) - 1
    modifiers = mods(entry, [str(a.value) for a in args[first_token:-1]])
    flags = str(args[-1].value).split(",")
    sunk = {int(flag[1:]) for flag in flags if flag[:1] == "s" and flag[1:].isdigit()}
    operands, position = [], 0
    for slot, first, lanes in operand_layout(entry, modifiers):
        group: list[tuple[int | None, Any]] = []
        for register in range(first, first + lanes):
            if register in sunk:
                group.append((None, None))
            else:
                group.append((position, args[position]))
                position += 1
        operands.append((slot, group))
    return operands, modifiers, flags


def _one_region(root: Root) -> bool:
    """Whether a scalar serves: it is written for all lanes, or only one region knows it."""
    regions = {r for r in root.written_in if r is not None}
    if not regions:
        return True
    return len(regions) == 1 and root.read_in <= regions


#: Operations that write to memory through an address among their operands.
_WRITES = re.compile(
    r"ptx\.(st(_|$)|atom|red(?!ux)|cp_reduce|multimem|fabric|tensormap)|s2g|atomic|func_call|nvshmem"
)


def written_params(device: Any) -> set[int]:
    """Indices of the device function's parameters through which it may write to memory."""
    params = {node_id(param): {i} for i, param in enumerate(device.params)}
    held: dict[int, set[int]] = {key: set(value) for key, value in params.items()}

    def behind(expr: Any) -> set[int]:
        """Parameters whose addresses an expression may hold."""
        kind = type(expr).__name__
        if kind == "Var":
            return held.get(node_id(expr), set())
        if kind == "TensorLoad":
            local = not _placed(expr.source)
            found = set(held.get(node_id(expr.source), ())) if local else set()
            return found.union(*(behind(i) for i in expr.indices))
        if kind == "Call" and str(expr.op.name) in ("tirx.address_of", "tirx.buffer_data"):
            target = expr.args[0]
            source = getattr(target, "source", target)
            found = set(held.get(node_id(source), ()))
            return found.union(*(behind(i) for i in getattr(target, "indices", ())))
        return set().union(*(behind(child) for child in children(expr)))

    while True:
        before = sum(len(v) for v in held.values())
        for stmt in statements(device.body):
            kind = type(stmt).__name__
            if kind == "Bind":
                held.setdefault(node_id(stmt.var), set()).update(behind(stmt.value))
            elif kind == "DeclBuffer":
                data = stmt.data
                found = behind(data)
                if type(data).__name__ == "Call" and "buffer_data" in str(data.op.name):
                    found = found | held.get(node_id(data.args[0]), set())
                held.setdefault(node_id(stmt.buffer), set()).update(found)
            elif kind == "BufferStore" and str(stmt.buffer.scope()).startswith("local"):
                held.setdefault(node_id(stmt.buffer), set()).update(behind(stmt.value))
        if sum(len(v) for v in held.values()) == before:
            break
    written: set[int] = set()
    for stmt in statements(device.body):
        if type(stmt).__name__ == "BufferStore":
            written |= held.get(node_id(stmt.buffer), set())
    for call in calls(device.body):
        if _WRITES.search(str(call.op.name)):
            for arg in call.args:
                if hasattr(arg, "ty"):
                    written |= behind(arg)
    return written
