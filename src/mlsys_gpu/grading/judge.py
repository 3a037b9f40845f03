"""Judging a kernel: simulate it on fresh inputs, compare, and say what is wrong.

Runs in a process of its own under limits, because a kernel need not end, and because reading a
hostile kernel may crash TVM. It never runs student code: the kernel arrives as data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsys_gpu.grading import checks, serial
from mlsys_gpu.grading.checks.base import Input, Kernel, Outcome, Output, Ran, describe_mismatch

if TYPE_CHECKING:
    from mlsys_gpu.sim import Finding, Report


#: A race whose reader waits nowhere for the copy: wrong phases are but a consequence of that.
_NO_WAIT = "race-smem without a wait"

#: Which of several findings is shown: causes before what they lead to.
_PRIORITY = (
    "barrier-init",
    "tx-count",
    _NO_WAIT,
    "barrier-parity",
    "race-smem",
    "race-tmem",
    "race-global",
    "missing-proxy-fence",
    "missing-commit",
    "wgmma-in-flight",
    "tcgen05-in-flight",
    "missing-tcgen05-wait",
    "wgmma-fence",
    "wrong-operand",
    "discarded-product",
    "barrier-lapped",
    "barrier-overarrival",
    "divergent-collective",
    "descriptor",
    "tmem-lane-quarter",
    "misaligned",
    "out-of-bounds",
    "deadlock",
)


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """Judges ``job["kernels"]`` (serialised, one for each of ``job["cases"]``).

    Returns ``{"ok", "message", "hint"}``; paths in messages are those of the student's file.
    """
    check = checks.load(job["check"])
    assert isinstance(check, Kernel)
    remark = ""
    outcome = Outcome(True, "right")
    for number, (text, case) in enumerate(zip(job["kernels"], job["cases"], strict=True)):
        outcome = _judge_case(check, text, case, (job["seed"], number), job)
        if not outcome.ok:
            break
        remark = remark or outcome.message
    if outcome.ok:
        outcome.message = remark
    outcome.message = outcome.message.replace(job["path"], job["display"])
    return outcome.to_dict()


def _judge_case(
    check: Kernel, text: str, case: dict[str, Any], seed: tuple[int, int], job: dict[str, Any]
) -> Outcome:
    from mlsys_gpu import sim
    from mlsys_gpu.lowering import arch_of

    shape = ", ".join(f"{name} = {value}" for name, value in case.items())
    at = f"At {shape}: " if shape else ""
    try:
        kernel = serial.load_kernel(text)
    except serial.SerialError as error:
        return Outcome(False, f"the kernel could not be read: {error}")
    wanted = {"hopper": "sm_90a", "blackwell": "sm_100a"}[check.arch]
    found = arch_of(kernel)
    if found != wanted and kernel.attrs and "target" in kernel.attrs:
        return Outcome(
            False,
            f"this exercise is for {check.arch} ({wanted}); the kernel names the target {found}.",
        )
    try:
        program = sim.compile(kernel, arch=wanted)
        _refuse_strange_source(program.source)
    except sim.Unsupported as error:
        return Outcome(
            False,
            f"{at}the simulator does not model everything that this kernel uses, so that it "
            f"cannot be graded: {error}",
        )
    except Exception as error:  # TVM raises many kinds here; all mean the same to the reader
        text = f"{at}TVM cannot lower this kernel. {_tvm_message(error)} {check.refused}"
        return Outcome(False, text.strip())

    data = list(check.data(np.random.default_rng(seed), **case))
    problem = _signature(program.params, data)
    if problem:
        return Outcome(False, f"{at}{problem}")

    runs = []
    for schedule in check.schedules:
        arrays = [
            item.value.copy() if isinstance(item, Input) else item.poisoned() for item in data
        ]
        names = {item.name: array for item, array in zip(data, arrays, strict=True)}
        try:
            report = sim.simulate(
                program,
                *arrays,
                schedule=schedule,
                schedule_seed=seed[0],
                timing=check.timed and not runs,  # the first run is the one a target looks at
            )
        except MemoryError:
            raise
        except Exception as error:
            return Outcome(
                False,
                f"{at}the simulator cannot follow this kernel to its end ({type(error).__name__}: "
                f"{error}). Where the kernel is at fault, it is mostly a register index beyond its "
                "array, or a layout that does not fit its buffer.",
            )
        runs.append(Ran(case, names, report))
    return _judge_runs(check, runs, data, shape, job)


def _judge_runs(
    check: Kernel,
    runs: Sequence[Ran],
    data: Sequence[Input | Output],
    shape: str,
    job: dict[str, Any],
) -> Outcome:
    """Findings first, then numbers, then the exercise's own target."""
    findings = [(f, ran) for ran in runs for f in ran.report.findings if f.severity == "error"]
    findings.sort(key=lambda pair: _rank(pair[0]))
    problems = [(_wrong(ran, data), ran) for ran in runs]
    problem, shown = next(((text, ran) for text, ran in problems if text), ("", runs[0]))
    if findings or problem:
        # The explanation looks at the run whose numbers are wrong, else at the finding's.
        ran = shown if problem else findings[0][1]
        said: Any = check.explain(ran, [f for f, _ in findings], problem) if check.explain else None
        said, hint = said if isinstance(said, tuple) else (said, None)
        parts = []
        if findings:
            finding, where = findings[0]
            parts.append(describe_finding(finding, where.report, job["path"], job["display"]))
            if not problem:
                parts.append(
                    "The numbers came out right here, and still the hardware is free to do "
                    "otherwise."
                )
            elif problems[0][0]:
                parts.append(f"The numbers are wrong too: {problem}")
            else:
                parts.append(
                    f"The numbers are right where effects land at once, and wrong on the "
                    f"{shown.report.schedule} schedule: {problem}"
                )
        else:
            parts.append(f"At {shape}: {problem}" if shape else _capital(problem))
        parts.append(said or "")
        return Outcome(False, " ".join(part for part in parts if part), hint)
    if check.target is not None:
        said = check.target(runs[0])
        said, hint = said if isinstance(said, tuple) else (said, None)
        if said:
            where = f"at {shape} " if shape else ""
            return Outcome(False, f"The numbers are right, but {where}{said}", hint)
    for ran in runs:
        for warning in ran.report.findings:
            said = describe_finding(warning, ran.report, job["path"], job["display"])
            return Outcome(True, f"Right, with a remark. {said}")
    return Outcome(True, "right")


def _rank(finding: Finding) -> int:
    """Where a finding stands among others: causes before what they lead to."""
    if finding.code == "race-smem" and " waits nowhere before for " in finding.message:
        return _PRIORITY.index(_NO_WAIT)
    return _PRIORITY.index(finding.code) if finding.code in _PRIORITY else len(_PRIORITY)


def _wrong(ran: Ran, data: Sequence[Input | Output]) -> str:
    """What is wrong with the arrays after a run, "" where nothing is."""
    for item in data:
        got = ran.arrays[item.name]
        if isinstance(item, Input):
            if not np.array_equal(got, item.value, equal_nan=True):
                return f"the kernel changed its input {item.name}."
        elif problem := describe_mismatch(item, got):
            return problem
    return ""


def _refuse_strange_source(source: str) -> None:
    """Refuses a translated kernel that would do more than compute.

    The simulator translates kernels into Python of its own making. This makes sure, apart from it,
    that nothing in a hostile kernel found its way into that text as code.
    """
    for node in ast.walk(ast.parse(source)):
        name = ""
        if isinstance(node, ast.Name):
            name = node.id
        elif isinstance(node, ast.Attribute):
            name = node.attr
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Global) or (
            name.startswith("__") or name in _NEVER_IN_A_KERNEL
        ):
            raise ValueError(f"the kernel translates into code that no kernel needs ({name})")


_NEVER_IN_A_KERNEL = frozenset(
    ("eval", "exec", "compile", "open", "getattr", "setattr", "globals", "vars", "breakpoint")
)


def describe_finding(finding: Finding, report: Report, path: str, display: str) -> str:
    """The simulator's finding as one paragraph, its line in the student's file first."""
    place = finding.location
    where = ""
    if place is not None:
        file = display if place.file == path else place.file.rpartition("/")[2]
        text = place.text.strip()
        where = f"{file}:{place.line}" + (f" `{text}`" if text else "") + ": "
    parts = [f"The simulator found [{finding.code}]. {where}{_sentence(finding.message)}"]
    if finding.threads and "warp" not in finding.message:
        parts.append(_sentence(f"Threads: {finding.threads}"))
    if finding.code == "deadlock" and report.deadlock:
        waiting = report.deadlock.get("waiting", [])
        parts += [_sentence(_capital(str(entry.get("text", "")))) for entry in waiting[:2]]
    if finding.fix:
        parts.append(_sentence(f"What would mend it: {finding.fix}"))
    return " ".join(part for part in parts if part)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _signature(params: Sequence[Any], data: Sequence[Input | Output]) -> str | None:
    """What is wrong with the kernel's parameters, if anything."""

    def spell(name: str, shape: Sequence[int], dtype: str) -> str:
        return f"{name} {dtype}[{', '.join(map(str, shape))}]"

    wanted = [
        spell(d.name, d.value.shape, str(d.value.dtype))
        if isinstance(d, Input)
        else spell(d.name, d.expected.shape, d.dtype)
        for d in data
    ]
    found = [spell(*param) for param in params]
    same = len(wanted) == len(found) and all(
        w.partition(" ")[2] == f.partition(" ")[2] for w, f in zip(wanted, found, strict=True)
    )
    if same:
        return None
    return f"the kernel takes {', '.join(found)}; the exercise asks for {', '.join(wanted)}."


def _tvm_message(error: Exception) -> str:
    """TVM's own words, without the drawing around them."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith(("-->", "|", "File "))]
    return " ".join(kept[:3])[:600]
