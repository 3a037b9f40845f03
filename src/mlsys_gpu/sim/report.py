"""What a simulation reports: findings, counters, coverage of the outputs, and who waited for whom.

A :class:`Report` has three forms: text for a terminal (``print(report)``), a dictionary for
machines (``report.to_dict()``; the same seeds give the same bytes, ``seconds`` apart), and HTML in
a notebook.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What each finding's code means, in one line; the keys are the stable codes.
CODES = {
    "race-smem": "two accesses to shared memory that nothing orders",
    "race-tmem": "two accesses to tensor memory that nothing orders",
    "race-global": "two CTAs wrote the same bytes of global memory",
    "missing-proxy-fence": "threads wrote what an asynchronous engine reads, without a proxy fence",
    "missing-tcgen05-fence": "tcgen05 operations of two threads without the fences between them",
    "missing-tcgen05-wait": "a tcgen05.ld or st was not waited for before its columns went on",
    "missing-commit": "a result was read that no observed commit covers",
    "wgmma-in-flight": "accumulator registers were touched while wgmma may still use them",
    "tcgen05-in-flight": "registers were touched while tcgen05.ld may still be filling them",
    "wgmma-fence": "wgmma was issued on registers changed since the last wgmma.fence",
    "deadlock": "every warp waits for something that nobody will do",
    "barrier-overarrival": "more arrivals at an mbarrier than its phase has room for",
    "tx-count": "an mbarrier expects another number of bytes than its copies bring",
    "barrier-lapped": "a phase completed before all who wait for the last one had seen it",
    "barrier-init": "an mbarrier was used in a way that its initialisation forbids",
    "barrier-mixed": "a thread may count for another turn of a named barrier than its own",
    "uninitialised-read": "memory or registers were read that nothing has written",
    "out-of-bounds": "an address outside the memory it belongs to",
    "tma-operand": "a tensor map, or another operand, that a bulk copy cannot take",
    "misaligned": "an address that its access width does not divide",
    "tmem-lifetime": "tensor memory used outside its allocation, or never given back",
    "tmem-lane-quarter": "a warp addressed tensor-memory lanes of another warp's quarter",
    "divergent-collective": "a warp-wide instruction was reached by a part of the warp",
    "cluster-exit": "a CTA may end while another still uses its shared memory",
    "setmaxnreg-budget": "warps ask for more registers than the CTA has, or not together",
    "clc-protocol": "cluster launch control used against its protocol",
    "descriptor": "a matrix or instruction descriptor that the instruction cannot take",
    "wrong-operand": "the tensor core multiplied elements that do not belong together",
    "discarded-product": "a product was overwritten before anything had read it",
    "assertion": "an assertion of the kernel's author failed",
    "in-flight-at-exit": "asynchronous work was still running when its thread exited",
}


@dataclass(frozen=True)
class Location:
    """A line of the kernel's source: ``file`` as TVM recorded it, ``line`` from 1, and its text."""

    file: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        path = Path(self.file)
        if path.parent.name.startswith("ipykernel_"):  # a notebook's cell; its name is a hash
            return f"cell line {self.line}"
        return f"{path.name}:{self.line}"

    def to_dict(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "text": self.text}


@dataclass(frozen=True)
class Finding:
    """One fault in a kernel.

    ``code`` is one of :data:`CODES`; ``severity`` is ``error`` or ``warning``; ``related`` holds
    further places, each with what it has to do with the fault.
    """

    code: str
    message: str
    location: Location | None
    threads: str
    memory: str
    fix: str
    severity: str = "error"
    related: tuple[tuple[str, Location], ...] = ()
    count: int = 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "location": self.location.to_dict() if self.location else None,
            "threads": self.threads,
            "memory": self.memory,
            "fix": self.fix,
            "related": [{"what": what, **place.to_dict()} for what, place in self.related],
            "count": self.count,
        }

    def __str__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        lines = [f"[{self.code}]{where}: {self.message}"]
        if self.location and self.location.text:
            lines.append(f"    {self.location.line:>4} | {self.location.text.strip()}")
        for what, place in self.related:
            lines.append(f"    {what}: {place}")
            if place.text:
                lines.append(f"    {place.line:>4} | {place.text.strip()}")
        if self.threads:
            lines.append(f"    threads: {self.threads}")
        if self.memory:
            lines.append(f"    memory:  {self.memory}")
        lines.append(f"    fix:     {self.fix}")
        if self.count > 1:
            lines.append(f"    (seen {self.count} times)")
        return "\n".join(lines)


@dataclass
class Report:
    """The outcome of one simulation.

    ``seconds`` is the time of the simulation alone, lowering and translation apart.
    ``coverage`` gives, for each tensor the kernel wrote, how many of its elements were written,
    and how many of them by more than one CTA. ``completed`` is False where a fault stopped the run:
    what the kernel had not written by then is as it was.
    """

    kernel: str
    arch: str
    schedule: str
    schedule_seed: int
    checks: bool
    launch: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    coverage: dict[str, dict[str, Any]] = field(default_factory=dict)
    deadlock: dict[str, Any] | None = None
    readings: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    completed: bool = True

    @property
    def ok(self) -> bool:
        """Whether the run ended without an error (the numbers are not compared here)."""
        return not any(f.severity == "error" for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "kernel": self.kernel,
            "arch": self.arch,
            "schedule": self.schedule,
            "schedule_seed": self.schedule_seed,
            "completed": self.completed,
            "checks": self.checks,
            "launch": self.launch,
            "findings": [f.to_dict() for f in self.findings],
            "counters": dict(sorted(self.counters.items())),
            "coverage": self.coverage,
            "deadlock": self.deadlock,
            "readings": self.readings,
            "seconds": round(self.seconds, 6),
        }

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent, sort_keys=True)

    def __str__(self) -> str:
        grid = "x".join(str(n) for n in self.launch["grid"])
        head = (
            f"{self.kernel} ({self.arch}) in the simulator: grid {grid}, "
            f"{self.launch['threads']} threads a CTA, {self.schedule} schedule"
            + (f" with seed {self.schedule_seed}" if self.schedule == "seeded" else "")
            + ("" if self.checks else ", checks off")
        )
        lines = [head]
        if not self.completed:
            lines.append("  stopped before its end: the outputs are incomplete")
        for name, seen in self.coverage.items():
            text = f"  wrote {name}: {seen['written']} of {seen['elements']} elements"
            if seen["twice"]:
                text += f", {seen['twice']} of them by more than one CTA"
            lines.append(text)
            if seen.get("missing"):
                lines.append(f"    not written: {seen['missing']}")
        if self.findings:
            lines.append(f"  {len(self.findings)} finding{'s' * (len(self.findings) != 1)}:")
            for finding in self.findings:
                lines.extend("  " + line for line in str(finding).splitlines())
        else:
            lines.append("  no findings" if self.checks else "  no findings (checks were off)")
        if self.deadlock:
            lines.append("  who waits for what:")
            lines.extend(f"    {entry['text']}" for entry in self.deadlock["waiting"])
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        ok = self.ok
        head = str(self).splitlines()[0]
        n = len(self.findings)
        badge = f"{n} finding{'s' * (n != 1)}" if n else "no findings"
        parts = [
            f'<div class="mg-report {"mg-ok" if ok else "mg-bad"}">',
            f"<p><strong>{html.escape(badge)}</strong> — {html.escape(head)}</p>",
        ]
        for finding in self.findings:
            text = html.escape(str(finding))
            parts.append(f'<pre style="white-space: pre-wrap">{text}</pre>')
        if self.deadlock:
            rows = "".join(
                f"<li>{html.escape(entry['text'])}</li>" for entry in self.deadlock["waiting"]
            )
            parts.append(f"<p>Who waits for what:</p><ul>{rows}</ul>")
        parts.append("</div>")
        return "".join(parts)
