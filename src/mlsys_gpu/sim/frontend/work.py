"""Instructions of straight-line code, counted while it is translated.

Arithmetic becomes inline NumPy, in which a model of time sees nothing. So the translator counts the
warp instructions that ptxas makes of it, and leaves a line ``#work N`` in the block that executes
it, N an index into ``Program.work``: each time the block runs, those counts are due. A comment
costs a plain run nothing; a timed run puts calls ``work(w, N)`` in place of the comments
(:func:`with_calls`). A line says what has been counted since the last one, and stands before the
next operation of the runtime, since what comes before that in the program comes before it in time.

Pipes (the unit whose issue slots an instruction takes):

======= ==========================================================================================
fma     FADD, FMUL, FFMA of float32; a product that is added to something is one FFMA
fma2    FADD2, FMUL2, FFMA2: two float32 of one register pair (Blackwell)
alu     integer sums, logic, shifts, comparisons, selects, minima and maxima, I2FP, PRMT
imad    integer products
xu      MUFU: ex2, rcp, rsq, sqrt, lg2, sin, cos, tanh; POPC, FLO, BREV
cvt     F2I, F2F, FRND: conversions at the special functions' rate
pack    F2FP: two float32 into a pair of 16-bit (or narrower) numbers, or such pairs unpacked
half    HADD2, HMUL2, HFMA2, and float16 widened (HADD2.F32)
f64     DADD, DMUL, DFMA
======= ==========================================================================================

What counts nothing, because ptxas folds it into other instructions, computes it once for the warp
on the uniform path, or reduces it to increments: integer arithmetic that is the same in all lanes;
that which only thread and block numbers, loop counters and constants go into; addresses of accesses
and indices of registers; moves; negations and absolute values (operand modifiers). Comparisons that
differ between lanes count, whatever they compare. Operations of the runtime (accesses, shuffles,
votes, barriers, products of matrices) are counted by whoever calls them.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from mlsys_gpu.sim.frontend import analysis, table
from mlsys_gpu.sim.frontend.values import BYTES, FLOATS, Value

#: Instructions of a function of one number, or of the first number given, as TVM compiles kernels
#: (``--use_fast_math``). Counted in the machine code that NVRTC 13 makes for sm_90a and sm_100a of
#: a kernel with one call; functions with a slow path for rare operands: the usual path.
FUNCTIONS: dict[str, dict[str, float]] = {
    "exp2": {"xu": 1},
    "exp": {"fma": 1, "xu": 1},
    "exp10": {"fma": 1, "xu": 1},
    "log2": {"xu": 1},
    "log": {"fma": 1, "xu": 1},
    "log10": {"fma": 1, "xu": 1},
    "sqrt": {"xu": 1},
    "rsqrt": {"xu": 1},
    "sin": {"fma": 1, "xu": 1},
    "cos": {"fma": 1, "xu": 1},
    "tan": {"fma": 2, "xu": 3},
    "tanh": {"xu": 1},
    "pow": {"fma": 1, "xu": 2},
    "sigmoid": {"fma": 2, "xu": 2},
    "div": {"fma": 1, "xu": 1},
    "erf": {"fma": 11, "alu": 10, "xu": 1},
    "log1p": {"fma": 16, "alu": 8},
    "sinh": {"fma": 14, "alu": 6, "xu": 2, "cvt": 1},
    "cosh": {"fma": 8, "alu": 4, "xu": 2, "cvt": 1},
    "atan": {"fma": 12, "alu": 4, "xu": 1},
    "floor": {"cvt": 1},
    "ceil": {"cvt": 1},
    "trunc": {"cvt": 1},
    "round": {"cvt": 1},
    "nearbyint": {"cvt": 1},
    "copysign": {"alu": 1},
    "fma": {"fma": 1},
    "fabs": {},
}

#: The same for PTX's own instructions of float32, by name, mode and ``.ftz``: without it, operands
#: near the ends of the range are scaled.
PTX: dict[tuple[str, str, bool], dict[str, float]] = {
    ("ex2", "approx", True): {"xu": 1},
    ("ex2", "approx", False): {"xu": 1, "fma": 2, "alu": 1},
    ("lg2", "approx", True): {"xu": 1},
    ("lg2", "approx", False): {"xu": 1, "fma": 2, "alu": 1},
    ("rcp", "approx", True): {"xu": 1},
    ("rcp", "approx", False): {"xu": 1, "fma": 2, "alu": 4},
    ("rcp", "rn", True): {"xu": 1, "fma": 2, "alu": 2},
    ("rcp", "rn", False): {"xu": 1, "fma": 2, "alu": 2},
    ("sqrt", "approx", True): {"xu": 1},
    ("sqrt", "approx", False): {"xu": 1, "fma": 2, "alu": 1},
    ("sqrt", "rn", True): {"xu": 1, "fma": 5, "alu": 2},
    ("sqrt", "rn", False): {"xu": 1, "fma": 5, "alu": 2},
    ("rsqrt", "approx", True): {"xu": 1},
    ("rsqrt", "approx", False): {"xu": 1, "fma": 2, "alu": 1},
    ("sin", "approx", True): {"xu": 1, "fma": 1},
    ("sin", "approx", False): {"xu": 1, "fma": 1},
    ("cos", "approx", True): {"xu": 1, "fma": 1},
    ("cos", "approx", False): {"xu": 1, "fma": 1},
    ("tanh", "approx", True): {"xu": 1},
    ("tanh", "approx", False): {"xu": 1},
    ("div_f", "approx", True): {"xu": 1, "fma": 1},
    ("div_f", "approx", False): {"xu": 1, "fma": 3, "alu": 1},
    ("div_f", "full", True): {"xu": 1, "fma": 3, "alu": 1},
    ("div_f", "full", False): {"xu": 1, "fma": 5, "alu": 2},
    ("div_f", "rn", True): {"xu": 1, "fma": 6, "alu": 1},
    ("div_f", "rn", False): {"xu": 1, "fma": 6, "alu": 1},
}

#: Integers of 32 bits divided, by the sort of the divisor.
DIVIDED: dict[str, dict[str, float]] = {
    "power of 2": {"alu": 1},
    "constant": {"imad": 1, "alu": 2},
    "other": {"xu": 1, "cvt": 2, "imad": 4, "alu": 11},
}

#: A loop's counter compared, and the branch back; and how many statements, in all iterations of a
#: loop of constant extent, the compiler unrolls.
LOOP: dict[str, float] = {"alu": 2}
UNROLLED = 256


def _rows(*rows: tuple[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Counts by name, of rows that give them for several names."""
    return {name: counts for names, counts in rows for name in names.split()}


#: PTX's integer instructions: what one result of 32 bits takes.
INTEGERS = _rows(
    (
        "add_int sub_int abs neg_int cnot and or xor not shl shr shf lop3 lop3_bool lop3_bool_sink "
        "prmt szext cvt_pack cvt_pack_c mov_pack_b16x2",
        {"alu": 1},
    ),
    ("bfe bfi bmsk sad mov_pack_b16x4", {"alu": 2}),
    ("mul_int mad_int mul_wide mad_wide mul24 mad24 dp4a dp2a", {"imad": 1}),
    ("div rem", DIVIDED["other"]),
    ("popc bfind brev", {"xu": 1}),
    ("clz", {"xu": 1, "alu": 1}),
    ("fns", {"alu": 20}),
)

#: The other instructions, whatever their operands: PTX's by their names, CUDA's with ``cuda.``.
OTHERS = _rows(
    (
        "setp setp_pq setp_bool setp_bool_pq set set_bool setp_half setp_half_pq setp_half_bool "
        "setp_half_bool_pq set_half set_half_bool set_packed testp copysign cvt_tf32_f32 "
        "cuda.hmin2 cuda.hmax2",
        {"alu": 1},
    ),
    ("add_half sub_half mul_half fma_half", {"half": 1}),
    (
        "cvt_f16x2_f32 cvt_bf16x2_f32 cvt_rs_f16x2_f32 cvt_rs_bf16x2_f32 cvt_f8x2_f32 cvt_f6x2_f32 "
        "cvt_f4x2_f32 cvt_ue8m0x2_f32 cvt_f8x2_fp16x2 cvt_f6x2_fp16x2 cvt_f4x2_fp16x2 "
        "cvt_ue8m0x2_bf16x2 cvt_f16x2_f8x2 cvt_f16x2_f6x2 cvt_f16x2_f4x2 "
        "cuda.float22bfloat162_rn cuda.float22bfloat162_rn_from_float2 cuda.float22half2 "
        "tvm_builtin_cast_float32x2_float16x2 tvm_builtin_cast_float32x2_bfloat16x2",
        {"pack": 1},
    ),
    # by way of float16: unpacked, widened, packed
    (
        "cvt_bf16x2_f8x2 cvt_bf16x2_f6x2 cvt_bf16x2_f4x2 cvt_bf16x2_ue8m0x2",
        {"pack": 2, "half": 2},
    ),
    ("tanh_half ex2_half", {"xu": 1}),
    ("cuda.fmul2_rn cuda.fadd2_rn", {"fma2": 1}),
    ("cuda.bfloat1622float2 tvm_builtin_cast_bfloat16x2_float32x2", {"alu": 2}),
    ("tvm_builtin_cast_float16x2_float32x2", {"half": 2}),
    ("cuda.fp8x4_e4m3_from_float4", {"pack": 2}),
    ("cuda.fdividef", {"fma": 1, "xu": 1}),
    ("cuda.half8tofloat8", {"half": 8}),
    ("cuda.float8tohalf8", {"pack": 4}),
)

_BITS = {"popcount": "popc", "ctpop": "popc", "clz": "clz", "dp4a": "dp4a"}

#: Operations that make an address, or a value that all know.
_ADDRESSES = {
    "tirx.address_of", "tirx.buffer_data", "tirx.handle_add_byte_offset", "tirx.ptx.addr",
    "tirx.ptr_byte_offset", "tirx.cuda.cvta_generic_to_shared", "tirx.cuda.get_tmem_addr",
    "tirx.cuda.thread_rank", "tirx.isnullptr",
}  # fmt: skip

_LOADS = {
    "tirx.ptx.ld", "tirx.ptx.ld_vec", "tirx.ptx.ld_vec256", "tirx.ptx.ldu", "tirx.ptx.ldu_vec",
    "tirx.ptx.ld_proxy_readonly", "tirx.cuda.ldg", "tirx.cuda.wait_until", "tirx.cuda.warp_reduce",
    "tirx.cuda.cta_reduce",
}  # fmt: skip

#: Families whose operations compute on registers alone: their results are data where operands are.
_REGISTERS = ("families_math", "families_integer", "families_convert", "families_cuda", "families")

#: Calls that take the warp and stand for no instruction: the simulator's own checks.
_CHECKS = (
    "written", "register_index", "register_range", "product32", "wgmma_touch", "tcgen05_touch",
    "at", "whole_warp", "partial", "rejoin", "endless", "work",
)  # fmt: skip
_OPERATION = re.compile(rf"\b(?!(?:{'|'.join(_CHECKS)})\()[a-z]\w*\(w[,)]")
_SIGN = {f"np.float{bits}({sign}1.0)" for bits in (16, 32, 64) for sign in ("", "-")}
_MARK = re.compile(r" *(?:w\.s = \d+|rejoin\(w.*\))")
_LINE = re.compile(r"#work (\d+)$", re.MULTILINE)
_NUMBER = re.compile(r"(?:np\.\w+\()?(?:float\(\")?-?(?:\d[\w.+-]*|inf|nan)(?:\"\))?\)?")

#: Where a block begins, or a path may end.
_FLOW = (
    "if ", "elif ", "else:", "for ", "while ", "return", "break", "continue", "yield",
)  # fmt: skip


def with_calls(source: str) -> str:
    """A Program's source with a call ``work(w, N)`` in place of every line ``#work N``."""
    return _LINE.sub(r"work(w, \1)", source)


class Tally:
    """What the code being translated costs, until a line says it."""

    def __init__(self) -> None:
        self.rows: dict[tuple[tuple[str, int], ...], int] = {}
        #: Counts of statements before the current one, and of the current one.
        self.earlier: dict[str, float] = {}
        self.current: dict[str, float] = {}
        #: Whether the expression being translated contains data that differ between lanes: what was
        #: loaded, received or computed from such. Reset around whatever asks for it.
        self.data = False
        self.variables: set[int] = set()  # variables and registers that hold data
        self.products: set[int] = set()  # those that hold a product which no sum has taken yet
        self.still = 0  # inside an address, an index, or what is translated again: nothing counts
        self.muted = 0  # inside lines that are held back: no line may be written
        self.stored: Value | None = None  # what was assigned to a register last
        #: Divisors whose reciprocals this block has computed: variables, and registers' indices.
        self.divisors: set[tuple[str, int, int]] = set()
        #: For each loop around, if it is unrolled: its variable, counts that are due once for all
        #: iterations, and the divisors that they are of.
        self.loops: list[tuple[int, dict[str, int], set[tuple[str, int, int]]] | None] = []
        self.guarded = 0  # inside a value that a condition chooses: a block of its own
        self.share = 1.0  # of an F2FP, that a number takes: half of it where it has a neighbour

    @property
    def table(self) -> list[dict[str, int]]:
        """The rows that lines refer to."""
        return [dict(row) for row in self.rows]

    def save(self) -> tuple[Any, ...]:
        """What :meth:`restore` takes back."""
        sets = (self.variables, self.products, self.divisors)
        counts = (dict(self.earlier), dict(self.current))
        flags = (self.data, self.still, self.muted, self.share, self.guarded)
        return (*counts, *(set(x) for x in sets), *flags)

    def restore(self, saved: tuple[Any, ...]) -> None:
        (self.earlier, self.current, self.variables, self.products, self.divisors,
         self.data, self.still, self.muted, self.share, self.guarded) = saved  # fmt: skip

    def add(self, counts: Mapping[str, float], times: float = 1) -> None:
        """So many instructions of each pipe."""
        if self.still:
            return
        for pipe, count in counts.items():
            self.current[pipe] = self.current.get(pipe, 0) + count * times

    def overwritten(self, root: int) -> None:
        """A register, or an array of them, changes."""
        if self.divisors:
            self.divisors = {d for d in self.divisors if d[0] != "register" or d[1] != root}

    def statement(self) -> None:
        """A statement begins."""
        if self.current:
            for pipe, count in self.current.items():
                self.earlier[pipe] = self.earlier.get(pipe, 0) + count
            self.current = {}
        self.data = False

    def flush(self, lines: list[str], depth: int, everything: bool = True) -> None:
        """Write what has been counted as a line, before the site that the next operation names.

        ``everything``: with what the current statement has counted so far.
        """
        if self.muted or not (self.earlier or (everything and self.current)):
            return
        if everything:
            data = self.data
            self.statement()
            self.data = data
        row = tuple(sorted((pipe, math.ceil(n)) for pipe, n in self.earlier.items() if n > 0))
        self.earlier = {}
        if not row:
            return
        line = "    " * depth + f"#work {self.number(row)}"
        at = len(lines)
        while at and _MARK.fullmatch(lines[at - 1]):
            at -= 1
        lines.insert(at, line)

    def number(self, row: tuple[tuple[str, int], ...]) -> int:
        """The number of a row."""
        return self.rows.setdefault(row, len(self.rows))

    def before(self, line: str, lines: list[str], depth: int) -> None:
        """Write what has been counted before a line that it must not pass.

        A statement that uses what an operation returns computes behind it.
        """
        if not (self.earlier or self.current) or self.muted:
            return
        if line.startswith(_FLOW):
            self.flush(lines, depth)
        elif "(w" in line and _OPERATION.search(line):
            self.flush(lines, depth, " = " not in line or line.startswith("t_"))


def unrolled(stmt: Any) -> bool:
    """Whether the compiler unrolls a loop."""
    if type(stmt).__name__ != "For":
        return False
    if int(stmt.kind) == _UNROLLED_KIND:
        return True
    if type(stmt.extent).__name__ != "IntImm":
        return False
    most = UNROLLED // max(1, int(stmt.extent.value))
    return sum(1 for _ in itertools.islice(analysis.statements(stmt.body), most + 1)) <= most


def loop(t: Any, stmt: Any) -> None:
    """An iteration of a loop begins: its counter, unless the loop is unrolled.

    ``tally.loops`` gets an entry, which the caller takes off behind the iteration.
    """
    if unrolled(stmt):
        t.tally.loops.append((int(stmt.loop_var.__chandle__()), {}, set()))
    else:
        t.tally.loops.append(None)
        t.tally.add(LOOP)


def once(t: Any, first: int, counts: dict[str, int]) -> None:
    """What is computed once for all iterations of a loop, whose own line is ``first``."""
    if counts:
        number = t.tally.number(tuple(sorted(counts.items())))
        t.lines.insert(first, "    " * t.depth + f"#work {number}")


#: The kind of a loop that its author wants unrolled.
_UNROLLED_KIND = 3


# ----------------------------------------------------------------------------------- expressions


def _times(t: Any, value: Value) -> int:
    """How often an instruction runs that computes a value."""
    return t.slice.extent if value.loop and t.slice is not None else 1


def _constant(value: Value) -> bool:
    return value.uniform and _NUMBER.fullmatch(value.code) is not None


def arithmetic(t: Any, expr: Any, sign: str, a: Value, b: Value) -> None:
    """A sum, a difference, a product or a quotient of two numbers."""
    tally, dtype = t.tally, str(expr.ty)
    if tally.still or (_constant(a) and _constant(b)):
        return
    lane, loop = a.lane or b.lane, a.loop or b.loop
    times = _times(t, Value("", dtype, lane, loop))
    if dtype in FLOATS:
        pipe = {"float32": "fma", "float64": "f64"}.get(dtype, "half")
        if sign == "/" and dtype == "float64":
            tally.add({"f64": 10, "xu": 1}, times)
        elif sign == "/" and _power_of_two(b):  # multiplied by its reciprocal
            tally.add({pipe: 1}, times)
        elif sign == "/":
            if a.code != "np.float32(1.0)":
                tally.add({"fma": 1}, times)
            tally.add({"xu": 1}, _reciprocals(t, expr.b, b, times))
        elif sign == "*" and _SIGN & {a.code, b.code}:
            pass  # a negation
        elif sign == "*" or not contracted(t, expr):
            tally.add({pipe: 1}, times)
        return
    if not (lane and tally.data):
        return
    wide = 2 if BYTES.get(dtype, 4) == 8 else 1
    if sign == "*":
        tally.add({"imad": 1} if wide == 1 else {"imad": 3, "alu": 1}, times)
    elif not contracted(t, expr):
        tally.add({"alu": wide}, times)


def _power_of_two(value: Value) -> bool:
    """Whether a number is a constant whose reciprocal is exact."""
    found = re.fullmatch(r"np\.float\d+\((-?[\d.e+-]+)\)", value.code)
    return found is not None and abs(math.frexp(float(found[1]))[0]) == 0.5


def _number(t: Any, expr: Any) -> int | None:
    """An index that is known, such as that of an iteration which is written out."""
    kind = type(expr).__name__
    if kind == "IntImm":
        return int(expr.value)
    if kind == "Var":
        held = t.vars.get(int(expr.__chandle__()))
        return int(held.code) if held is not None and held.code.isdigit() else None
    if kind not in _INDEX:
        return None
    a, b = _number(t, expr.a), _number(t, expr.b)
    return None if a is None or b is None else _INDEX[kind](a, b)


_INDEX: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
}  # fmt: skip


def _reciprocals(t: Any, expr: Any, divisor: Value, times: int) -> int:
    """Reciprocals that a division needs: ptxas computes that of one divisor once in a block."""
    tally = t.tally
    if tally.guarded:
        return times
    if type(expr).__name__ == "TensorLoad" and str(expr.source.scope()).startswith("local"):
        buffer, (index,) = t.buffers.get(int(expr.source.__chandle__())), expr.indices
        if buffer is None or buffer.root is None:
            return times
        where = _number(t, index)
        if where is None:
            return times
        key = ("register", int(buffer.root.var.__chandle__()), where)
    elif type(expr).__name__ == "Var":
        key = ("variable", int(expr.__chandle__()), 0)
    else:
        return _times(t, divisor)
    if key in tally.divisors:
        return 0
    once = _once(t, key)
    if once is not None:
        return once
    tally.divisors.add(key)
    return _times(t, divisor)


def _once(t: Any, key: tuple[str, int, int]) -> int | None:
    """Reciprocals to count in a loop that is unrolled, of a register that it does not change."""
    if key[0] != "register" or t.tally.still or not t.tally.loops or t.tally.loops[-1] is None:
        return None
    variable, counts, known = t.tally.loops[-1]
    if key[1] in t.facts.loop_writes.get(variable, set()):
        return None
    if key not in known:
        known.add(key)
        counts["xu"] = counts.get("xu", 0) + 1
    return 0


def contracted(t: Any, expr: Any) -> bool:
    """Whether a sum takes in a product that has been counted already: a fused multiply-add.

    Of integers also a shift by a constant, which is LEA's.
    """
    return any(_product(side) or _taken(t, side) for side in (expr.a, expr.b))


def _product(expr: Any) -> bool:
    kind = type(expr).__name__
    return kind == "Mul" or (kind == "LShift" and type(expr.b).__name__ == "IntImm")


def _taken(t: Any, expr: Any) -> bool:
    """Whether an expression reads a product that no sum has taken in yet; this one does."""
    products = t.tally.products
    key = _held_by(t, expr) if products else None
    if key is None or key not in products:
        return False
    products.discard(key)
    return True


def _held_by(t: Any, expr: Any) -> int | None:
    """The variable or the one register that an expression reads."""
    kind = type(expr).__name__
    if kind == "Var":
        return int(expr.__chandle__())
    if kind == "TensorLoad" and str(expr.source.scope()).startswith("local"):
        buffer = t.buffers.get(int(expr.source.__chandle__()))
        if buffer is not None and buffer.root is not None and buffer.root.size == 1:
            return int(buffer.root.var.__chandle__())
    return None


def paired(buffer: Any, stmt: Any) -> bool:
    """Whether numbers that a statement stores lie beside each other, two in a register."""
    if buffer.dtype not in ("float16", "bfloat16"):
        return False
    several = buffer.root is not None and buffer.root.size > 1
    return several or type(stmt.indices[0]).__name__ == "Ramp"


def assigned(t: Any, key: int, source: Any) -> None:
    """A variable or a register takes the value of an expression."""
    tally = t.tally
    (tally.variables.add if tally.data else tally.variables.discard)(key)
    if _product(source):
        tally.products.add(key)
    else:
        tally.products.discard(key)


def divided(t: Any, expr: Any, a: Value, b: Value) -> None:
    """A quotient or a remainder of integers."""
    if t.tally.still or not (t.tally.data and (a.lane or b.lane)):
        return
    sort = "other"
    if b.code.isdigit():
        number = int(b.code)
        sort = "constant" if number & (number - 1) else "power of 2"
    counts = DIVIDED[sort]
    if sort == "constant" and type(expr).__name__ in ("Mod", "FloorMod"):
        counts = _sum(counts, {"imad": 1})
    t.tally.add(counts, _times(t, Value("", "", a.lane or b.lane, a.loop or b.loop)))


def bits(t: Any, expr: Any, a: Value, b: Value) -> None:
    """Logic and shifts; on predicates they cost nothing of their own."""
    dtype = str(expr.ty)
    if t.tally.still or dtype == "bool" or not (t.tally.data and (a.lane or b.lane)):
        return
    times = _times(t, Value("", dtype, True, a.loop or b.loop))
    t.tally.add({"alu": 2 if BYTES.get(dtype, 4) == 8 else 1}, times)


def extreme(t: Any, dtype: str, a: Value, b: Value) -> None:
    """The larger or the smaller of two numbers."""
    lane, loop = a.lane or b.lane, a.loop or b.loop
    if dtype in FLOATS or (lane and t.tally.data):
        counts = {"f64": 2} if dtype == "float64" else {"alu": 1}
        t.tally.add(counts, _times(t, Value("", dtype, lane, loop)))


def compared(t: Any, a: Value, b: Value) -> None:
    """A comparison: one that differs between lanes, or of floats."""
    lane, loop = a.lane or b.lane, a.loop or b.loop
    if not lane and a.dtype not in FLOATS:
        return
    counts = {"f64": 1} if a.dtype == "float64" else {"alu": 1}
    t.tally.add(counts, _times(t, Value("", "", lane, loop)))


def chosen(t: Any, condition: Value, yes: Value, no: Value, dtype: str) -> None:
    """A value chosen by a condition."""
    lane = condition.lane or yes.lane or no.lane
    loop = condition.loop or yes.loop or no.loop
    if dtype == "bool" or not lane or not (dtype in FLOATS or t.tally.data):
        return
    counts = {"alu": 2 if BYTES.get(dtype, 4) == 8 else 1}
    t.tally.add(counts, _times(t, Value("", dtype, lane, loop)))


def cast(t: Any, value: Value, dtype: str) -> None:
    """A conversion that involves floats; one between integers is mostly a choice of registers."""
    source = value.dtype
    if source == dtype or (source not in FLOATS and dtype not in FLOATS):
        return
    if value.uniform and _constant(value):
        return
    if dtype == "bool" or source == "bool":
        counts = {"alu": 1}
    elif "float64" in (source, dtype):
        counts = {"cvt": 1, "fma": 1}
    elif source == "float32" and dtype in ("float16", "bfloat16"):
        counts = {"pack": t.tally.share}
    elif source == "float16":
        counts = {"half": 1} if dtype in FLOATS else {"cvt": 1}
    elif source == "bfloat16":
        counts = {"alu": 1}
    elif dtype in FLOATS:  # I2FP
        counts = {"alu": 1} if BYTES.get(source, 4) < 8 else {"cvt": 1}
    elif dtype in BYTES and dtype not in FLOATS and BYTES[dtype] == 1 and not _integer(dtype):
        counts = {"pack": 0.5}
    else:
        counts = {"cvt": 1}
    t.tally.add(counts, _times(t, value))


def _integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


# ----------------------------------------------------------------------------------------- calls


def begin(t: Any, name: str, row: table.Row) -> bool:
    """Before an operation is translated: whether it is an address.

    Its result is data where an operand is, or where it comes from elsewhere.
    """
    tally = t.tally
    tally.stored = None
    tally.data = row.family not in _REGISTERS or name in _LOADS
    if name in _ADDRESSES:
        tally.still += 1
        return True
    return False


def called(t: Any, name: str, call: Any, value: Value | None, row: table.Row) -> None:
    """An operation of the table, that has been translated."""
    tally = t.tally
    if tally.still or row.family not in _REGISTERS:
        return
    short = name.removeprefix("tirx.").removeprefix("prim.")
    result = value if value is not None else tally.stored
    if result is None:  # registers side by side, written in one go
        result = Value("", "", True, t.slice is not None)
    if short == "cuda.func_call":
        short = str(call.args[0].value)
    if not short.startswith("ptx."):
        counts = OTHERS.get(short)
        if counts is None:
            dtype = result.dtype
            if short in _BITS:
                if result.lane and tally.data:
                    tally.add(INTEGERS[_BITS[short]], _times(t, result))
                return
            counts = FUNCTIONS.get(short)
            if counts is None:
                return
            if dtype in ("float16", "bfloat16"):  # by way of float32
                counts = _sum(counts, {"half" if dtype == "float16" else "alu": 1, "pack": 1})
            elif dtype == "float64":
                counts = {"f64": 1} if short == "fma" else {"f64": 12, "xu": 1}
        tally.add(counts, _times(t, result))
        return
    _instruction(t, short[4:], call, result)


def _instruction(t: Any, name: str, call: Any, result: Value) -> None:
    """One of PTX's own instructions on registers."""
    tally, times = t.tally, _times(t, result)
    of = call.mods.get("type")
    if name in INTEGERS and of not in ("f16x2", "bf16x2"):
        if of == "pred" or not (result.lane and tally.data):
            return
        wide = 2 if str(of)[1:] == "64" else 1
        if name in ("add_int", "sub_int"):
            sources = [x for group in list(call.operands.values())[1:] for x in group]
            if any(_taken(t, x) for x in sources):
                return
        target = _held_by(t, next(iter(call.operands.values()))[0])
        shifted = name == "shl" and type(call.one("b")).__name__ == "IntImm"
        if target is not None and (name == "mul_int" or shifted):
            tally.products.add(target)
        tally.add(INTEGERS[name], times * (2 * wide if wide == 2 and "m" in name[:2] else wide))
        return
    if name in ("add", "sub", "mul", "fma", "mad_f"):
        tally.add({{"f32x2": "fma2", "f64": "f64"}.get(str(of), "fma"): 1}, times)
        return
    if name in ("max", "min", "max3", "min3"):
        if of in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2") or (result.lane and tally.data):
            three = 2 if name.endswith("3") and not t.lowered.arch.startswith("sm_10") else 1
            tally.add({"alu": three}, times)
        return
    if of == "f64" and name in ("ex2", "lg2", "rcp", "sqrt", "rsqrt", "div_f"):
        tally.add({"f64": 10, "xu": 1}, times)
        return
    if (name, "approx", True) in PTX:
        mode = call.mods.get("mode") or ""
        if (name, mode, True) not in PTX:  # other roundings are computed as to nearest
            mode = "rn"
        tally.add(PTX[name, mode, bool(call.mods.get("ftz"))], times)
        return
    counts = OTHERS.get(name)
    if counts is None:
        return
    if name in ("ex2_half", "tanh_half") and str(of).endswith("x2"):
        times *= 2
    if name in ("setp", "set") and str(of)[1:] == "64" and of != "f64":
        times *= 2
    if name in ("setp", "setp_pq", "setp_bool", "setp_bool_pq") and not result.lane:
        return
    tally.add(counts, times)


def converted(t: Any, into: str, origin: str, value: Value) -> None:
    """A ``cvt`` with modifiers that no cast of C's has."""
    if into[0] in "us" and origin[0] in "us":
        counts = {"alu": 1} if t.tally.data and value.lane else {}
    elif into in ("f16", "bf16") and origin == "f32":
        counts = {"pack": t.tally.share}
    elif into == origin == "f32":
        counts = {"cvt": 1}
    elif origin in ("f16", "bf16") and into == "f32":
        counts = {"half": 1}
    else:
        counts = {"cvt": 1}
    t.tally.add(counts, _times(t, value))


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {pipe: one.get(pipe, 0) + other.get(pipe, 0) for pipe in {*one, *other}}
