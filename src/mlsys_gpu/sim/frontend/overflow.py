"""int32 products of which an address is made, and whether they can leave 32 bits.

C++ leaves signed overflow undefined, and a GPU wraps: an address made of it is another one, mostly
outside of everything. A product that goes into an address is checked at run time, unless the ranges
of its factors (thread and block indices, loop counters, constants, and what is made of them) show
that it fits. Products that only bits are taken of (``&``, ``^``) are hashes, which may wrap.
"""

from __future__ import annotations

from typing import Any

from mlsys_gpu.sim.frontend.analysis import Facts, children, expressions, node_id, statements

LOW, HIGH = -(1 << 31), (1 << 31) - 1

Range = tuple[int, int]

#: What an address is made of keeps its size through these.
_CARRIES = {
    "Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max", "Cast", "Select",
    "Ramp", "Broadcast", "Let", "LShift", "RShift",
}  # fmt: skip
#: Calls whose integer arguments are addresses, offsets or coordinates.
_ADDRESSES = (
    "address_of",
    "byte_offset",
    "cp_async",
    "cp_reduce",
    "ptx.ld",
    "ptx.st",
    "func_call",
    "atom",
    "ptx.red",
    "prefetch",
)


class Products:
    """The products of a device function that must be checked at run time."""

    def __init__(self, device: Any, launch: Any, facts: Facts):
        self.facts, self.launch = facts, launch
        self.loops: dict[int, Any] = {}
        self.stored: dict[int, list[Any]] = {}  # values that are stored to each register array
        for stmt in statements(device.body):
            kind = type(stmt).__name__
            if kind == "For":
                self.loops[node_id(stmt.loop_var)] = stmt
            elif kind == "BufferStore":
                root = facts.root_of.get(node_id(stmt.buffer))
                if root is not None:
                    self.stored.setdefault(root, []).append(stmt.value)
        self.ranges: dict[int, Range] = {}  # of variables
        self.slice: set[int] = set()  # products that go into an address
        self._seen: set[int] = set()
        self._pending: list[Any] = []
        for stmt in statements(device.body):
            self._addresses(stmt)
        while self._pending:
            self._follow(self._pending.pop())

    def unbounded(self, product: Any) -> bool:
        """Whether an int32 product goes into an address and may not fit."""
        if str(product.ty) != "int32" or node_id(product) not in self.slice:
            return False
        low, high = _times(self.range(product.a), self.range(product.b))
        return low < LOW or high > HIGH

    # ------------------------------------------------------------------ what addresses are made of

    def _addresses(self, stmt: Any) -> None:
        if type(stmt).__name__ == "BufferStore":
            self._pending.extend(stmt.indices)
        for value in expressions(stmt):
            stack = [value]
            while stack:
                expr = stack.pop()
                kind = type(expr).__name__
                if kind == "TensorLoad":
                    self._pending.extend(expr.indices)
                elif kind == "Call" and any(name in str(expr.op.name) for name in _ADDRESSES):
                    self._pending.extend(expr.args)
                stack.extend(children(expr))

    def _follow(self, expr: Any) -> None:
        kind = type(expr).__name__
        if kind == "Var":
            if node_id(expr) in self._seen:
                return
            self._seen.add(node_id(expr))
            value = self.facts.bound.get(node_id(expr))
            if value is not None:
                self._pending.append(value)
        elif kind == "TensorLoad":
            root = self.facts.root_of.get(node_id(expr.source))
            if root is not None and -root not in self._seen:
                self._seen.add(-root)
                self._pending.extend(self.stored.get(root, ()))
        elif kind == "Call" and str(expr.op.name).endswith("if_then_else"):
            self._pending.extend(list(expr.args)[1:])
        elif kind in _CARRIES:
            if kind == "Mul":
                self.slice.add(node_id(expr))
            self._pending.extend(children(expr))
            if kind == "Let":
                self._pending.append(expr.body)

    # ---------------------------------------------------------------------------------- ranges

    def range(self, expr: Any) -> Range:
        """The least and the greatest value that an integer expression can have."""
        found = self._range(expr)
        kind = str(expr.ty)
        low, high = (LOW, HIGH) if kind == "int32" else _TYPES.get(kind, (-(1 << 63), 1 << 64))
        return max(found[0], low), min(found[1], high)

    def _range(self, expr: Any) -> Range:
        kind = type(expr).__name__
        everything = (-(1 << 63), 1 << 64)
        if kind == "IntImm":
            return int(expr.value), int(expr.value)
        if kind == "Var":
            key = node_id(expr)
            if key not in self.ranges:
                self.ranges[key] = everything  # for a variable that depends on itself
                self.ranges[key] = self._variable(key)
            return self.ranges[key]
        if kind in ("Add", "Sub", "Mul", "Min", "Max"):
            a, b = self.range(expr.a), self.range(expr.b)
            if kind == "Add":
                return a[0] + b[0], a[1] + b[1]
            if kind == "Sub":
                return a[0] - b[1], a[1] - b[0]
            if kind == "Mul":
                return _times(a, b)
            pick = min if kind == "Min" else max
            return pick(a[0], b[0]), pick(a[1], b[1])
        if kind in ("FloorDiv", "Div", "FloorMod", "Mod", "RShift", "BitwiseAnd"):
            a, b = self.range(expr.a), self.range(expr.b)
            if b[0] != b[1] or b[0] <= 0:
                return everything
            by = b[0]
            if kind in ("FloorDiv", "Div"):
                return min(a[0] // by, 0 if kind == "Div" else a[0] // by), max(a[1] // by, 0)
            if kind == "RShift":
                return a[0] >> by, a[1] >> by
            if kind == "BitwiseAnd":
                return 0, by
            if a[0] >= 0 and a[1] < by:
                return a
            return (0 if kind == "FloorMod" or a[0] >= 0 else 1 - by), by - 1
        if kind == "Cast":
            return self.range(expr.value)
        choice = kind == "Call" and str(expr.op.name).endswith("if_then_else")
        if kind == "Select" or choice:
            sides = list(expr.args)[1:] if choice else [expr.true_value, expr.false_value]
            a, b = (self.range(side) for side in sides)
            return min(a[0], b[0]), max(a[1], b[1])
        return everything

    def _variable(self, key: int) -> Range:
        loop = self.loops.get(key)
        if loop is not None:
            low, extent = self.range(loop.min), self.range(loop.extent)
            step = self.range(loop.step)[1] if loop.step is not None else 1
            return low[0], low[1] + max(0, (extent[1] - 1)) * max(1, step)
        value = self.facts.bound.get(key)
        if value is not None:
            return self.range(value)
        axis = self.facts.threads.get(key)
        if axis is not None:
            name, _, which = axis.partition(".")
            i = "xyz".index(which)
            most = {
                "threadIdx": self.launch.block,
                "blockIdx": self.launch.grid,
                "clusterIdx": self.launch.grid,
            }.get(name, self.launch.cluster)[i]
            # A grid of symbolic shape is known at the launch only: then the hardware's limit
            # holds, of which the x dimension of the grid has 2**31 - 1 blocks.
            return 0, max(0, int(most) - 1) if str(most).isdigit() else HIGH - 1
        return -(1 << 63), 1 << 64


_TYPES: dict[str, Range] = {
    "bool": (0, 1),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (LOW, HIGH),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "uint64": (0, (1 << 64) - 1),
}


def _times(a: Range, b: Range) -> Range:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)
