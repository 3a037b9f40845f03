"""Modelled times against measured ones: an H200's (tests/sim/judged.py), published B200 ones.

The model's constants come from micro-benchmarks and documents; nothing here has a part in them. All
of the pairs: ``python scripts/h200/model.py``.
"""

import copy
import itertools
import json
import pickle
import statistics
from pathlib import Path

import pytest

import mlsys_gpu as mg
from mlsys_gpu import sim
from mlsys_gpu.sim import timing
from mlsys_gpu.sim.timing.constants import UNITS

from . import judged
from .fixtures import hopper_rows

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "book" / "results" / "h200"


def measured(name: str, **shape: int) -> dict:
    rows = json.loads((RESULTS / "judges.json").read_text())["rows"]
    return next(r for r in rows if r["kernel"] == name and shape.items() <= r.items())


#: Of each sort one or two, those that simulate in a second: copies, reductions, arithmetic, GEMM.
CHOSEN = [
    measured("micro/copy_vector", n=33554432),
    measured("micro/copy_tma", R=2048),
    measured("micro/copy_bulk", n=2097152),
    measured("micro/copy_cp_async", n=33554432),
    measured("micro/row_sum", R=8192),
    measured("micro/total", n=33554432),
    measured("micro/transpose", R=8192, padding=1),
    measured("micro/transpose", R=8192, padding=0),
    measured("micro/exp_chain", n=33554432),
    measured("micro/fma_chain", n=2097152),
    measured("gemm/hopper/step2", K=448),
    measured("gemm/hopper/step3", M=1024),
    measured("gemm/hopper/step3", M=2048, N=2048),
    measured("gemm/hopper/step3", M=4096),
    measured("fixtures/hopper_persistent", M=1024, stages=2),
    measured("fixtures/hopper_persistent", M=2048, stages=3),
    measured("fixtures/hopper_persistent", M=2048, stages=4),
    measured("fixtures/hopper_cluster", M=2048, clusters=132),
    measured("fixtures/hopper_attention", M=16896),
]


def error_of(row: dict) -> float:
    case = judged.of_row(row)
    assert case is not None
    return sim.model(case.build(), gpu="h200").microseconds / (1e3 * row["ms"]) - 1


def test_an_h200_takes_what_the_model_says():
    errors = {judged.of_row(row).id: error_of(row) for row in CHOSEN}
    for name, error in errors.items():
        print(f"{name:60} {100 * error:+6.1f} %")
    sizes = [abs(e) for e in errors.values()]
    print(f"mean {100 * statistics.fmean(sizes):.1f} %, largest {100 * max(sizes):.1f} %")
    assert len(sizes) >= 12
    assert statistics.fmean(sizes) <= 0.10
    assert max(sizes) <= 0.25, errors


def test_the_committed_table_is_of_these_kernels():
    """``book/results/modelled/h200.json``: every measured pair, none left out."""
    table = json.loads((ROOT / "book" / "results" / "modelled" / "h200.json").read_text())
    rows = json.loads((RESULTS / "judges.json").read_text())["rows"]
    assert len(table["launches"]) == len(rows)
    for row, of in zip(table["launches"], rows, strict=True):
        assert row["kernel"] == of["kernel"]
        assert row["measured_us"] == pytest.approx(1e3 * of["ms"], abs=1e-3)
        assert row["error"] == pytest.approx(row["modelled_us"] / row["measured_us"] - 1, abs=1e-3)
    errors = [abs(row["error"]) for row in table["launches"]]
    assert table["summary"]["mean"] == pytest.approx(statistics.fmean(errors), abs=1e-3)
    assert table["summary"]["largest"] == max(errors)
    assert statistics.fmean(errors) <= 0.10


def ladder(size: int) -> dict[int, dict]:
    """The recorded rows of the H200 for Steps 3 and up at a cube, float16, by step."""
    rows = json.loads((RESULTS / "gemm.json").read_text())["rows"]
    chosen = [r for r in rows if r["dtype"] == "float16" and r["M"] == r["N"] == r["K"] == size]
    steps = {r["kernel"].rpartition("step")[2]: r for r in chosen}  # variants have more of a name
    return {int(number): row for number, row in steps.items() if number.isdecimal()}


@pytest.mark.parametrize("size", [1024, 2048, 4096])
def test_the_steps_of_the_ladder_take_what_the_model_says(size):
    """No constant of the model comes from these kernels; all of them: model.py --ladder."""
    rows = ladder(size)
    assert {3, 4, 5, 6} <= rows.keys()
    modelled = {}
    for number, row in rows.items():
        kernel = mg.gemm.step(number, arch="hopper").build(size, size, size)
        modelled[number] = mg.model(kernel, gpu="h200").microseconds
        error = modelled[number] / (1e3 * row["ms"]) - 1
        print(f"Step {number} at {size}³: {100 * error:+.1f} %")
        assert abs(error) <= 0.15
    # The same order as silicon's, where silicon's times are further apart than a twentieth.
    for a, b in itertools.permutations(rows, 2):
        if rows[a]["ms"] > 1.05 * rows[b]["ms"]:
            assert modelled[a] > modelled[b], (a, b)


BORROWED = "no public figure for B200; H200 as measured by mlsys-gpu calibrate"

#: Published for ``gemm/fp16_bf16_gemm`` of tirx-kernels on a B200, microseconds (its README).
PUBLISHED = {4096: 93.4, 8192: 689.0}


@pytest.mark.parametrize("size", PUBLISHED)
def test_what_a_b200_would_take_for_a_gemm_with_pairs_of_ctas(size):
    module = pytest.importorskip("tirx_kernels.gemm.fp16_bf16_gemm")
    kernel = module.get_kernel(M=size, N=size, K=size, dtype="fp16")
    modelled = mg.model(kernel, gpu="b200", clusters=4)
    print(f"{size}³: modelled {modelled.microseconds:.1f} us, published {PUBLISHED[size]} us")
    print(modelled.text(2 * size**3))
    assert modelled.tensor_flops == pytest.approx(2 * size**3, rel=0.01)
    assert modelled.microseconds == pytest.approx(PUBLISHED[size], rel=0.15)


@pytest.mark.parametrize("name", ["h200", "b200"])
def test_every_constant_has_a_unit_and_a_source(name):
    gpu = timing.gpu_constants(name)
    for constant, entry in gpu.constants.items():
        assert entry["unit"] in UNITS, constant
        assert len(entry["source"]) > 10, constant
        if entry["source"].startswith("none"):  # an assumption, which says so
            assert entry["source"].startswith("none: "), constant


def test_what_the_b200_borrows_is_the_h200s():
    hopper, blackwell = (timing.gpu_constants(n).constants for n in ("h200", "b200"))
    borrowed = [n for n, c in blackwell.items() if c["source"].startswith(BORROWED)]
    assert len(borrowed) > 10
    for name in borrowed:
        assert blackwell[name]["value"] == hopper[name]["value"], name


def test_the_same_constants_for_both_gpus():
    hopper, blackwell = (set(timing.gpu_constants(n).constants) for n in ("h200", "b200"))
    own = {n for n in hopper if n.startswith(("wgmma", "power"))}
    assert hopper - own <= blackwell
    assert all(n.startswith(("tcgen05", "tmem")) for n in blackwell - hopper)


def test_timing_a_grid_of_one_dimension_runs_every_cta_once():
    """Sums by atomics would show a CTA that ran twice, and so would the counters."""
    case = judged._micro("total", n=32 * 1024, ctas=32)
    kernel = sim.compile(case.build())
    seen = []
    for timed in (False, True):
        arrays = case.arrays(seed=1)
        report = sim.simulate(kernel, *arrays, timing=timed)
        assert not report.findings
        seen.append((arrays[-1].tobytes(), report.counters))
    assert seen[0] == seen[1]


def test_a_timed_report_can_be_pickled_and_copied():
    case = judged._micro("total", n=1024, ctas=1)
    report = sim.simulate(case.build(), *case.arrays(seed=1), timing=True)
    for again in (pickle.loads(pickle.dumps(report)), copy.deepcopy(report)):
        assert again.timing.microseconds == report.timing.microseconds
        assert again.to_dict() == report.to_dict()


def test_more_ctas_than_sms_do_not_halve_everyones_bandwidth():
    """One SM with two CTAs gets the share of two, and the others have theirs."""
    times = [
        sim.model(hopper_rows.build(4096, 2048, ctas=ctas), gpu="h200").microseconds
        for ctas in (132, 133)
    ]
    assert times[1] < 1.3 * times[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.pop("clock"), "lack clock"),
        (lambda c: c["clock"].update(value=-5), "constant clock of H200 is -5 MHz"),
        (lambda c: c["sms"].update(value=0), "constant sms of H200 is 0 1"),
        (lambda c: c["hbm_read"].update(value=float("nan")), "hbm_read of H200 is no number"),
        (lambda c: c["wgmma_ss"].update(value=5), "wgmma_ss of H200 is a table"),
        (lambda c: c["launch"].update(unit="parsec"), "has unit 'parsec'"),
        (lambda c: c["power_limit"].update(value=1.0), "power_limit of H200 is not above"),
    ],
)
def test_a_wrong_file_of_constants_is_refused_by_name(tmp_path, change, said):
    folder = Path(timing.__file__).parent / "gpus"
    record = json.loads((folder / "h200.json").read_text())
    change(record["constants"])
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=said):
        timing.gpu_constants(str(path))
