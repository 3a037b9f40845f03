"""Source that Python would refuse for its depth, split into functions.

CPython compiles at most 20 loops inside each other in one function, and 100 levels of indentation.
A kernel may nest deeper: its lanes' branches and loops become blocks of ours, several for one of
the author's. A block that lies too deep becomes a generator of its own inside the kernel's, which
shares its variables and is run by ``yield from``; what it returns says whether the block was left
by ``break``, ``continue`` or ``return``.
"""

from __future__ import annotations

import re

#: Levels of indentation, and loops inside each other, that one function may have.
LEVELS, LOOPS = 90, 18
#: Where a block is taken out, counted from the start of its function.
AT_LEVEL, AT_LOOP = 45, 12

_LEAVE = re.compile(r"(?P<start> *(?:.*: )?)(?P<how>break|continue|return)")
_LOOP = re.compile(r" *(?:for|while) .*:")
_TARGETS = re.compile(r"\s*(?P<names>[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*) (?:[-+*/%&|^]|//|>>|<<)?= ")
_COUNTER = re.compile(r"\s*for (?P<names>\w+) in ")
_WALRUS = re.compile(r"\b([A-Za-z_]\w*) := ")
_CODES = {"break": 1, "continue": 2, "return": 3}


def split(lines: list[str]) -> list[str]:
    """The lines of a function's body (indented by four), split where they nest too deep."""
    if not _too_deep(lines, 0):
        return lines
    parts: list[list[str]] = []
    body = _outline(lines, parts)
    shared = sorted({name for part in parts for name in _assigned(part)})
    made = [f"    {name} = None" for name in shared]
    for i, part in enumerate(parts):
        made.append(f"    def part_{i}():")
        own = _assigned(part)
        if own:
            made.append(f"        nonlocal {', '.join(sorted(own))}")
        made.append("        if False: yield")
        made += ["    " + line for line in part]
    return made + body


def _outline(lines: list[str], parts: list[list[str]]) -> list[str]:
    """The lines of one function; blocks taken out of it are appended to ``parts``."""
    if not _too_deep(lines, 0):
        return lines
    kept: list[str] = []
    loops: list[int] = []  # levels of the loops around the current line
    i = 0
    while i < len(lines):
        line = lines[i]
        level = _level(line)
        while loops and loops[-1] >= level:
            loops.pop()
        kept.append(line)
        i += 1
        if not line.endswith(":"):
            continue
        if _LOOP.fullmatch(line):
            loops.append(level)
        end = i
        while end < len(lines) and _level(lines[end]) > level:
            end += 1
        block = lines[i:end]
        deep = level + 1 >= AT_LEVEL or len(loops) >= AT_LOOP
        if deep and _too_deep(block, len(loops)):
            kept += _call(block, level + 1, parts)
            i = end
    return kept


def _call(block: list[str], level: int, parts: list[list[str]]) -> list[str]:
    """What runs a block that becomes a function of its own."""
    number = len(parts)
    parts.append([])
    left: set[str] = set()
    own: list[str] = []
    loops: list[int] = []
    for line in block:
        while loops and loops[-1] >= _level(line):
            loops.pop()
        found = _LEAVE.fullmatch(line)
        if found and (found["how"] == "return" or not loops):
            left.add(found["how"])
            line = f"{found['start']}return {_CODES[found['how']]}"
        if _LOOP.fullmatch(line):
            loops.append(_level(line))
        own.append(line[4 * (level - 1) :])
    parts[number] = _outline(own, parts)
    indent = "    " * level
    made = [f"{indent}left_part = yield from part_{number}()"]
    made += [f"{indent}if left_part == {_CODES[how]}: {how}" for how in sorted(left)]
    return made


def _level(line: str) -> int:
    return (len(line) - len(line.lstrip())) // 4


def _too_deep(lines: list[str], loops: int) -> bool:
    """Whether a block lies too deep for one function; ``loops``: how many there are around it."""
    around: list[int] = []
    for line in lines:
        level = _level(line)
        while around and around[-1] >= level:
            around.pop()
        if _LOOP.fullmatch(line):
            around.append(level)
        if level > LEVELS or loops + len(around) > LOOPS:
            return True
    return False


def _assigned(lines: list[str]) -> set[str]:
    """Names that lines assign."""
    names: set[str] = set()
    for line in lines:
        found = _TARGETS.match(line) or _COUNTER.match(line)
        if found:
            names.update(found["names"].split(", "))
        names.update(_WALRUS.findall(line))
    return names
