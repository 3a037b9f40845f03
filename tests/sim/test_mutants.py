"""Faults planted in real kernels: each is found, with its code and its line, in every schedule.

:mod:`.planted` explains the files that hold them.
"""

from pathlib import Path

import pytest

from mlsys_gpu import sim

from .planted import SCHEDULES, Kernel, Planted, kernel_from, line_of, planted

MUTANTS = [pytest.param(entry, id=entry.id) for entry in planted("mutant")]
CONTROLS = [pytest.param(entry, id=entry.id) for entry in planted("control")]


@pytest.fixture(scope="module")
def kernel_of(tmp_path_factory):
    """``kernel_of(entry)``: the changed kernel, translated once."""
    kernels: dict[tuple[str, str], Kernel] = {}

    def build(entry: Planted) -> Kernel:
        source = entry.source()
        key = (source, f"{entry.shape} {entry.options}")
        if key not in kernels:
            folder = tmp_path_factory.mktemp("planted")
            kernels[key] = kernel_from(source, folder, entry.shape, entry.options)
        return kernels[key]

    return build


@pytest.mark.parametrize("mutant", MUTANTS)
def test_planted_fault_is_found(mutant, kernel_of):
    kernel, source, entry = kernel_of(mutant), mutant.source(), mutant.entry
    line = line_of(source, entry["line"])
    found_in = mutant.named("found_in", "all") | (set(SCHEDULES) - mutant.declared())
    for name, schedule in SCHEDULES.items():
        report, _ = kernel.run(readings=entry.get("readings"), **schedule)
        if name not in found_in:
            assert not report.findings, (name, report)
            continue
        assert report.findings, schedule
        finding = report.findings[0]
        assert (finding.code, finding.location.line) == (entry["code"], line), report
        assert Path(finding.location.file).name == "kernel.py"
        assert finding.location.text == source.splitlines()[line - 1]
        assert finding.severity == entry.get("severity", "error")
        assert report.ok == (finding.severity != "error")
        assert finding.threads
        assert finding.fix
        if "points_to" in entry:
            places = [place.line for _, place in finding.related]
            assert line_of(source, entry["points_to"]) in places, report
        # One fault, one cause: what follows from it comes after it, and is little.
        assert len(report.findings) <= 5, report
        assert sum(f.code == finding.code for f in report.findings) <= 2, report


@pytest.mark.parametrize("mutant", MUTANTS)
def test_where_the_numbers_alone_would_show_it(mutant, kernel_of):
    kernel = kernel_of(mutant)
    seen: dict[str, set[str]] = {"right": set(), "wrong": set(), "hangs": set(), "stops": set()}
    for name in mutant.declared():
        seen[kernel.outcome(**SCHEDULES[name])].add(name)
    assert seen["wrong"] == mutant.named("numbers_show")
    assert seen["hangs"] == mutant.named("hangs")
    assert seen["stops"] == mutant.named("stops")


@pytest.mark.parametrize("control", CONTROLS)
def test_what_is_no_fault_stays_silent(control, kernel_of):
    kernel = kernel_of(control)
    for schedule in SCHEDULES.values():
        report, arrays = kernel.run(**schedule)
        assert not report.findings, report
        assert kernel.right(arrays)


def test_every_code_of_the_catalogue_is_a_code():
    for entry in planted("mutant"):
        assert entry.entry["code"] in sim.CODES
