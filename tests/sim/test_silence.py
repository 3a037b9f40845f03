"""Correct kernels stay silent and right, in every schedule; the same seed gives the same report."""

import pytest

from mlsys_gpu import sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.verification import compare_gemm, gemm_inputs, poisoned

SHAPES = {1: (128, 128, 64), 2: (128, 128, 192), 3: (256, 128, 128)}
SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", seed) for seed in range(20)]


@pytest.mark.parametrize("dtype", gemm.DTYPES)
@pytest.mark.parametrize("n", sorted(SHAPES))
@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_no_findings_and_right_numbers(arch, n, dtype):
    program = sim.compile(gemm.step(n, arch).build(*SHAPES[n], dtype=dtype))
    A, B = gemm_inputs(*SHAPES[n], dtype=dtype, seed=n)
    for schedule, seed in SCHEDULES:
        D = poisoned(SHAPES[n][:2], dtype)
        report = sim.simulate(program, A, B, D, schedule=schedule, schedule_seed=seed)
        assert not report.findings, report
        assert report.completed
        assert compare_gemm(A, B, D).max_error <= 1
        assert report.coverage["D"]["written"] == report.coverage["D"]["elements"]
        assert report.coverage["D"]["twice"] == 0


@pytest.mark.parametrize("arch", gemm.ARCHS)
@pytest.mark.parametrize(("schedule", "seed"), [("eager", 0), ("lazy", 0), ("seeded", 4)])
def test_the_same_seed_gives_the_same_bytes(arch, schedule, seed):
    program = sim.compile(gemm.step(3, arch).build(256, 128, 128))
    A, B = gemm_inputs(256, 128, 128, dtype="float16", seed=0)
    reports, outputs = [], []
    for _ in range(2):
        D = poisoned((256, 128), "float16")
        report = sim.simulate(program, A, B, D, schedule=schedule, schedule_seed=seed)
        report.seconds = 0.0
        reports.append(report.to_json())
        outputs.append(D.tobytes())
    assert reports[0] == reports[1]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_other_readings_of_the_isa_are_silent_too(arch):
    """The kernels rely on no reading where the ISA's text is disputed."""
    program = sim.compile(gemm.step(3, arch).build(256, 128, 192))
    A, B = gemm_inputs(256, 128, 192, dtype="float16", seed=0)
    for readings in ({"wgmma-wait": "warp"}, {"tcgen05-ld": "wait"}):
        for schedule, seed in SCHEDULES[:6]:
            report = sim.simulate(
                program,
                A,
                B,
                poisoned((256, 128), "float16"),
                schedule=schedule,
                schedule_seed=seed,
                readings=readings,
            )
            assert not report.findings, report
