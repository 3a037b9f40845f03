"""A verdict: what a check says about a submission, as text, HTML and JSON."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass, field
from typing import Any, Literal

from mlsys_gpu.grading.manifest import Exercise

Status = Literal["passed", "failed", "unsolved", "refused", "error"]

_WORDS = {
    "passed": "passed",
    "failed": "not yet",
    "unsolved": "not solved yet",
    "refused": "refused",
    "error": "could not be graded",
}
_MARKS = {"passed": "✓", "failed": "✗", "unsolved": "○", "refused": "✗", "error": "!"}


@dataclass
class Verdict:
    """The result of grading one exercise.

    ``message`` is one paragraph that says what is wrong, or for a right answer "right" and what
    the simulator warns of, if anything; ``hint`` the hint to show with it;
    ``file`` what was graded; ``output`` the end of what the submission printed; ``seed``
    reproduces what was drawn.
    """

    id: str
    chapter: int
    kind: str
    title: str
    file: str
    status: Status = "error"
    message: str = ""
    hint: str = ""
    hint_step: int | None = None
    hints: int = 0
    output: str = ""
    seconds: float = 0.0
    seed: int = 0
    after: str = ""
    guards: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, exercise: Exercise, file: str) -> Verdict:
        return cls(
            exercise.id,
            exercise.chapter,
            exercise.kind,
            exercise.title,
            file,
            hints=len(exercise.hints),
        )

    @property
    def ok(self) -> bool:
        """Whether the exercise is solved."""
        return self.status == "passed"

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "chapter": self.chapter,
            "kind": self.kind,
            "title": self.title,
            "file": self.file,
            "status": self.status,
            "ok": self.ok,
            "message": self.message,
            "hint": self.hint,
            "output": self.output,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
        }

    def _hint_line(self) -> str:
        if not self.hint or self.ok:
            return ""
        step = f" {self.hint_step} of {self.hints}" if self.hint_step and self.hints > 1 else ""
        return f"Hint{step}: {self.hint}"

    def __str__(self) -> str:
        head = f"{_MARKS[self.status]} {self.id} {self.title} ({self.kind}): {_WORDS[self.status]}"
        lines = [head, f"  graded: {self.file}"]

        def paragraph(text: str) -> None:
            text = _printable(text)
            lines.extend(textwrap.wrap(text, 92, initial_indent="  ", subsequent_indent="  "))

        if not self.ok:
            paragraph(self.message)
        elif self.after:
            paragraph(self.after)
        if self._hint_line():
            paragraph(self._hint_line())
        if self.output.strip() and not self.ok:
            lines.append("  The program printed:")
            lines += [f"    | {line}" for line in _printable(self.output).splitlines()[-12:]]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: readable without a stylesheet, in light and in dark."""
        colour = {"passed": "#2e7d32", "unsolved": "#8a6d00"}.get(self.status, "#b3261e")
        parts = [
            f'<div class="mg-verdict mg-{self.status}" role="status" '
            f'style="border-left:4px solid {colour};padding:.2em .8em;margin:.5em 0">',
            f"<p><strong>{_MARKS[self.status]} {html.escape(f'{self.id} {self.title}')}: "
            f"{_WORDS[self.status]}</strong><br>",
            f"<small>graded: {html.escape(self.file)}</small></p>",
        ]
        if not self.ok:
            parts.append(f"<p>{_code(html.escape(_printable(self.message)))}</p>")
        elif self.after:
            parts.append(f"<p>{_code(html.escape(self.after))}</p>")
        if self._hint_line():
            parts.append(f"<p><em>{_code(html.escape(self._hint_line()))}</em></p>")
        if self.output.strip() and not self.ok:
            shown = "\n".join(_printable(self.output).splitlines()[-12:])
            parts.append(
                f"<details><summary>What it printed</summary><pre>{html.escape(shown)}</pre>"
            )
            parts.append("</details>")
        parts.append("</div>")
        return "".join(parts)


def _printable(text: str) -> str:
    """Text that a submission may have written, without control characters: it must not be able to
    redraw the terminal."""
    return "".join(c if c == "\n" or c.isprintable() else " " for c in text)


def _code(text: str) -> str:
    """`code` between backticks as HTML."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return text
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
