"""The process that runs submissions, each in a child of its own.

``python -P -m mlsys_gpu.grading.server [--tvm]`` reads jobs from its standard input and answers on
its standard output. It imports what is slow to import once and then forks for every job, so that a
submission starts in milliseconds and yet has a process to itself. The server never executes
student code and keeps no expected values in memory for a child to find.

A job is ``{"kind": "submission" | "judge", "limits": {…}, "policy": {…}, …}``; a reply is::

    {"end": "result" | "timeout" | "memory" | "exit" | "signal" | "too-much",
     "code": exit code or signal, "result": what the child wrote, "output": its last prints,
     "seconds": wall clock}

Messages in both directions are JSON behind an eight byte length.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from mlsys_gpu.grading import sandbox, submission

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LINUX = sys.platform.startswith("linux")
_TAIL = 4000  # bytes of a submission's prints that are shown
_HEADER = struct.Struct(">Q")


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Writes one message."""
    data = json.dumps(message).encode()
    stream.write(_HEADER.pack(len(data)) + data)
    stream.flush()


def receive(stream: BinaryIO) -> dict[str, Any] | None:
    """Reads one message, ``None`` at the end of the stream."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    (size,) = _HEADER.unpack(header)
    data = stream.read(size)
    return json.loads(data) if len(data) == size else None


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _handler(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    if kind == "submission":
        return submission.answer
    if kind == "judge":
        # Imported in the child that needs it: no submission's process ever holds the checks.
        from mlsys_gpu.grading import judge

        return judge.judge
    raise ValueError(f"a job is a submission or a judge, not {kind!r}")


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Forks, lets the child do the job under its limits, and cleans up after it."""
    limits = job["limits"]
    scratch = job["policy"]["scratch"]
    read_end, write_end = os.pipe()
    output = os.open(
        os.path.join(scratch, ".output"), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
    )
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(job, read_end, write_end, output)  # does not return
    os.close(write_end)
    try:
        reply = _watch(pid, read_end, started, limits)
    finally:
        os.close(read_end)
        _end_descendants(pid)
    size = os.fstat(output).st_size
    os.lseek(output, max(0, size - _TAIL), os.SEEK_SET)
    reply["output"] = os.read(output, _TAIL).decode(errors="replace")
    os.close(output)
    reply["seconds"] = time.monotonic() - started
    return reply


def _child(job: dict[str, Any], read_end: int, write_end: int, output: int) -> None:
    """The forked process: drops what it does not need, does the job, writes the result, ends."""
    code = 70
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(read_end)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.set_inheritable(write_end, False)
        # The server's own pipes must not stay open here.
        _close_all_but({0, 1, 2, write_end})
        _settle(job["policy"]["scratch"])
        handler = _handler(job["kind"])
        if job["policy"].get("sandboxed", True):
            policy = {key: job["policy"][key] for key in job["policy"] if key != "sandboxed"}
            sandbox.enter(sandbox.Policy(**policy))
        result = handler(job)
        data = json.dumps(result).encode()
        view = memoryview(data)
        while view:
            view = view[os.write(write_end, view) :]
        code = 0
    except MemoryError:
        code = 71
    except BaseException as error:  # whatever it was, this process ends here
        with contextlib.suppress(BaseException):
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
    finally:
        # No atexit handlers, no destructors: nothing of the submission runs after its answer.
        os._exit(code)


def _settle(scratch: str) -> None:
    """Makes the scratch directory home, and points Python's streams at the new descriptors."""
    os.chdir(scratch)
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        os.environ[name] = scratch
    tempfile.tempdir = None
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = open(number, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def _close_all_but(kept: set[int]) -> None:
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        names = [str(n) for n in range(3, 256)]
    for name in names:
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _watch(pid: int, read_end: int, started: float, limits: dict[str, Any]) -> dict[str, Any]:
    """Reads the child's result until it ends or passes a limit."""
    deadline = started + limits["seconds"]
    chunks: list[bytes] = []
    total, next_look = 0, started + 0.5
    open_pipe = True
    while True:
        now = time.monotonic()
        if now >= deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"end": "timeout", "code": None, "result": None}
        wait = min(0.02, deadline - now)
        if open_pipe:
            if select.select([read_end], [], [], wait)[0]:
                chunk = os.read(read_end, 1 << 20)
                total += len(chunk)
                if chunk:
                    chunks.append(chunk)
                else:
                    open_pipe = False
        else:
            time.sleep(min(wait, 0.002))
        if total > limits["answer_mb"] * 2**20:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"end": "too-much", "code": None, "result": None}
        if not _LINUX and now > next_look:  # no enforced address space there: look at it
            next_look = now + 0.5
            if _resident_mb(pid) > limits["memory_mb"] + 1024:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return {"end": "memory", "code": None, "result": None}
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            while open_pipe and select.select([read_end], [], [], 0)[0]:
                chunk = os.read(read_end, 1 << 20)
                if not chunk:
                    break
                chunks.append(chunk)
            return _ending(status, b"".join(chunks))


def _ending(status: int, data: bytes) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return {"end": "timeout", "code": None, "result": None}
        return {"end": "signal", "code": number, "result": None}
    code = os.WEXITSTATUS(status)
    if code == 71:
        return {"end": "memory", "code": code, "result": None}
    try:
        result = json.loads(data)
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        return {"end": "exit", "code": code, "result": None}
    return {"end": "result", "code": code, "result": result}


def _resident_mb(pid: int) -> float:
    shown = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return int(shown) / 1024 if shown.isdigit() else 0.0


def _end_descendants(leader: int) -> None:
    """Ends whatever the child left behind: its process group, and on Linux every descendant.

    The server is a subreaper, so a process that detached itself is still found among its
    descendants.
    """
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(200):
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _descendants(root: int) -> list[int]:
    if not _LINUX:
        return []
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    # the command's name may hold spaces: the fields start behind its bracket
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def main(arguments: list[str]) -> None:
    """Serves jobs until standard input ends."""
    jobs = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print of a library must not end up between messages
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    import numpy  # noqa: F401

    if "--tvm" in arguments:
        import tvm  # noqa: F401
        from tvm.script import tirx  # noqa: F401
        from tvm.script.tirx import tile  # noqa: F401

        with contextlib.suppress(ImportError):
            import mlsys_gpu.kernels.common
            import mlsys_gpu.lowering
            import mlsys_gpu.sim.frontend.translate
            import mlsys_gpu.sim.machine  # noqa: F401
    send(replies, {"ready": True, "landlock": sandbox.landlock_version()})
    while (job := receive(jobs)) is not None:
        send(replies, run_job(job))


if __name__ == "__main__":
    main(sys.argv[1:])
