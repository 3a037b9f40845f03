"""Commands for a debug session in a terminal, or from a pipe."""

from __future__ import annotations

import cmd
import re
import sys
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from mlsys_gpu.sim import inspect_state
from mlsys_gpu.sim.debugger import DebugError, Listing, Session, Stop

_HELP = """\
Going on
  step [N]               the next line of the selected warp (N times)
  into                   the next line, also inside a helper that the line calls
  next                   the warp's next line that waits at a barrier or arrives at one
  continue               to the next breakpoint or finding, or to the end
  until WHERE            to a line, a barrier's phase or a finding, once
  finish                 to the end, past breakpoints and findings
  restart                from the start again: same inputs, same schedule, same seed
Stopping
  break WHERE            WHERE is one of
      93                     a line of the kernel's own file
      helpers.py:12          a line of another file
      Tx.gemm_async          every line that contains this text
      barrier full[1] 3      phase 3 of a barrier is complete (any phase if left out)
      finding [CODE]         a finding
                         then, if wanted: warp N   cta X,Y   if k == 3
                         (if lane == 4: where it is so for any lane)
  breaks                 the breakpoints
  clear [N]              remove breakpoint N, or all
Looking
  where                  the selected warp, and the source around it
  warp N [cta X,Y]       select another warp
  warps                  where all warps of the cluster stand
  list [LINE]            source around the warp's line, or around LINE
  vars                   the warp's variables
  print EXPR             a variable or an element, or an expression: print As[0, 3] * 2
  smem NAME [STAGE]      a buffer in shared memory, as its logical matrix
  tmem COL|NAME [N]      N columns of tensor memory from COL on, or a named buffer
  tile NAME              a view of registers that several warps share
  tensor NAME            a tensor in global memory
  barriers               phases, pending arrivals and bytes, who waits
  waits                  who waits for what, and who would have to act
  findings               what has been found so far
  report                 the report, at the end
  help, quit
Commands may be shortened: s, n, c, u, b, p, l, w."""

_SHORT = {
    "s": "step", "n": "next", "c": "continue", "cont": "continue", "u": "until", "b": "break",
    "p": "print", "l": "list", "w": "where", "q": "quit", "exit": "quit", "variables": "vars",
    "run": "continue", "positions": "warps", "h": "help", "tb": "until", "r": "restart",
}  # fmt: skip


class Shell(cmd.Cmd):
    """Reads commands and prints what a :class:`~mlsys_gpu.sim.debugger.Session` answers.

    Where the input is no terminal, each command is printed behind its prompt, so that a transcript
    reads as in a terminal.
    """

    def __init__(
        self, session: Session, stdin: IO[str] | None = None, stdout: IO[str] | None = None
    ):
        super().__init__(stdin=stdin, stdout=stdout)
        self.session = session
        self.failed = False  # whether a command could not be done
        self.interactive = stdin is None and sys.stdin.isatty()
        self.use_rawinput = self.interactive

    @property
    def prompt(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        session = self.session
        if session.finished:
            return "(end) "
        x, y, z = session.cta
        cta = f"{x},{y}" if z == 0 else f"{x},{y},{z}"
        return f"(warp {session.warp}, CTA {cta}) "

    def say(self, text: Any) -> None:
        print(text, file=self.stdout)

    def preloop(self) -> None:
        self.say(self.session)
        self.say("Type help for the commands.")

    def precmd(self, line: str) -> str:
        if not self.interactive and line != "EOF":
            self.say(line.rstrip("\n"))
        if line.strip().startswith("#"):
            return ""
        return line

    def onecmd(self, line: str) -> bool:
        word, _, rest = line.strip().partition(" ")
        word = _SHORT.get(word, word)
        if not word:
            return False
        if word in ("EOF", "quit"):
            if word == "EOF" and self.interactive:
                self.say("")
            self.session.close()
            return True
        command: Callable[[str], None] | None = getattr(self, f"do_{word}", None)
        if command is None:
            self.failed = True
            self.say(f"no command {word!r}: help lists them")
            return False
        try:
            command(rest.strip())
        except (DebugError, ArithmeticError) as error:  # the latter is the kernel's own
            self.failed = True
            self.say(f"error: {_as_typed(str(error))}")
        return False

    def emptyline(self) -> bool:
        return False

    # ------------------------------------------------------------------------------- going on

    def cmdloop(self, intro: Any = None) -> None:
        """Read commands until ``quit``; Ctrl-C at the prompt gives a new one."""
        while True:
            try:
                return super().cmdloop(intro)
            except KeyboardInterrupt:
                self.say("")

    def _stopped(self, stop: Stop) -> None:
        if stop.reason == "end":
            self.say(f"{stop.text}\n{self.session.report}")
        elif stop.finding is not None:
            self.say(f"{stop.finding}\n{self.session.where}")
        elif stop.reason == "step":
            self.say(self.session.where)
        else:
            self.say(f"{stop.text}\n{self.session.where}")

    def do_step(self, text: str) -> None:
        self._stopped(self.session.step(_count(text)))

    def do_into(self, text: str) -> None:
        self._stopped(self.session.step(_count(text), into=True))

    def do_next(self, text: str) -> None:
        self._stopped(self.session.next_barrier())

    def do_continue(self, text: str) -> None:
        self._stopped(self.session.cont())

    def do_until(self, text: str) -> None:
        self._stopped(self.session.run_until(**place(text)))

    def do_finish(self, text: str) -> None:
        self.say(self.session.finish())

    def do_restart(self, text: str) -> None:
        self._stopped(self.session.restart())

    # ------------------------------------------------------------------------------- stopping

    def do_break(self, text: str) -> None:
        if not text:
            self.do_breaks("")
            return
        self.say(self.session.break_at(**place(text)))

    def do_breaks(self, text: str) -> None:
        self.say("\n".join(str(b) for b in self.session.breakpoints) or "no breakpoints")

    def do_clear(self, text: str) -> None:
        self.session.clear(_number(text, "a breakpoint's number") if text else None)
        self.do_breaks("")

    # -------------------------------------------------------------------------------- looking

    def do_where(self, text: str) -> None:
        self.say(self.session.where)

    def do_warp(self, text: str) -> None:
        match = re.fullmatch(r"(\d+)(?:\s+cta\s+([\d,\s]+))?", text)
        if match is None:
            raise DebugError(
                f"warp takes an index, and if wanted a CTA: warp 1 cta 0,1; got {text!r}"
            )
        self.say(self.session.select(int(match.group(1)), _cta(match.group(2))))

    def do_warps(self, text: str) -> None:
        self.say(self.session.positions)

    def do_list(self, text: str) -> None:
        self.say(self.session.source(5, _number(text, "a line") if text else None))

    def do_vars(self, text: str) -> None:
        self.say(self.session.variables)

    def do_print(self, text: str) -> None:
        if not text:
            raise DebugError("print takes a variable or an expression")
        variables = self.session.variables
        if text in variables:
            self.say(variables.details[text])
            return
        value = self.session.print(text)
        self.say(inspect_state.shown(value) if isinstance(value, np.ndarray) else value)

    def do_smem(self, text: str) -> None:
        name, stage = _name_and_number(text, "smem takes a name and if wanted a stage: smem As 1")
        self.say(self.session.smem(name, stage))

    def do_tmem(self, text: str) -> None:
        if not text:
            self.say(self.session.tmem_allocations)
            names = inspect_state.tensor_memory_names(self.session.program)
            self.say("named buffers: " + (", ".join(names) or "none"))
            return
        name, count = _name_and_number(text, "tmem takes a column or a name, and a count: tmem 0 8")
        self.say(self.session.tmem(int(name) if name.isdigit() else name, count))

    def do_tile(self, text: str) -> None:
        self.say(self.session.tile(text))

    def do_tensor(self, text: str) -> None:
        self.say(self.session.tensor(text))

    def do_barriers(self, text: str) -> None:
        rows = self.session.barriers
        if text:
            name = self.session.barrier_name(text)
            kept = [r for r in rows if name in (r["barrier"], r["barrier"].partition("[")[0])]
            if not kept:
                reached = name.startswith(("the ", "named "))
                self.say(f"{text}: not {'reached' if reached else 'initialised'} yet")
                return
            rows = Listing(rows.title, kept)
        self.say(rows)

    def do_waits(self, text: str) -> None:
        self.say(self.session.waits)

    def do_findings(self, text: str) -> None:
        self.say("\n".join(str(f) for f in self.session.findings) or "no findings so far")

    def do_report(self, text: str) -> None:
        self.say(self.session.report)

    def do_help(self, arg: str) -> None:
        self.say(_HELP)


#: What texts of a session call methods, as it is typed here.
_TYPED = {"cont()": "continue", "source()": "list"}


def _as_typed(text: str) -> str:
    """A session's text with this shell's commands in place of its methods."""
    return re.sub(
        r"\b(?:cont|source|finish|restart)\(\)", lambda m: _TYPED.get(m[0], m[0][:-2]), text
    )


def place(text: str) -> dict[str, Any]:
    """``WHERE [warp N] [cta X,Y] [if EXPR]`` as the arguments of :meth:`Session.break_at`."""
    found: dict[str, Any] = {}
    match = re.fullmatch(r"(.*?)\s+if\s+(.+)", text)
    if match:
        text, found["when"] = match.group(1), match.group(2)
    while True:
        match = re.fullmatch(r"(.*?)\s*\b(warp|cta)\s+([\d,\s-]+?)\s*", text)
        if match is None:
            break
        text, what, value = match.groups()
        if what == "warp":
            found["warp"] = [int(n) for n in re.findall(r"\d+", value)]
        else:
            found["cta"] = _cta(value)
    text = text.strip()
    if not text:
        raise DebugError("say where: a line, a part of its text, barrier NAME [PHASE], or finding")
    word, _, rest = text.partition(" ")
    if word == "barrier":
        match = re.fullmatch(r"(.+?)(?:\s+(?:phase\s+)?(\d+))?", rest.strip())
        if match is None:
            raise DebugError("say which barrier: barrier full[1] 3")
        name, phase = match.groups()
        if name in ("named barrier", "bar", "named") and phase is not None:
            name, phase = f"named barrier {phase}", None
        found["barrier"] = name
        found["phase"] = None if phase is None else int(phase)
    elif word == "finding":
        found["finding"] = rest.strip() or True
    else:
        found["where"] = text.strip("\"'")
    return found


def _cta(text: str | None) -> Any:
    """``3`` as a linear index, ``1,0`` as a block index."""
    if text is None:
        return None
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _count(text: str) -> int:
    return _number(text, "a number of lines") if text else 1


def _number(text: str, what: str) -> int:
    if not re.fullmatch(r"\d+", text):
        raise DebugError(f"expected {what}, got {text!r}")
    return int(text)


def _name_and_number(text: str, usage: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\w+)(?:\s+|\[)?(\d+)?\]?", text) if " " in text or "[" in text else None
    if match is None:
        match = re.fullmatch(r"(\w+)()", text)
    if match is None:
        raise DebugError(f"{usage}; got {text!r}")
    return match.group(1), int(match.group(2)) if match.group(2) else None


__all__ = ["Shell", "place"]
