"""What chapter 13 says in its prose, held against the outputs on the built page."""

import json
import math
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cells(book) -> list[Tag]:
    """Each output on the page, in order; a report in full, which repeats it, is left out."""
    page = (book / "chapters/part3/13-pipelining-gemm-with-tma.html").read_text(encoding="utf-8")
    found = BeautifulSoup(page, "html.parser").select("div.cell_output")
    for cell in found:
        for whole in cell.select("div.mg-report details"):
            whole.extract()
    return found


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


def table(tables: list[list[list[str]]], *header: str) -> list[list[str]]:
    """The rows of the one table whose header begins so."""
    found = [rows for rows in tables if tuple(rows[0][: len(header)]) == header]
    assert len(found) == 1, f"{len(found)} tables begin with {header}"
    return found[0][1:]


def texts(cells: list[Tag], words: str) -> list[str]:
    return [cell.get_text() for cell in cells if words in cell.get_text()]


def number(text: str) -> float:
    """The number that a cell begins with."""
    return float(re.match(r"[\d,.]+", text).group().replace(",", ""))


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, int], dict]:
    """The committed float16 rows by step and size."""
    found = json.loads((ROOT / "book/results/h200/gemm.json").read_text(encoding="utf-8"))["rows"]
    return {
        (row["kernel"].removeprefix("gemm/hopper/"), row["M"]): row
        for row in found
        if row["dtype"] == "float16" and row["kernel"].startswith("gemm/hopper/step")
    }


# --- TMA -----------------------------------------------------------------------------------------


def test_a_tensor_map_has_the_matrix_the_box_and_16_byte_strides(tables):
    shapes = {"A": (200, 72), "B": (136, 72), "D": (200, 136)}
    for name, of, stride, box, swizzle, fill in table(tables, "matrix", "rows × columns"):
        rows, columns = shapes[name]
        assert of == f"{rows} × {columns}"
        assert stride == f"{2 * columns} bytes"
        assert 2 * columns % 16 == 0
        assert box == "128 × 64"
        assert (swizzle, fill) == ("128 bytes", "zeros")


def test_a_box_over_the_corner_is_swizzled_and_filled_with_zeros(tables):
    for row, line in enumerate(table(tables, "bytes from")):
        expected = ["0.0"] * 8
        for chunk in range(8):
            if row < 4 and chunk < 4:  # of 20 rows and 96 columns, from (16, 64) on
                expected[chunk ^ row] = f"{16 + row}.{chunk}"
        assert line == [str(128 * row), *expected]


def test_stores_through_shared_memory_waste_nothing(tables):
    for name, _, takes, best in table(tables, "storing D's tile by threads"):
        assert int(takes) == (2 if "Step 3" in name else 1) * int(best)
    # A tile is 128 rows of 256 bytes: 8 sectors of 32 bytes each, two wavefronts of 128 bytes.
    assert {int(line[3]) for line in table(tables, "storing D's tile by threads")} == {
        128 * 8,
        128 * 2,
    }


def test_step_4_moves_what_was_predicted(tables):
    seen = {line[0]: line[1:] for line in table(tables, "200 × 136 × 72")}
    assert seen["bytes that TMA loads, zeros too"] == ["262,144"] * 2
    assert seen["FLOP of the MMAs"] == ["16,777,216"] * 2
    assert seen["MMA instructions"] == [str(4 * 2 * 4), str(4 * 2 * 8)]
    assert 1 - 3_916_800 / 16_777_216 == pytest.approx(0.75, abs=0.02)
    assert 2 * 200 * 136 * 72 == 3_916_800
    stored = seen["bytes that threads store to shared memory"]
    assert [int(n.replace(",", "")) - 4 * 128 * 128 * 2 for n in stored] == [16, 0]


# --- Runs and faults -----------------------------------------------------------------------------


def test_every_unbroken_kernel_is_right_and_silent(cells):
    said = [p.get_text(" ", strip=True) for cell in cells for p in cell("p")]
    runs = [line for line in said if re.search(r"gemm/\w+/step\d ,", line)]
    assert len(runs) == 4 + 6 + 4
    assert all("right: the largest error" in line for line in runs)
    assert not any(re.search(r"\d findings", line) for line in runs)


@pytest.mark.parametrize(
    ("change", "verdicts", "codes"),
    [
        ("+ T.ptx.mbarrier.arrive.expect_tx.shared.b64(bar, T.uint32((T.min", ["wrong"],
         ["tx-count", "deadlock"]),
        ("- T.cuda.mbarrier_wait(full.ptr_to([0]), phase)", ["right", "wrong"], ["race-smem"]),
        ("- T.cuda.mbarrier_wait(empty.ptr_to([0]), phase)", ["wrong"], ["race-smem"]),
        ("+ if True:", ["wrong"], ["barrier-overarrival"]),
        ("- T.ptx.fence.proxy.async_.shared__cta()", ["right"], ["missing-proxy-fence"]),
        ("% 2)\n", ["wrong", "wrong", "right", "wrong"], []),
        ("- T.cuda.mbarrier_wait(empty.ptr_to([s]), freed)", ["wrong"], ["race-smem"]),
        ("+ phase = T.meta_var(k % 2)", ["wrong"], ["barrier-parity", "deadlock"]),
        ("+ T.ptx.wgmma.wait_group.sync.aligned(1)", ["wrong"],
         ["race-smem", "wgmma-in-flight"]),
        ("- T.ptx.tcgen05.fence__before_thread_sync()", ["right"], ["missing-tcgen05-fence"]),
        ("+ for t in T.serial(TILES // CTAS):", ["wrong"], ["unwritten-output"]),
        ("+ rows = T.meta_var(GROUP_M)", ["wrong"], ["unwritten-output"]),
    ],
)  # fmt: skip
def test_a_fault_is_diagnosed_as_the_text_says(cells, change, verdicts, codes):
    found = [text for text in texts(cells, change) if "D is" in text]
    assert [re.search(r"D is (\w+)", text)[1] for text in found] == verdicts
    for text in found:
        for code in codes:
            assert f"[{code}]" in text, code


def test_nobody_waits_for_the_store_in_two_ways(cells):
    four, six = texts(cells, "- T.ptx.cp.async_.bulk.wait_group.read(0)")
    for text in (four, six):
        assert "D is right" in text
        assert "[in-flight-at-exit]" in text
    assert "[race-smem]" not in four
    assert "[race-smem]" in six


def test_phases_that_begin_again_pass_for_four_k_tiles_and_not_for_three(cells):
    even, odd = texts(cells, "+ phase = T.meta_var(k // PIPE_DEPTH % 2)")
    assert "D is right" in even
    assert "no findings" in even
    assert "D is wrong" in odd
    assert "[barrier-parity]" in odd


def test_the_table_of_faults(tables):
    faults = table(tables, "fault")
    assert len(faults) == 18
    assert all("–" not in (line[3], line[5]) for line in faults)
    right = [line for line in faults if "right" in (line[2], line[4])]
    assert len(right) == len(faults) / 2
    named = {line[0]: line for line in faults}
    for name, code in {
        "half of the bytes announced": "tx-count",
        "only bytes that exist": "tx-count",
        "32 threads ask": "barrier-overarrival",
        "no wait for full": "race-smem",
        "no wait for empty": "race-smem",
        "barrier used before its init": "barrier-init",
        "no proxy fence before the store": "missing-proxy-fence",
        "store not committed": "in-flight-at-exit",
        "store not waited for": "in-flight-at-exit",
        "first wait for parity 0": "deadlock",
        "one barrier for both stages": "barrier-overarrival",
        "stage filled unasked": "race-smem",
        "a group left in flight": "wgmma-in-flight",
        "mma_bar's parity fixed": "barrier-parity",
        "D's tile overwritten": "race-smem",
        "a tile forgotten": "unwritten-output",
    }.items():
        assert code in named[name][3], name
        assert code in named[name][5], name


# --- Stages --------------------------------------------------------------------------------------


def test_phases_of_two_stages_are_those_of_a_ring_that_is_walked(tables):
    done = {"full": [0, 0], "empty": [0, 0]}  # phases that each barrier has completed
    for k, line in enumerate(table(tables, "K tile", "stage")):
        stage = k % 2
        assert line[:3] == [str(k), str(stage), str(done["full"][stage])]
        # The last phase of empty that is over, in parity: none yet is the phase before phase 0.
        freed = done["empty"][stage] - 1
        assert line[3].startswith(str(freed % 2))
        assert ("nothing to wait for" in line[3]) == (freed < 0)
        assert line[4] == f"{done['full'][stage] % 2} (phase {done['full'][stage]})"
        done["full"][stage] += 1
        done["empty"][stage] += 1


def test_turns_of_step_5_keep_each_stage_until_it_has_been_read(tables):
    holds, multiplied = {}, []  # K tile of each stage; K tiles in the order of their MMAs
    for turn, asks, into, first, then in table(tables, "turn", "asks for"):
        if asks != "–":
            tile, stage = int(asks.removeprefix("K tile ")), int(into.removeprefix("stage "))
            old = holds.get(stage)
            # The wait names what the load overwrites, and those MMAs have been issued before.
            assert first == ("–" if old is None else f"K tile {old} has been read")
            assert old is None or old in multiplied
            holds[stage] = tile
        if then != "–":
            tile, stage = map(int, re.findall(r"\d+", then))
            assert holds[stage] == tile == int(turn)
            multiplied.append(tile)
    assert multiplied == list(range(5))


def test_nothing_overlaps_in_step_4_and_much_does_in_step_5(cells):
    said = [
        fig.get_text(" ") for cell in cells for fig in cell.select("figure[data-kind=timeline]")
    ]
    overlap = {}
    for text in said:
        kernel = re.search(r"Modelled timeline of (gemm_\w+)", text)[1]
        overlap[kernel] = int(re.search(r"loads are in flight (\d+) %", text)[1])
    assert set(overlap) == {
        "gemm_hopper_step4",
        "gemm_blackwell_step5",
        "gemm_hopper_step5",
        "gemm_blackwell_step6",
    }
    assert overlap["gemm_hopper_step4"] == 0
    assert min(overlap["gemm_blackwell_step5"], overlap["gemm_hopper_step5"]) >= 40


def test_a_load_takes_longer_than_the_mmas(tables):
    lines = table(tables, "cycles, one CTA alone", "Blackwell")
    found = {line[0]: [number(n) for n in line[1:]] for line in lines}
    load = found["a load, from memory that nobody read before"]
    mma = found["the MMAs of a K tile"]
    # 2 * 128 * 128 * 64 FLOP at 8,192 and 4,096 a clock.
    assert mma == [pytest.approx(256, abs=2), pytest.approx(512, abs=2)]
    assert load[0] > 5 * mma[0]
    assert load[1] > 2.5 * mma[1]
    for whole, first, second in zip(found["a turn of the loop"], load, mma, strict=True):
        assert first + second < whole < first + second + 250
    assert found["a turn of the loop"][1] == pytest.approx(2250, rel=0.02)


def test_a_turn_is_t_over_stages_down_to_a_floor(tables):
    lines = table(tables, "stages", "Blackwell: T / stages")
    turns = {int(line[0]): (number(line[2]), number(line[5])) for line in lines}
    for at, floor, full in ((0, 450, 0.6), (1, 690, 0.75)):
        whole = turns[1][at]
        for depth, found in turns.items():
            assert found[at] == pytest.approx(max(whole / depth, floor), rel=0.05), depth
        busy = [int(line[3 if at == 0 else 6].rstrip("%")) for line in lines]
        assert busy == sorted(busy)
        assert busy[-1] / 100 <= full
        # Almost 200 cycles above what the MMAs need: 256 and 512.
        assert 170 < turns[6][at] - (256, 512)[at] < 200
    # Two stages hide about half of a load and four nearly all of it: what the prediction says.
    assert turns[2][1] == pytest.approx(1125, rel=0.03)
    assert turns[3][1] == pytest.approx(750, rel=0.03)
    assert turns[4][1] > 1.2 * 560


def test_ctas_and_stages_both_make_pipelines(tables):
    lines = table(tables, "4096³", "stages of a CTA")
    found = {(line[0], int(line[1])): [number(x) for x in line[2:]] for line in lines}
    time = {key: values[2] for key, values in found.items()}
    assert [found["Hopper", depth][0] for depth in (1, 2, 4)] == [3, 2, 1]
    # 228 KiB, of which a CTA takes D's tile, its stages, 1 KiB for barriers and 1 KiB for CUDA.
    for depth in (1, 2, 4):
        assert found["Hopper", depth][0] == 228 // (32 * depth + 32 + 2)
        assert found["Blackwell", depth][0] == 1
    assert time["Hopper", 2] == min(time["Hopper", depth] for depth in (1, 2, 4))
    blackwell = [time["Blackwell", depth] for depth in (1, 2, 4)]
    assert blackwell == sorted(blackwell, reverse=True)
    assert blackwell[2] < 0.6 * blackwell[1]
    assert found["Hopper", 2][4] > 60  # L2 busy, percent: most of the time


# --- Measurements --------------------------------------------------------------------------------


def share(row: dict) -> float:
    """Part of the clocks in which 132 SMs with 4,096 FLOP a clock work on a cube."""
    return 2 * row["M"] ** 3 / (row["ms"] * 1e3 * row["sm_clock_mhz"] * 132 * 4096)


def test_measured_tables_are_the_recorded_rows(tables, rows):
    shown = [
        line
        for found in tables
        if found[0][:4] == ["M × N × K", "step", "TFLOP/s", "× cuBLAS"]
        for line in found[1:]
    ]
    assert len(shown) == 3 * 2 * 4
    for size, step, tflops, _, clock, works in shown:
        row = rows[step.lower().replace(" ", ""), int(size.rstrip("³"))]
        assert number(tflops) == round(row["tflops"])
        assert number(clock) == round(row["sm_clock_mhz"])
        assert number(works) / 100 == pytest.approx(share(row), abs=0.006)


def test_what_the_prose_says_of_the_measurements(rows):
    def speed(step, size):
        return rows[f"step{step}", size]["tflops"]

    assert 1.8 < speed(4, 1024) / speed(3, 1024) < 2.2
    assert speed(4, 4096) > 2.5 * speed(3, 4096)
    assert speed(4, 8192) > 2.5 * speed(3, 8192)
    assert speed(5, 1024) / speed(4, 1024) > speed(5, 4096) / speed(4, 4096) > 1.1
    # Step 6 gains nothing up to 4096, and costs a percent or two; at 8192 it is faster.
    assert 0.97 < speed(6, 1024) / speed(5, 1024) < 1
    assert 0.97 < speed(6, 2048) / speed(5, 2048) < 1
    assert 0.97 < speed(6, 4096) / speed(5, 4096) < 1
    assert 1 < speed(6, 8192) / speed(5, 8192) < 1.05
    # The clock falls as the tensor cores get work.
    clocks = [rows[f"step{n}", 4096]["sm_clock_mhz"] for n in (3, 4, 5)]
    assert clocks == sorted(clocks, reverse=True)


def test_loads_of_step_3_come_in_batches_on_hopper_and_at_once_on_blackwell(cells):
    (text,) = texts(cells, "LDG×")
    batches = {
        line.split()[0]: [int(n) for n in re.findall(r"LDG×(\d+)", line)]
        for line in text.splitlines()
        if "LDG×" in line
    }
    assert batches["Blackwell"] == [16]
    assert len(batches["Hopper"]) == 5
    assert sum(batches["Hopper"]) == 16


def test_registers_make_room_on_hopper_and_tmem_does_not_on_blackwell(tables):
    found = {line[0]: line[1:] for line in table(tables, "", "registers a thread")}
    assert found["Hopper, Step 3"][-1] == "2, by registers"
    assert found["Hopper, Step 4"][-1].startswith("3, by registers")
    assert found["Blackwell, Step 3"][-1] == found["Blackwell, Step 4"][-1] == "1, by tensor memory"
    assert int(found["Hopper, Step 4"][0]) < int(found["Hopper, Step 3"][0])


# --- Tiles ---------------------------------------------------------------------------------------


def walk(m_tiles: int, n_tiles: int, group: int = 8) -> list[tuple[int, int]]:
    """The places of tiles 0, 1, …, by loops."""
    return [
        (m, n)
        for first in range(0, m_tiles, group)
        for n in range(n_tiles)
        for m in range(first, min(first + group, m_tiles))
    ]


def test_numbers_of_tiles(tables):
    shown = {}
    for line in table(tables, "tile row"):
        shown.update({(int(line[0]), n): int(text) for n, text in enumerate(line[1:])})
    assert shown == {place: i for i, place in enumerate(walk(10, 4))}


def test_cta_0_stores_the_tiles_that_were_predicted(cells):
    (text,) = texts(cells, "CTA 0 stores")
    tiles = [
        (int(m) // 128, int(n) // 128)
        for m, n in re.findall(r"store D\[(\d+):\d+, (\d+):\d+\]", text)
    ]
    assert tiles == [(0, 0), (1, 1), (2, 2), (0, 4)] == walk(3, 5)[::4]


def test_rounds_read_as_the_text_says(tables):
    found = {line[0]: line[1:] for line in table(tables, "M × N × K", "tiles")}
    for size in (1024, 2048, 4096, 8192):
        side = size // 128
        read = []
        for group in (side, 8):
            first = walk(side, side, group)[:264]
            read.append(str(len({m for m, _ in first}) + len({n for _, n in first})))
        tiles, ctas = side * side, min(264, side * side)
        assert found[f"{size}³"] == [
            f"{tiles:,}",
            str(ctas),
            f"{tiles // ctas} to {math.ceil(tiles / ctas)}",
            f"{tiles / (264 * math.ceil(tiles / 264)):.0%}",
            *read,
        ]
    assert found["4096³"][-2:] == ["41", "48"]
    assert found["8192³"][-2:] == ["69", "41"]


def test_groups_of_16_read_least_at_8192(cells):
    (figure,) = [f for cell in cells for f in cell.select("figure[data-kind=tile-order]")]
    data = json.loads(figure.select_one("script.mg-fig-data").string)
    large = next(c for c in data["choices"] if c["shape"][0] == 8192)
    read = {o["group"]: o["rounds"][0]["rows"] + o["rounds"][0]["columns"] for o in large["orders"]}
    assert min(read, key=read.__getitem__) == 16
    total = {o["group"]: o["distinct"] for o in large["orders"]}
    assert min(total, key=total.__getitem__) == 16


def test_the_model_agrees_on_steps_5_and_6(tables):
    lines = table(tables, "4096³", "time", "A and B, loaded by CTAs")
    found = {line[0]: [number(x) for x in line[1:]] for line in lines}
    five, six = found["Hopper, Step 5"], found["Hopper, Step 6"]
    assert six[0] == pytest.approx(five[0], rel=0.02)
    assert five[1] == 2 * 4096 * 4096 * 2 * 32 / 2**20
    assert six[1] == pytest.approx(five[1], rel=0.02)
    assert six[2] < 0.8 * five[2]
    assert max(five[4], six[4]) < 30
    assert found["Blackwell, Step 6"][0] < 0.85 * found["Blackwell, Step 5"][0]


def test_the_model_expects_no_gain_of_step_4_on_blackwell(tables):
    shown = [found[1:] for found in tables if found[0][:2] == ["kernel", "time"]]
    time = {line[0]: number(line[1]) for lines in shown for line in lines if line[0]}
    assert 1 <= time["blackwell_step4"] / time["blackwell_step3"] < 1.1
    assert time["hopper_step4"] < 0.5 * time["hopper_step3"]


def test_rounds_of_148_find_more_in_l2_by_groups():
    """At 4096³ on a B200: rounds that read no block row for the first time."""
    found = {}
    for group in (32, 8):
        tiles = walk(32, 32, group)
        seen: set[tuple[str, int]] = set()
        warm = rounds = 0
        for start in range(0, len(tiles), 148):
            now = {("A", m) for m, _ in tiles[start : start + 148]}
            now |= {("B", n) for _, n in tiles[start : start + 148]}
            warm += now <= seen
            seen |= now
            rounds += 1
        found[group] = (warm, rounds)
    assert found == {32: (0, 7), 8: (3, 7)}


def test_one_thread_waits_for_one_thing_at_a_time(tables):
    shown = [found[1:] for found in tables if found[0][:2] == ["kernel", "time"]]
    (line,) = [line for lines in shown for line in lines if line[0] == "blackwell_step6"]
    waits: dict[str, int] = {}
    for name, part in re.findall(r"(full|empty)\[\d\] (\d+)%", line[6]):
        waits[name] = waits.get(name, 0) + int(part)
    assert waits["full"] == pytest.approx(50, abs=5)
    assert 30 < waits["empty"] < waits["full"]


def test_gaps_between_tiles(tables):
    for _, turn, gap, short, long in table(tables, "cycles, one CTA alone", "a turn"):
        assert number(gap) == pytest.approx(3 * number(turn), rel=0.15)
        for text, k_tiles in ((short, 16), (long, 64)):
            part = number(gap) / (number(gap) + k_tiles * number(turn))
            assert number(text) / 100 == pytest.approx(part, abs=0.006)


def test_references_of_predictions_add_up():
    """Step 6's prediction: lists of 4, 4, 4 and 3 tiles; K tile 6 is stage 0, use 3, parity 1."""
    assert [len(range(c, 15, 4)) for c in range(4)] == [4, 4, 4, 3]
    done = 2 * 3
    assert (done % 2, done // 2, done // 2 % 2) == (0, 3, 1)
