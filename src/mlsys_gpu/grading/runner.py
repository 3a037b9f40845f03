"""The grader's side of a submission: start it, limit it, and judge what it hands back.

:class:`Grader` owns up to two server processes (one with TVM in memory, one without), sends them
jobs, and turns replies into a :class:`~mlsys_gpu.grading.verdict.Verdict`. It never imports,
unpickles or evaluates anything that comes from a submission: answers are JSON, kernels are data
that another limited process rebuilds and simulates.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import io
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlsys_gpu.grading import paths, server
from mlsys_gpu.grading.manifest import Exercise
from mlsys_gpu.grading.sandbox import Policy
from mlsys_gpu.grading.verdict import Status, Verdict

if TYPE_CHECKING:
    from mlsys_gpu.grading.checks import Check, Kernel, Outcome

_MAX_SOURCE = 256 * 1024
_ANSWER_MB = {"values": 4, "kernels": 64}


class GraderError(RuntimeError):
    """The grader itself could not do its work (a server did not start, or died)."""


@dataclass
class Submission:
    """What is graded: Python source, and the name under which messages speak of it."""

    source: str
    display: str
    filename: str = "answer.py"


class _Server:
    """One server process and the pipe to it."""

    def __init__(self, with_tvm: bool, home: str) -> None:
        kept = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {
            "HOME": home,
            "TMPDIR": home,
            # The simulator's cache holds Python source: the judge must not share one with anybody.
            "MLSYS_GPU_CACHE": os.path.join(home, "cache"),
            "XDG_CACHE_HOME": os.path.join(home, "cache"),
            "PYTHONPATH": str(paths.PACKAGE.parent),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONIOENCODING": "utf-8",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "VECLIB_MAXIMUM_THREADS": "1",
            "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
        }
        command = [sys.executable, "-P", "-m", "mlsys_gpu.grading.server"]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        self.process = subprocess.Popen(
            [*command, "--tvm"] if with_tvm else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            cwd=home,
            start_new_session=True,
        )
        ready = self._read()
        self.landlock = bool(ready["landlock"])

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(self.process.stdin, io.BufferedWriter)
        try:
            server.send(self.process.stdin, job)
        except OSError as error:
            raise GraderError(f"the grader's server has ended: {self._last_words()}") from error
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert isinstance(self.process.stdout, io.BufferedReader)
        reply = server.receive(self.process.stdout)
        if reply is None:
            raise GraderError(f"the grader's server has ended: {self._last_words()}")
        return reply

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self.log.seek(0)
        return self.log.read()[-2000:].decode(errors="replace").strip() or "no message"

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


class Grader:
    """Grades submissions; use it as a context manager, or call :meth:`close`.

    ``root`` is the course's directory. ``seed`` fixes what is drawn (for reproducing a failure);
    the default draws afresh.
    """

    def __init__(self, root: Path, seed: int | None = None) -> None:
        self.root = root
        self.seed = seed
        self.home = tempfile.mkdtemp(prefix="mlsys-gpu-grader-")
        self._servers: dict[bool, _Server] = {}
        atexit.register(self.close)

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the servers and removes the grader's scratch directory."""
        for running in self._servers.values():
            running.close()
        self._servers.clear()
        shutil.rmtree(self.home, ignore_errors=True)
        atexit.unregister(self.close)

    def _server(self, with_tvm: bool) -> _Server:
        if not hasattr(os, "fork"):
            raise GraderError(
                "exercises are graded in a forked process, which this system does not have: "
                "use Linux, macOS or WSL"
            )
        if not with_tvm and True in self._servers:
            with_tvm = True  # it is running: no need for another
        running = self._servers.get(with_tvm)
        if running is None or running.process.poll() is not None:
            os.makedirs(self.home, exist_ok=True)
            running = self._servers[with_tvm] = _Server(with_tvm, self.home)
        return running

    # --- grading ---------------------------------------------------------------------------

    def grade(self, exercise: Exercise, submission: Submission) -> Verdict:
        """Runs and judges a submission. Never raises on account of what the submission does.

        Raises
        ------
        GraderError
            The grader itself failed.
        """
        from mlsys_gpu.grading import checks

        started = time.monotonic()
        seed = secrets.randbits(32) if self.seed is None else self.seed
        check = checks.load(exercise.check)
        verdict = Verdict.of(exercise, submission.display)
        scratch = tempfile.mkdtemp(prefix="mlsys-gpu-")
        try:
            self._grade(check, exercise, submission, seed, scratch, verdict)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        verdict.seed = seed
        verdict.seconds = time.monotonic() - started
        return verdict

    def _grade(
        self,
        check: Check,
        exercise: Exercise,
        submission: Submission,
        seed: int,
        scratch: str,
        verdict: Verdict,
    ) -> None:
        import numpy as np

        from mlsys_gpu.grading.checks import Kernel

        rng = np.random.default_rng(seed)
        path = os.path.join(scratch, submission.filename)
        cases: list[dict[str, Any]] = []
        if isinstance(check, Kernel):
            cases = list(check.draw(rng))
            calls = [{"function": check.builder, "args": [], "kwargs": case} for case in cases]
        else:
            drawn = list(check.draw(rng))
            calls = [call.to_dict() for call in drawn]

        refused = scan(submission.source, submission.display)
        if refused is not None:
            verdict.status, verdict.message = refused
            return
        with open(path, "w", encoding="utf-8") as file:
            file.write(submission.source)
        job = {"path": path, "calls": calls, "collect": check.collect}
        reply = self._run("submission", job, exercise, scratch, check.collect)
        verdict.output = _relabel(reply["output"], path, submission.display)
        verdict.guards = self._guards()
        answers = _answers(reply, calls, exercise, path, submission, verdict)
        if answers is None:
            return

        if isinstance(check, Kernel):
            self._judge_kernels(check, exercise, answers, cases, seed, path, submission, verdict)
        else:
            _conclude(verdict, check.check_all(drawn, answers))

    def _judge_kernels(
        self,
        check: Kernel,
        exercise: Exercise,
        kernels: Sequence[Any],
        cases: Sequence[dict[str, Any]],
        seed: int,
        path: str,
        submission: Submission,
        verdict: Verdict,
    ) -> None:
        if not all(isinstance(kernel, str) for kernel in kernels):
            verdict.status, verdict.message = "failed", "the program handed back no kernel."
            return
        from mlsys_gpu.grading.checks import Outcome

        job = {
            "check": exercise.check,
            "kernels": list(kernels),
            "cases": list(cases),
            "seed": seed,
            "path": path,
            "display": submission.display,
        }
        # The judge's own scratch: nothing of the submission's process can wait for it there.
        scratch = tempfile.mkdtemp(prefix="mlsys-gpu-judge-")
        try:
            reply = self._run("judge", job, exercise, scratch, "kernels")
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        result = reply["result"]
        if reply["end"] == "result" and isinstance(result, dict) and "ok" in result:
            _conclude(verdict, Outcome(bool(result["ok"]), result["message"], result["hint"]))
            return
        verdict.status = "failed"
        if reply["end"] == "timeout":
            verdict.message = (
                f"the kernel did not end within {exercise.judge_seconds} s in the simulator. Look "
                "for a loop whose condition never changes, or a shape far larger than asked for."
            )
        elif reply["end"] == "memory":
            verdict.message = (
                "the kernel needs more memory in the simulator than grading allows "
                f"({exercise.memory_mb} MB)."
            )
        else:
            verdict.status = "error"
            verdict.message = f"the judge ended without a verdict. {reply['output'][-600:]}"

    def _run(
        self, kind: str, job: dict[str, Any], exercise: Exercise, scratch: str, collect: str
    ) -> dict[str, Any]:
        seconds = exercise.seconds if kind == "submission" else exercise.judge_seconds
        memory = exercise.memory_mb if kind == "submission" else max(2048, exercise.memory_mb)
        policy = Policy(scratch=scratch, memory_mb=memory, cpu_seconds=int(seconds) + 2)
        policy.read, policy.listed = paths.readable_paths()
        policy.protected = paths.protected_paths(self.root)
        if kind == "judge":  # our own code: it reads the checks, and writes nothing but its scratch
            policy.read = [*policy.read, str(paths.PACKAGE), job["path"]]
            policy.protected = []
        limits = {
            "seconds": seconds,
            "memory_mb": memory,
            "answer_mb": _ANSWER_MB[collect],
        }
        with_tvm = collect == "kernels"
        message = {**job, "kind": kind, "limits": limits, "policy": policy.to_dict()}
        try:
            return self._server(with_tvm).ask(message)
        except GraderError:
            for running in self._servers.values():
                running.close()
            self._servers.clear()
            raise

    def _guards(self) -> dict[str, bool]:
        return {"landlock": any(running.landlock for running in self._servers.values())}


def _conclude(verdict: Verdict, outcome: Outcome) -> None:
    verdict.status = "passed" if outcome.ok else "failed"
    verdict.message = outcome.message
    verdict.hint_step = outcome.hint


# --- what came back --------------------------------------------------------------------------


def _answers(
    reply: dict[str, Any],
    calls: Sequence[dict[str, Any]],
    exercise: Exercise,
    path: str,
    submission: Submission,
    verdict: Verdict,
) -> list[Any] | None:
    """The submission's answers, or ``None`` with the verdict filled in."""
    display = submission.display
    end, result = reply["end"], reply["result"]
    if end == "result":
        answers = result.get("answers")
        if isinstance(answers, list) and len(answers) == len(calls):
            return answers
        if isinstance(result.get("error"), dict):
            _describe_error(result["error"], calls, path, submission, verdict)
            return None
        end = "exit"
    verdict.status = "failed"
    if end == "timeout":
        verdict.message = (
            f"{display} did not finish within {exercise.seconds} s and was stopped. Look for a "
            "loop whose condition never changes."
        )
    elif end == "memory":
        verdict.message = _too_much_memory(exercise, display)
    elif end == "too-much":
        verdict.message = f"{display} handed back more data than any answer needs, and was stopped."
    elif end == "signal":
        name = signal.Signals(reply["code"]).name if reply["code"] else "a signal"
        verdict.message = (
            f"{display} was ended by {name} before it handed back an answer; too much memory or a "
            "crash in native code does that."
        )
    else:
        verdict.message = (
            f"{display} ended (exit code {reply['code']}) before it handed back an answer. "
            "Answers are what the functions return: the program must not end itself, and what it "
            "prints does not count."
        )
    return None


def _describe_error(
    error: dict[str, Any],
    calls: Sequence[dict[str, Any]],
    path: str,
    submission: Submission,
    verdict: Verdict,
) -> None:
    display = submission.display
    # The submission's process wrote this: take every part of it for what it may be, not as claimed.
    kind = error.get("kind")
    message = _relabel(str(error.get("message", ""))[:2000], path, display)
    line = error.get("line")
    place = f"{display}:{line}" if isinstance(line, int) else display
    verdict.status = "failed"
    if kind == "unsolved":
        verdict.status = "unsolved"
        verdict.message = f"{place}: not solved yet: {_sentence(message)}"
        return
    if kind == "missing":
        listed = error.get("defined")
        defined = ", ".join(map(str, listed)) if isinstance(listed, list) else ""
        defined = defined[:500] or "no function at all"
        name = str(error.get("name"))[:100]
        verdict.message = (
            f"{display} has no function `{name}`, which is what is graded; it defines {defined}."
        )
        return
    if kind == "memory":
        verdict.message = (
            f"{place}: the program asked for more memory than grading allows and was stopped."
        )
        return
    if kind == "exit":
        verdict.message = (
            f"{place}: the program ended itself (SystemExit: {message or 'no code'}) before it "
            "handed back an answer. What counts is what the functions return."
        )
        return
    call = error.get("call")
    during = ""
    if isinstance(call, int) and 0 <= call < len(calls):
        during = f" while computing {_spell(calls[call])}"
    text = f" (`{str(error['text']).strip()[:200]}`)" if error.get("text") else ""
    name = str(error.get("type", "an error"))[:100]
    if not message.strip() and str(error.get("text") or "").strip().startswith("return"):
        message = (
            "a kernel has no `return`: every thread runs to its end, and threads with nothing left "
            "to do stay out of a body guarded by `if`"
        )
    verdict.message = f"{place}{text}: {name}{during}: {_sentence(message)}"


def _spell(call: dict[str, Any]) -> str:
    from mlsys_gpu.grading.checks.base import Call

    return str(Call(call["function"], call["args"], call["kwargs"]))


def _too_much_memory(exercise: Exercise, display: str) -> str:
    return (
        f"{display} asked for more memory than grading allows ({exercise.memory_mb} MB) and was "
        "stopped."
    )


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?" else text + "."


def _relabel(text: str, path: str, display: str) -> str:
    return text.replace(path, display)


# --- before it runs --------------------------------------------------------------------------

_SOLUTION_PATH = re.compile(r"(^|[\\/.\s])solutions?([\\/.]|$)")


def scan(source: str, display: str) -> tuple[Status, str] | None:
    """Looks at a submission before it runs: ``(status, message)`` where it is refused.

    Refused are files that are too long or no Python, imports of ``solutions`` or of the grader, and
    paths into ``solutions/``. This catches what is plain to see, early and with a clear sentence;
    what is hidden better meets the sandbox.
    """
    if len(source.encode("utf-8", errors="replace")) > _MAX_SOURCE:
        return (
            "refused",
            f"{display} is longer than {_MAX_SOURCE // 1024} KB; an answer is shorter.",
        )
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        place = f"{display}:{error.lineno}" if error.lineno else display
        text = f" (`{error.text.strip()}`)" if error.text else ""
        return "failed", f"{place}{text}: this is not valid Python: {error.msg}."
    except (ValueError, RecursionError, MemoryError) as error:
        return "failed", f"{display} cannot be read as Python: {error}."

    def refuse(node: ast.AST, what: str) -> tuple[Status, str]:
        line = getattr(node, "lineno", "?")
        return "refused", f"{display}:{line}: {what}; an answer has to stand on its own."

    guarded = _main_guards(tree)
    for node in ast.walk(tree):
        if node in guarded:
            continue
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            modules = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in modules:
            if name.split(".")[0] == "solutions":
                return refuse(node, f"this imports `{name}`, a worked answer")
            if name.startswith("mlsys_gpu.grading"):
                return refuse(node, f"this imports `{name}`, a part of the grader")
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and len(node.value) < 200
            and _SOLUTION_PATH.search(node.value)
        ):
            return refuse(node, f"this names {node.value!r}, a place of worked answers")
    return None


def _main_guards(tree: ast.Module) -> set[ast.AST]:
    """Nodes under ``if __name__ == "__main__":``, which do not run when a file is graded, and
    docstrings, which do nothing."""
    found: set[ast.AST] = set()
    for node in tree.body:
        if isinstance(node, ast.If) and "__name__" in {
            n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)
        }:
            found.update(ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(first.value)
    return found
