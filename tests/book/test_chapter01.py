"""What chapter 1 says in its prose, held against the outputs on the built page."""

import re

import pytest
from bs4 import BeautifulSoup

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outputs(book) -> list[str]:
    """The text of each output on the page, in order."""
    page = (book / "chapters/part1/01-gpu-execution-model.html").read_text(encoding="utf-8")
    cells = BeautifulSoup(page, "html.parser").select("div.cell_output")
    return [cell.get_text() for cell in cells]


def the_one(outputs: list[str], words: str) -> str:
    found = [text for text in outputs if words in text]
    assert len(found) == 1, f"{len(found)} outputs contain {words!r}"
    return found[0]


def numbers(text: str) -> list[int]:
    return [int(n.replace(",", "")) for n in re.findall(r"(?<![\w.])\d[\d,]*(?![\w.])", text)]


def rows(text: str, start: str) -> list[list[int]]:
    return [numbers(line) for line in text.splitlines() if line.strip().startswith(start)]


def test_divergence_doubles_the_instructions_not_the_bytes(outputs):
    text = the_one(outputs, "condition changes every")
    # 4 CTAs of 4 warps, 4 bytes a thread; a split warp stores twice
    assert rows(text, "1 thread") == [[1, 512 * 4, 2 * 16]]
    assert rows(text, "32 threads") == [[32, 512 * 4, 16]]


def test_the_race_is_found_where_all_numbers_are_right(outputs):
    text = the_one(outputs, "512 of 512 elements are right")
    assert "1 finding" in text
    assert "race-smem" in text
    assert "line[tid - 1]" in text
    assert "line[tid] = mine" in text
    assert re.search(r"seen\s*12 times", text)  # three borders between warps in each of four CTAs


def test_every_seed_reports_the_race_and_at_most_12_elements_are_wrong(outputs):
    lines = [x for x in the_one(outputs, "wrong elements").splitlines() if x.startswith("seed")]
    wrong = [numbers(line)[1] for line in lines]
    assert len(wrong) == 6
    assert all("race-smem" in line for line in lines)
    assert 0 < max(wrong) <= 12


def test_the_compiler_may_swap_store_and_load_where_no_barrier_stands_between(outputs):
    order = dict(
        re.findall(r"^(\w+ +\w+)  +(.*)$", the_one(outputs, "STS -> BAR -> LDS"), re.M),
    )
    assert {" ".join(key.split()): value for key, value in order.items()} == {
        "hopper barrier": "STS -> BAR -> LDS",
        "hopper none": "LDS -> STS",
        "blackwell barrier": "STS -> BAR -> LDS",
        "blackwell none": "STS -> LDS",
    }


def test_a_split_barrier_is_refused(outputs):
    text = the_one(outputs, "divergent-collective")
    assert "16 of the warp's 32 threads" in text


def test_the_ring_passes_values_on_within_each_cluster(outputs):
    text = the_one(outputs, "own inbox at")
    seen = re.findall(r"^\s*(\d)\s+(\d)\s+0x(\w+)\s+0x(\w+)\s+the value of CTA (\d)", text, re.M)
    assert len(seen) == 8
    for cta, rank, mine, there, value in ((int(a), int(b), c, d, int(e)) for a, b, c, d, e in seen):
        assert rank == cta % 4
        assert int(mine, 16) >> 24 == rank
        assert int(there, 16) >> 24 == (rank + 1) % 4
        assert int(there, 16) & 0xFFFFFF == int(mine, 16) & 0xFFFFFF
        assert value == cta // 4 * 4 + (rank + 3) % 4


def test_without_its_second_barrier_the_ring_races_between_ctas(outputs):
    text = the_one(outputs, "of 1024 elements are wrong")
    assert re.search(r"of CTA rank 0 reads inbox.*does not wait for warp \d of CTA rank 3", text)
    assert "cluster-exit" in text
    assert "a cluster barrier (T.cuda.cluster_sync())" in text


def test_the_row_sums_use_each_level(outputs):
    text = the_one(outputs, "dsmem_store_bytes")
    assert rows(text, "global_load_bytes") == [[2 * 4096 * 4]]
    assert rows(text, "dsmem_store_bytes") == [[2 * 3 * 4]]
    assert rows(text, "global_store_bytes") == [[2 * 4]]


def test_the_clocks_behind_the_data_sheets(outputs):
    text = the_one(outputs, "TFLOP/s on CUDA cores")
    assert re.findall(r"\((\d\.\d\d) GHz\)", text) == ["1.98", "1.83", "1.98", "1.86"]


def test_bytes_that_an_mma_reads(outputs):
    text = the_one(outputs, "bytes a clock (128 at most)")
    # 64 x 256 x 16: 2 * 64 * 256 * 16 FLOP at 4096 a clock, 320 * 16 values of 2 bytes
    assert rows(text, "wgmma     64 x 256 x 16")[0][-2:] == [128, 80]
    assert rows(text, "tcgen05  128 x 128 x 16")[0][-2:] == [64, 128]
    assert text.count("too many") == 2


def test_the_pipeline_of_step_1(outputs):
    text = the_one(outputs, "SMEM -> tensor core, bytes")
    a_and_b = 2 * 128 * 64 * 2
    # wgmma: two halves of 64 rows, each with all of B; tcgen05: once
    hopper = 2 * (64 + 128) * 64 * 2
    assert rows(text, "GMEM -> registers") == [[a_and_b, a_and_b, a_and_b]]
    assert rows(text, "SMEM -> tensor core") == [[a_and_b, hopper, a_and_b]]
    assert rows(text, "tensor core, FLOP") == [[2 * 128 * 128 * 64] * 3]
    assert rows(text, "TMEM -> registers") == [[128 * 128 * 4, 128 * 128 * 4]]
    assert rows(text, "registers -> GMEM") == [[128 * 128 * 2] * 3]
    hopper_stores, blackwell_stores = rows(text, "store instructions")[0]
    assert hopper_stores == 4 * blackwell_stores
