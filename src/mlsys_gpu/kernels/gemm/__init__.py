"""The GEMM ladder, ``D = A @ B.T``: which steps exist for which architecture.

``step(3, arch="hopper").build(256, 256, 128)`` is a TIRx ``PrimFunc``. Importing this module is
quick; TVM loads when a kernel is built.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

ARCHS = ("blackwell", "hopper")
DTYPES = ("float16", "bfloat16")

# Number -> title, and a shape that shows the idea (more than one tile each way where it can).
_STEPS = {
    1: ("Sequential Single-Tile GEMM", (128, 128, 64)),
    2: ("K-Loop Accumulation", (128, 128, 448)),
    3: ("Spatial Tiling (Multi-CTA)", (256, 384, 192)),
    4: ("TMA Async Load", (328, 264, 456)),
    5: ("Software Pipeline with PIPE_DEPTH=2", (328, 264, 456)),
    6: ("Persistent Kernel + Tile Scheduler", (2168, 2056, 136)),
    7: ("Warp Specialization + Pipeline", (2168, 2056, 136)),
    8: ("2-CTA Cluster", (2168, 2056, 136)),
    9: ("Multi-Consumer Warp Specialization", (4616, 2056, 200)),
}

# Variants of a step: what else it can be built with, and as what. "tuned" has a file of its own
# name, for it is not one idea but all that production kernels add to the last step.
_LAST = max(_STEPS)
_VARIANTS = {
    "blackwell": {
        (9, "clc"): "Step 9 with Cluster Launch Control",
        (_LAST, "tuned"): "Step 9, tuned",
    },
    "hopper": {
        (9, "dynamic"): "Step 9 with a dynamic scheduler",
        (_LAST, "tuned"): "Step 9, tuned",
    },
}

# What each group of threads does: (who, what), in the order in which data flows; from which step
# on, up to the next one that is named. A barrier of stage s is full[s] or empty[s], one of
# accumulator b is tmem_full[b] or tmem_empty[b].
_ROLES = {
    "blackwell": {
        1: (
            ("all 128 threads", "copy A and B to shared memory"),
            ("one thread of warp 0", "issue tcgen05.mma and commit to mma_bar"),
            ("all 128 threads", "read the accumulator from TMEM, convert, store D"),
            ("warp 0", "allocate and free TMEM"),
        ),
        4: (
            ("one thread of warp 0", "issue TMA loads of A and B that complete on full"),
            ("one thread of warp 0", "wait for full, issue tcgen05.mma, commit to empty, mma_bar"),
            ("all 128 threads", "read the accumulator from TMEM, write D's tile to shared memory"),
            ("one thread of warp 0", "issue the TMA store of D"),
            ("warp 0", "allocate and free TMEM"),
        ),
        5: (
            ("one thread of warp 0", "issue TMA loads, one K tile ahead, that complete on full[s]"),
            ("one thread of warp 0", "wait for full[s], issue tcgen05.mma, commit to empty[s]"),
            ("one thread of warp 0", "commit to mma_bar behind the last K tile"),
            ("all 128 threads", "read the accumulator from TMEM, write D's tile to shared memory"),
            ("one thread of warp 0", "issue the TMA store of D"),
            ("warp 0", "allocate and free TMEM"),
        ),
        7: (
            ("one thread of warp 4", "wait for empty[s], issue TMA loads that complete on full[s]"),
            ("one thread of warp 5", "wait for full[s], issue tcgen05.mma, commit to empty[s]"),
            ("one thread of warp 5", "wait for tmem_empty[b] first, commit to tmem_full[b] last"),
            ("warps 0-3", "wait for tmem_full[b], read an accumulator, arrive at tmem_empty[b]"),
            ("warps 0-3", "write D's tile to shared memory"),
            ("thread 0", "issue the TMA store of D"),
            ("warp 0", "allocate and free TMEM"),
        ),
        8: (
            ("one thread of warp 4", "wait for empty[s], load half of the rows of A and B"),
            ("one thread of warp 4", "arrive and complete on CTA 0's full[s]"),
            ("one thread of CTA 0's warp 5", "wait for full[s], issue tcgen05.mma for both CTAs"),
            ("one thread of CTA 0's warp 5", "commit to empty[s] and tmem_full[b] of both CTAs"),
            ("warps 0-3", "wait for tmem_full[b], read all of an accumulator"),
            ("warps 0-3", "arrive at CTA 0's tmem_empty[b], write D's columns to shared memory"),
            ("thread 0", "issue the TMA stores of D"),
            ("warp 0", "allocate and free TMEM, both CTAs together"),
        ),
        9: (
            ("warps 8-11", "give registers to the others"),
            ("one thread of warp 10", "wait for empty[s], load half of the rows of A and B"),
            ("one thread of warp 10", "arrive and complete on CTA 0's full[s]"),
            (
                "one thread each of CTA 0's warps 8 and 9",
                "wait for full[s], issue tcgen05.mma for its rows of A in both CTAs",
            ),
            (
                "one thread each of CTA 0's warps 8 and 9",
                "commit to empty[s] and to its tmem_full in both CTAs",
            ),
            ("warps 0-3 and 4-7", "wait for their tmem_full, read all of their accumulator"),
            ("warps 0-3 and 4-7", "arrive at CTA 0's tmem_empty, write D to shared memory"),
            ("threads 0 and 128", "issue the TMA stores of D"),
            ("warp 0", "allocate and free TMEM, both CTAs together"),
        ),
    },
    "hopper": {
        1: (
            ("all 128 threads", "copy A and B to shared memory"),
            ("all four warps together", "issue wgmma and wait for its group"),
            ("all 128 threads", "convert the accumulators, store D"),
        ),
        4: (
            ("one thread of warp 0", "issue TMA loads of A and B that complete on full"),
            ("all four warps together", "wait for full, issue wgmma and wait for its group"),
            ("all 128 threads", "convert the accumulators, write D's tile to shared memory"),
            ("one thread of warp 0", "issue the TMA store of D"),
        ),
        5: (
            ("one thread of warp 0", "issue TMA loads, one K tile ahead, that complete on full[s]"),
            ("all four warps together", "wait for full[s], issue wgmma and wait for its group"),
            ("all 128 threads", "convert the accumulators, write D's tile to shared memory"),
            ("one thread of warp 0", "issue the TMA store of D"),
        ),
        7: (
            ("one thread of warpgroup 0", "wait for empty[s], issue TMA loads"),
            ("warpgroup 1", "wait for full[s], issue wgmma, arrive at empty[s] once it is read"),
            ("warpgroup 1", "convert the accumulators, write D's tile to shared memory"),
            ("one thread of warpgroup 1", "issue the TMA store of D"),
        ),
        8: (
            ("one thread of warpgroup 0", "wait for empty[s], issue TMA loads, B's for both CTAs"),
            ("warpgroup 1", "wait for full[s], issue wgmma, arrive at empty[s] of both CTAs"),
            ("warpgroup 1", "convert the accumulators, write D's tile to shared memory"),
            ("one thread of warpgroup 1", "issue the TMA store of D"),
        ),
        9: (
            ("warpgroup 0", "give registers to the others"),
            ("one thread of warpgroup 0", "wait for empty[s], issue TMA loads, B's for both CTAs"),
            (
                "warpgroups 1 and 2",
                "wait for full[s], issue wgmma, arrive at empty[s] of both CTAs",
            ),
            ("warpgroups 1 and 2", "convert the accumulators, write D's columns to shared memory"),
            ("one thread of each", "issue the TMA stores of D"),
        ),
    },
}


# What a variant has besides the roles of its step, in front of them.
_MORE_ROLES = {
    ("blackwell", "clc"): (
        ("one thread of warp 11", "expect the response on clc_full; CTA 0's asks, after clc_empty"),
        ("all warps", "wait for clc_full, read the response, arrive at CTA 0's clc_empty"),
    ),
    ("hopper", "dynamic"): (
        ("one thread of CTA 0's warpgroup 0", "draw the next tile, send its number to both CTAs"),
    ),
}

# What a variant has instead of them: which warps they are is decided by its shape.
_OWN_ROLES = {
    ("blackwell", "tuned"): (
        ("one thread of the last warpgroup's third warp", "wait for empty, issue TMA loads"),
        ("one thread of the last warpgroup's third warp", "arrive and complete on CTA 0's full"),
        (
            "one thread of that group's first warp in CTA 0, or each of two for two consumers",
            "wait for full, issue tcgen05.mma for its rows of A in both CTAs",
        ),
        (
            "the same threads",
            "wait for tmem_empty first; commit to empty, at last to tmem_full, of both CTAs",
        ),
        ("the other warpgroups", "wait for tmem_full, read columns of an accumulator"),
        ("the other warpgroups", "arrive at CTA 0's tmem_empty behind the last of them"),
        ("the other warpgroups", "write D's columns to shared memory, two pieces in turn"),
        ("one thread of each", "issue the TMA stores of D"),
        ("warp 0", "allocate and free TMEM, both CTAs together"),
    ),
}


@dataclass(frozen=True)
class Step:
    """One step of the ladder, or a variant of it, for one architecture."""

    number: int
    arch: str
    title: str
    default_shape: tuple[int, int, int]
    variant: str | None = None

    @property
    def name(self) -> str:
        """How results call this kernel: ``gemm/hopper/step3``, ``…/step9-dynamic``, ``…/tuned``."""
        return f"gemm/{self.arch}/{self._stem.replace('_', '-')}"

    @property
    def symbol(self) -> str:
        """The name of the function in CUDA: ``gemm_hopper_step3``."""
        return f"gemm_{self.arch}_{self._stem}"

    @property
    def _stem(self) -> str:
        """The name of the module, and of its file."""
        if self.variant == "tuned":
            return "tuned"
        return f"step{self.number}" + (f"_{self.variant}" if self.variant else "")

    @property
    def source_path(self) -> Path:
        """The file that holds the kernel."""
        return Path(__file__).parent / self.arch / f"{self._stem}.py"

    @property
    def roles(self) -> tuple[tuple[str, str], ...]:
        """(who, what) for each role, in the order in which data flows."""
        if own := _OWN_ROLES.get((self.arch, self.variant or "")):
            return own
        found = _ROLES[self.arch]
        more = _MORE_ROLES.get((self.arch, self.variant or ""), ())
        return more + found[max(n for n in found if n <= self.number)]

    @property
    def module(self) -> ModuleType:
        """The step's module. Loads TVM."""
        return importlib.import_module(f"{__name__}.{self.arch}.{self._stem}")

    def check_shape(self, M: int, N: int, K: int, dtype: str = "float16") -> None:
        """Raise ``ValueError`` naming the rule if this step cannot take the shape or the dtype."""
        self.module.check(M, N, K, dtype)
        _check_size(M, N, K)

    def build(self, M: int, N: int, K: int, dtype: str = "float16", **options: Any) -> PrimFunc:
        """The kernel for ``A [M, K]``, ``B [N, K]``, ``D [M, N]``, all of ``dtype``.

        ``options`` are those of the step's module: ``ctas``, from Step 6 on, is how many CTAs share
        the tiles of D; ``without``, of ``tuned``, are names of additions to leave out (an option
        that the step has not: ``TypeError``). A shape, dtype, number or name that it cannot take:
        ``ValueError`` naming the rule and the value.
        """
        self.check_shape(M, N, K, dtype)
        for name, value in options.items():
            if name == "without":  # names, which the module knows
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
                raise ValueError(f"{name} must be a positive number, got {value!r}")
        return self.module.build(M, N, K, dtype, **options)


def _check_size(M: int, N: int, K: int) -> None:
    """Raise ``ValueError`` for a matrix that is too large for the kernels' 32-bit indices."""
    for name, rows, columns in (("A", M, K), ("B", N, K), ("D", M, N)):
        if rows * columns >= 1 << 31:
            raise ValueError(
                f"{name} may have at most 2**31 - 1 elements, which 32-bit indices can name, got "
                f"{rows} x {columns} = {rows * columns:,}"
            )


def steps(arch: str = "blackwell") -> tuple[Step, ...]:
    """All steps that exist for ``arch`` (``blackwell`` or ``hopper``), in order."""
    if arch not in ARCHS:
        raise ValueError(f"arch must be one of {', '.join(ARCHS)}, got {arch!r}")
    named = (Step(n, arch, title, shape) for n, (title, shape) in _STEPS.items())
    return tuple(s for s in named if s.source_path.is_file())


def variants(arch: str = "blackwell") -> tuple[Step, ...]:
    """The variants of steps that exist for ``arch``, ``tuned`` last.

    They are ``clc`` of Step 9 (Blackwell), ``dynamic`` of Step 9 (Hopper), and ``tuned``, which is
    Step 9 with what production kernels add.
    """
    if arch not in ARCHS:
        raise ValueError(f"arch must be one of {', '.join(ARCHS)}, got {arch!r}")
    named = (
        Step(n, arch, title, _STEPS[n][1], variant)
        for (n, variant), title in _VARIANTS[arch].items()
    )
    return tuple(s for s in named if s.source_path.is_file())


def everything(arch: str = "blackwell") -> tuple[Step, ...]:
    """The steps of the ladder for ``arch``, then the variants: all kernels that there are."""
    return steps(arch) + variants(arch)


def step(n: int, arch: str = "blackwell", variant: str | None = None) -> Step:
    """Step ``n`` of the ladder for ``arch``, or a variant of it.

    An unknown step, architecture or variant: ``ValueError`` naming those that exist.
    """
    found = {s.number: s for s in steps(arch)}
    if n not in found:
        raise ValueError(f"step must be one of {', '.join(map(str, found))}, got {n!r}")
    if variant is None:
        return found[n]
    others = {s.variant: s for s in variants(arch) if s.number == n}
    if variant not in others:
        known = f"the variants {', '.join(map(str, others))}" if others else "no variants"
        raise ValueError(
            f"Step {n} has {known} on {arch}, got variant={variant!r}{_elsewhere(variant, arch)}"
        )
    return others[variant]


def _elsewhere(variant: str, arch: str) -> str:
    """What to add for a variant that ``arch`` has not, if another architecture has it."""
    homes = [(a, s.number) for a in ARCHS if a != arch for s in variants(a) if s.variant == variant]
    return "".join(f", which Step {number} has on {home}" for home, number in homes)


def tuned(arch: str = "blackwell") -> Step:
    """Step 9 with what production kernels add: ``step(9, arch, "tuned")``."""
    return step(_LAST, arch, "tuned")


def selected(words: str | None, arch: str = "blackwell") -> tuple[Step, ...]:
    """The kernels that ``3-9,dynamic,tuned`` names; all of ``arch`` where it is None.

    Numbers, ranges (of which those that exist are taken) and names of variants, separated by
    commas. A part that is none of these, or names no kernel: ``ValueError``.
    """
    named = {str(s.variant): s for s in variants(arch)}
    numbers = [s.number for s in steps(arch)]
    if words is None:
        return everything(arch)
    found: list[Step] = []
    for part in (part.strip() for part in words.split(",")):
        match = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part)
        if part in named:
            found.append(named[part])
            continue
        if match is None:
            known = f"; the variants on {arch} are {', '.join(named)}" if named else ""
            raise ValueError(
                "steps are numbers and ranges such as 1-3 or 1,3, "
                f"got {part!r}{_elsewhere(part, arch)}{known}"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"steps are given as ranges that go up, got {part!r}")
        inside = [n for n in numbers if first <= n <= last]
        found += [step(n, arch) for n in inside or [first]]
    return tuple(dict.fromkeys(found))
