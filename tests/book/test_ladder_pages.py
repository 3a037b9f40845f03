"""Every step of the ladder runs and is benchmarked on its chapter's page."""

import json
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

from mlsys_gpu import device

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = ROOT / "chapters/part3"

#: The chapter of each step. A chapter that is not written yet has no page to look at.
STEPS = {n: 12 + (n - 1) // 3 for n in range(1, 10)}


def source_of(step: int) -> Path | None:
    return next(iter(CHAPTERS.glob(f"{STEPS[step]}-*.md")), None)


WRITTEN = [n for n in STEPS if source_of(n)]
RESULTS = json.loads((ROOT / "book/results/h200/gemm.json").read_text())
RECORDED = {n for n in STEPS for row in RESULTS["rows"] if row["kernel"].endswith(f"/step{n}")}


def test_the_first_six_steps_have_their_chapters():
    assert WRITTEN[:6] == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def section(book, step) -> Tag:
    """The part of the page that is about the step."""
    source = source_of(step)
    assert source is not None
    page = (book / f"chapters/part3/{source.stem}.html").read_text(encoding="utf-8")
    found = [
        part
        for part in BeautifulSoup(page, "html.parser").select("section")
        if (title := part.find("h2", recursive=False))
        and title.get_text().startswith(f"Step {step}: ")
    ]
    assert len(found) == 1
    return found[0]


def cells(section: Tag, called: str) -> list[tuple[str, str]]:
    """Source and output of each executed cell that calls a function of that name."""
    found = []
    for cell in section.select("div.cell"):
        source, output = cell.select_one("div.cell_input"), cell.select_one("div.cell_output")
        if source and re.search(rf"\b{called}\(", source.get_text()):
            assert output is not None, "a cell without an output has not been executed"
            found.append((source.get_text(), " ".join(output.get_text(" ").split())))
    return found


@pytest.mark.parametrize("step", WRITTEN)
def test_a_step_has_run_and_is_right_on_both_architectures(section, step):
    outputs = " ".join(output for _, output in cells(section, "run"))
    for arch in ("blackwell", "hopper"):
        # One line for each run: a badge, the kernel, its shape, how D compares, findings.
        runs = re.findall(rf"gemm/{arch}/step{step} ,? ?(.*?)(?=gemm/|$)", outputs)
        assert len(runs) >= 2, f"{arch}: {outputs}"
        for line in runs:
            assert "right: the largest error is" in line
            assert not re.search(r"\d findings", line)
        assert {"float16", "bfloat16"} <= set(re.findall(r"b?float16", " ".join(runs))) or step < 4


@pytest.mark.parametrize("step", WRITTEN)
def test_a_step_is_benchmarked_in_its_own_cell(section, step):
    found = [
        (source, output)
        for source, output in cells(section, "benchmarked")
        if re.search(rf"step\({step}\b", source)
    ]
    assert len(found) == 1, [source for source, _ in found]
    output = found[0][1]
    if step not in RECORDED and device.current() is None:
        # The cell ran, and says so: no figure stands where none was measured.
        assert output.startswith(
            f"Not measured here: measuring gemm/hopper/step{step} needs a Hopper"
        )
        assert "TFLOP/s" not in output
        return
    # Measured here or recorded, always with a time, a rate and the baselines of the same run.
    assert re.search(
        rf"(measured live|recorded: .*\d{{4}}-\d\d-\d\d).*gemm/\w+/step{step} ", output
    )
    assert re.search(r"\d (µs|ms) \(", output)
    for column in ("TFLOP/s", "× cuBLAS", "× Triton"):
        assert column in output
