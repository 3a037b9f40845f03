"""The two sorts of check, and how each compares and explains."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mlsys_gpu.sim import Finding, Report


@dataclass
class Outcome:
    """What a check found: right or not, one paragraph, and which hint helps (from 1)."""

    ok: bool
    message: str
    hint: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "message": self.message, "hint": self.hint}


#: A wrong answer's explanation, or a pair of it and the hint that helps.
Explanation = str | tuple[str, int] | None


def _explained(explanation: Explanation) -> tuple[str, int | None]:
    if explanation is None:
        return "", None
    return explanation if isinstance(explanation, tuple) else (explanation, None)


def _judged(judge: Callable[[], Explanation]) -> Outcome:
    """The outcome of a judging function; an answer that it cannot handle is wrong."""
    try:
        said, hint = _explained(judge())
    except (TypeError, ValueError, ArithmeticError) as error:
        return Outcome(False, f"the answer has a form that cannot be judged ({error}).")
    return Outcome(not said, said or "right", hint)


# --- numbers ---------------------------------------------------------------------------------


@dataclass
class Call:
    """One call of a student's function: its name and arguments, as JSON can carry them."""

    function: str
    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = [show(arg) for arg in self.args]
        shown += [f"{name}={show(arg)}" for name, arg in self.kwargs.items()]
        return f"{self.function}({', '.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        return {"function": self.function, "args": self.args, "kwargs": self.kwargs}


@dataclass
class Predict:
    """Functions of numbers, called with inputs drawn afresh and compared with ``expected``.

    ``draw(rng)`` yields the calls. ``expected(function, *args, **kwargs)`` is the right answer of
    one. ``fields`` names the parts of a tuple, for messages. ``explain(call, got, want)`` may
    recognise a mistake; ``judge(call, got)`` replaces the comparison where many answers are right
    (it returns what is wrong, or ``None``), and ``judge_all(calls, answers)`` where the answers are
    only right or wrong together. ``page`` is the call that the page asks for, so that a
    bare value can be checked too; ``relative`` is the tolerance of floating-point answers.
    """

    draw: Callable[[np.random.Generator], Sequence[Call]]
    expected: Callable[..., Any] | None = None
    judge: Callable[[Call, Any], Explanation] | None = None
    explain: Callable[[Call, Any, Any], Explanation] | None = None
    fields: tuple[str, ...] = ()
    page: Call | None = None
    relative: float = 1e-6

    judge_all: Callable[[Sequence[Call], Sequence[Any]], Explanation] | None = None

    collect = "values"

    def check_all(self, calls: Sequence[Call], answers: Sequence[Any]) -> Outcome:
        """Judges the answers to all calls; the first wrong one decides."""
        if self.judge_all is not None:
            return _judged(lambda: self.judge_all(calls, answers))  # type: ignore[misc]
        for call, got in zip(calls, answers, strict=True):
            outcome = self.check(call, got)
            if not outcome.ok:
                return outcome
        return Outcome(True, "right")

    def want(self, call: Call) -> Any:
        assert self.expected is not None
        return self.expected(call.function, *call.args, **call.kwargs)

    def check(self, call: Call, got: Any, *, reveal: bool = True) -> Outcome:
        """Judges one answer; ``reveal`` allows the message to show the right one."""
        if self.judge is not None:
            return _judged(lambda: self.judge(call, got))  # type: ignore[misc]
        want = self.want(call)
        problem = compare(got, want, self.fields, self.relative)
        if problem is None:
            return Outcome(True, "right")
        said, hint = "", None
        if self.explain is not None:
            # An answer may be anything; an explanation that trips over it is left out.
            with contextlib.suppress(Exception):
                said, hint = _explained(self.explain(call, got, want))
        if reveal:
            text = f"{call} returned {show(got)}; it should be {show(want)}{problem}."
        else:
            text = f"{show(got)} is not the answer for {call}."
        return Outcome(False, f"{text} {said}".strip(), hint)


def compare(
    got: Any, want: Any, fields: tuple[str, ...] = (), relative: float = 1e-6
) -> str | None:
    """``None`` where ``got`` is right, else what to add to the sentence that shows both."""
    if isinstance(want, tuple | list):
        if not isinstance(got, list | tuple) or len(got) != len(want):
            names = f" ({', '.join(fields)})" if fields else ""
            return f", {len(want)} values{names}"
        for index, (a, b) in enumerate(zip(got, want, strict=True)):
            if compare(a, b, (), relative) is not None:
                if fields and index < len(fields):
                    return f": {fields[index]} is wrong"
                return f": entry {index} is wrong" if len(want) > 1 else ""
        return None
    if isinstance(want, bool | str) or want is None:
        return None if type(got) is type(want) and got == want else ""
    if isinstance(want, int):
        if not isinstance(got, int | float):  # a truth value is 0 or 1: a phase, say
            return ", an integer"
        return None if got == want else ""
    if isinstance(want, float):
        if isinstance(got, bool) or not isinstance(got, int | float):
            return ", a number"
        try:
            return None if math.isclose(got, want, rel_tol=relative) else ""
        except OverflowError:  # an integer beyond every float
            return ""
    if isinstance(want, dict):
        if not isinstance(got, dict) or set(got) != set(want):
            return f", a dictionary with the keys {', '.join(map(str, want))}"
        for key, value in want.items():
            if compare(got[key], value, (), relative) is not None:
                return f": {key} is wrong"
        return None
    raise TypeError(f"a check expects a {type(want).__name__}, which cannot be compared")


def show(value: Any) -> str:
    """A value as a message shows it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        inner = ", ".join(show(item) for item in value[:12]) + (", …" if len(value) > 12 else "")
        return f"({inner})"
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "…"


# --- kernels ---------------------------------------------------------------------------------

#: What an output holds before the kernel runs: a NaN with a payload no arithmetic makes.
_POISON = {"float16": 0x7E5A, "float32": 0x7FC05A5A}


@dataclass
class Input:
    """An array that a kernel reads; it must not change."""

    name: str
    value: np.ndarray


@dataclass
class Output:
    """An array that a kernel fills: the float64 reference and, per element, how far off is right.

    ``bound`` defaults to half a unit in the last place of ``dtype``.
    """

    name: str
    dtype: str
    expected: np.ndarray
    bound: np.ndarray | float | None = None

    def poisoned(self) -> np.ndarray:
        bits = np.uint16 if self.dtype == "float16" else np.uint32
        return np.full(self.expected.shape, _POISON[self.dtype], dtype=bits).view(self.dtype)

    def limit(self) -> np.ndarray:
        significand, smallest = {"float16": (11, 2.0**-24), "float32": (24, 2.0**-149)}[self.dtype]
        rounding = np.maximum(np.abs(self.expected) * 2.0**-significand, smallest / 2)
        return rounding + (0.0 if self.bound is None else self.bound)


def draw_distinct(rng: np.random.Generator, choices: Sequence[int], count: int) -> list[int]:
    """``count`` different numbers of ``choices``."""
    return [int(n) for n in rng.choice(np.asarray(choices), size=count, replace=False)]


def product_bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What fp32 accumulation of ``a @ b.T`` may be off by, per element.

    2⁻²³ · √K · Σ|a||b| for ``a`` [M, K] and ``b`` [N, K].
    """
    a64, b64 = np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))
    return 2.0**-23 * math.sqrt(a.shape[1]) * (a64 @ b64.T)


def gemm_data(rng: np.random.Generator, M: int, N: int, K: int) -> list[Input | Output]:
    """A [M, K], B [N, K] and D [M, N] in float16, for D = A @ B.T with sums in float32."""
    a = rng.standard_normal((M, K)).astype(np.float16)
    b = rng.standard_normal((N, K)).astype(np.float16)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    return [
        Input("A", a),
        Input("B", b),
        Output("D", "float16", exact, bound=product_bound(a, b)),
    ]


def is_product(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> bool:
    """Whether ``got`` is ``a @ b.T``, loosely: enough to recognise where numbers come from."""
    guess = a.astype(np.float64) @ b.astype(np.float64).T
    return bool(np.allclose(got.astype(np.float64), guess, rtol=1e-2, atol=5e-2))


@dataclass
class Ran:
    """A finished simulation, for explanations and for targets."""

    shape: dict[str, Any]
    arrays: dict[str, np.ndarray]
    report: Report


def modelled_waits(ran: Ran, operation: str) -> str:
    """One sentence about what the warps that issue ``operation`` wait for, in modelled cycles.

    Empty where no warp issues it, or none waits.
    """
    for role in ran.report.timing.statistics()["roles"]:
        if operation not in role["name"]:
            continue
        waits: dict[str, float] = {}
        for name, cycles in role["waits"].items():
            barrier = name.partition("[")[0]
            waits[barrier] = waits.get(barrier, 0.0) + cycles
        longest = sorted(waits, key=lambda name: -waits[name])[:2]
        if longest:
            listed = " and ".join(f"{waits[name]:,.0f} for {name}" for name in longest)
            return (
                f"Of {role['cycles']:,.0f} modelled cycles, the warps that issue {operation} wait "
                f"{listed}."
            )
    return ""


@dataclass
class Kernel:
    """A function that builds a kernel; the kernel runs in the simulator on inputs drawn afresh.

    ``draw(rng)`` yields keyword arguments for the builder (one dictionary a case). ``data(rng,
    **shape)`` returns the kernel's tensors in order. ``target(ran)`` judges an ``optimise``
    exercise once the numbers are right: it returns what is missing, to follow "the numbers are
    right, but at this shape …", or ``None``. ``explain(ran, findings, problem)`` may recognise a
    mistake. With ``timed`` the run that ``target`` is given has the model's ``report.timing``,
    which knows nothing of the compiler, so that it is the same on every machine.
    """

    draw: Callable[[np.random.Generator], Sequence[dict[str, Any]]]
    data: Callable[..., Sequence[Input | Output]]
    arch: str
    target: Callable[[Ran], Explanation] | None = None
    explain: Callable[[Ran, Sequence[Finding], str], Explanation] | None = None
    #: What to add where TVM refuses to lower the kernel.
    refused: str = ""
    builder: str = "build"
    schedules: tuple[str, ...] = ("eager", "lazy", "seeded")
    timed: bool = False

    collect = "kernels"


Check = Predict | Kernel


def describe_mismatch(output: Output, got: np.ndarray) -> str | None:
    """One sentence or three about a wrong output, ``None`` where every element is right.

    Names the first wrong coordinate in row-major order, what stands there and what should, how
    many elements are wrong and where they lie, and how many were never written.
    """
    bits = got.view(np.uint16 if output.dtype == "float16" else np.uint32)
    unwritten = bits == _POISON[output.dtype]
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - output.expected)
        wrong = ~(error <= output.limit())  # NaN is wrong
    count = int(wrong.sum())
    if not count:
        return None
    total = wrong.size
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    name = output.name
    at = f"{name}[{', '.join(map(str, first))}]"
    box = [
        (int(axis.min()), int(axis.max())) for axis in np.nonzero(wrong)
    ]  # inclusive on both sides
    where = " and ".join(
        f"{word} {low} to {high}"
        for word, (low, high) in zip(_axis_words(len(box)), box, strict=True)
    )
    if unwritten.all():
        return f"{name} is never written: all of its {total} elements hold what was there before."
    if unwritten[first]:
        text = f"{at} is never written"
    else:
        here = "NaN" if np.isnan(got[first]) else f"{got[first]:.6g}"
        text = f"{at} is {here} and should be {output.expected[first]:.6g}"
    if count == 1:
        return f"{text}; every other element is right."
    text += f", and it is the first of {count} wrong elements out of {total}, all within {where}"
    missing = int(unwritten.sum())
    if missing and not unwritten[first]:
        text += f" ({missing} are never written)"
    elif missing and missing != count:
        text += f" ({missing} are never written, {count - missing} hold a wrong number)"
    return text + "."


def _axis_words(dimensions: int) -> list[str]:
    return {1: ["elements"], 2: ["rows", "columns"]}.get(
        dimensions, [f"index {i}" for i in range(dimensions)]
    )
