"""The micro-kernels are right and silent, whatever the schedule and however the work divides."""

import numpy as np
import pytest

from mlsys_gpu import sim

from .fixtures.hopper_micro import KERNELS

SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", seed) for seed in range(3)]

# Of the rings: fewer chunks than stages, as many, more; CTAs with unequal numbers of chunks.
CASES = [
    ("copy_vector", {"n": 8192}),
    ("copy_vector", {"n": 5 * 4096, "ctas": 2}),
    ("copy_vector", {"n": 4096, "ctas": 2, "vectors": 2}),
    ("copy_cp_async", {"n": 1024, "ctas": 1}),
    ("copy_cp_async", {"n": 11 * 1024, "ctas": 2}),
    ("copy_cp_async", {"n": 3 * 1024, "ctas": 1, "stages": 2}),
    ("copy_bulk", {"n": 2048, "ctas": 2}),
    ("copy_bulk", {"n": 7 * 512, "ctas": 2, "chunk": 512}),
    ("copy_bulk", {"n": 9 * 512, "ctas": 1, "chunk": 512, "stages": 4}),
    ("copy_tma", {"R": 64, "C": 32, "ctas": 1}),
    ("copy_tma", {"R": 192, "C": 96, "ctas": 2}),
    ("copy_tma", {"R": 192, "C": 64, "ctas": 1, "stages": 3}),
    ("row_sum", {"R": 16, "C": 384}),
    ("total", {"n": 5 * 1024, "ctas": 3}),
    ("transpose", {"R": 64, "C": 96}),
    ("transpose", {"R": 32, "C": 64, "padding": 0}),
    ("exp_chain", {"n": 2048, "count": 16}),
    ("fma_chain", {"n": 1024, "count": 32}),
]


@pytest.mark.parametrize(("name", "shape"), CASES, ids=lambda value: str(value))
def test_right_and_silent(name, shape):
    micro = KERNELS[name]
    program = sim.compile(micro.build(**shape))
    for schedule, seed in SCHEDULES:
        X, Y = micro.arrays(**shape)
        report = sim.simulate(program, X, Y, schedule=schedule, schedule_seed=seed)
        assert not report.findings, report
        assert report.completed
        assert micro.error(X.astype(np.float64), Y.astype(np.float64), **shape) <= 1
        assert report.coverage["Y"]["written"] == report.coverage["Y"]["elements"]


@pytest.mark.parametrize("name", KERNELS)
def test_wrong_outputs_are_seen(name):
    """A number that is missing, and one that is off by one."""
    shape = {"n": 4096, "ctas": 1, "count": 16, "R": 64, "C": 128}
    taken = {k: shape[k] for case, sizes in CASES if case == name for k in sizes if k in shape}
    micro = KERNELS[name]
    X, Y = (a.astype(np.float64) for a in micro.arrays(**taken))
    options = {k: v for k, v in taken.items() if k == "count"}
    Y[...] = micro.wanted(X, **options)
    assert micro.error(X, Y, **taken) <= 1
    for wrong in (Y.flat[-1] + 1, np.nan):
        Y.flat[-1] = wrong
        assert not micro.error(X, Y, **taken) <= 1


@pytest.mark.parametrize("name", KERNELS)
def test_sizes_that_do_not_divide_are_refused(name):
    sizes = {"n": 1000, "R": 100, "C": 100, "ctas": 1}
    wanted = next(shape for case, shape in CASES if case == name)
    with pytest.raises(ValueError, match="multiple"):
        KERNELS[name].build(**{k: sizes[k] for k in wanted if k in sizes})
