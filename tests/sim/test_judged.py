"""What judges the model of time: the registry and its checks of outputs."""

import numpy as np
import pytest

from mlsys_gpu import sim

from . import judged

torch = pytest.importorskip("torch")

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
