"""What judges the model of time: the registry, its checks of outputs, and what was measured."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlsys_gpu import sim

from . import judged

torch = pytest.importorskip("torch")

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results" / "h200" / "judges.json"

# Each family of judges, at a size that simulates in a second.
SMALL = [
    judged._step(3, 128, 128, 64),
    judged._attention(64, 128),
    judged._rows(6, 36),
    judged._split(10, 100, 2),
    judged._micro("total", n=3072, ctas=2),
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_outputs_are_judged(case):
    arrays = case.arrays(seed=3)
    report = sim.simulate(sim.compile(case.build()), *arrays)
    assert not report.findings, report
    tensors = [torch.from_numpy(array) for array in arrays]
    assert case.error(*tensors) <= 1
    for output in tensors[-case.outputs :]:
        held = output.flatten()[-1].clone()
        for wrong in (held + 1, torch.nan):
            output.view(-1)[-1] = wrong
            assert not case.error(*tensors) <= 1
        output.view(-1)[-1] = held


def test_the_arrays_are_what_the_kernels_take():
    for case in SMALL:
        arrays = case.arrays(seed=1)
        parameters = judged._parameters(case.build())
        assert [(a.shape, a.dtype.name) for a in arrays] == [(p.shape, p.dtype) for p in parameters]
        assert case.bytes == sum(a.nbytes for a in arrays)
        again, other = case.arrays(seed=1), case.arrays(seed=2)
        assert np.array_equal(arrays[0], again[0])
        assert not np.array_equal(arrays[0], other[0])


def test_names_tell_judges_apart():
    ids = [case.id for case in judged.JUDGES]
    assert len(set(ids)) == len(ids)
    for case in judged.JUDGES:
        row = {"kernel": case.name, **case.shape, "dtype": case.dtype, "ms": 1.0}
        assert judged.of_row(row) is case
        assert judged.judge(case.id) is case


def test_what_was_measured_is_what_judges():
    """Rows are of kernels and shapes that exist, of their present source, and possible."""
    rows = json.loads(RESULTS.read_text())["rows"]
    cases = [judged.of_row(row) for row in rows]
    assert len({case.id for case in cases}) == len(rows) >= 30
    for row, case in zip(rows, cases, strict=True):
        assert row["source_sha256"] == case.source_sha256, f"measure {case.id} again"
        assert 0 < row["ms_p20"] <= row["ms"] <= row["ms_p80"]
        assert row["gb_per_s"] == pytest.approx(case.bytes / row["ms"] / 1e6)
        assert row["gb_per_s"] < 4800  # NVIDIA's data sheet of the H200: 4.8 TB/s
        assert row["max_error"] <= 1
