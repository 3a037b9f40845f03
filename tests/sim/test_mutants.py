"""Faults planted in the real kernels: each is found, with its code and its line, in every schedule.

The faults are data, in ``mutants/<arch>.toml``. A mutant is one replacement of text in the source
of a step, which must match exactly once:

``step``, ``shape``      the kernel, and M, N, K
``find``, ``replace``    the change; a first newline in a block does not count
``code``                 code of the leading finding
``line``                 how that finding's line begins, in the changed source
``points_to``            how a line begins that the finding names besides (optional)
``readings``             readings of the ISA that the fault depends on (optional)
``numbers_show``         the schedules in which the numbers alone would have shown the fault
``hangs``, ``stops``     the schedules in which the kernel never ends, or stops at an invalid access

Schedules are ``eager``, ``lazy`` and the seeds 0 to 9 of ``seeded``; ``all`` names them all, and
a schedule that is named nowhere ends with right numbers. A ``control`` is a change that plants no
fault: nothing may be found.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlsys_gpu import sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.verification import compare_gemm, gemm_inputs, poisoned

from .sources import module_from

SCHEDULES: dict[str, dict[str, Any]] = {
    "eager": {"schedule": "eager"},
    "lazy": {"schedule": "lazy"},
    **{str(seed): {"schedule": "seeded", "schedule_seed": seed} for seed in range(10)},
}
FILES = Path(__file__).parent / "mutants"


@cache
def entries(kind: str) -> list[Any]:
    """The mutants or controls of both architectures, as test parameters."""
    found = []
    for arch in gemm.ARCHS:
        for entry in tomllib.loads((FILES / f"{arch}.toml").read_text())[kind]:
            name = f"{arch}-step{entry['step']}-{entry['name'].replace(' ', '-')}"
            found.append(pytest.param(arch, entry, id=name))
    return found


def changed_source(arch: str, entry: dict[str, Any]) -> str:
    source = gemm.step(entry["step"], arch).source_path.read_text()
    find, replace = (entry[key].removeprefix("\n") for key in ("find", "replace"))
    assert source.count(find) == 1, f"matches {source.count(find)} times in Step {entry['step']}"
    return source.replace(find, replace)


def named(text: str) -> set[str]:
    """The schedules that a field names."""
    return set(SCHEDULES) if text == "all" else set(text.split())


def line_of(source: str, start: str) -> int:
    """Number of the one line that begins with ``start``."""
    lines = [i for i, line in enumerate(source.splitlines(), 1) if line.strip().startswith(start)]
    assert len(lines) == 1, f"{start!r} begins lines {lines}"
    return lines[0]


def outcome(program: sim.Program, shape: tuple[int, int, int], **schedule: Any) -> str:
    """How a run without any checks ends: ``right``, ``wrong``, ``hangs`` or ``stops``."""
    A, B = gemm_inputs(*shape, dtype="float16", seed=1)
    D = poisoned(shape[:2], "float16")
    report = sim.simulate(program, A, B, D, checks=False, **schedule)
    if not report.completed:
        return "hangs" if report.deadlock else "stops"
    return "right" if compare_gemm(A, B, D).max_error <= 1 else "wrong"


@pytest.fixture(scope="module")
def program_of(tmp_path_factory):
    """``program_of(arch, entry)``: the changed kernel's Program, translated once."""
    programs: dict[tuple[str, str], sim.Program] = {}

    def build(arch: str, entry: dict[str, Any]) -> sim.Program:
        key = (changed_source(arch, entry), str(entry["shape"]))
        if key not in programs:
            module = module_from(tmp_path_factory.mktemp("planted") / "kernel.py", key[0])
            programs[key] = sim.compile(module.build(*entry["shape"]))
        return programs[key]

    return build


@pytest.mark.parametrize(("arch", "mutant"), entries("mutant"))
def test_planted_fault_is_found(arch, mutant, program_of):
    source = changed_source(arch, mutant)
    shape = tuple(mutant["shape"])
    program = program_of(arch, mutant)
    line = line_of(source, mutant["line"])
    A, B = gemm_inputs(*shape, dtype="float16", seed=1)
    for schedule in SCHEDULES.values():
        D = poisoned(shape[:2], "float16")
        report = sim.simulate(program, A, B, D, **schedule, readings=mutant.get("readings"))
        assert report.findings, schedule
        finding = report.findings[0]
        assert (finding.code, finding.location.line) == (mutant["code"], line), report
        assert Path(finding.location.file).name == "kernel.py"
        assert finding.location.text == source.splitlines()[line - 1]
        assert finding.severity == "error"
        assert not report.ok
        assert finding.threads
        assert finding.fix
        if "points_to" in mutant:
            places = [place.line for _, place in finding.related]
            assert line_of(source, mutant["points_to"]) in places, report
        # One fault, one cause: what follows from it comes after it, and is little.
        assert len(report.findings) <= 5, report
        assert sum(f.code == finding.code for f in report.findings) <= 2, report


@pytest.mark.parametrize(("arch", "mutant"), entries("mutant"))
def test_where_the_numbers_alone_would_show_it(arch, mutant, program_of):
    shape, program = tuple(mutant["shape"]), program_of(arch, mutant)
    seen: dict[str, set[str]] = {"right": set(), "wrong": set(), "hangs": set(), "stops": set()}
    for name, schedule in SCHEDULES.items():
        seen[outcome(program, shape, **schedule)].add(name)
    assert seen["wrong"] == named(mutant.get("numbers_show", ""))
    assert seen["hangs"] == named(mutant.get("hangs", ""))
    assert seen["stops"] == named(mutant.get("stops", ""))


@pytest.mark.parametrize(("arch", "control"), entries("control"))
def test_what_is_no_fault_stays_silent(arch, control, program_of):
    shape, program = tuple(control["shape"]), program_of(arch, control)
    A, B = gemm_inputs(*shape, dtype="float16", seed=1)
    for schedule in SCHEDULES.values():
        D = poisoned(shape[:2], "float16")
        report = sim.simulate(program, A, B, D, **schedule)
        assert not report.findings, report
        assert np.isfinite(D.astype(np.float64)).all()
        assert compare_gemm(A, B, D).max_error <= 1


def test_every_code_of_the_catalogue_is_a_code():
    for _, mutant in (p.values for p in entries("mutant")):
        assert mutant["code"] in sim.CODES
