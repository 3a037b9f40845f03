"""What a Triton kernel is compiled with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Config:
    """A configuration of a Triton GEMM.

    Attributes:
        BM, BN, BK: the tile of D, and how much of K is loaded at a time.
        warps, stages: Triton's ``num_warps`` and ``num_stages``.
        group: rows of tiles that are walked down before moving one tile to the right.
        halves: whether D's tile is stored in two halves.
        specialize: whether Triton is to give loads a warp of their own.
    """

    BM: int
    BN: int
    BK: int
    warps: int
    stages: int
    group: int = 8
    halves: bool = False
    specialize: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As result files hold it."""
        return asdict(self)

    def grouped(self) -> list[Config]:
        """The same with other sizes of group."""
        return [replace(self, group=group) for group in (4, 16) if group != self.group]
