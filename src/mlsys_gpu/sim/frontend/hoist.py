"""Loop-invariant lines moved out of loops, on the emitted source.

A loop over K computes the same shared-memory addresses in every iteration, and NumPy pays for each.
A line ``name = expression`` moves in front of its ``for`` where the name is assigned nowhere else,
the expression is arithmetic without side effects, and all that it reads is set before the loop.
Such a line means the same wherever it stands; a loop that never runs computes it for nothing.
"""

from __future__ import annotations

import re

_LINE = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z_]\w*) = (?P<code>.+)")
_LOOP = re.compile(r"(?P<indent> *)for (?P<name>\w+) in range\(.*\):")
_NAMES = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"(?<![\w.=!<>\"'])([A-Za-z_]\w*)(?:\[[^\]]*\])? ?(?::=|[-+*/%&|^]?=(?!=))")

#: Functions without side effects whose results depend on their arguments alone.
_PURE = {"column", "held", "wrap", "np", "None", "True", "False"}
_PURE_NUMPY = re.compile(r"np\.(?!(?:arange|where|minimum|maximum|int64)\b)")


def hoist(lines: list[str]) -> list[str]:
    """The lines of a function's body, with what is the same in every iteration before its loop."""
    counts: dict[str, int] = {}
    for line in lines:
        loop = _LOOP.fullmatch(line)
        if loop:
            counts[loop["name"]] = counts.get(loop["name"], 0) + 1
            continue
        for name in _ASSIGNED.findall(line):
            counts[name] = counts.get(name, 0) + 1
    moved = True
    while moved:
        lines, moved = _pass(lines, counts)
    return lines


def _pass(lines: list[str], counts: dict[str, int]) -> tuple[list[str], bool]:
    """Move what can move out of each loop once."""
    for start, line in enumerate(lines):
        loop = _LOOP.fullmatch(line)
        if not loop:
            continue
        depth = len(loop["indent"])
        end = start + 1
        while end < len(lines) and _indent(lines[end]) > depth:
            end += 1
        known = _known(lines[:start], depth, counts)
        taken = []
        for i in range(start + 1, end):
            found = _LINE.fullmatch(lines[i])
            if not found or len(found["indent"]) != depth + 4 or counts[found["name"]] != 1:
                continue
            if _pure(found["code"]) and set(_NAMES.findall(found["code"])) <= known | _PURE:
                taken.append(i)
                known.add(found["name"])
        if taken:
            before = [lines[i][4:] for i in taken]
            rest = [lines[i] for i in range(start, end) if i not in taken]
            return lines[:start] + before + rest + lines[end:], True
    return lines, False


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _pure(code: str) -> bool:
    """Whether an expression is arithmetic: no subscripts but new axes, no attributes, no calls."""
    plain = code.replace("[None, :]", "").replace("[:, None]", "")
    if "[" in plain or _PURE_NUMPY.search(plain):
        return False
    calls = re.findall(r"(?<!np\.)\b([A-Za-z_]\w*)\(", plain)
    return set(calls) <= {"column", "held", "wrap"} and not re.search(r"(?<!np)\.[A-Za-z_]", plain)


def _known(before: list[str], depth: int, counts: dict[str, int]) -> set[str]:
    """Names that are set once, on a path to the end of ``before``, at most ``depth`` deep."""
    known: set[str] = set()
    limit = depth
    for line in reversed(before):
        indent = _indent(line)
        if indent > limit:
            continue  # inside a block that has ended
        loop = _LOOP.fullmatch(line)
        if loop:
            if indent < limit and counts[loop["name"]] == 1:
                known.add(loop["name"])
        else:
            found = _LINE.fullmatch(line)
            if found and counts[found["name"]] == 1:
                known.add(found["name"])
        if line.rstrip().endswith(":"):
            limit = min(limit, indent)
    return known
