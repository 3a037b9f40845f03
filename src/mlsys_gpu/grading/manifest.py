"""The one list of exercises: ``exercises/manifest.toml``.

An entry is::

    [[exercise]]
    id = "12.1"
    kind = "predict"                       # or write, debug, optimise
    title = "Which phase to wait for"
    file = "ch12/ex12_1_phases.py"         # below exercises/ and below solutions/
    check = "ch12:phases"                  # module:object in mlsys_gpu.grading.checks
    todo = "…"                             # what an untouched stub is told
    after = "…"                            # optional: what a right answer is told
    hints = ["…", "…"]                     # in steps, the first the vaguest
    limits = { seconds = 10, judge_seconds = 30, memory_mb = 512 }   # optional

The chapter is the number before the dot.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

KINDS = ("predict", "write", "debug", "optimise")
_FIELDS = {"id", "kind", "title", "file", "check", "todo", "after", "hints", "limits"}
_REQUIRED = _FIELDS - {"after", "limits"}
_LIMITS = {"seconds": 10.0, "judge_seconds": 60.0, "memory_mb": 2048}


class ManifestError(ValueError):
    """The manifest breaks its own rules; the message names the entry and the rule."""


class UnknownExercise(LookupError):
    """No exercise or chapter of that name; the message lists what exists."""

    def __str__(self) -> str:  # LookupError would show its message as it is; keep it that way
        return str(self.args[0])


@dataclass(frozen=True)
class Exercise:
    """One exercise. ``file`` is relative to ``exercises/`` (the stub) and ``solutions/``."""

    id: str
    chapter: int
    kind: str
    title: str
    file: str
    check: str
    todo: str
    hints: tuple[str, ...]
    after: str = ""
    seconds: float = 10.0
    judge_seconds: float = 60.0
    memory_mb: int = 2048

    def to_dict(self) -> dict[str, object]:
        """The form of ``check --list --json``."""
        return {"id": self.id, "chapter": self.chapter, "kind": self.kind, "title": self.title}


def load(root: Path) -> tuple[Exercise, ...]:
    """All exercises below ``root``, by chapter and number.

    Raises
    ------
    ManifestError
        An entry lacks a field, repeats an id or a file, has an unknown kind or no hint.
    """
    path = root / "exercises" / "manifest.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path} is not valid TOML: {error}") from error
    exercises = [_exercise(entry) for entry in data.get("exercise", [])]
    for name in ("id", "file", "check", "title"):
        seen: set[str] = set()
        for exercise in exercises:
            value = getattr(exercise, name)
            if value in seen:
                raise ManifestError(f"{path}: two exercises have the {name} {value!r}")
            seen.add(value)
    return tuple(sorted(exercises, key=lambda e: (e.chapter, int(e.id.split(".")[1]))))


def _exercise(entry: dict) -> Exercise:
    name = entry.get("id", "?")

    def fail(rule: str) -> ManifestError:
        return ManifestError(f"exercise {name}: {rule}")

    missing = sorted(_REQUIRED - set(entry))
    unknown = sorted(set(entry) - _FIELDS)
    if missing:
        raise fail(f"needs {', '.join(missing)}")
    if unknown:
        raise fail(f"has unknown fields {', '.join(unknown)}")
    if not re.fullmatch(r"[1-9]\d*\.[1-9]\d*", name):
        raise fail("an id is chapter.number, such as 12.1")
    if entry["kind"] not in KINDS:
        raise fail(f"kind is {entry['kind']!r}, not one of {', '.join(KINDS)}")
    if not entry["hints"] or not all(isinstance(h, str) and h.strip() for h in entry["hints"]):
        raise fail("needs at least one hint")
    if not re.fullmatch(r"[\w/]+\.py", entry["file"]) or ".." in entry["file"]:
        raise fail(f"file is {entry['file']!r}, not a Python file below exercises/")
    limits = entry.get("limits", {})
    if set(limits) - set(_LIMITS):
        raise fail(f"limits are {', '.join(_LIMITS)}")
    return Exercise(
        id=name,
        chapter=int(name.split(".")[0]),
        kind=entry["kind"],
        title=entry["title"],
        file=entry["file"],
        check=entry["check"],
        todo=entry["todo"],
        hints=tuple(entry["hints"]),
        after=entry.get("after", ""),
        **{**_LIMITS, **limits},
    )


def find(exercises: tuple[Exercise, ...], exercise_id: str) -> Exercise:
    """The exercise with this id; raises :class:`UnknownExercise` naming those that exist."""
    for exercise in exercises:
        if exercise.id == exercise_id:
            return exercise
    whole = any(str(e.chapter) == exercise_id for e in exercises)
    meant = f" (all of that chapter: `chapter {exercise_id}`)" if whole else ""
    raise UnknownExercise(f"there is no exercise {exercise_id!r}{meant}; {_existing(exercises)}")


def select(exercises: tuple[Exercise, ...], selector: str) -> tuple[Exercise, ...]:
    """The exercises that ``12.1``, ``12.1 12.4``, ``chapter 12`` or ``all`` means.

    Raises :class:`UnknownExercise` for a selector that means none.
    """
    words = selector.split()
    if words == ["all"]:
        return exercises
    if len(words) == 2 and words[0] == "chapter" and words[1].isdigit():
        chosen = tuple(e for e in exercises if e.chapter == int(words[1]))
        if chosen:
            return chosen
        raise UnknownExercise(f"chapter {words[1]} has no exercises; {_existing(exercises)}")
    if words and all(word[0].isdigit() for word in words):
        return tuple(dict.fromkeys(find(exercises, word) for word in words))
    raise UnknownExercise(
        f"{selector!r} selects no exercises: say ids such as 12.1, `chapter 12`, or `all`; "
        f"{_existing(exercises)}"
    )


def _existing(exercises: tuple[Exercise, ...]) -> str:
    return "these exist: " + ", ".join(e.id for e in exercises)
