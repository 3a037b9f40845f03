"""What chapter 14 says in its prose, held against the outputs on the built page."""

import json
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup, Tag

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
NAME = "14-scaling-gemm-with-warp-specialization-and-clusters"
RATE = {"Hopper": 4096, "Blackwell": 8192}  # FLOP of an SM in a clock


@pytest.fixture(scope="module")
def cells(book) -> list[Tag]:
    """Each output on the page, in order; a report in full, which repeats it, is left out."""
    page = (book / f"chapters/part3/{NAME}.html").read_text(encoding="utf-8")
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


def found(tables: list[list[list[str]]], *header: str) -> list[list[list[str]]]:
    """The rows of all tables whose headers begin so."""
    return [rows[1:] for rows in tables if tuple(rows[0][: len(header)]) == header]


def texts(cells: list[Tag], words: str) -> list[str]:
    return [cell.get_text() for cell in cells if words in cell.get_text()]


def number(text: str) -> float:
    """The number that a cell begins with."""
    begins = re.match(r"[\d,.]+", text)
    assert begins, text
    return float(begins.group().replace(",", ""))


# --- Roles and rings -----------------------------------------------------------------------------


def test_a_ring_is_walked(tables):
    (rows,) = found(tables, "K tile", "stage", "use")
    full, empty = [0] * 3, [0] * 3  # phases that each barrier has completed
    for i, (tile, stage, use, at_full, at_empty, means) in enumerate(rows):
        s = i % 3
        assert (tile, stage) == (str(i), str(s))
        assert use == str(full[s])
        # The consumer waits for the phase that is next to complete; the producer for the last one
        # that has, or for "the one before the first".
        assert at_full == str(full[s] % 2)
        assert at_empty == str((empty[s] - 1) % 2)
        assert (means == "passes at once") == (i < 3)
        full[s] += 1
        empty[s] += 1


#: Arrivals that complete a phase, by step and architecture: who must have done a part.
COUNTS = {
    # full: the producers of one CTA or of both; empty: commits or consumers that read a stage.
    7: {"full": {1}, "empty": {1}, "tmem_full": {1}, "tmem_empty": {128}},
    8: {"full": {1, 2}, "empty": {1, 2}, "tmem_full": {1}, "tmem_empty": {2 * 128}},
    9: {"full": {1, 2}, "empty": {2, 2 * 2}, "tmem_full": {1}, "tmem_empty": {2 * 128}},
}


@pytest.mark.parametrize("step", COUNTS)
def test_pictures_of_roles_state_the_counts(cells, step):
    (text,) = texts(cells, f"Step {step}: roles") or texts(cells, f"Step {step}: one producer")
    seen: dict[str, set[int]] = {}
    for name, count in re.findall(r"(\w+): (\d+) arrivals?", text):
        seen.setdefault(name, set()).add(int(count))
    assert seen == COUNTS[step]


def test_the_registry_announces_the_roles_that_the_page_shows(tables):
    from mlsys_gpu.kernels import gemm

    shown = found(tables, "", "who", "does what")
    assert len(shown) == 3
    for step, rows in zip((7, 8, 9), shown, strict=True):
        expected = [
            [arch.capitalize(), *map(" ".join, ([who], [what]))]
            for arch in ("blackwell", "hopper")
            for who, what in gemm.step(step, arch).roles
        ]
        assert rows == expected


# --- Runs and predictions ------------------------------------------------------------------------


def test_every_unbroken_kernel_is_right_and_silent(cells):
    said = [p.get_text(" ", strip=True) for cell in cells for p in cell("p")]
    runs = [line for line in said if re.search(r"gemm/\w+/step\d ,", line)]
    assert len(runs) == 12
    assert all("right: the largest error" in line for line in runs)
    assert not any(re.search(r"\d findings", line) for line in runs)


def test_loads_run_six_tiles_ahead_and_hopper_rests_between_tiles(tables):
    (rows,) = found(tables, "cycles, one CTA alone", "loads asked for before the first MMA")
    seen = {line[0]: [number(cell) for cell in line[1:]] for line in rows}
    blackwell, hopper = seen["gemm_blackwell_step7"], seen["gemm_hopper_step7"]
    assert blackwell[0] == hopper[0] == 2 * 6  # A and B of six stages
    work = 2 * 128 * 128 * 64
    assert blackwell[1] == pytest.approx(work / 8192, rel=0.02)
    assert hopper[1] == pytest.approx(work / 4096, rel=0.02)
    assert blackwell[2] < 0.2 * blackwell[1]  # no rest between two tiles of D
    assert hopper[2] > 0.5 * hopper[1]  # converting, and writing to shared memory
    assert blackwell[3] > blackwell[1]  # six stages do not cover a load from memory …
    assert hopper[3] < 0.2 * hopper[1]  # … and here they do


def test_roles_leave_a_cta_alone_less_idle_between_tiles(tables):
    (rows,) = found(tables, "one CTA alone", "cycles idle in a turn")
    seen = {line[0]: [number(cell) for cell in line[1:]] for line in rows}
    for arch, rate in RATE.items():
        before, after = seen[f"{arch}, Step 6"], seen[f"{arch}, Step 7"]
        assert after[0] < 0.5 * before[0]  # in a turn
        assert after[1] < 0.25 * before[1]  # between two tiles
        for idle, gap, *shares in (before, after):
            work = 2 * 128 * 128 * 64 / rate  # clocks of a K tile
            for share, k_tiles in zip(shares, (16, 64), strict=True):
                whole = k_tiles * work + (k_tiles - 1) * idle + gap
                assert share / 100 == pytest.approx(k_tiles * work / whole, abs=0.015)
    assert seen["Blackwell, Step 7"][1] < 50 < seen["Hopper, Step 7"][1]


#: Rows of A and of B that a CTA loads for a K tile, and its share of D, by step.
TILES = {
    "Blackwell": {7: (128, 128, 128 * 128), 8: (128, 128, 128 * 256), 9: (256, 128, 256 * 256)},
    "Hopper": {7: (128, 128, 128 * 128), 8: (128, 64, 128 * 128), 9: (128, 128, 128 * 256)},
}


@pytest.mark.parametrize("step", [7, 8, 9])
def test_bytes_that_were_predicted_have_been_loaded(tables, step):
    (rows,) = found(tables, f"Step {step}, 512 × 512 × 192")
    counters = {line[0]: line[1:] for line in rows}
    for place, arch in enumerate(("Blackwell", "Hopper")):
        a, b, share = TILES[arch][step]
        ctas = 512 * 512 // share
        assert counters["bytes loaded from L2"][place] == f"{ctas * (a + b) * 192 * 2:,}"
        assert counters["FLOP of the MMAs"][place] == f"{2 * 512 * 512 * 192:,}"


def test_what_the_tensor_cores_ask_for_in_a_clock(tables):
    rows = found(tables, "bytes per clock and SM", "loaded")[-1]
    seen = {line[0]: (number(line[1]), number(line[2])) for line in rows}
    # Bytes that an MMA reads for 16 of K, and the FLOP of one tensor core in it: shapes by step.
    reads = {
        ("Blackwell", 7): ((128 + 128) * 32, 2 * 128 * 128 * 16),
        ("Blackwell", 8): ((256 + 256) * 32 / 2, 2 * 256 * 256 * 16 / 2),
        ("Blackwell", 9): ((256 + 256) * 32 / 2, 2 * 256 * 256 * 16 / 2),
        ("Hopper", 7): ((64 + 128) * 32, 2 * 64 * 128 * 16),
        ("Hopper", 8): ((64 + 128) * 32, 2 * 64 * 128 * 16),
        ("Hopper", 9): ((64 + 256) * 32, 2 * 64 * 256 * 16),
    }
    for (arch, step), (operands, flop) in reads.items():
        a, b, share = TILES[arch][step]
        clocks = 2 * share * 64 / RATE[arch]
        loaded, read = seen[f"{arch}, Step {step}"]
        assert loaded == pytest.approx((a + b) * 64 * 2 / clocks, abs=0.5)
        assert read == pytest.approx(operands / (flop / RATE[arch]), abs=0.5)
    assert seen["Hopper, Step 6"] == seen["Hopper, Step 7"]


def test_l2_gives_less_than_step_7_asks_for_and_more_than_step_9_does(cells, tables):
    (text,) = texts(cells, "each SM its own bytes")
    (own,) = re.findall(r"own bytes: .*?(\d+) bytes per clock", text)
    (same,) = re.findall(r"the same bytes: .*?(\d+) bytes per clock", text)
    assert 32 < int(own) < 48 < 64 < int(same)


def test_registers_move_from_the_producer_to_the_consumers(cells):
    (text,) = texts(cells, "registers a thread, ")
    lines = re.findall(r"(\w+): at launch 168 .*?, ([\d,]+) in all; afterwards ([\d,]+) of", text)
    assert [line[0] for line in lines] == ["Hopper", "Blackwell"]
    for (_, launch, after), (less, more) in zip(lines, ((40, 232), (72, 216)), strict=True):
        assert int(launch.replace(",", "")) == 168 * 384
        assert int(after.replace(",", "")) == 128 * less + 256 * more <= 168 * 384
    assert text.count("spilled 0 bytes") == 2


# --- Faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "verdicts", "codes"),
    [
        ("+ T.cuda.mbarrier_wait(empty.ptr_to([s]), phase)", ["wrong"], ["deadlock"]),
        ("+ T.cuda.mbarrier_wait(full.ptr_to([s]), phase ^ 1)", ["wrong"], ["race-smem"]),
        ("+ last = T.meta_var(s)", ["wrong"], ["race-smem"]),
        ("+ T.cuda.cta_sync()", ["right", "wrong"], []),
        ("cta_mask=1)", ["wrong"], ["tx-count"]),
        ("+ T.ptx.mbarrier.init.shared.b64(empty.ptr_to([s]), T.uint32(1))", ["wrong"],
         ["race-smem", "barrier-overarrival"]),
        ("+ if rank == 0: ", ["right"], ["tx-count"]),
        ("+ mbarrier_init(empty, 1)", ["wrong"], ["race-smem"]),
        ("+ acc[:, 0 : PN]", ["wrong"], ["race-tmem"]),
        ("u32(96)", ["wrong"], ["setmaxnreg-budget"]),
    ],
)  # fmt: skip
def test_a_fault_is_diagnosed_as_the_text_says(cells, change, verdicts, codes):
    seen = [
        text for text in texts(cells, change) if "D is" in text and "cluster_sync()\n+" not in text
    ]
    assert [re.search(r"D is (\w+)", text)[1] for text in seen] == verdicts
    for text in seen:
        for code in codes:
            assert f"[{code}]" in text, code


def test_clusters_that_do_not_meet_leave_the_numbers_right(cells):
    seen = [text for text in texts(cells, "- T.cuda.cluster_sync()") if "D is" in text]
    assert len(seen) == 2
    for text, code in zip(seen, ("cluster-exit", "barrier-init"), strict=True):
        assert "D is right" in text
        assert f"[{code}]" in text


def test_the_second_consumer_of_the_first_ones_rows_breaks_no_rule(cells):
    (text,) = texts(cells, "descA + T.uint64(0)")
    assert "D is wrong" in text
    assert "no findings" in text


def test_the_strict_reading_of_wait_group_finds_a_race(cells):
    (text,) = texts(cells, "readings: wgmma-wait = warp")
    assert "D is right" in " ".join(text.split())
    assert "[race-smem]" in text


def test_the_table_of_faults(tables):
    (faults,) = found(tables, "fault", "step")
    assert len(faults) >= 14
    assert all("–" not in (line[3], line[5]) for line in faults)
    codes = {
        "producer starts in phase 0": "deadlock",
        "stage released a turn early": "race-smem",
        "accumulator not handed back": "deadlock",
        "accumulator handed back unread": "race-tmem",
        "CTA barrier in a role": "deadlock",
        "mask forgets the peer": "tx-count",
        "no cluster barrier at the end": "cluster-exit",
        "no cluster barrier at the start": "barrier-init",
        "bytes of one CTA": "tx-count",
        "one named barrier for two": "barrier-mixed",
        "one accumulator for two": "race-tmem",
    }
    seen = {line[0] for line in faults}
    assert set(codes) <= seen
    for line in faults:
        code = codes.get(line[0], "race-smem")
        assert code in line[5], line
        # Bytes that come at once complete the phase too early: seen as what follows from it.
        early = line[0] == "bytes of one CTA"
        assert ("barrier-parity" if early else code) in line[3], line
    assert any("right" in (line[2], line[4]) for line in faults)


# --- The result ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, int], dict]:
    """The committed float16 rows of Hopper by kernel and size."""
    data = json.loads((ROOT / "book/results/h200/gemm.json").read_text(encoding="utf-8"))["rows"]
    return {
        (row["kernel"].removeprefix("gemm/hopper/"), row["M"]): row
        for row in data
        if row["dtype"] == "float16" and row["M"] == row["N"] == row["K"]
    }


@pytest.mark.parametrize("size", [1024, 4096, 8192])
def test_gains_are_those_of_the_committed_rows(tables, rows, size):
    (shown,) = found(tables, f"{size}³, float16", "gain")
    expected = {
        f"Step {n}": rows[f"step{n - 1}", size]["ms"] / rows[f"step{n}", size]["ms"]
        for n in range(4, 10)
        if (f"step{n}", size) in rows and (f"step{n - 1}", size) in rows
    }
    assert [line[0] for line in shown] == list(expected)
    for step, gain, why in shown:
        assert gain == f"× {expected[step]:.2f}"
        assert why.startswith(("nothing: ", "a loss: ")) == (expected[step] < 1.02)


def result(name: str) -> dict[tuple[str, int], dict]:
    rows = json.loads((ROOT / f"book/results/h200/{name}.json").read_text())["rows"]
    return {(row["kernel"].rpartition("/")[2], row["M"]): row for row in rows}


def test_what_a_division_costs(tables):
    (shown,) = found(tables, "", "stage and parity counted")
    rows = json.loads((ROOT / "book/results/h200/division.json").read_text())["rows"]
    times = {
        (row["kernel"][-5:], row["M"], row.get("options") is not None): row["ms"] for row in rows
    }
    assert len(shown) == 4
    for what, counted, divided, longer in shown:
        step, size = map(int, re.findall(r"Step (\d), (\d+)³", what)[0])
        one, other = times[f"step{step}", size, False], times[f"step{step}", size, True]
        assert (counted, divided) == (f"{one:.3f} ms", f"{other:.3f} ms")
        assert longer == f"× {other / one:.2f}"
        assert other > 1.1 * one  # "costs", as the prose has it


def test_clusters_do_not_relieve_l2_by_a_quarter(tables):
    (shown,) = found(tables, "8192³, float16", "thousand cycles")
    rows = result("profile")
    moved = {n: rows[f"step{n}", 8192]["l2_bytes"] for n in (7, 8, 9)}
    assert moved[8] > moved[7] > moved[9]
    assert [line[3] for line in shown[1:4]] == [f"{moved[n] / 1e9:.1f} GB" for n in (7, 8, 9)]


def test_the_best_kernel_is_compared_with_cublas_and_the_better_triton_kernel(cells, rows):
    last = {k: r for k, r in rows.items() if k[0].startswith("step9") or k[0] == "tuned"}
    for size in sorted({size for _, size in last}):
        best = min((r for (_, n), r in last.items() if n == size), key=lambda r: r["ms"])
        times = {name: b["ms"] for name, b in best["baseline"].items()}
        triton = min((ms for name, ms in times.items() if name.startswith("triton")), default=None)
        (text,) = texts(cells, f"{size}³: ")
        (line,) = re.findall(rf"^{size}³: .*$", text, re.M)
        assert f"{times['cublas'] / best['ms']:.2f} × cuBLAS" in line
        if triton:
            assert f"{triton / best['ms']:.2f} × the better Triton kernel" in line


def test_modelled_figures_of_a_b200_are_labelled_and_have_published_ones_beside_them(cells):
    shown = [cell for cell in cells if "MLC course" in cell.get_text()]
    assert len(shown) == 1
    text = shown[0].get_text(" ")
    assert "not yet run on silicon" in text
    assert "TFLOP/s, published" in text
    if (ROOT / "book/results/modelled/ladder_b200.json").is_file():
        assert "modelled" in text
        assert "TFLOP/s, modelled" in text


def launches(name: str) -> list[dict]:
    return json.loads((ROOT / f"book/results/modelled/{name}.json").read_text())["launches"]


def test_why_the_model_has_step_6_slower_than_step_5_at_8192(tables):
    shown = found(tables, "8192³", "time", "bound by")
    assert len(shown) == 1
    five, six = (
        next(r for r in launches("ladder_b200") if (r["kernel"], r["M"]) == (name, 8192))
        for name in ("gemm/blackwell/step5", "gemm/blackwell/step6")
    )
    for line, launch in zip(shown[0], (five, six), strict=True):
        assert number(line[1]) == round(launch["modelled_us"])
        assert line[2] == launch["bound"]
    # What the prose says: slower; by no bandwidth; less from memory, but all loads wait for it.
    assert six["modelled_us"] > five["modelled_us"]
    for launch in (five, six):
        assert launch["bound"].startswith("latency")
        assert max(launch["busy"].values()) < 0.5
    memory = [sum(t["memory_bytes"] for t in launch["reads"].values()) for launch in (five, six)]
    assert memory[1] < memory[0]
    assert five["reads"]["B"]["cold"] < 1 == five["reads"]["A"]["cold"]
    assert {t["cold"] for t in six["reads"].values()} == {1}


def test_the_additions_of_hoppers_tuned_kernel_are_those_measured(tables):
    from mlsys_gpu.kernels import gemm

    shown, _ = found(tables, "addition", "what it is", "1024³")  # before Blackwell's
    rows = json.loads((ROOT / "book/results/h200/additions.json").read_text())["rows"]
    tuned = {
        (row["M"], *row.get("options", {}).get("without", ())): row["ms"]
        for row in rows
        if row["kernel"] == "gemm/hopper/tuned" and row["dtype"] == "float16"
    }
    sizes = sorted({key[0] for key in tuned})
    every = list(gemm.tuned("hopper").module.ADDITIONS)
    lines = {line[0]: line[2:] for line in shown}
    assert list(lines) == [*every, "all together"]
    for name, cells in lines.items():
        left_out = every if name == "all together" else [name]
        gains = [tuned[size, *left_out] / tuned[size,] for size in sizes]
        assert cells == [f"× {gain:.3f}" for gain in gains]
    # What the prose says of short launches, and of long ones
    gain = {(name, size): tuned[size, name] / tuned[size,] for name in every for size in sizes}
    assert gain["shape", 1024] > 2
    assert gain["overlap", 1024] > 1.1
    assert all(abs(gain[name, 4096] - 1) < 0.01 for name in every)


def test_the_additions_of_blackwells_tuned_kernel_are_those_of_the_model(tables):
    from mlsys_gpu.kernels import gemm

    _, shown = found(tables, "addition", "what it is", "1024³")  # behind Hopper's
    rows = launches("additions_b200")
    whole = {r["M"]: r["modelled_us"] for r in rows if not r["without"]}
    every = list(gemm.tuned("blackwell").module.ADDITIONS)
    lines = {line[0]: line[2:] for line in shown}
    assert list(lines) == [*every[:3], "all together"]
    for name, cells in lines.items():
        left_out = every if name == "all together" else [name]
        times = {r["M"]: r["modelled_us"] for r in rows if r["without"] == left_out}
        assert cells == [f"× {times[size] / whole[size]:.3f}" for size in sorted(whole)]
    # and the three of which the model is said to know nothing change nothing in it
    for name in every[3:]:
        assert all(whole[r["M"]] == r["modelled_us"] for r in rows if r["without"] == [name])


def test_blackwells_tuned_kernel_is_modelled_faster_than_step_9(tables):
    (shown,) = found(tables, "M × N × K", "tile of a pair")
    times = {(r["kernel"], r["M"]): r["modelled_us"] for r in launches("ladder_b200")}
    assert [line[0] for line in shown] == ["1024³", "2048³", "4096³", "8192³"]
    for line in shown:
        size = int(line[0].removesuffix("³"))
        gain = times["gemm/blackwell/step9", size] / times["gemm/blackwell/tuned", size]
        assert line[-1] == f"× {gain:.3f}"
        assert gain > 1
