"""Static pictures: what stands in them, and that they follow the theme."""

import re
import xml.etree.ElementTree as ET

import pytest

from mlsys_gpu.viz import static

ROWS = [
    {
        "kernel": "gemm/hopper/step2",
        "M": 128, "N": 128, "K": 448,
        "ms": 0.02, "tflops": 0.734,
        "baseline": {"cublas": {"ms": 0.01}},
    },
    {
        "kernel": "gemm/hopper/step3",
        "M": 4096, "N": 4096, "K": 4096,
        "ms": 2.0, "tflops": 68.72,
        "baseline": {"cublas": {"ms": 0.2}, "triton": {"ms": 0.25}},
    },
]  # fmt: skip


def texts(picture):
    root = ET.fromstring(picture.svg)
    return [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text")]


def test_ladder_shows_steps_values_and_what_the_marks_mean():
    picture = static.ladder(ROWS, title="Measured")
    words = " ".join(texts(picture))
    for part in ("Step 2", "Step 3", "0.734", "68.7", "TFLOP/s", "cuBLAS", "Triton"):
        assert part in words
    assert "Step 3 4096×4096×4096 68.7" in picture.alt
    assert 'role="img"' in picture._repr_html_()


def test_ladder_can_show_the_figure_per_sm():
    rows = [dict(row, tflops_per_sm=row["tflops"] / 132) for row in ROWS]
    picture = static.ladder(rows, value="tflops_per_sm")
    assert "0.521" in " ".join(texts(picture))
    assert "TFLOP/s per SM" in " ".join(texts(picture))


@pytest.mark.parametrize(
    "picture",
    [
        static.ladder(ROWS),
        static.roofline([("Step 3", 51.2, 68.7)], peak_tflops=989, bandwidth_tbs=4.8),
    ],
    ids=["ladder", "roofline"],
)
def test_pictures_use_theme_colours_and_readable_text(picture):
    assert "#0102" not in picture.svg
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", picture.svg))
    assert not colours, f"colours that no theme changes: {colours}"
    assert "var(--mg-fg" in picture.svg
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', picture.svg).group(1))
    # At the least width that it may be shown with, text keeps 12 px.
    least = float(re.search(r"min-width: (\d+)px", picture.svg).group(1))
    sizes = [float(s) for s in re.findall(r"font-size: ([\d.]+)px", picture.svg)]
    assert min(sizes) * least / width >= 12


def test_same_rows_give_the_same_picture():
    assert static.ladder(ROWS).svg == static.ladder(ROWS).svg


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="no rows"):
        static.ladder([])
    with pytest.raises(ValueError, match="step9"):
        static.ladder([{"kernel": "gemm/hopper/step9"}])
    with pytest.raises(ValueError, match="above 0"):
        static.roofline([("x", 0, 1)], peak_tflops=1, bandwidth_tbs=1)


def test_a_data_path_has_a_box_for_each_stop_and_words_between():
    columns = {
        "One": [("GMEM: A", "by hand"), ("registers", "stored"), ("SMEM: tile", "")],
        "Two": [("GMEM: A", "by TMA"), None, ("SMEM: tile", "")],
    }
    picture = static.data_path(columns, title="Paths", alt="two paths")
    words = texts(picture)
    for word in ("One", "Two", "by hand", "by TMA", "registers"):
        assert words.count(word) == 1
    assert words.count("GMEM: A") == words.count("SMEM: tile") == 2
    with pytest.raises(KeyError):
        static.data_path({"One": [("disk", "")]}, title="Paths", alt="no such memory")
