"""int32 products of which an address is made: found where they leave 32 bits, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlsys_gpu import sim

from .sources import module_from

HEAD = """\
from tvm.script import tirx as T

N, F = 64, 256


@T.prim_func
def kernel(
    X: T.Buffer((N,), "int32"), R: T.Buffer((F,), "int32"), Y: T.Buffer((F,), "int32")
):
    T.device_entry()
    cta = T.cta_id([CTAS])
    tid = T.thread_id([32])
    S = T.alloc_buffer((64,), "int32", scope="shared")
    V = T.alloc_local((2,), "int32")
"""


def program(body: str, tmp_path: Path, ctas: int = 1) -> sim.Program:
    """A kernel of 32 threads a CTA with this body."""
    text = HEAD.replace("CTAS", str(ctas)) + "".join(f"    {x}\n" for x in body.splitlines())
    return sim.compile(module_from(tmp_path / "kernel.py", text).kernel, arch="hopper")


def run(body: str, tmp_path: Path, **options: Any) -> tuple[sim.Report, Any]:
    """It on X = 0, 1, 2, ... and R = 2**27 + 1 everywhere; and its Y."""
    X, R = np.arange(64, dtype=np.int32), np.full(256, (1 << 27) + 1, np.int32)
    Y = np.full(256, -1, np.int32)
    return sim.simulate(program(body, tmp_path), X, R, Y, **options), Y


#: Indices that a product of more than 32 bits goes into. What it wraps to is right again, in most:
#: the product alone can be found. (TVM takes constant factors modulo 256; those of R are not
#: known.) ``# here`` marks the line.
OVERFLOW = {
    "loaded stride": "Y[tid * R[0] % 256] = tid  # here",
    "constant stride": "Y[(tid * ((1 << 27) + 1) >> 27) + 128] = tid  # here",
    "element that is read": "Y[tid] = X[tid * R[0] % 64]  # here",
    "shared memory": "S[tid * R[0] % 64] = tid  # here",
    "register array": "V[tid * R[0] % 2] = tid  # here",
    "counter of a loop": "for i in T.serial(17):\n    Y[i * R[0] % 128 + tid] = i  # here",
    "variable": "row: T.int32 = tid * R[1] % 64  # here\nY[row * 4] = row",
    "variable that is set again": (
        "row: T.int32 = tid\nrow = row * R[1]  # here\nY[row % 256] = tid"
    ),
    "through a register array": "V[0] = tid * R[0]  # here\nY[V[0] % 256] = tid",
    "one side of a choice": "Y[T.if_then_else(tid > 20, tid * R[0] % 256, tid)] = tid  # here",
    "below zero": "Y[(0 - tid) * R[3] % 256] = tid  # here",
    "shifted": "Y[(tid * R[0] >> 27) + 128] = tid  # here",
    "pointer": 'T.ptx["st.global.s32"](Y.ptr_to([tid * R[0] % 256]), tid)  # here',
    "one thread alone": "if tid == 31:\n    Y[tid * R[0] % 256] = 1  # here",
}


def line_in(body: str) -> int:
    return HEAD.count("\n") + 1 + next(i for i, x in enumerate(body.splitlines()) if "# here" in x)


@pytest.mark.parametrize("name", OVERFLOW)
def test_a_product_in_an_address(name, tmp_path):
    body = OVERFLOW[name]
    report, _ = run(body, tmp_path)
    found = [f for f in report.findings if f.code == "integer-overflow"]
    assert len(found) == 1, report
    assert found[0].location.line == line_in(body), report
    assert "does not fit into 32 bits" in found[0].message
    assert "int64" in found[0].fix


def test_what_is_said(tmp_path):
    """The factors of the first lane whose product leaves 32 bits, the value that a GPU goes on
    with, and the lanes."""
    report, Y = run("Y[tid * R[0] % 256] = tid", tmp_path)
    (finding,) = report.findings
    assert "16 * 134217729 = 2147483664" in finding.message
    assert "goes on with -2147483632" in finding.message
    assert "16-31" in finding.threads
    assert Y[:32].tolist() == list(range(32))


def test_a_run_without_checks_wraps_too(tmp_path):
    body = "V[0] = tid * R[0]\nY[tid] = V[0] >> 27\nY[V[0] % 128 + 128] = tid"
    report, Y = run(body, tmp_path, checks=False)
    assert not report.findings
    assert Y[:32].tolist() == [t if t < 16 else t - 32 for t in range(32)]
    assert Y[128:160].tolist() == list(range(32))


#: Products that fit, or of which no address is made.
SILENT = {
    "cast of a factor": 'Y[T.Cast("int32", T.Cast("int64", tid) * R[0] % 256)] = tid',
    "cast of the other one": 'Y[T.Cast("int32", tid * T.Cast("int64", R[0]) % 256)] = tid',
    "the largest that fits": "Y[tid // 31 * (R[0] * 15 + (2**27 - 16)) % 256] = 1",
    "the least that fits": "Y[(0 - tid // 31) * (R[0] * 16 - 16 - R[0]) % 256] = 1",
    "no address": "Y[tid] = tid * R[0]",
    "no address, a variable": "x: T.int32 = tid * R[0]\nY[tid] = x + tid",
    "no address, a condition": "if tid * R[0] > 0:\n    Y[tid] = 1",
    "a hash": "Y[(tid * R[0] ^ tid) & 255] = 1",
    "unsigned": 'Y[T.Cast("int32", T.uint32(3) * T.Cast("uint32", R[0] * 15) % T.uint32(8))] = 1',
    "lanes that do not come there": "if tid < 16:\n    Y[tid * R[0] % 256] = tid",
    "the side that is not chosen": "Y[T.if_then_else(tid < 16, tid * R[0] % 256, tid)] = tid",
    "a loop that ends before": "for i in T.serial(16):\n    Y[i * R[0] % 128 + tid] = 1",
    "a small stride that is loaded": "Y[tid * X[7]] = tid",
}


@pytest.mark.parametrize("name", SILENT)
def test_what_fits_or_is_no_address(name, tmp_path):
    report, _ = run(SILENT[name], tmp_path)
    assert "integer-overflow" not in [f.code for f in report.findings], report


#: Products that the ranges of their factors bound: they cost nothing at run time.
BOUND = {
    "thread and constant": ("Y[tid * 8] = tid", False),
    "block, thread and constants": ("Y[(cta * 32 + tid) * 4 % 256] = tid", False),
    "counter of a loop": ("for i in T.serial(8):\n    Y[i * 32 + tid] = i", False),
    "remainder": ("Y[X[tid] % 64 * 4] = tid", False),
    "the third row of 2**30 elements": ("Y[(cta * ((1 << 30) + 1) >> 24) + 128] = 1", True),
    "a loaded factor": ("Y[X[tid] * 4] = tid", True),
    "no address": ("Y[tid] = X[tid] * 4", False),
}


@pytest.mark.parametrize("name", BOUND)
def test_only_what_may_not_fit_is_checked(name, tmp_path):
    body, checked = BOUND[name]
    source = program(body, tmp_path, ctas=2 + checked).source
    assert ("product32(" in source) == checked, source
