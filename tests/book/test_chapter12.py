"""What chapter 12 says in its prose, held against the outputs on the built page."""

import re

import pytest
from bs4 import BeautifulSoup, Tag

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cells(book) -> list[Tag]:
    """Each output on the page, in order."""
    page = (book / "chapters/part3/12-building-a-tiled-gemm.html").read_text(encoding="utf-8")
    return BeautifulSoup(page, "html.parser").select("div.cell_output")


@pytest.fixture(scope="module")
def tables(cells) -> list[list[list[str]]]:
    """The tables that cells have put out, as rows of cells; the header is the first row."""
    return [
        [
            [cell.get_text(" ", strip=True).replace("\u00a0", " ") for cell in row(["th", "td"])]
            for row in table("tr")
        ]
        for cell in cells
        for table in cell("table")
    ]


def table(tables: list[list[list[str]]], *header: str) -> dict[str, list[str]]:
    """The one table whose header begins so: first cell of each row -> the others."""
    found = [rows for rows in tables if tuple(rows[0][: len(header)]) == header]
    assert len(found) == 1, f"{len(found)} tables begin with {header}"
    return {row[0]: row[1:] for row in found[0][1:]}


def texts(cells: list[Tag], words: str) -> list[str]:
    """Outputs that contain the words; a report in full, which repeats them, is left out."""
    found = []
    for cell in cells:
        for whole in cell("details"):
            whole.extract()
        if words in cell.get_text():
            found.append(cell.get_text())
    return found


def test_a_tile_of_128_does_64_flop_a_byte(tables):
    of_tile = table(tables, "tile of D")
    assert of_tile["128 × 128"][:2] == ["32,768", "64"]


def test_a_tile_does_more_flop_a_byte_the_larger_it_is(tables):
    for tile, (flop, loaded, intensity) in table(tables, "a tile of").items():
        m, n = map(int, tile.split(" × "))
        elements = {("A", row) for row in range(m)} | {("B", row) for row in range(n)}
        pairs = [(a, b) for a in range(m) for b in range(n)]
        assert int(loaded.replace(",", "")) == 2 * len(elements)  # bytes of 16-bit elements
        assert int(flop.replace(",", "")) == 2 * len(pairs)  # a multiplication and an addition
        assert float(intensity) == pytest.approx(len(pairs) / len(elements))


def test_small_products_wait_for_memory_and_large_ones_do_not(tables):
    limits = {shape: row[-2:] for shape, row in table(tables, "M × N × K", "FLOP").items()}
    assert limits["4096 × 64 × 4096"] == ["memory", "memory"]
    assert limits["4096 × 4096 × 4096"] == ["tensor cores", "tensor cores"]


def test_float32_sums_stay_in_the_bound_and_float16_sums_miss_it_by_far(tables):
    for single, half in table(tables, "K").values():
        assert float(single) < 1
        assert 10 < float(half) < 1000


@pytest.mark.parametrize(
    ("shape", "loaded", "blackwell", "hopper"),
    [
        ((128, 128, 64), 32_768, (4, 32_768), (8, 49_152)),
        ((128, 128, 448), 7 * 32_768, (28, 7 * 32_768), (56, 7 * 49_152)),
        ((256, 384, 192), 589_824, (72, 589_824), (144, 884_736)),
    ],
)
def test_predictions_come_true(tables, shape, loaded, blackwell, hopper):
    seen = table(tables, " × ".join(map(str, shape)))
    assert seen["bytes loaded from global memory"] == [f"{loaded:,}"] * 2
    assert seen["MMA instructions"] == [str(blackwell[0]), str(hopper[0])]
    assert seen["operand bytes that the MMAs read"] == [f"{blackwell[1]:,}", f"{hopper[1]:,}"]
    M, N, K = shape
    assert seen["FLOP of the MMAs"] == [f"{2 * M * N * K:,}"] * 2
    assert seen["bytes stored to global memory"] == [f"{2 * M * N:,}"] * 2


def test_every_unbroken_kernel_is_right_and_silent(cells):
    said = [p.get_text(" ", strip=True) for cell in cells for p in cell("p")]
    runs = [line for line in said if re.search(r"gemm/\w+/step\d ,", line)]
    assert len(runs) == 12
    assert all("right: the largest error" in line for line in runs)
    assert not any(re.search(r"\d findings", line) for line in runs)


def test_the_missing_proxy_fence_leaves_the_numbers_right(cells):
    (text,) = texts(cells, "[missing-proxy-fence]")
    assert "D is right" in text


def test_a_phase_that_is_not_flipped_has_two_symptoms(cells):
    lazy, eager = texts(cells, "+ mma_phase = mma_phase ^ 0")
    assert "[race-smem]" in lazy
    assert "deadlock" not in lazy
    assert "[deadlock]" in eager


def test_only_the_last_k_tile_is_left(cells):
    (text,) = texts(cells, "Compared with the last K tile's product")
    assert "D is right" in " ".join(text.split())


def test_tensor_memory_limits_blackwell_and_registers_hopper(tables):
    fit = table(tables, "Step 3")
    assert fit["Blackwell"][-1] == "1, by tensor memory"
    assert fit["Hopper"][-1] == "2, by registers"


def test_a_turn_takes_less_than_a_third_longer_in_step_3_than_in_step_2(cells, tables):
    (text,) = texts(cells, "a turn of the loop")
    (alone,) = re.findall(r"a turn of the loop: ([\d.]+) µs", text)
    crowded = [rows for rows in tables if "a turn of one CTA" in rows[0]]
    assert len(crowded) == 1
    at = crowded[0][0].index("a turn of one CTA")
    for row in crowded[0][1:]:
        assert 1 < float(row[at].removesuffix(" µs")) / float(alone) < 4 / 3


def test_numbers_and_findings_tell_of_different_faults(tables):
    faults = table(tables, "fault")
    assert len(faults) == 12
    for name in ("no proxy fence", "TMEM not freed", "no wgmma.fence"):
        assert (faults[name][1], faults[name][3]) == ("right", "right"), name
    assert faults["B read from m0"][1:] == ["wrong", "–", "wrong", "–"]
    barrier = faults["no barrier behind it"]
    assert (barrier[1], barrier[3]) == ("wrong", "right")
    expected = {
        "no commit": "deadlock",
        "two arrivals expected": "deadlock",
        "no proxy fence": "missing-proxy-fence",
        "no barrier behind it": "race-smem",
        "no wait::ld": "missing-tcgen05-wait",
        "TMEM not freed": "tmem-lifetime",
        "first product added": "uninitialised-read",
        "phase not flipped": "race-smem",
        "every K tile afresh": "discarded-product",
        "no wgmma.fence": "wgmma-fence",
        "no wait_group": "wgmma-in-flight",
    }
    for name, code in expected.items():
        assert code in faults[name][2], name
        assert code in faults[name][4], name
