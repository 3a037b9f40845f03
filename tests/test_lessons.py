"""The chapters' helpers against values that were computed without them."""

import json
from pathlib import Path

import pytest

import mlsys_gpu as mg
from mlsys_gpu import lessons, sim, verification

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def shown(monkeypatch) -> list[str]:
    """What is put out, as text."""
    found: list[str] = []
    monkeypatch.setattr(lessons, "_show", lambda what: found.append(repr(what)))
    return found


def test_a_table_keeps_numbers_and_units_together():
    found = lessons.table(["a", "M × N"], [["1 × 2", "3 µs"], ["64 KiB", "1,980 MHz"], [1, "x y"]])
    assert found.text.replace("\u00a0", " ").splitlines()[0] == "a | M × N"
    for cell in ("1\u00a0×\u00a02", "3\u00a0µs", "64\u00a0KiB", "1,980\u00a0MHz", "x y"):
        assert f">{cell}</td>" in found.markup


def test_run_says_where_and_how_right(shown):
    lessons.run(mg.gemm.step(6, arch="blackwell"), 256, 136, 72, "bfloat16", ctas=2)
    (line,) = shown
    assert line.startswith("gemm/blackwell/step6, 256 × 136 × 72 bfloat16, ctas = 2: right")
    assert line.endswith("no findings")


def test_counted_puts_the_architectures_side_by_side(shown):
    words = {"mma_instructions": "MMAs", "no_such_counter": "nothing"}
    found = lessons.counted(4, 128, 128, 64, words)
    assert found.text.splitlines()[1:] == ["MMAs | 4 | 8", "nothing | 0 | 0"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("no such text", "pass"), "occurs 0 times"),
        (("T.cuda.cta_sync()", "pass"), "occurs 3 times"),
        (("BK)", "BK\n)"), "occurs"),
        (("phase = phase ^ 1", "phase = 1\n"), "another number of lines"),
    ],
)
def test_a_change_that_is_not_one_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        lessons.changed(mg.gemm.step(4, arch="hopper"), change)


def test_a_changed_step_is_another_module_and_the_step_stays():
    step = mg.gemm.step(5, arch="hopper")
    deeper = lessons.changed(step, ("PIPE_DEPTH = 2 ", "PIPE_DEPTH = 3 "))
    assert (deeper.PIPE_DEPTH, step.module.PIPE_DEPTH) == (3, 2)
    assert deeper is lessons.changed(step, ("PIPE_DEPTH = 2 ", "PIPE_DEPTH = 3 "))
    A, B = verification.gemm_inputs(128, 256, 328)
    D = verification.poisoned((128, 256))
    report = mg.simulate(deeper.build(128, 256, 328), A, B, D)
    assert report.ok
    assert verification.compare_gemm(A, B, D).ok


def test_attempt_tells_findings_and_numbers_apart():
    report, verdict = lessons.attempt(
        mg.gemm.step(4, arch="hopper"),
        (128, 128, 64),
        ("T.ptx.fence.proxy.async_.shared__cta()", "pass"),
    )
    assert [finding.code for finding in report.findings] == ["missing-proxy-fence"]
    assert verdict.ok


def test_diagnose_shows_every_changed_line_with_its_number(shown):
    step = mg.gemm.step(6, arch="hopper")
    lines = step.source_path.read_text(encoding="utf-8").splitlines()
    lessons.diagnose(
        step,
        (384, 384, 64),
        ("SMS, CTAS_PER_SM = 132, 2", "SMS, CTAS_PER_SM = 4, 1"),
        ("cdiv(TILES - cta, CTAS)", "TILES // CTAS"),
    )
    text = shown[-1]
    for words in ("SMS, CTAS_PER_SM = 132, 2", "cdiv(TILES - cta, CTAS)"):
        at = next(i for i, line in enumerate(lines, 1) if words in line)
        assert f"step6.py, line {at}:" in text
    assert "[unwritten-output]" in text
    # The last of 3 × 3 tiles is left out by 4 CTAs of 2 tiles each.
    assert "rows 256-383, columns 256-383" in text


def test_the_share_of_the_tensor_cores_is_flop_over_what_they_could_do():
    result = json.loads((ROOT / "book/results/h200/gemm.json").read_text(encoding="utf-8"))
    row = {"M": 4096, "N": 2048, "K": 1024, "ms": 0.5, "sm_clock_mhz": 1000.0}
    could = 132 * 4096 * 0.5e-3 * 1000e6
    provenance = result["provenance"]
    assert lessons.tensor_share(row, provenance) == pytest.approx(2 * 4096 * 2048 * 1024 / could)
    del row["sm_clock_mhz"]
    could *= provenance["gpu"]["clock_khz"] / 1e6
    assert lessons.tensor_share(row, provenance) == pytest.approx(2 * 4096 * 2048 * 1024 / could)


def test_recorded_rows_are_the_files(shown):
    rows, provenance = lessons.recorded("gemm/hopper/step4", dtype="bfloat16")
    result = json.loads((ROOT / "book/results/h200/gemm.json").read_text(encoding="utf-8"))
    assert rows == [
        row
        for row in result["rows"]
        if row["kernel"] == "gemm/hopper/step4" and row["dtype"] == "bfloat16"
    ]
    assert provenance == result["provenance"]
    assert "NVIDIA H200" in shown[0]
    assert lessons.recorded("gemm/hopper/step4", file="h200/none.json") == ([], {})


@pytest.fixture(scope="module")
def timing():
    A, B = verification.gemm_inputs(128, 128, 256)
    kernel = sim.compile(mg.gemm.step(4, arch="hopper").build(128, 128, 256))
    return mg.simulate(kernel, A, B, verification.poisoned((128, 128)), timing=True).timing


def test_turns_are_read_off_the_timeline(timing):
    found = lessons.turns(timing)
    tracks = {track["id"]: track["spans"] for track in timing.timeline()["tracks"]}
    starts = [span[0] for span in tracks["sm0/tensor"]]
    assert len(starts) == 4
    assert found["turn"] == pytest.approx((starts[3] - starts[0]) / 3)
    # 2 * 128 * 128 * 64 FLOP, 4,096 of them in a clock.
    assert found["mma"] == pytest.approx(512, abs=2)
    # In Step 4 a load begins when the last MMAs are over: a turn is both, and a hand-over.
    assert found["load"] + found["mma"] < found["turn"] < found["load"] + found["mma"] + 250


def test_one_k_tile_is_no_loop():
    A, B = verification.gemm_inputs(128, 128, 64)
    kernel = sim.compile(mg.gemm.step(4, arch="hopper").build(128, 128, 64))
    report = mg.simulate(kernel, A, B, verification.poisoned((128, 128)), timing=True)
    with pytest.raises(ValueError, match="1 K tiles and 2 TMA loads"):
        lessons.turns(report.timing)


def test_waits_are_the_statistics(timing, shown):
    found = lessons.waits(timing)
    assert shown == ["[modelled, H200]"]
    first = found.text.splitlines()[1].split(" | ")
    assert first[0] == "hopper_step4"
    role = timing.statistics()["roles"][0]
    most, cycles = max(role["waits"].items(), key=lambda item: item[1])
    assert first[6].startswith(f"{most} {cycles / role['cycles']:.0%}")


def test_what_fits_on_an_sm():
    needs, fit = lessons.residents(mg.gemm.step(5, arch="blackwell"))
    if not needs:
        pytest.skip("the compiler that counts registers is not installed")
    # Two stages of 32 KiB, D's tile of 32 KiB, 1 KiB for barriers and alignment, 1 KiB of CUDA's.
    assert fit["shared memory"] == 228 // 98
    assert fit["tensor memory"] == 1
    assert fit["threads"] == 2048 // 128
