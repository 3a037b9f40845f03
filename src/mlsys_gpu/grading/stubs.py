"""Stubs, generated from the worked solutions.

A solution marks what the student is to write, and what stands there instead::

    # [solution]
    warp = linear // 32
    # [stub]
    # raise NotImplementedError("compute the warp from the linear index")
    # [end]

The stub is the same file with the lines between ``[solution]`` and ``[stub]`` left out and those
between ``[stub]`` and ``[end]`` uncommented. ``# [solution only]`` … ``# [end]`` is left out
altogether. A stub's first line carries a digest of the rest, so that a file which nobody touched is
recognised as such, whichever version of the stub it is, and **only such a file is ever replaced**.

``python -m mlsys_gpu.grading.stubs`` writes all stubs; ``--check`` only says what would change.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

from mlsys_gpu.grading import manifest, paths

_MARK = re.compile(r"\s*# \[(solution|solution only|stub|end)\]\s*")
_HEAD = re.compile(r"# Exercise (\S+)\. Stub ([0-9a-f]{12}): .*")


class StubError(ValueError):
    """A solution whose markers are not in order; the message names file and line."""


def make_stub(solution: str, exercise_id: str, name: str = "solution") -> str:
    """The stub of a solution's text, its first line included.

    Raises
    ------
    StubError
        Markers are missing, nested or out of order, or a stub's line is no comment.
    """
    kept, answers = _parts(solution, name)
    if not answers:
        raise StubError(f"{name}: no [solution] marker, so that the stub would be the answer")
    body = kept.rstrip() + "\n"
    return f"{_head(exercise_id, body)}\n{body}"


def worked(solution: str, name: str = "solution") -> str:
    """A worked answer as a reader sees it: without the markers and the stub's lines."""
    return _parts(solution, name, keep="solution")[0].rstrip() + "\n"


def _parts(solution: str, name: str, keep: str = "stub") -> tuple[str, int]:
    """The text with one side of every marked place, and how many places there are."""
    lines, state = [], "text"
    seen = 0
    for number, line in enumerate(solution.splitlines(), 1):
        mark = _MARK.fullmatch(line)
        word = mark[1] if mark else None
        if word is None:
            stub_line = _uncomment(line, f"{name}:{number}") if state == "stub" else ""
            if state == "text" or (keep == "solution" and state.startswith("solution")):
                lines.append(line)
            elif keep == "stub" and state == "stub":
                lines.append(stub_line)
            continue
        expected = {
            "text": ("solution", "solution only"),
            "solution": ("stub",),
            "solution only": ("end",),
            "stub": ("end",),
        }[state]
        if word not in expected:
            raise StubError(f"{name}:{number}: found [{word}] where {expected} may stand")
        seen += word == "solution"
        state = "text" if word == "end" else word
    if state != "text":
        raise StubError(f"{name}: [{state}] has no end")
    return "\n".join(lines), seen


def _uncomment(line: str, where: str) -> str:
    if not line.strip():
        return ""
    found = re.fullmatch(r"(\s*)#(?: (.*))?", line)
    if not found:
        raise StubError(f"{where}: a line of a stub has to be a comment: {line.strip()!r}")
    return f"{found[1]}{found[2]}" if found[2] else f"{found[1]}".rstrip()


def _head(exercise_id: str, body: str) -> str:
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    return (
        f"# Exercise {exercise_id}. Stub {digest}: yours to edit; "
        f"`mlsys-gpu reset {exercise_id}` brings it back."
    )


def is_untouched(text: str) -> bool:
    """Whether a file is a stub as generated, of this or an earlier version."""
    head, _, body = text.partition("\n")
    found = _HEAD.fullmatch(head)
    return bool(found) and hashlib.sha256(body.encode()).hexdigest()[:12] == found[2]


def stub_of(exercise: manifest.Exercise, root: Path) -> str:
    """The stub of an exercise, made from ``solutions/``."""
    path = root / "solutions" / exercise.file
    return make_stub(path.read_text(encoding="utf-8"), exercise.id, str(path))


def write_stubs(root: Path, *, dry: bool = False) -> dict[str, str]:
    """Writes the stub of every exercise; a file that somebody edited is left as it is.

    Returns what happened to each file, by exercise id: ``written``, ``unchanged``, ``kept`` (it
    holds a student's work). ``dry`` writes nothing.
    """
    done = {}
    for exercise in manifest.load(root):
        target = root / "exercises" / exercise.file
        stub = stub_of(exercise, root)
        if target.exists():
            present = target.read_text(encoding="utf-8")
            if present == stub:
                done[exercise.id] = "unchanged"
                continue
            if not is_untouched(present):
                done[exercise.id] = "kept"
                continue
        done[exercise.id] = "written"
        if not dry:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(stub, encoding="utf-8")
    return done


def reset(exercise: manifest.Exercise, root: Path) -> Path | None:
    """Puts the stub back. Returns where the student's file was kept, ``None`` if there was none.

    The student's file is renamed to ``NAME.py.bak1``, ``.bak2``, …: the first number that is free.
    """
    target = root / "exercises" / exercise.file
    stub = stub_of(exercise, root)
    kept = None
    if target.exists() and not is_untouched(target.read_text(encoding="utf-8", errors="replace")):
        number = 1
        while (kept := target.with_name(f"{target.name}.bak{number}")).exists():
            number += 1
        target.rename(kept)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(stub, encoding="utf-8")
    return kept


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit code 1 with ``--check`` where a stub is out of date."""
    parser = argparse.ArgumentParser(
        prog="python -m mlsys_gpu.grading.stubs", description="write the stubs of all exercises"
    )
    parser.add_argument("--check", action="store_true", help="write nothing, say what would change")
    parser.add_argument("--root", type=Path, help="the course's directory")
    options = parser.parse_args(arguments)
    root = paths.find_root(options.root)
    done = write_stubs(root, dry=options.check)
    for exercise_id, what in done.items():
        if what != "unchanged":
            shown = "out of date" if options.check and what == "written" else what
            print(f"{exercise_id}: {shown}")
    print(f"{len(done)} stubs, {sum(w == 'unchanged' for w in done.values())} as they should be")
    return 1 if options.check and any(w != "unchanged" for w in done.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
