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


#: Stands for the end of a thread, which the kernel and its reference spell differently.
_END = "END"


class Writer:
    """Writes the body of one random kernel.

    ``parting``: lanes also leave loops and the kernel at different times.
    """

    def __init__(self, seed: int, dtype: str, parting: bool):
        self.rng = random.Random(seed)
        self.dtype = dtype
        self.lines: list[str] = []
        self.count = 0
        self.loops: list[str] = []
        self.parting = parting
        self.inside = 0  # loops around the statement that break and continue may leave

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
        if self.parting and self.rng.random() < 0.12:
            self.leave(indent)
        elif self.parting and depth and self.rng.random() < 0.12:
            self.parting_loop(indent, depth)
        elif self.parting and depth and self.rng.random() < 0.08:
            for i in range(self.rng.randint(2, 4)):
                add(f"{indent}{'elif' if i else 'if'} {self.condition()}:")
                self.block(deeper, depth - 1, 1)
            add(f"{indent}else:")
            self.block(deeper, depth - 1, 1)
        elif depth == 0 or kind < 0.45:
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
                self.inside += 1
                self.block(deeper, depth - 1, self.rng.randint(1, 2))
                self.inside -= 1
            else:
                both = f"{self.whole('c')} + {self.whole(self.pick(*turns))}"
                add(f"{deeper}c = {self.value(both)}")
            self.loops.remove(name)
        else:
            name = self.name()
            add(f"{indent}{name}: T.int32 = ({self.expr()}) % 4")
            add(f"{indent}while {name} > 0:")
            first = self.parting  # a continue must not skip it
            if first:
                add(f"{deeper}{name} = {name} - 1")
            self.inside += first
            self.block(deeper, depth - 1, 1 + first)
            self.inside -= first
            if not first:
                add(f"{deeper}{name} = {name} - 1")

    def leave(self, indent: str) -> None:
        """A statement by which some threads leave a loop, an iteration or the kernel."""
        ways = ["break", "continue"] if self.inside else []
        if self.rng.random() < 0.3 or not ways:
            ways = [_END]
        self.lines.append(f"{indent}if {self.condition()}:")
        if self.rng.random() < 0.3:
            self.lines.append(f"{indent}    {self.place()} = {self.value()}")
        self.lines.append(f"{indent}    {self.pick(*ways)}")

    def parting_loop(self, indent: str, depth: int) -> None:
        """A loop that runs from and to numbers of each thread."""
        name, low, end = self.name(), self.name(), self.name()
        self.lines.append(f"{indent}{low}: T.int32 = {self.pick('0', f'({self.expr(1)}) % 3')}")
        self.lines.append(f"{indent}{end}: T.int32 = {low} + ({self.expr(1)}) % 4")
        self.lines.append(f"{indent}for {name} in T.serial({low}, {end}):")
        self.loops.append(name)
        self.inside += 1
        self.block(indent + "    ", depth - 1, self.rng.randint(1, 3))
        self.inside -= 1
        self.loops.remove(name)


def source(seed: int, dtype: str = "int32", parting: bool = False) -> tuple[str, str]:
    """A random kernel: its TVMScript module, and the Python function that is its reference."""
    writer = Writer(seed, dtype, parting)
    indent = "    "
    for i in range(REGISTERS):
        writer.lines.append(f"{indent}r[{i}] = {writer.held(f'(X[tid] % {i + 2})')}")
    for i, name in enumerate(VARIABLES):
        first = writer.held(f"(X[(tid + {i}) % 64] % 97)")
        writer.lines.append(f"{indent}{name}: T.{dtype} = {first}")
    writer.block(indent, 3, 7)
    held = [*VARIABLES, *(f"r[{i}]" for i in range(REGISTERS))]
    stores = [f"Y[tid, {i}] = {writer.whole(name)}" for i, name in enumerate(held)]
    result = f"return [{', '.join(VARIABLES)}, *r]"
    script = [_HEAD.format(threads=THREADS, dtype=dtype).rstrip("\n")]
    python = [_PYTHON.rstrip("\n")]
    for line in [*writer.lines, indent + _END]:
        at = line[: len(line) - len(line.lstrip())]
        if line.strip() == _END:
            script += [at + store for store in stores]
            if at != indent:
                script.append(f"{at}T.thread_return()")
            python.append(at + result)
        else:
            script.append(line)
            python.append(line)
    return "\n".join(script) + "\n", "\n".join(python) + "\n"


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
