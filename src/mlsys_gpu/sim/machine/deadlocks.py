"""What a deadlock is due to: the warp to name first, the cause in words, and what mends it.

In a circle of warps that wait for each other most barriers are innocent: they lack what somebody
would bring who waits himself. The cause is where the circle cannot be left: a barrier whose count
is never reached by those who arrive, bytes that nobody expects, or a barrier to which nobody comes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlsys_gpu.sim.machine import waitgraph
from mlsys_gpu.sim.machine.core import Warp
from mlsys_gpu.sim.report import Location

FIXES = {
    "barrier": "let every thread that the barrier counts reach it, on every path",
    "wgmma": "let all four warps of the warpgroup reach the same wgmma instructions",
    "tcgen05.alloc": "give back tensor memory (tcgen05.dealloc) before asking for more",
    "setmaxnreg": (
        "ask for no more than the CTA owns: lower the registers of the warpgroups that need few "
        "(setmaxnreg.dec) before, or ask for fewer"
    ),
}
_ARRIVE = (
    "let the one who should arrive do so (a tcgen05.commit, an arrive, the bytes of a copy), on "
    "every path and in every round"
)


@dataclass
class Cause:
    """Why a warp waits for ever; the lowest ``rank`` says it best."""

    rank: int
    message: str
    fix: str
    related: list[tuple[str, Location | None]] = field(default_factory=list)


def first(deadlock: dict[str, Any], warps: list[Warp]) -> tuple[Warp, Cause]:
    """The warp whose wait says best what a deadlock is due to, and the cause."""
    causes: dict[int, Cause] = {}
    found = []
    for warp in warps:
        target = warp.waiting.target if warp.waiting is not None else None
        key = id(target) if warp.waiting is not None and warp.waiting.kind == "mbarrier" else 0
        if not key:
            found.append((warp, _other(warp)))
            continue
        if key not in causes:
            causes[key] = _mbarrier(target, warp, deadlock)
        found.append((warp, causes[key]))
    return min(found, key=lambda one: (one[1].rank, one[0].id))


def _other(warp: Warp) -> Cause:
    """The cause as a wait for something else than an mbarrier tells it."""
    kind = warp.waiting.kind if warp.waiting else ""
    fix = FIXES.get(kind, "make sure that whoever should arrive does so on every path")
    return Cause(0 if kind == "setmaxnreg" else 6, "", fix)


def _mbarrier(barrier: Any, warp: Warp, deadlock: dict[str, Any]) -> Cause:
    """What an mbarrier that a warp waits for tells of the cause."""
    locate = barrier.cta.machine.program.location
    _, acts = waitgraph._mbarrier(barrier)
    live = [(who, text, site) for who, text, site in acts if not who.exited]
    arriving = [one for one in live if "copy" not in one[1] and "bytes" not in one[1]]
    name = barrier.name()
    if barrier.tx and not barrier.pending:
        wanted, brought = barrier.bytes_of_phase()
        hopeless = not live and not barrier.flying
        fix = f"expect the {brought} bytes that the copies of a phase bring (arrive.expect_tx)"
        if wanted > brought:
            fix += f", or issue the copies that bring all {wanted}, on this barrier"
        return Cause(1 if hopeless else 5, barrier.balance(), fix, barrier.where_expected())
    if barrier.tx < 0 and not arriving:
        copies = barrier.copies.get(barrier.phase + 1, {})
        places = [locate(site) for site in copies]
        where = f" before {places[0]}" if places else ""
        return Cause(
            1,
            f"{-barrier.tx} bytes have come to {name} that no arrive.expect_tx{where} has "
            f"expected, and its phase {barrier.phase} lacks the arrival that goes with it",
            f"execute mbarrier.arrive.expect_tx on {name} with the bytes of the copy, in the "
            "thread that issues it and before it",
            [("the copy that was not expected", place) for place in places],
        )
    # Who has arrived in this phase, and comes again only in the next one, brings no more.
    done = all(
        any(site == at and waitgraph._is(who, other) for who, at in barrier.parts)
        for other, _, site in arriving
    )
    come = barrier.count - barrier.pending
    if come and barrier.phase == 0 and done:
        who = ", ".join(f"{who} at {locate(site)}" for who, site in list(barrier.parts)[:4])
        plural = "s" * (barrier.count != 1)
        return Cause(
            2,
            f"{name} counts {barrier.count} arrival{plural} a phase, and those who arrive at it "
            f"bring {come} ({who})",
            f"initialise {name} with {come}, or let {barrier.pending} more arrive in each phase",
            [
                ("who arrives", place)
                for place in dict.fromkeys(locate(s) for _, s in barrier.parts)
            ],
        )
    if not live and not barrier.flying:
        if barrier.phase and warp.machine.found("barrier-lapped", "barrier-parity"):
            return Cause(
                4,
                f"{name} has gone through phases that {warp.name()} did not see or took for "
                "others, and nobody comes to arrive again",
                "mend the findings above first: this follows from them",
            )
        more = "more " if barrier.arrivals else ""
        return Cause(3, f"nobody who still runs comes to arrive {more}at {name}", _ARRIVE)
    untouched = not barrier.arrivals and not barrier.phase
    inside = any(waitgraph.warp_name(warp) in cycle for cycle in deadlock.get("cycles", []))
    if untouched and inside:
        return Cause(
            5,
            "",
            "break the circle: who fills a stage must not wait for it to be emptied the first "
            "time, so let its first wait ask for parity 1, which holds nothing back on a fresh "
            "barrier; else let the one who should arrive do so before it waits itself",
        )
    return Cause(
        5,
        "",
        f"{_ARRIVE}; and wait for the phase that comes next: for parity 0 first, flipped behind "
        "every wait",
    )


def code(warp: Warp) -> str:
    """The code of the finding that a warp waits for ever."""
    if warp.waiting is not None and warp.waiting.kind == "setmaxnreg":
        return "setmaxnreg-budget"
    # Behind another error the missing bytes are what follows from it, and no cause.
    errors = any(f.severity == "error" for f in warp.machine.findings.values())
    return "tx-count" if _short_of_bytes(warp) and not errors else "deadlock"


def _short_of_bytes(warp: Warp) -> bool:
    """Whether a warp waits for a barrier that lacks nothing but bytes, and no copy is under way."""
    if warp.waiting is None or warp.waiting.kind != "mbarrier":
        return False
    barrier = warp.waiting.target
    return barrier.pending == 0 and barrier.tx != 0


def initialised(warp: Warp) -> list[tuple[str, Location | None]]:
    """Where the mbarrier that a warp waits for was initialised."""
    if warp.waiting is None or warp.waiting.kind != "mbarrier":
        return []
    barrier = warp.waiting.target
    place = warp.machine.program.location(barrier.init_site)
    return [(f"initialised with {barrier.count}", place)]
