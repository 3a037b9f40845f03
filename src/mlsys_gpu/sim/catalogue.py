"""The catalogue of faults: classes from public reports, and how the simulator reports each.

:data:`CLASSES` says under which codes a fault of a class may be found. ``catalogue.json`` beside
this module lists the faults that the tests plant, class by class; the tests write it and hold it
to what the simulator finds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True)
class FaultClass:
    """A class of faults: what it is, and the codes (of :data:`~.report.CODES`) that report it."""

    text: str
    codes: tuple[str, ...]


#: By the names of the catalogue.
CLASSES: dict[str, FaultClass] = {
    "mbarrier-phase-parity": FaultClass(
        "a wait names another phase than the one that comes next",
        (
            "barrier-parity", "barrier-lapped", "barrier-overarrival", "tx-count", "deadlock",
            "missing-commit", "race-smem", "race-tmem",
        ),
    ),
    "stage-reuse-before-consumed": FaultClass(
        "a buffer is filled again while it is still being read",
        ("race-smem", "race-tmem", "barrier-overarrival", "barrier-lapped", "missing-proxy-fence"),
    ),
    "mbarrier-arrival-count": FaultClass(
        "an mbarrier counts other arrivals than come",
        (
            "deadlock", "barrier-overarrival", "barrier-lapped", "barrier-parity", "race-smem",
            "tx-count",
        ),
    ),
    "mbarrier-expect-tx": FaultClass(
        "an mbarrier expects other bytes than its copies bring",
        ("tx-count", "deadlock", "race-smem", "barrier-overarrival"),
    ),
    "missing-fence-proxy-async": FaultClass(
        "threads and an engine share memory, and no fence lies between the proxies",
        ("missing-proxy-fence",),
    ),
    "missing-tcgen05-fence": FaultClass(
        "tcgen05 operations of two threads without the fences around their synchronisation",
        ("missing-tcgen05-fence",),
    ),
    "missing-async-completion-commit": FaultClass(
        "a result is used, and nothing has shown that it is complete",
        ("missing-commit", "race-smem", "race-tmem", "wgmma-in-flight"),
    ),
    "missing-tcgen05-wait": FaultClass(
        "tensor memory or registers go on before tcgen05.wait::ld or ::st",
        ("missing-tcgen05-wait", "tcgen05-in-flight", "in-flight-at-exit", "race-tmem"),
    ),
    "negative-control": FaultClass("no fault: nothing may be found", ()),
    "wgmma-fence-wait": FaultClass(
        "registers or stages of a wgmma are touched while it may still use them",
        ("wgmma-in-flight", "wgmma-fence", "race-smem", "in-flight-at-exit", "deadlock"),
    ),
    "bulk-async-wait": FaultClass(
        "a bulk store still reads shared memory that is written again, or given back",
        ("race-smem", "in-flight-at-exit", "missing-proxy-fence", "race-global"),
    ),
    "tmem-lifecycle": FaultClass(
        "tensor memory is used outside its allocation, or never given back",
        (
            "tmem-lifetime", "race-tmem", "missing-commit", "race-smem", "uninitialised-read",
            "missing-tcgen05-wait", "missing-tcgen05-fence",
        ),
    ),
    "cta-group-2-protocol": FaultClass(
        "the two CTAs of a pair disagree about what they do together",
        ("cta-group", "race-tmem", "tmem-lifetime", "missing-commit", "deadlock"),
    ),
    "tmem-lane-quarter": FaultClass(
        "a warp addresses lanes of tensor memory that another warp reaches", ("tmem-lane-quarter",)
    ),
    "elect-and-divergence": FaultClass(
        "an operation of the whole warp, or of one thread, is reached by others",
        ("divergent-collective", "race-smem", "barrier-overarrival", "deadlock"),
    ),
    "named-barrier": FaultClass(
        "a named barrier is shared by groups of threads, or counts others than come",
        ("barrier-mixed", "barrier-init", "deadlock", "race-smem", "divergent-collective"),
    ),
    "cluster-peer-exit": FaultClass(
        "a CTA may end, or not have started, while another uses its shared memory",
        ("cluster-exit", "cluster-start", "cta-group"),
    ),
    "cluster-scope-and-multicast": FaultClass(
        "what one CTA does for others of its cluster does not reach them, or comes too early",
        (
            "tx-count", "deadlock", "race-smem", "race-tmem", "barrier-overarrival",
            "barrier-lapped", "barrier-parity", "missing-commit",
        ),
    ),
    "tensormap-or-smem-alignment": FaultClass(
        "a tile, its rows or its tensor map are not aligned as the engine needs", ("misaligned",)
    ),
    "swizzle-mismatch": FaultClass(
        "a tile is read with another swizzle than it was written", ("wrong-operand",)
    ),
    "k-advance-in-swizzle-atom": FaultClass(
        "the K steps of a product do not follow the tile's layout",
        ("wrong-operand", "out-of-bounds", "uninitialised-read", "race-smem"),
    ),
    "descriptor-lbo-sbo-idesc": FaultClass(
        "a matrix or instruction descriptor does not describe what is there",
        ("wrong-operand", "descriptor", "uninitialised-read", "out-of-bounds", "tmem-lifetime"),
    ),
    "scheduler-tail": FaultClass(
        "a tile is computed by nobody or twice, or the roles do not agree on the tiles",
        (
            "unwritten-output", "race-global", "deadlock", "missing-commit", "discarded-product",
            "in-flight-at-exit",
        ),
    ),
    "clc-protocol": FaultClass(
        "cluster launch control is used against its protocol",
        (
            "clc-protocol", "deadlock", "race-smem", "missing-proxy-fence", "uninitialised-read",
            "tx-count", "barrier-overarrival", "barrier-lapped",
        ),
    ),
    "setmaxnreg-budget": FaultClass(
        "warpgroups ask for more registers than the CTA has", ("setmaxnreg-budget",)
    ),
    "barrier-init-visibility": FaultClass(
        "a barrier is used before its initialisation is seen, or initialised twice",
        ("barrier-init",),
    ),
    "integer-overflow": FaultClass(
        "a 32-bit product overflows on the way to an address", ("integer-overflow",)
    ),
    "partial-tile-oob": FaultClass(
        "the part of a tile past an edge is stored, or taken for data",
        ("out-of-bounds", "race-global", "uninitialised-read", "unwritten-output"),
    ),
    "accumulate-init": FaultClass(
        "the first product of a tile adds to something else, or a later one starts anew",
        ("uninitialised-read", "discarded-product", "wrong-operand"),
    ),
}  # fmt: skip


def planted() -> list[dict[str, Any]]:
    """The planted faults, as the tests have recorded them.

    Each has ``class``, ``kernel``, ``fault``, ``shape``, ``code`` and ``line`` (number and text, in
    the changed source; both null for a negative control), and ``shown_by``: for ``eager``, ``lazy``
    and ``seeded`` how a run *without* checks ends (``right``, ``wrong``, ``hangs``, ``stops``; for
    ``seeded`` in how many of the seeds), and under ``happens-before`` in how many of the schedules
    the checks find it.
    """
    return json.loads(FILE.read_text())["faults"]
