"""``setmaxnreg``: a CTA's pool of registers, which its warps give back to and take from.

A CTA owns at launch as many registers as its threads were compiled for. ``setmaxnreg.dec`` gives
some back to the CTA's pool; ``setmaxnreg.inc`` waits until the pool has what it asks for. Source:
PTX ISA, "Miscellaneous Instructions: setmaxnreg".

How many registers a thread has at launch, the compiler decides. ``__maxnreg__`` says it; behind
``__launch_bounds__(threads, ctas)`` it is the most that leaves room for so many CTAs on an SM of
65,536 registers, rounded down to a multiple of 8. Where the kernel has neither, ptxas drops its
``setmaxnreg`` (C7508); we take it as if one CTA an SM had been asked for, and messages say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlsys_gpu.sim.machine.clocks import CLOCK_MASK, CLOCK_SHIFT
from mlsys_gpu.sim.machine.core import END_HOOKS, Cta, Stop, Waiting, Warp, op, whole_warp

SM_REGISTERS = 65536


@dataclass
class Round:
    """One ``setmaxnreg`` of a warpgroup: each warp's action, count, site and moment."""

    of: dict[Warp, tuple[str, int, int, int]] = field(default_factory=dict)


class Registers:
    """The registers of a CTA: each warp's number a thread, and what the pool holds."""

    def __init__(self, cta: Cta, min_ctas: int | None, most: int | None):
        threads = 32 * len(cta.warps)
        self.cta = cta
        self.known = min_ctas is not None or most is not None
        self.launch = most or min(256, SM_REGISTERS // (threads * (min_ctas or 1)) // 8 * 8)
        self.owned = threads * self.launch
        self.free = 0
        self.held = dict.fromkeys(cta.warps, self.launch)
        self.executed = dict.fromkeys(cta.warps, 0)  # setmaxnregs, in number
        self.rounds: dict[int, list[Round]] = {}  # of each warpgroup
        self.waiting: list[tuple[Warp, int]] = []

    def serve(self) -> None:
        """Give waiting warps what they ask for, in turn, as far as the pool goes."""
        while self.waiting:
            warp, count = self.waiting[0]
            if not self.take(warp, count):
                return
            self.waiting.pop(0)
            warp.cluster.wake(warp)

    def take(self, w: Warp, count: int) -> bool:
        """Raise a warp's registers to ``count`` a thread, if the pool has as many."""
        more = 32 * (count - self.held[w])
        if more > self.free:
            return False
        self.free -= more
        self.held[w] = count
        return True

    def describe(self, w: Warp, count: int) -> str:
        """What a warp waits for, and the sum that does not fit."""
        asked = dict(self.waiting)
        terms: list[tuple[int, str]] = []  # registers a thread, and what has become of them
        totals: dict[tuple[int, str], int] = {}
        for warp, held in self.held.items():
            if warp in asked or held > self.launch:
                term = asked.get(warp, held), "asked for"
            else:
                term = held, "never lowered" if held == self.launch else "lowered"
            if term not in totals:
                terms.append(term)
            totals[term] = totals.get(term, 0) + 32
        total = sum(threads * term[0] for term, threads in totals.items())
        total_text = " + ".join(f"{totals[t]} * {t[0]} ({t[1]})" for t in terms)
        owned = f"{self.owned:,} registers that the CTA owned at launch ({self._launched()})"
        if total <= self.owned:
            return (
                f"waits for setmaxnreg.inc to {count} registers a thread: the pool holds "
                f"{self.free:,}; {total_text} = {total:,} is within the {owned}, but others hold "
                "more than that until they lower theirs"
            )
        return (
            f"waits for setmaxnreg.inc to {count} registers a thread: {total_text} = {total:,}, "
            f"more than the {owned}; it waits for registers that nobody gives back"
        )

    def _launched(self) -> str:
        text = f"{32 * len(self.cta.warps)} * {self.launch}"
        return text if self.known else text + ", assumed: its launch bounds name no CTAs per SM"


def _fault(w: Warp, message: str, fix: str, related=None, **more) -> None:
    w.machine.report(
        "setmaxnreg-budget", w, message, memory="registers", fix=fix, related=related, **more
    )


@op
def setmaxnreg(
    w: Warp,
    action: str,
    count: int,
    min_ctas: int | None = None,
    most: int | None = None,
    mask=None,
):
    """``setmaxnreg.inc`` or ``.dec``: the warp's registers a thread shall be ``count``.

    ``min_ctas``: CTAs per SM of ``__launch_bounds__``; ``most``: the number of ``__maxnreg__``;
    None where the kernel has none.
    """
    whole_warp(w, mask, f"setmaxnreg.{action}")
    if count % 8 or not 24 <= count <= 256:
        _fault(
            w,
            f"setmaxnreg.{action} to {count} registers a thread",
            "name a multiple of 8 between 24 and 256",
        )
        raise Stop
    registers = w.cta.state.get("registers")
    if registers is None:
        registers = w.cta.state["registers"] = Registers(w.cta, min_ctas, most)
    if w.checks:
        _together(w, registers, action, count)
    held = registers.held[w]
    if action == "dec":
        if count > held and registers.known:
            _fault(
                w,
                f"setmaxnreg.dec to {count} registers a thread, of which {w.name()} has {held}",
                "use setmaxnreg.inc to ask for more",
            )
        if count < held:
            registers.held[w] = count
            registers.free += 32 * (held - count)
            registers.serve()
        return None
    if count <= held or (not registers.waiting and registers.take(w, count)):
        return None
    registers.waiting.append((w, count))
    w.waiting = Waiting("setmaxnreg", registers, lambda: registers.describe(w, count))
    return w.waiting


def _together(w: Warp, registers: Registers, action: str, count: int) -> None:
    """Check that the warps of a warpgroup execute one ``setmaxnreg`` after the other, together."""
    rounds = registers.rounds.setdefault(w.id // 4, [])
    number = registers.executed[w]
    registers.executed[w] = number + 1
    if number == len(rounds):
        rounds.append(Round())
    group = [x for x in w.cta.warps if x.id // 4 == w.id // 4]
    if number and w.checks:
        _synchronised(w, rounds[number - 1], group)
    current = rounds[number]
    current.of[w] = action, count, w.s, w.now
    w.tick()
    if len(current.of) == len(group):
        _agree(current)


def _synchronised(w: Warp, before: Round, group: list[Warp]) -> None:
    """A warpgroup's next ``setmaxnreg`` needs a barrier behind the one before."""
    for other in group:
        if other in before.of:
            _, _, _, stamp = before.of[other]
            if (stamp >> CLOCK_SHIFT) & CLOCK_MASK <= int(w.clock[0, other.agent]):
                continue
        _fault(
            w,
            f"{w.name()} executes setmaxnreg again, and nothing orders that behind "
            f"{other.name()}'s setmaxnreg before it",
            "put a barrier of the warpgroup between one setmaxnreg and the next",
            [("the one before", w.machine.program.location(before.of[w][2]))],
            key=w.id // 4,
        )
        return


def _agree(current: Round) -> None:
    """Check that the warps of a warpgroup have asked for the same."""
    warps = sorted(current.of, key=lambda x: x.id)
    first, (action, count, site, _) = warps[0], current.of[warps[0]]
    for w in warps[1:]:
        other_action, other, here, _ = current.of[w]
        if (action, count) != (other_action, other):
            _fault(
                w,
                f"the warps of warpgroup {w.id // 4} disagree: {first.name()} sets its registers "
                f"to {count}, {w.name()} to {other}",
                "let all four warps of a warpgroup execute the same setmaxnreg",
                [(f"{first.name()}'s", w.machine.program.location(site))],
                site=here,
            )
            return


def _missed(cta: Cta) -> None:
    """All warps of a warpgroup must have executed each ``setmaxnreg``."""
    registers = cta.state.get("registers")
    if registers is None:
        return
    for number, rounds in registers.rounds.items():
        for current in rounds:
            group = [x for x in cta.warps if x.id // 4 == number]
            missing = [x.name() for x in group if x not in current.of]
            if not missing:
                continue
            first = min(current.of, key=lambda x: x.id)
            action, _, site, _ = current.of[first]
            _fault(
                first,
                f"{', '.join(missing)} of warpgroup {number} never execute"
                f"{'s' * (len(missing) == 1)} the setmaxnreg.{action} that {first.name()} executes",
                "let all four warps of a warpgroup execute the same setmaxnreg",
                site=site,
            )
            break


END_HOOKS.append(_missed)
