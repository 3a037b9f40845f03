"""Random kernels of numbers, branches and loops, as text that is TVMScript and Python at once.

Variables and registers are int32, or float32 that hold small integers exactly.

The reference runs the same statements as plain Python, one thread after another, so that it shares
nothing with the translator: no lanes, no masks, no slices.
"""

from __future__ import annotations

import random

THREADS = 64
VARIABLES = ("a", "b", "c", "d")
REGISTERS = 4

_HEAD = """\
from tvm.script import tirx as T

N = {threads}


@T.prim_func
def kernel(X: T.Buffer((N,), "int32"), Y: T.Buffer((N, 8), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([{threads} // 32])
    tid = T.thread_id([N])
    r = T.alloc_local((4,), "{dtype}")
"""

_PYTHON = """\
def run(X, tid):
    warp = tid // 32
    r = [0] * 4
"""


class Writer:
    """Writes the body of one random kernel."""

    def __init__(self, seed: int, dtype: str):
        self.rng = random.Random(seed)
        self.dtype = dtype
        self.lines: list[str] = []
        self.count = 0
        self.loops: list[str] = []

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def whole(self, held: str) -> str:
        """A variable or register as an integer."""
        return held if self.dtype == "int32" else f'T.cast({held}, "int32")'

    def held(self, number: str) -> str:
        """An integer as a variable or register holds it."""
        return number if self.dtype == "int32" else f'T.cast({number}, "{self.dtype}")'

    def atom(self) -> str:
        number = str(self.rng.randint(0, 40))
        register = f"r[{self.rng.randrange(REGISTERS)}]"
        turn = f"r[({self.whole(self.rng.choice(VARIABLES))} + {number}) % 4]"
        kept = self.whole(self.pick(*VARIABLES, *VARIABLES, register, turn))
        return self.pick(kept, kept, *self.loops, number, "tid", "warp", "X[tid]")

    def expr(self, depth: int = 2) -> str:
        if depth == 0 or self.rng.random() < 0.2:
            return self.atom()
        a, b = self.expr(depth - 1), self.expr(depth - 1)
        n = self.rng.randint(2, 9)
        if self.rng.random() < 0.15:
            how = self.pick("T.Select", "T.if_then_else")
            return f"{how}({self.test(depth - 1)}, {a}, {b})"
        return self.pick(
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * {n})",
            f"({a} // {n})",
            f"({a} % {n})",
            f"({a} & {b})",
            f"({a} | {b})",
            f"({a} ^ {n})",
            f"({a} >> {n % 5})",
            f"T.max({a}, {b})",
            f"T.min({a}, {b})",
        )

    def test(self, depth: int = 1) -> str:
        a, b = self.expr(depth), self.expr(depth)
        sign = self.pick("<", "<=", "==", "!=", ">", ">=")
        plain = f"{a} {sign} {b}"
        return self.pick(plain, plain, f"{a} % 3 == {self.rng.randrange(3)}")

    def condition(self) -> str:
        lane = self.rng.randrange(32)
        return self.pick(
            self.test(),
            self.test(),
            f"{self.test()} and {self.test()}",
            f"{self.test()} or {self.test()}",
            f"warp == {self.rng.randrange(2)}",
            f"tid % 32 == {lane}",
            f"tid == {self.rng.randrange(THREADS)}",
            f"warp == 1 and tid % 32 == {lane} and {self.test()}",
        )

    def value(self, expr: str = "") -> str:
        return self.held(f"(({expr or self.expr()}) % 1009 - 500)")

    def place(self) -> str:
        """A variable, or a register by a number or by an index of each lane."""
        register = self.rng.randrange(REGISTERS)
        turn = f"r[{self.whole(self.rng.choice(VARIABLES))} % 4]"
        return self.pick(*VARIABLES, *VARIABLES, f"r[{register}]", turn)

    def block(self, indent: str, depth: int, size: int) -> None:
        for _ in range(size):
            self.statement(indent, depth)

    def statement(self, indent: str, depth: int) -> None:
        kind = self.rng.random()
        deeper = indent + "    "
        add = self.lines.append
        if depth == 0 or kind < 0.45:
            moved = self.rng.random() < 0.3  # as it is, from one place to another
            add(f"{indent}{self.place()} = {self.place() if moved else self.value()}")
        elif kind < 0.7:
            add(f"{indent}if {self.condition()}:")
            self.block(deeper, depth - 1, self.rng.randint(1, 2))
            if self.rng.random() < 0.6:
                add(f"{indent}else:")
                self.block(deeper, depth - 1, self.rng.randint(1, 2))
        elif kind < 0.85:
            name = self.name()
            extent = self.rng.randint(2, 4)
            add(f"{indent}for {name} in T.serial({extent}):")
            self.loops.append(name)
            turns = [f"r[{name}]", f"r[{extent - 1} - {name}]", f"r[{name} % 2]", "r[0]", "a", "b"]
            for _ in range(self.rng.randint(0, 3)):  # what may become a slice
                one, two = self.pick(*turns), self.pick(*turns)
                step = self.pick(f"({self.whole(one)} + {self.whole(two)})", self.expr())
                value = self.pick(one, self.value(step), self.value(step))
                add(f"{deeper}{self.pick(*turns)} = {value}")
            if self.rng.random() < 0.5:
                self.block(deeper, depth - 1, self.rng.randint(1, 2))
            else:
                both = f"{self.whole('c')} + {self.whole(self.pick(*turns))}"
                add(f"{deeper}c = {self.value(both)}")
            self.loops.remove(name)
        else:
            name = self.name()
            add(f"{indent}{name}: T.int32 = ({self.expr()}) % 4")
            add(f"{indent}while {name} > 0:")
            self.block(deeper, depth - 1, 1)
            add(f"{deeper}{name} = {name} - 1")


def source(seed: int, dtype: str = "int32") -> tuple[str, str]:
    """A random kernel: its TVMScript module, and the Python function that is its reference."""
    writer = Writer(seed, dtype)
    indent = "    "
    for i in range(REGISTERS):
        writer.lines.append(f"{indent}r[{i}] = {writer.held(f'(X[tid] % {i + 2})')}")
    for i, name in enumerate(VARIABLES):
        first = writer.held(f"(X[(tid + {i}) % 64] % 97)")
        writer.lines.append(f"{indent}{name}: T.{dtype} = {first}")
    writer.block(indent, 3, 7)
    body = "\n".join(writer.lines)
    held = [*VARIABLES, *(f"r[{i}]" for i in range(REGISTERS))]
    stores = [f"{indent}Y[tid, {i}] = {writer.whole(name)}" for i, name in enumerate(held)]
    script = _HEAD.format(threads=THREADS, dtype=dtype) + body + "\n" + "\n".join(stores) + "\n"
    python = _PYTHON + body + f"\n    return [{', '.join(VARIABLES)}, *r]\n"
    return script, python


class _Plain:
    """What the statements need of ``T``, for plain integers."""

    int32 = float32 = int
    serial = staticmethod(range)
    min, max = staticmethod(min), staticmethod(max)

    @staticmethod
    def Select(condition, yes, no):
        return yes if condition else no

    if_then_else = Select

    @staticmethod
    def cast(value, dtype):
        return value


def expected(python: str, X) -> list[list[int]]:
    """What the reference returns, for each thread."""
    space: dict = {"T": _Plain}
    exec(python, space)
    return [space["run"]([int(x) for x in X], tid) for tid in range(THREADS)]
