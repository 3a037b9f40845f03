"""Ladders, ratios and rooflines from result files: what they show, and what they own up to."""

import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

import mlsys_gpu as mg
from mlsys_gpu import benchmarking, device, viz
from mlsys_gpu.viz import measurements
from mlsys_gpu.viz.static import Picture

CUBE = (4096, 4096, 4096)
GPU = {"name": "NVIDIA H200", "arch": "sm_90a", "multiprocessors": 132, "clock_khz": 1_980_000}


def row(step, ms, n=4096, dtype="float16", **changes):
    name = f"gemm/hopper/{step}"
    shape = {"M": n, "N": n, "K": n}
    shape |= {key: changes.pop(key) for key in "MNK" if key in changes}
    M, N, K = shape.values()
    return {
        "kernel": name, **shape, "dtype": dtype,
        "ms": ms, "ms_p20": 0.99 * ms, "ms_p80": 1.02 * ms,
        "tflops": 2 * M * N * K / ms / 1e9, "tflops_per_sm": 2 * M * N * K / ms / 1e9 / 132,
        "sm_clock_mhz": 1500.0,
        "baseline": {"cublas": {"ms": 0.2}, "triton": {"ms": 0.3}},
        "source_sha256": benchmarking.source_sha256(name) or "0" * 64,
    } | changes  # fmt: skip


def bench(*rows, **provenance):
    return benchmarking.Benchmark(
        list(rows), {"gpu": GPU, "date": "2026-11-30T10:00:00Z"} | provenance
    )


@pytest.fixture
def made():
    return bench(
        row("step1", 0.005, M=128, N=128, K=64, tflops_per_sm=0.42),
        row("step3", 0.8),
        row("step4", 0.25),
        row("step4", 2.0, n=8192, baseline={"cublas": {"ms": 1.5}, "triton": {"ms": 3.0}}),
        row("step4", 0.21, dtype="bfloat16"),
    )


def drawn(found):
    """A picture, and no sentence in its place."""
    assert isinstance(found, Picture), found
    return found


def svg_texts(picture):
    root = ET.fromstring(picture.svg)
    return [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]


# ---------------------------------------------------------------------------------------- the names


def test_kernels_stand_in_the_ladders_order():
    names = ["tuned", "step9-dynamic", "step10", "step9", "step2"]
    kernels = sorted((f"gemm/hopper/{name}" for name in names), key=measurements._order)
    assert [measurements.kernel_title(k) for k in kernels] == [
        "Step 2", "Step 9", "Step 9, dynamic", "Step 10", "tuned",
    ]  # fmt: skip


def test_the_file_of_a_kernel_is_the_registrys():
    for step in (*mg.gemm.everything("hopper"), *mg.gemm.everything("blackwell")):
        assert measurements.source_path(step.name) == step.source_path
    assert measurements.source_path("gemm/hopper/step9-dynamic").name == "step9_dynamic.py"


# --------------------------------------------------------------------------------------- the ladder


def test_the_ladder_shows_one_shape_and_dtype_with_its_baselines(made):
    picture = drawn(viz.ladder(made))
    assert picture.alt.startswith("TFLOP/s at 4096 × 4096 × 4096, float16: Step 3 172; Step 4 550")
    assert "cuBLAS in the same runs 687 to 687" in picture.alt
    assert "Triton in the same runs 458 to 458" in picture.alt
    assert "Step 1" not in picture.alt  # another shape
    words = svg_texts(picture)
    assert {"3", "4", "172", "550", "TFLOP/s", "measured", "cuBLAS, same run"} <= set(words)
    assert "recorded: NVIDIA H200, 2026-11-30, float16" in picture._repr_html_()


def test_figures_are_written_without_powers_of_ten():
    picture = drawn(viz.ladder(bench(row("step3", 0.1)), title="fast"))
    assert "1,374" in svg_texts(picture)
    assert "Step 3 1,374" in picture.alt
    assert "e+03" not in picture.svg


def test_per_sm_the_steps_of_one_tile_stand_beside_the_others(made):
    picture = drawn(viz.ladder(made, value="tflops_per_sm"))
    assert "Step 1 0.42; Step 3 1.3" in picture.alt
    assert "cuBLAS" not in picture.alt
    assert {"128×", "64"} <= set(svg_texts(picture))


def test_modelled_bars_are_hatched_and_say_so(made):
    launches = [
        {"kernel": f"gemm/hopper/{step}", "M": 4096, "N": 4096, "K": 4096, "dtype": "float16",
         "modelled_us": us, "bound": "L2", "source_sha256": benchmarking.source_sha256(
             f"gemm/hopper/{step}")}
        for step, us in (("step4", 275.0), ("step5", 200.0))
    ]  # fmt: skip
    picture = drawn(viz.ladder(made, modelled=launches))
    assert "Step 4 550, modelled 500; Step 5 modelled 687" in picture.alt
    assert "modelled, not measured" in svg_texts(picture)
    assert "<pattern" in picture.svg
    assert "mg-badge-modelled" in picture._repr_html_()
    only = drawn(viz.ladder([], modelled=launches))
    assert "measured" not in svg_texts(only)
    assert "mg-badge-recorded" not in only._repr_html_()
    table = viz.ladder_table(made, modelled=launches)
    assert re.search(r"Step 4 .* 500 +\+10\.0 % +L2", table.text)
    assert viz.ladder_table([], modelled=launches).origin == "modelled"


def test_a_stale_row_is_marked_in_every_form(made):
    assert "stale" not in viz.ladder(made)._repr_html_()
    made.rows[2]["source_sha256"] = "0" * 64
    picture = drawn(viz.ladder(made))
    assert "Step 4 550 (stale)" in picture.alt
    assert "measured, stale" in svg_texts(picture)
    assert "mg-badge-stale" in picture._repr_html_()
    table = viz.ladder_table(made)
    assert re.search(r"Step 4 .*stale", table.text)
    assert not re.search(r"Step 3 .*stale", table.text)
    assert "mg-badge-stale" in viz.sizes_table(made)._repr_html_()


def test_published_figures_are_cited_with_their_source(made):
    cited = [{"kernel": "gemm/hopper/step4", "M": 4096, "N": 4096, "K": 4096, "dtype": "float16",
              "ms": 0.275, "source": "somebody"}]  # fmt: skip
    assert "published 500" in drawn(viz.ladder(made, cited=cited)).alt
    assert re.search(r"500 +somebody", viz.ladder_table(made, cited=cited).text)


def test_the_table_says_what_each_step_gained(made):
    made.rows += [row("step6", 0.2), row("step9", 0.19), row("step9-dynamic", 0.2),
                  row("tuned", 0.18)]  # fmt: skip
    table = viz.ladder_table(made)
    lines = {line[:15].strip(): line for line in table.text.splitlines()}
    assert "× 3.2 " in lines["Step 4"]  # 0.8 ms to 0.25 ms
    assert "× 1.25 (Step 4)" in lines["Step 6"]  # Step 5 has no row
    assert "× 0.95 " in lines["Step 9, dynamic"]  # against Step 9
    assert "× 1.06 (Step 9)" in lines["tuned"]
    assert [r["kernel"].split("/")[-1] for r in table.rows] == [
        "step3", "step4", "step6", "step9", "step9-dynamic", "tuned",
    ]  # fmt: skip
    assert "<dt>date</dt><dd>2026-11-30T10:00:00Z</dd>" in table.markup


def test_rows_of_several_runs_name_them_all():
    runs = {
        "a": {"gpu": GPU, "date": "2026-11-30T10:00:00Z", "command": "first"},
        "b": {"gpu": GPU, "date": "2026-12-01T10:00:00Z", "command": "second"},
        "c": {"gpu": GPU, "date": "2026-12-02T10:00:00Z", "command": "third"},
    }
    made = bench(row("step3", 0.8, run="a"), row("step4", 0.25, run="b"), runs=runs)
    table = viz.ladder_table(made)
    assert "NVIDIA H200, 2026-11-30 to 2026-12-01" in table.markup
    assert "first" in table.markup
    assert "second" in table.markup
    assert "third" not in table.markup


def test_nothing_to_show_is_a_sentence():
    for shown in (viz.ladder([]), viz.ladder_table([]), viz.sizes([]), viz.roofline([])):
        assert not shown
        assert "in this copy of the course yet" in shown._repr_html_()
        assert "in this copy of the course yet" in repr(shown)
    with pytest.raises(ValueError, match="value is 'speed'; there are tflops, tflops_per_sm"):
        viz.ladder(value="speed")


def test_without_matplotlib_there_are_words(made, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlsys_gpu.viz.charts", None)
    assert "needs matplotlib" in repr(viz.ladder(made))


# ----------------------------------------------------------------------------------- over the sizes


def test_ratios_are_of_the_same_row():
    rows = [
        row("step8", 0.25),
        row("step9", 0.2, baseline={"cublas": {"ms": 0.21}, "triton": {"ms": 0.4}}),
        row("step9", 1.5, n=8192, baseline={"cublas": {"ms": 1.5}, "triton": {"ms": 2.0}}),
        row("tuned", 1.25, n=8192, baseline={"cublas": {"ms": 1.5}, "triton": {"ms": 3.0}}),
        row("tuned", 1.0, M=1, N=8192, K=8192),
    ]
    found = viz.ratios(rows)
    assert found == {
        "gemm/hopper/step9": {4096: pytest.approx(1.05), 8192: 1.0},
        "gemm/hopper/tuned": {8192: 1.2},
        "triton": {8192: 0.5},  # of tuned's row, the last
    }
    assert viz.ratios(rows, ["gemm/hopper/step8"]) == {
        "gemm/hopper/step8": {4096: pytest.approx(0.8)}, "triton": {4096: pytest.approx(2 / 3)},
    }  # fmt: skip
    table = viz.sizes_table(rows)
    last = table.text.splitlines()[-1].split()
    assert last[:2] == ["geometric", "mean"]
    assert float(last[2]) == pytest.approx(math.sqrt(1.05), abs=5e-4)
    assert "Step 9: 1.05 at 4096, 1.00 at 8192; tuned: 1.20 at 8192" in drawn(viz.sizes(rows)).alt


# ------------------------------------------------------------------------------------ additions


def test_the_gain_of_an_addition_is_of_the_same_shape():
    def without(*names, **more):
        return row("tuned", options={"without": list(names)}, **more)

    rows = [
        row("tuned", 0.2), row("tuned", 1.5, n=8192), row("step9", 0.21),
        without("shape", ms=0.25), without("stream", ms=0.2), without("shape", ms=1.5, n=8192),
        without("shape", "stream", ms=0.3), without("stream", ms=0.1, dtype="bfloat16"),
        without("stream", ms=1.0, n=1024),
    ]  # fmt: skip
    eight = (8192, 8192, 8192)
    assert viz.gains(rows) == {
        "shape": {CUBE: pytest.approx(1.25), eight: 1.0},
        "stream": {CUBE: 1.0},  # there is no whole kernel at 1024
        "": {CUBE: pytest.approx(1.5)},
    }
    table = viz.additions_table(bench(*rows), words={"stream": "D leaves first", "shape": "tiles"})
    assert table.text.splitlines()[1:] == [
        "addition | what it is | 4096³ | 8192³",
        "stream | D leaves first | × 1.000 | –",
        "shape | tiles | × 1.250 | × 1.000",
        "all together |  | × 1.500 | –",
    ]
    assert "2026-11-30" in table.markup
    assert not viz.additions_table([])
    # and none of this is a step of the ladder
    assert list(viz.ratios(bench(*rows))) == ["gemm/hopper/step9", "gemm/hopper/tuned", "triton"]
    assert len(viz.ladder_table(bench(*rows)).rows) == 2
    html = measurements.recorded_html(bench(*rows).to_dict(), rows, "x")
    assert "<code>gemm/hopper/tuned</code> without shape, stream<" in html


def test_modelled_gains_are_told_from_measured_ones(tmp_path, monkeypatch):
    def launch(us, *without, n=4096):
        name = "gemm/blackwell/tuned"
        return {
            "kernel": name, "M": n, "N": n, "K": n, "dtype": "float16", "modelled_us": us,
            "without": list(without), "source_sha256": benchmarking.source_sha256(name),
        }  # fmt: skip

    launches = [launch(80.0), launch(100.0, "shape"), launch(84.0, "pieces"),
                launch(120.0, "shape", "pieces"), launch(9.0, "shape", n=1024)]  # fmt: skip
    assert viz.gains(launches) == {
        "shape": {CUBE: pytest.approx(1.25)},
        "pieces": {CUBE: pytest.approx(1.05)},
        "": {CUBE: pytest.approx(1.5)},
    }
    monkeypatch.setattr(benchmarking, "results_directory", lambda: tmp_path)
    (tmp_path / "modelled").mkdir()
    (tmp_path / "modelled" / "some.json").write_text(json.dumps({"launches": launches}))
    table = viz.additions_table("modelled/some")
    assert table.text.splitlines() == [
        "Time without the addition over time with it, as modelled; above × 1 it helps",
        "addition | 4096³",
        "shape | × 1.250",
        "pieces | × 1.050",
        "all together | × 1.500",
    ]
    assert table.origin == "modelled"
    assert "mg-badge-modelled" in table.markup
    assert "recorded:" not in table.markup
    assert "mg-badge-stale" not in table.markup
    old = [launch | {"source_sha256": "0" * 64} for launch in launches]
    assert "mg-badge-stale" in viz.additions_table(old).markup
    assert not viz.additions_table("modelled/nothing")


# ------------------------------------------------------------------------------------- the roofline


@pytest.fixture
def calibrated(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarking, "results_directory", lambda: tmp_path)
    (tmp_path / "h200").mkdir()
    constants = {"hbm_copy_gbps": {"value": 4000.0}, "l2": {"value": 10_000.0}}
    (tmp_path / "h200" / "calibration.json").write_text(json.dumps({"constants": constants}))
    return tmp_path


def test_points_lie_under_the_roof_of_their_gpu(made, calibrated):
    picture = drawn(viz.roofline(made))
    peak = 4096 * 132 * 1.98e9 / 1e12
    assert f"ridge at {peak / 4:.0f} FLOP a byte of memory and {peak:.0f} TFLOP/s" in picture.alt
    assert f"{4096 * 132 * 1.5e9 / 1e12:.0f} at the clock that was seen" in picture.alt
    # 2n³ FLOP over 3 matrices of n² elements of two bytes
    assert f"Step 4 at {2 * 4096 / 6:,.0f} FLOP a byte reaches 550 TFLOP/s" in picture.alt
    tiles = drawn(
        viz.roofline(
            made, intensity={"gemm/hopper/step3": 64}, traffic="L2", bandwidth="l2", kernels=None
        )
    )
    assert "of L2" in tiles.alt
    assert "Step 3 at 64 FLOP a byte" in tiles.alt
    assert "Step 4" not in tiles.alt
    every = drawn(viz.roofline(made, None))
    assert "Step 4, 8192 at" in every.alt


def test_a_roof_that_nobody_measured_is_not_drawn(made, calibrated):
    with pytest.raises(ValueError, match="l3 of NVIDIA H200 is not recorded"):
        viz.roofline(made, bandwidth="l3")
    made.provenance["gpu"] = {"name": "NVIDIA T4", "arch": "sm_75"}
    with pytest.raises(ValueError, match="roof of NVIDIA T4 is not known"):
        viz.roofline(made)


# ------------------------------------------------------------------------------ readable everywhere


def test_pictures_use_theme_colours_and_readable_text(made, calibrated):
    launches = [dict(r, modelled_us=1e3 * r["ms"]) for r in made.rows]
    found = (viz.ladder(made, modelled=launches), viz.sizes(made), viz.roofline(made))
    pictures = [drawn(one) for one in found]
    ids = [set(re.findall(r' id="([^"]*)"', picture.svg)) for picture in pictures]
    assert ids[0]
    for i, picture in enumerate(pictures):
        assert "#0102" not in picture.svg
        assert not re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", picture.svg)
        (width,) = map(float, re.findall(r'viewBox="0 0 ([\d.]+)', picture.svg))
        (least,) = map(float, re.findall(r"min-width: (\d+)px", picture.svg))
        sizes = [float(s) for s in re.findall(r"font-size: ([\d.]+)px", picture.svg)]
        assert min(sizes) * least / width >= 12
        # what a picture refers to is its own, and no two pictures share a name
        used = set(re.findall(r"url\(#([^)]*)\)", picture.svg))
        used |= set(re.findall(r'href="#([^"]*)"', picture.svg))
        assert used <= ids[i]
        assert not ids[i] & set().union(*(ids[j] for j in range(len(ids)) if j != i))


# ------------------------------------------------------------------------- the cell of a benchmark


@pytest.fixture
def recorded(tmp_path, monkeypatch, made):
    monkeypatch.setattr(benchmarking, "results_directory", lambda: tmp_path)
    made.save(tmp_path / "h200" / "gemm.json")
    monkeypatch.setattr(device, "current", lambda: None)
    monkeypatch.setattr(device, "driver_problem", lambda: "no NVIDIA driver is installed")


def test_without_a_gpu_the_recorded_rows_stand_in(recorded):
    step = mg.gemm.step(4, arch="hopper")
    shown = viz.benchmarked(step, [CUBE])
    assert shown.origin == "recorded"
    assert [(r["kernel"], r["M"], r["dtype"]) for r in shown.rows] == [
        ("gemm/hopper/step4", 4096, "float16")
    ]
    for text in (shown._repr_html_(), repr(shown)):
        assert "needs a Hopper (sm_90a) GPU" in text
        assert "recorded: NVIDIA H200, 2026-11-30" in text
    assert 'data-origin="recorded" data-kernels="gemm/hopper/step4"' in shown.markup
    assert len(viz.benchmarked(step).rows) == 2  # every shape
    assert len(viz.benchmarked(step, [CUBE], "bfloat16").rows) == 1


def test_what_was_never_recorded_is_said_so(recorded):
    shown = viz.benchmarked(mg.gemm.step(5, arch="hopper"), [CUBE])
    assert not shown
    assert shown.origin == ""
    assert "Nor is there a recorded figure of gemm/hopper/step5 yet" in shown._repr_html_()
    with pytest.raises(ValueError, match="dtype must be"):
        viz.benchmarked(mg.gemm.step(5, arch="hopper"), [CUBE], "float64")


def test_where_the_gpu_is_the_cell_measures(recorded, monkeypatch):
    asked = []

    def measure(kernels, shapes, dtype, *, seconds, baselines, tune):
        asked.append((kernels.name, shapes, dtype, seconds))
        assert (baselines, tune) == (("cublas", "triton"), False)
        return bench(row("step5", 0.21), date="2027-01-02T03:04:05Z")

    monkeypatch.setattr(benchmarking, "benchmark", measure)
    shown = viz.benchmarked(mg.gemm.step(5, arch="hopper"), [CUBE], seconds=0.1)
    assert asked == [("gemm/hopper/step5", [CUBE], "float16", 0.1)]
    assert shown.origin == "measured"
    assert "measured live: NVIDIA H200, 2027-01-02" in shown._repr_html_()


def test_committed_results_draw():
    """The pictures of chapters 12 to 14, from the files of this checkout."""
    assert viz.results().rows
    assert "Step 3" in drawn(viz.ladder(modelled=True)).alt
    assert "mg-recorded" in viz.ladder_table(modelled=True)._repr_html_()
    assert "cuBLAS" in drawn(viz.sizes()).alt
    assert "Step 3" in drawn(viz.roofline()).alt
    assert viz.results("h200/nothing").rows == []
    assert viz.modelled("modelled/nothing") == []
