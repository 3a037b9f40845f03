"""Judging a kernel: simulate it on fresh inputs, compare, and say what is wrong.

Runs in a process of its own under limits, because a kernel need not end, and because reading a
hostile kernel may crash TVM. It never runs student code: the kernel arrives as data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mlsys_gpu.grading import checks, serial
from mlsys_gpu.grading.checks.base import Input, Kernel, Outcome, Output, Ran, describe_mismatch

if TYPE_CHECKING:
    from mlsys_gpu.sim import Finding, Report


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """Judges ``job["kernels"]`` (serialised, one for each of ``job["cases"]``).

    Returns ``{"ok", "message", "hint"}``; paths in messages are those of the student's file.
    """
    check = checks.load(job["check"])
    assert isinstance(check, Kernel)
    outcome = Outcome(True, "right")
    for number, (text, case) in enumerate(zip(job["kernels"], job["cases"], strict=True)):
        outcome = _judge_case(check, text, case, (job["seed"], number), job)
        if not outcome.ok:
            break
    outcome.message = outcome.message.replace(job["path"], job["display"])
    return outcome.to_dict()


def _judge_case(
    check: Kernel, text: str, case: dict[str, Any], seed: tuple[int, int], job: dict[str, Any]
) -> Outcome:
    from mlsys_gpu.lowering import arch_of, lower
    from mlsys_gpu.sim import Unsupported, simulate

    shape = ", ".join(f"{name} = {value}" for name, value in case.items())
    at = f"At {shape}: " if shape else ""
    try:
        kernel = serial.load_kernel(text)
    except serial.SerialError as error:
        return Outcome(False, f"the kernel could not be read: {error}")
    wanted = {"hopper": "sm_90a", "blackwell": "sm_100a"}[check.arch]
    if arch_of(kernel) != wanted and kernel.attrs and "target" in kernel.attrs:
        return Outcome(
            False,
            f"this exercise is for {check.arch} ({wanted}); the kernel names the target "
            f"{arch_of(kernel)}.",
        )
    try:
        lowered = lower(kernel, arch=wanted)
    except Exception as error:  # TVM raises many kinds here; all mean the same to the reader
        return Outcome(False, f"{at}TVM cannot lower this kernel. {_tvm_message(error)}")

    data = list(check.data(np.random.default_rng(seed), **case))
    problem = _signature(lowered.params, data)
    if problem:
        return Outcome(False, f"{at}{problem}")

    for number, schedule in enumerate(check.schedules):
        arrays: list[np.ndarray] = []
        for item in data:
            arrays.append(item.value.copy() if isinstance(item, Input) else item.poisoned())
        names = {item.name: array for item, array in zip(data, arrays, strict=True)}
        try:
            report = simulate(
                kernel, *arrays, schedule=schedule, schedule_seed=seed[0] + number, arch=wanted
            )
        except Unsupported as error:
            return Outcome(
                False,
                f"{at}the simulator does not model everything this kernel uses, so it cannot be "
                f"graded: {error}",
            )
        ran = Ran(case, names, report, lowered)
        outcome = _judge_run(check, ran, data, at, job)
        if not outcome.ok:
            return outcome
    return Outcome(True, "right")


def _judge_run(
    check: Kernel, ran: Ran, data: Sequence[Input | Output], at: str, job: dict[str, Any]
) -> Outcome:
    """Findings first, then numbers, then the exercise's own target."""
    findings = [f for f in ran.report.findings if f.severity == "error"]
    problem = ""
    for item in data:
        got = ran.arrays[item.name]
        if isinstance(item, Input):
            if not np.array_equal(got, item.value, equal_nan=True):
                problem = problem or f"the kernel changed its input {item.name}."
        else:
            problem = problem or (describe_mismatch(item, got) or "")
    if findings or problem:
        said: Any = check.explain(ran, findings, problem) if check.explain else None
        hint = None
        if isinstance(said, tuple):
            said, hint = said
        parts = []
        if findings:
            parts.append(describe_finding(findings[0], ran.report, job["path"], job["display"]))
            if problem:
                parts.append(f"The numbers are wrong too: {problem}")
            else:
                parts.append(
                    "The numbers came out right in this run, and still the hardware is free to "
                    "do otherwise."
                )
        else:
            parts.append(f"{at}{problem}" if at else _capital(problem))
        if said:
            parts.append(said)
        return Outcome(False, " ".join(parts), hint)
    if check.target is not None:
        said = check.target(ran)
        if said:
            said, hint = said if isinstance(said, tuple) else (said, None)
            return Outcome(False, f"The numbers are right. {at}{said}", hint)
    return Outcome(True, "right")


def describe_finding(finding: Finding, report: Report, path: str, display: str) -> str:
    """The simulator's finding as one paragraph, its line in the student's file first."""
    place = finding.location
    where = ""
    if place is not None:
        file = display if place.file == path else place.file.rpartition("/")[2]
        text = place.text.strip()
        where = f"{file}:{place.line}" + (f" `{text}`" if text else "") + ": "
    parts = [f"The simulator found [{finding.code}]. {where}{_sentence(finding.message)}"]
    if finding.threads:
        parts.append(_sentence(f"Threads: {finding.threads}"))
    if finding.memory:
        parts.append(_sentence(f"Memory: {finding.memory}"))
    for what, related in finding.related[:1]:
        parts.append(_sentence(f"{_capital(what)}: line {related.line}"))
    if report.deadlock:
        waiting = report.deadlock.get("waiting", [])
        parts += [_sentence(str(entry.get("text", ""))) for entry in waiting[:2]]
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
    found = [spell(p.name, p.shape, p.dtype) for p in params]
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
