"""What the command line and notebooks call.

=======================  =====================================================================
:func:`check_exercises`  grade files: ``"12.1"``, ``"chapter 12"``, ``"all"``
:func:`check`            grade one exercise in a notebook: its file, a value, or a function
:func:`grade_file`       grade any file as an answer to an exercise
:func:`list_exercises`   the list, as ``check --list --json`` prints it
:func:`reset`            the stub again; the student's file is kept beside it
:func:`progress`         what is solved, and what comes next
=======================  =====================================================================

Progress is kept in ``exercises/.progress.json``; with ``MLSYS_GPU_PROGRESS=off`` in the environment
(a build of the book, a grading run) nothing is recorded and hints begin with the first.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlsys_gpu.grading import manifest, paths, stubs
from mlsys_gpu.grading.manifest import Exercise, ManifestError, UnknownExercise
from mlsys_gpu.grading.notebook import NotebookError, source_of
from mlsys_gpu.grading.runner import Grader, GraderError, Submission
from mlsys_gpu.grading.verdict import Verdict

__all__ = [
    "GraderError",
    "ManifestError",
    "NotebookError",
    "Progress",
    "Results",
    "UnknownExercise",
    "Verdict",
    "check",
    "check_exercises",
    "grade_file",
    "list_exercises",
    "progress",
    "reset",
]

_NOTHING: Any = object()


@dataclass
class Results:
    """Verdicts of one run of the grader."""

    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every selected exercise is solved."""
        return all(verdict.ok for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "passed": sum(v.ok for v in self.verdicts),
            "total": len(self.verdicts),
            "results": [v.to_dict() for v in self.verdicts],
        }

    def __str__(self) -> str:
        parts = [str(verdict) for verdict in self.verdicts]
        if len(self.verdicts) > 1:
            parts.append(self.summary())
        return "\n".join(parts)

    def summary(self) -> str:
        """One line: how many of the selected exercises are solved."""
        passed = sum(v.ok for v in self.verdicts)
        return f"{passed} of {len(self.verdicts)} exercises solved."


# --- grading files ---------------------------------------------------------------------------


def list_exercises(root: str | Path | None = None) -> list[dict[str, Any]]:
    """``[{"id", "chapter", "kind", "title"}, …]`` by chapter and number."""
    return [exercise.to_dict() for exercise in manifest.load(paths.find_root(root))]


def check_exercises(
    selector: str | Sequence[str],
    report: str | Path | None = None,
    *,
    root: str | Path | None = None,
    seed: int | None = None,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> Results:
    """Grades the files in ``exercises/`` that ``selector`` names.

    ``report`` is a file for the results as JSON; ``on_verdict`` is called after each exercise;
    ``seed`` fixes what the checks draw, which is otherwise new every time.

    Raises
    ------
    UnknownExercise
        The selector names no exercise; the message lists those that exist.
    CourseNotFound, ManifestError, GraderError
        There is no course here, its manifest is broken, or the grader itself failed.
    """
    place = paths.find_root(root)
    words = selector if isinstance(selector, str) else " ".join(selector)
    chosen = manifest.select(manifest.load(place), words)
    results = Results()
    with Grader(place, seed) as grader:
        for exercise in chosen:
            verdict = _grade_own_file(grader, exercise, place)
            results.verdicts.append(verdict)
            if on_verdict is not None:
                on_verdict(verdict)
    if report is not None:
        text = json.dumps(results.to_dict(), indent=2, ensure_ascii=False) + "\n"
        Path(report).write_text(text, encoding="utf-8")
    return results


def grade_file(
    exercise_id: str,
    path: str | Path,
    *,
    root: str | Path | None = None,
    grader: Grader | None = None,
    seed: int | None = None,
) -> Verdict:
    """Grades any file as an answer to an exercise; progress is not recorded."""
    place = paths.find_root(root)
    exercise = manifest.find(manifest.load(place), exercise_id)
    source = Path(path).read_text(encoding="utf-8", errors="replace")
    with contextlib.ExitStack() as stack:
        used = grader or stack.enter_context(Grader(place, seed))
        verdict = used.grade(exercise, _submission(source, Path(path), place))
    return _finished(verdict, exercise, source, failures=0)


def _submission(source: str, path: Path, root: Path) -> Submission:
    try:
        display = str(path.resolve().relative_to(root))
    except ValueError:
        display = str(path)
    return Submission(source, display, path.name)


def _grade_own_file(grader: Grader, exercise: Exercise, root: Path) -> Verdict:
    path = root / "exercises" / exercise.file
    if not path.is_file():
        verdict = Verdict.of(exercise, f"exercises/{exercise.file}")
        verdict.status = "error"
        verdict.message = (
            f"exercises/{exercise.file} does not exist; `mlsys-gpu reset {exercise.id}` brings the "
            "stub back."
        )
        return verdict
    source = path.read_text(encoding="utf-8", errors="replace")
    verdict = grader.grade(exercise, _submission(source, path, root))
    failures = _record(root, exercise, verdict, source)
    return _finished(verdict, exercise, source, failures)


def _finished(verdict: Verdict, exercise: Exercise, source: str, failures: int) -> Verdict:
    """Adds what depends on the exercise: the stub's text, the hint, the words after success."""
    if not verdict.ok and verdict.status == "failed" and stubs.is_untouched(source):
        verdict.status = "unsolved"
        verdict.message = f"{verdict.file} is still the stub. {exercise.todo} {verdict.message}"
    if verdict.ok:
        compare = f"A worked answer to compare yours with: solutions/{exercise.file}."
        remark = "" if verdict.message == "right" else verdict.message  # a warning's
        verdict.after = " ".join(part for part in (remark, exercise.after, compare) if part)
    elif verdict.status in ("failed", "unsolved"):
        # The check may know which hint fits; besides, each new wrong attempt opens the next one.
        step = max(verdict.hint_step or 1, failures)
        if verdict.status == "unsolved":
            step = 1
        verdict.hint_step = min(step, len(exercise.hints))
        verdict.hint = exercise.hints[verdict.hint_step - 1]
    return verdict


# --- in a notebook ---------------------------------------------------------------------------

_notebook_graders: dict[Path, Grader] = {}


def check(exercise_id: str, answer: Any = _NOTHING, *, root: str | Path | None = None) -> Verdict:
    """Grades an answer in a notebook and returns the verdict, which the cell then shows.

    ``answer`` is a function (of numbers, or one that builds a kernel), a value for the numbers on
    the page, or the path of a file; without one, the file in ``exercises/`` is graded.

    A function runs in a process of its own with limits, on inputs drawn afresh, as a file does.
    The verdict shown here is for you; `mlsys-gpu check` grades files apart from any notebook.

    Raises
    ------
    UnknownExercise
        There is no such exercise; the message lists those that exist.
    NotebookError
        The answer cannot be taken out of the notebook; the message says what to do instead.
    """
    place = paths.find_root(root)
    exercise = manifest.find(manifest.load(place), str(exercise_id))
    if answer is _NOTHING:
        return _grade_own_file(_notebook_grader(place), exercise, place)
    if isinstance(answer, Path):
        if answer.resolve() == place / "exercises" / exercise.file:
            return _grade_own_file(_notebook_grader(place), exercise, place)
        return grade_file(exercise.id, answer, root=place, grader=_notebook_grader(place))

    from mlsys_gpu.grading import checks

    checker = checks.load(exercise.check)
    if type(answer).__name__ == "PrimFunc":
        raise NotebookError(
            f"exercise {exercise.id} builds its kernel for shapes of its own: hand over the "
            "function that builds it, check(id, build), not the kernel"
        )
    if callable(answer):
        name = checker.builder if isinstance(checker, checks.Kernel) else _function_name(checker)
        source = source_of(answer, name)
        shown = getattr(answer, "__name__", name)
        submission = Submission(source, f"your function `{shown}`", "notebook_answer.py")
        verdict = _notebook_grader(place).grade(exercise, submission)
        return _finished(verdict, exercise, source, _record(place, exercise, verdict, source))
    return _check_value(exercise, checker, answer, place)


def _function_name(checker: Any) -> str:
    import numpy as np

    return next(iter(checker.draw(np.random.default_rng(0)))).function


def _check_value(exercise: Exercise, checker: Any, answer: Any, root: Path) -> Verdict:
    from mlsys_gpu.grading import checks
    from mlsys_gpu.grading.submission import NotPlain, plain

    verdict = Verdict.of(exercise, "the value in this notebook")
    if isinstance(checker, checks.Kernel) or checker.page is None:
        wanted = (
            "the function that builds the kernel"
            if isinstance(checker, checks.Kernel)
            else (f"the function `{_function_name(checker)}`")
        )
        raise NotebookError(
            f"exercise {exercise.id} is not answered by a value ({type(answer).__name__}): "
            f"hand over {wanted}"
        )
    try:
        value = plain(answer)
    except NotPlain as error:
        raise NotebookError(str(error)) from error
    outcome = checker.check(checker.page, value, reveal=False)
    verdict.status = "passed" if outcome.ok else "failed"
    verdict.message, verdict.hint_step = outcome.message, outcome.hint
    source = repr(value)
    verdict = _finished(verdict, exercise, source, _record(root, exercise, verdict, source))
    if verdict.ok:
        verdict.after = (
            f"Right for the page's numbers, {checker.page}. {verdict.after} "
            f"The file exercises/{exercise.file} asks for any numbers."
        ).replace("  ", " ")
    return verdict


def _notebook_grader(root: Path) -> Grader:
    """One grader for the notebook's life: its server starts once."""
    grader = _notebook_graders.get(root)
    if grader is None:
        grader = _notebook_graders[root] = Grader(root)
    return grader


# --- progress and reset ----------------------------------------------------------------------


@dataclass
class Progress:
    """What is solved (by id), what has changed since it was, and what comes next."""

    exercises: tuple[Exercise, ...]
    solved: dict[str, str]
    changed: tuple[str, ...] = ()

    @property
    def next(self) -> Exercise | None:
        """The first exercise that is not solved."""
        return next((e for e in self.exercises if e.id not in self.solved), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "solved": [
                {"id": e.id, "at": self.solved[e.id], "changed": e.id in self.changed}
                for e in self.exercises
                if e.id in self.solved
            ],
            "total": len(self.exercises),
            "next": self.next.id if self.next else None,
        }

    def __str__(self) -> str:
        lines = []
        for chapter in sorted({e.chapter for e in self.exercises}):
            mine = [e for e in self.exercises if e.chapter == chapter]
            done = sum(e.id in self.solved for e in mine)
            lines.append(f"Chapter {chapter}: {done} of {len(mine)}")
            for e in mine:
                mark = "✓" if e.id in self.solved else "·"
                note = "  (changed since it passed)" if e.id in self.changed else ""
                lines.append(f"  {mark} {e.id:<5} {e.title} ({e.kind}){note}")
        following = self.next
        if following is None:
            lines.append(f"All {len(self.exercises)} exercises are solved.")
        else:
            lines.append(
                f"Next: {following.id} {following.title}, in exercises/{following.file}; "
                f"`mlsys-gpu check {following.id}` grades it."
            )
        return "\n".join(lines)


def progress(root: str | Path | None = None) -> Progress:
    """What is solved and what comes next, from what earlier checks recorded."""
    place = paths.find_root(root)
    exercises = manifest.load(place)
    record = _read_record(place)
    solved, changed = {}, []
    for exercise in exercises:
        entry = record.get(exercise.id, {})
        if not entry.get("passed"):
            continue
        solved[exercise.id] = entry["passed"]
        path = place / "exercises" / exercise.file
        if entry.get("how") == "file" and (
            not path.is_file() or _digest(path.read_text("utf-8", "replace")) != entry["digest"]
        ):
            changed.append(exercise.id)
    return Progress(exercises, solved, tuple(changed))


def reset(exercise_id: str, root: str | Path | None = None) -> str:
    """Puts an exercise's stub back and says where the student's file went.

    Raises :class:`UnknownExercise`, naming the exercises that exist.
    """
    place = paths.find_root(root)
    exercise = manifest.find(manifest.load(place), exercise_id)
    kept = stubs.reset(exercise, place)
    record = _read_record(place)
    record.get(exercise.id, {}).pop("failures", None)
    _write_record(place, record)
    text = f"exercises/{exercise.file} is the stub again."
    if kept is not None:
        text += f" Your file is kept as {kept.relative_to(place)}."
    return text


def _record_path(root: Path) -> Path:
    return root / "exercises" / ".progress.json"


def _read_record(root: Path) -> dict[str, dict[str, Any]]:
    try:
        data = json.loads(_record_path(root).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = data if isinstance(data, dict) else {}
    return {k: v for k, v in entries.items() if isinstance(v, dict)}


def _write_record(root: Path, record: dict[str, dict[str, Any]]) -> None:
    path = _record_path(root)
    with contextlib.suppress(OSError):  # a read-only course: grading works, progress is not kept
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".progress-", delete=False, encoding="utf-8"
        ) as file:
            json.dump(record, file, indent=1, sort_keys=True)
        os.replace(file.name, path)


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:16]


def _record(root: Path, exercise: Exercise, verdict: Verdict, source: str) -> int:
    """Remembers a verdict; returns how many different wrong attempts there were."""
    if os.environ.get("MLSYS_GPU_PROGRESS", "").lower() == "off":
        return 0
    record = _read_record(root)
    entry = record.setdefault(exercise.id, {})
    digest = _digest(source)
    if verdict.ok:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        in_file = verdict.file == f"exercises/{exercise.file}"
        entry |= {"passed": now, "digest": digest, "how": "file" if in_file else "notebook"}
        entry.pop("failures", None)
    elif verdict.status == "failed" and not stubs.is_untouched(source):
        tried = entry.setdefault("failures", [])
        if digest not in tried:
            tried.append(digest)
        del tried[:-20]
    _write_record(root, record)
    return len(entry.get("failures", []))
