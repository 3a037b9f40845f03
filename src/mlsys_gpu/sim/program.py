"""A translated kernel: one serialisable value, cached on disk by content."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from mlsys_gpu import cache
from mlsys_gpu.sim.report import Location


class Unsupported(NotImplementedError):
    """The kernel uses something that the simulator does not model; the message names it."""


@dataclass
class Program:
    """Python source of a kernel's warp, with all that the machine needs to run it.

    ``source`` defines ``kernel(w)``, a generator function that a warp runs. ``params`` are
    ``(name, shape, dtype)`` as :class:`mlsys_gpu.parameters.Param` has them; ``arguments`` are, in
    the device function's order, ``["tensor", i, offset]`` for the i-th of them and a byte offset,
    ``["map", i]`` for the i-th of ``maps``, the tensor maps, or ``["scalar", value, dtype]``.
    Numbers that a call decides are expressions until :func:`mlsys_gpu.sim.arguments.bind`.
    ``sites`` maps the site numbers in the source to lines of the kernel's author, outermost caller
    first. ``regions`` are the named buffers in shared memory (name, offset, bytes, shape, dtype);
    ``layouts`` are theirs, in the same order (:func:`mlsys_gpu.lowering.layout_facts`).

    A Program for debugging (``debug``) runs the same operations, the iterations of the author's
    loops one by one, with a call ``at(w, n)`` before every statement: ``stops[n]`` is ``[site,
    scope, mask, lane]``, the last two the source of the lanes that are active there. ``scopes`` are
    the variables, each ``[next, name, code, dtype, kind, size]`` with the scope that it extends:
    those at a stop are found by following ``next`` from its scope until -1. ``views`` are named
    buffers in tensor memory and views of registers (name, scope, source, shape, dtype, layout).
    """

    name: str
    arch: str
    source: str
    launch: dict[str, Any]
    params: list[list[Any]]
    arguments: list[list[Any]]
    sites: list[list[list[Any]]]
    regions: list[list[Any]]
    static_shared: int = 0
    #: Bytes of the narrowest access: what the shadow of memory tells apart (1, 2 or 4).
    grain: int = 4
    maps: list[dict[str, Any]] = field(default_factory=list)
    #: Indices of the params that the kernel may write; None where that is not known.
    written: list[int] | None = None
    #: Indices of the params that are the kernel's workspace.
    workspaces: list[int] = field(default_factory=list)
    key: str = ""
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    layouts: list[dict[str, Any] | None] = field(default_factory=list)
    views: list[list[Any]] = field(default_factory=list)
    debug: bool = False
    stops: list[list[Any]] = field(default_factory=list)
    scopes: list[list[Any]] = field(default_factory=list)
    #: Instructions by pipe (:mod:`mlsys_gpu.sim.frontend.work`) that lines ``#work N`` stand for.
    work: list[dict[str, int]] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Program:
        return cls(**json.loads(text))

    def locations(self, site: int) -> list[Location]:
        """Source lines of a site, the kernel author's line first."""
        places = []
        for file, line in self.sites[site]:
            text = self.texts.get(file, {}).get(str(line), "")
            places.append(Location(file, int(line), text))
        return places

    def location(self, site: int) -> Location | None:
        places = self.locations(site)
        return places[0] if places else None


@lru_cache(maxsize=1)
def simulator_key() -> str:
    """SHA-256 over the simulator's own front half and the lowering: a change invalidates caches."""
    digest = hashlib.sha256()
    here = Path(__file__).resolve().parent
    files = [here / "program.py", here.parent / "lowering.py", here.parent / "parameters.py"]
    files += sorted(here.glob("frontend/*.py"))
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


#: Programs of this process, by key; the values are small (source text and tables).
_MEMORY: dict[str, Program] = {}


def cached_program(func: Any, arch: str | None = None, debug: bool = False) -> Program:
    """The Program of a PrimFunc: from this process, from the cache on disk, or translated now.

    ``debug``: the variant that a debugger can stop at every statement.
    """
    from mlsys_gpu import lowering

    arch = lowering.arch_of(func, arch)
    parts = [simulator_key(), lowering.content_key(func, arch), _line_key(func)]
    key = cache.key(*parts, *(["debug"] if debug else []))
    program = _MEMORY.get(key) or _stored(key)
    if program is None:
        from mlsys_gpu.sim.frontend.translate import translate

        lowered = lowering.lower(func, arch, keep_lines=True)
        program = translate(lowered, debug=True) if debug else translate(lowered)
        program.key = key
        cache.write("programs", key, program.to_json().encode())
    _MEMORY[key] = program
    return program


def _stored(key: str) -> Program | None:
    data = cache.read("programs", key)
    return None if data is None else Program.from_json(data.decode())


def _line_key(func: Any) -> str:
    """Where the function's statements stand: the printed function leaves lines out."""
    from mlsys_gpu.lowering import span_lines

    places: list[str] = []
    stack = [func.body]
    while stack:
        stmt = stack.pop()
        places.append(";".join(f"{f}:{n}" for f, n in span_lines(getattr(stmt, "span", None))))
        for name in ("body", "then_case", "else_case"):
            child = getattr(stmt, name, None)
            if child is not None:
                stack.append(child)
        if type(stmt).__name__ == "SeqStmt":
            stack.extend(stmt.seq)
    return "\n".join(places)
