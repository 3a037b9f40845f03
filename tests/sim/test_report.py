"""Reports: coverage by tiles, the graph of a deadlock, explanations of wrong numbers, and forms."""

import html.parser
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mlsys_gpu as mg
from mlsys_gpu import sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.sim.report import coverage_map
from mlsys_gpu.verification import gemm_inputs, poisoned

from . import warps
from .sources import module_from

KERNELS = Path(gemm.__file__).parent


# ------------------------------------------------------------------------------- coverage by tiles


def owners(text):
    """An owner for each character: digits are CTAs, ``.`` nobody, ``*`` several."""
    rows = text.split()
    signs = {".": 0, "*": -1}
    return np.array([[signs.get(c, int(c) + 1 if c.isdigit() else 0) for c in row] for row in rows])


def test_tiles_are_found_from_their_edges():
    owner = np.kron(np.arange(1, 7).reshape(2, 3), np.ones((128, 64), dtype=int))
    assert coverage_map(owner) == ([128, 64], ["###", "###"])
    owner[128:, 64:128] = 0
    assert coverage_map(owner) == ([128, 64], ["###", "#.#"])
    owner[0:128, 0:64] = -1
    assert coverage_map(owner) == ([128, 64], ["2##", "#.#"])


def test_tiles_that_are_written_in_part():
    assert coverage_map(owners("0000 0000 00.. 0000"), most=2) == ([2, 2], ["##", "#-"])
    assert coverage_map(owners("00 00")) == ([2, 2], ["#"])
    assert coverage_map(owners("..") * 0) == ([1, 2], ["."])


def test_irregular_edges_give_cells_of_a_round_size():
    owner = np.ones((100, 70), dtype=int)
    owner[33, 1] = 0
    size, cells = coverage_map(owner, most=32)
    assert size == [4, 4]
    assert (len(cells), len(cells[0])) == (25, 18)
    assert "".join(cells).count("-") == 1
    assert cells[8][0] == "-"


def test_coverage_of_a_run():
    report = warps.run(
        "if w.block[0] < 3: st_global(w, w.machine.pointers[0] + 4 * (w.lanes + 32 * w.block[0]), "
        "0, 4, 1)",
        tensors=[("X", np.zeros((4, 32), np.float32))],
        grid=(4, 1, 1),
    )
    seen = report.coverage["X"]
    assert (seen["tile"], seen["map"]) == ([1, 32], ["#", "#", "#", "."])
    assert "by 1 x 32 elements (# written once: 3, . never written: 1):" in str(report)
    assert json.loads(report.to_json())["coverage"]["X"]["map"] == ["#", "#", "#", "."]
    assert 'aria-label="map of X' in report._repr_html_()


# ------------------------------------------------------------------------- the graph of a deadlock

RING = """
if w.id == 0:
    mbarrier_init(w, SB, 1)
    mbarrier_init(w, SB + 8, 1)
await cta_sync(w)
for i in range(5):
    if w.id == 0:
        await mbarrier_wait(w, SB + 8, {first})
        mbarrier_arrive(w, SB, 1, mask=True)
    else:
        await mbarrier_wait(w, SB, i & 1)
        mbarrier_arrive(w, SB + 8, 1, mask=True)
"""
REGIONS = [["full", 0, 8, [1], "uint64"], ["empty", 8, 8, [1], "uint64"]]


def edges(report, kind):
    """Edges of a report's graph as (from, to, line), by the first words of the nodes."""
    return {
        (e["from"].split(" of CTA")[0], e["to"].split(" of CTA")[0], e["location"]["line"])
        for e in report.deadlock["edges"]
        if e["kind"] == kind
    }


def test_a_cycle_before_anyone_has_arrived():
    """Nothing has happened yet that would say who arrives where: the source says it."""
    report = warps.run(RING.format(first="i & 1"), threads=96, regions=REGIONS)
    assert edges(report, "waits") == {
        ("warp 0", "empty", 7), ("warp 1", "full", 10), ("warp 2", "full", 10),
    }  # fmt: skip
    assert edges(report, "acts") == {
        ("empty", "warp 1", 11), ("empty", "warp 2", 11), ("full", "warp 0", 8),
    }  # fmt: skip
    assert report.deadlock["cycles"] == [
        [f"{name} of CTA (0, 0)" for name in ("warp 0", "empty", "warp 1", "full")]
    ]
    text = str(report)
    assert "warps 1, 2 of CTA (0, 0): would arrive at warps.txt:11" in text
    assert "cycle: warp 0 of CTA (0, 0) -> empty of CTA (0, 0) -> warp 1" in text


def test_who_exited_and_who_does_not_come_by():
    report = warps.run(
        """
        if w.id == 0: mbarrier_init(w, SB, 3)
        await cta_sync(w)
        if w.id == 2: mbarrier_arrive(w, SB, 1, mask=True)
        if w.id == 3:
            mbarrier_arrive(w, SB, 1, mask=True)
            await bar_sync(w, 5, 64)
        if w.id < 2:
            await mbarrier_wait(w, SB, 0)
            if w.id == 1: mbarrier_arrive(w, SB, 1, mask=True)
        """,
        threads=128,
        regions=REGIONS,
    )
    nodes = {n["id"].split(" of CTA")[0]: n for n in report.deadlock["nodes"]}
    assert nodes["full"]["pending"] == 1
    assert nodes["warp 2"]["state"] == "exited"
    # Warp 1 would arrive behind its own wait; warp 3 is past its arrival, warp 2 has exited.
    assert edges(report, "acts") == {("full", "warp 1", 9), ("full", "warp 2", 3)}
    assert nodes["named barrier 5"]["actors"] == 0
    assert nodes["full"]["actors"] == 1
    assert report.deadlock["cycles"] == [["warp 1 of CTA (0, 0)", "full of CTA (0, 0)"]]
    assert "no warp that still runs comes to a line that would bring it about" in str(report)


def test_barriers_of_a_row_are_told_apart():
    body = """
    if w.id == 0:
        mbarrier_init(w, SB, 1)
        mbarrier_init(w, SB + 8, 1)
        mbarrier_init(w, SB + 16, 1)
    await cta_sync(w)
    if w.id == 0:
        await mbarrier_wait(w, SB + 16, 0)
        mbarrier_arrive(w, SB, 1, mask=True)
    if w.id == 1:
        await mbarrier_wait(w, SB, 0)
        for s in range(2):
            mbarrier_arrive(w, SB + 8 + 8 * s, 1, mask=True)
    """
    regions = [["first", 0, 8, [1], "uint64"], ["row", 8, 16, [2], "uint64"]]
    report = warps.run(body, threads=64, regions=regions)
    assert edges(report, "acts") == {("first", "warp 0", 8), ("row[1]", "warp 1", 12)}


def test_a_cta_barrier_and_two_ctas_of_a_cluster():
    report = warps.run(
        """
        if w.id == 0: mbarrier_init(w, SB, 1)
        await cluster_sync(w)
        if w.rank == 0 and w.id == 0:
            await mbarrier_wait(w, SB, 0)
        if w.rank == 1 and w.id == 1:
            await cta_sync(w)
            mbarrier_arrive(w, mapa(w, SB, 0), 1, mask=True)
        if w.rank == 1 and w.id == 0:
            await mbarrier_wait(w, SB, 0)
        """,
        threads=64,
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        regions=REGIONS,
    )
    acts = {(e["from"], e["to"]) for e in report.deadlock["edges"] if e["kind"] == "acts"}
    assert acts == {
        ("full of CTA (0, 0)", "warp 1 of CTA (1, 0)"),
        ("the CTA barrier of CTA (1, 0)", "warp 0 of CTA (1, 0)"),
    }
    full = next(n for n in report.deadlock["nodes"] if n["id"] == "full of CTA (1, 0)")
    assert full["actors"] == 0  # the arrival goes to rank 0


def test_a_real_kernel_that_expects_an_arrival_too_many():
    source = (KERNELS / "blackwell" / "step3.py").read_text()
    assert source.count("mma_bar.ptr_to([0]), T.uint32(1))") == 1
    text = source.replace("mma_bar.ptr_to([0]), T.uint32(1))", "mma_bar.ptr_to([0]), T.uint32(2))")
    kernel = kernel_from(text)
    A, B = gemm_inputs(128, 128, 128, dtype="float16", seed=0)
    report = sim.simulate(kernel.build(128, 128, 128), A, B, poisoned((128, 128), "float16"))
    assert report.findings[0].code == "deadlock"
    nodes = [n for n in report.deadlock["nodes"] if n["kind"] == "mbarrier"]
    assert [(n["name"], n["pending"], n["count"]) for n in nodes] == [("mma_bar", 1, 2)]
    commit = 1 + text[: text.index("tcgen05_commit(mma_bar")].count("\n")
    assert edges(report, "acts") == {("mma_bar", "warp 0", commit)}
    assert len(report.deadlock["cycles"]) == 1


def kernel_from(text, made=[0]):  # noqa: B006
    """The module of a changed kernel, from a file of its own."""
    made[0] += 1
    folder = Path(os.environ["MLSYS_GPU_CACHE"])
    return module_from(folder / f"changed_{made[0]}.py", text)


# ---------------------------------------------------------------------- where a number comes from


def explained(arch, find, replace, shape=(256, 256, 256), **options):
    """An explanation of what a change of Step 3 does, with A, B, D and the reference."""
    source = (KERNELS / arch / "step3.py").read_text()
    assert source.count(find) == 1, find
    kernel = kernel_from(source.replace(find, replace)).build(*shape)
    A, B = gemm_inputs(*shape, dtype="float16", seed=1)
    D = poisoned(shape[:2], "float16")
    report = sim.simulate(kernel, A, B, D, **options)
    reference = A.astype(np.float64) @ B.astype(np.float64).T
    return report.explain(D, reference), A, B, D, reference


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_k_tiles_that_were_left_out(arch):
    found, A, B, D, reference = explained(
        arch, "for k in T.serial(K // BK):", "for k in T.serial(K // BK - 1):"
    )
    i, j = found.element
    assert found.value == D[i, j]
    assert found.expected == reference[i, j]
    worst = np.abs(D.astype(np.float64) - reference)
    assert worst[i, j] > 0.5 * worst.max()
    assert found.missing == [[192, 256]]
    assert found.repeated == []
    ranges = [(f"A[{i}, {k}:{k + 64}]", f"B[{j}, {k}:{k + 64}]") for k in (0, 64, 128)]
    assert [row["text"] for row in found.terms] == [" · ".join(r) for r in ranges]
    partial = A[i, :192].astype(np.float64) @ B[j, :192].astype(np.float64)
    assert found.sum == pytest.approx(partial, abs=1e-9)
    for row, k in zip(found.terms, (0, 64, 128), strict=True):
        part = A[i, k : k + 64].astype(np.float64) @ B[j, k : k + 64].astype(np.float64)
        assert row["value"] == pytest.approx(part, abs=1e-9)
    assert found.writes[0]["who"].endswith(f"of CTA ({i // 128}, {j // 128})")
    assert found.writes[0]["location"].text.strip().startswith("Tx.wg.copy(D[")
    assert found.conclusion[-1].endswith("which is what it should be")
    assert (found.tile, found.map) == ([128, 128], ["xx", "xx"])


def test_k_tiles_that_were_added_twice():
    found, A, B, _, reference = explained(
        "blackwell", "k0 = T.meta_var(k * BK)", "k0 = T.meta_var((k // 2) * BK)"
    )
    assert found.missing == [[128, 256]]
    assert found.repeated == [[0, 128]]
    i, j = found.element
    half = 2 * (A[i, :128].astype(np.float64) @ B[j, :128].astype(np.float64))
    assert found.sum == pytest.approx(half, abs=1e-9)
    assert f"that would add {reference[i, j] - half / 2:.6g}" in " ".join(found.conclusion)


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_rows_of_another_tile(arch):
    found, A, B, _, _ = explained(
        arch, "B[n0 : n0 + BN, k0 : k0 + BK]", "B[m0 : m0 + BN, k0 : k0 + BK]"
    )
    i, j = found.element
    assert found.map == ["ox", "xo"]
    assert i // 128 != j // 128
    other = j % 128 + i // 128 * 128
    assert found.sum == pytest.approx(A[i].astype(np.float64) @ B[other].astype(np.float64))
    assert f"it should be the sum of B row {j} (not {other})" in found.conclusion[-1]
    assert "all 256 coordinates of K were added, once each" in found.conclusion


def test_a_tile_that_was_stored_in_another_ones_place():
    found, *_ = explained(
        "blackwell",
        "Tx.wg.copy(D[m0 : m0 + BM, n0 : n0 + BN]",
        "Tx.wg.copy(D[n0 : n0 + BM, m0 : m0 + BN]",
    )
    i, j = found.element
    assert found.writes[0]["who"].endswith(f"of CTA ({j // 128}, {i // 128})")
    assert f"A row {i} (not {i % 128 + j // 128 * 128})" in found.conclusion[-1]


def test_what_nothing_wrote():
    found, *_ = explained("hopper", "n0 = T.meta_var(bn * BN)", "n0 = T.meta_var(bn * 0)")
    assert found.wrong == 256 * 128
    assert found.element == (0, 128)
    assert np.isnan(found.value)
    assert found.writes == []
    assert found.conclusion == ["nothing wrote D[0, 128]: it holds what it held before the run"]
    assert json.loads(found.to_json())["value"] is None


def test_explanations_of_right_numbers_and_of_bad_questions():
    A, B = gemm_inputs(128, 128, 128, dtype="float16", seed=1)
    D = poisoned((128, 128), "float16")
    kernel = gemm.step(3, "hopper").build(128, 128, 128)
    reference = A.astype(np.float64) @ B.astype(np.float64).T
    with pytest.raises(ValueError, match="all 16384 elements of D are right"):
        mg.explain(kernel, A, B, D, reference=reference)
    with pytest.raises(ValueError, match="name an element, or pass a reference"):
        mg.explain(kernel, A, B, D)
    with pytest.raises(ValueError, match="there is no element"):
        mg.explain(kernel, A, B, D, element=(128, 0))
    with pytest.raises(ValueError, match="the reference has shape"):
        mg.explain(kernel, A, B, D, reference=reference[:5])
    with pytest.raises(ValueError, match="there are A, B, D"):
        mg.explain(kernel, A, B, D, element=(0, 0), output="C")
    found = mg.explain(kernel, A, B, D, element=(100, 3))
    assert found.sum == pytest.approx(reference[100, 3])
    assert "the sum over K of A row 100 and B row 3" in found.conclusion[0]
    assert np.isnan(D).all()  # the arrays are not changed


def test_a_copy_says_what_it_is_a_copy_of():
    X = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float16)
    Y = np.zeros((8, 32), np.float16)
    body = """
    X, Y = w.machine.pointers
    v = ld_global(w, X + 2 * (w.lanes + 32 * 5), 2, 1)
    st_global(w, Y + 2 * (31 - w.lanes + 32 * 3), v, 2, 1)
    """
    program = warps.program(body, tensors=[("X", X), ("Y", Y)])
    program.grain = 2
    report = sim.simulate(program, X, Y)
    reference = np.zeros((8, 32))
    reference[3] = X[4]
    found = report.explain("Y", reference, element=(3, 4))
    assert found.conclusion == ["Y[3, 4] is a copy of X[5, 27]"]
    assert found.writes[0]["location"].line == 3
    assert found.value == X[5, 27]


def test_an_explanation_in_its_forms():
    found, *_ = explained(
        "hopper", "for k in T.serial(K // BK):", "for k in T.serial(K // BK - 1):"
    )
    text, page, record = str(found), found._repr_html_(), json.loads(found.to_json())
    assert "added for it, in this order:" in text
    assert "left out" in text
    assert record["missing"] == [[192, 256]]
    assert record["terms"][0]["location"]["text"].strip()
    assert "Added for it, in this order" in page
    well_formed(page)


# ----------------------------------------------------------------------------------------- forms


class _Checker(html.parser.HTMLParser):
    VOID = ("br", "hr", "img", "input", "meta", "rect", "line", "path")

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def well_formed(page):
    """Balanced tags, nothing fetched, no scripts, all that scrolls reachable by the keyboard."""
    checker = _Checker()
    checker.feed(page)
    assert checker.open == []
    for tag, attributes in checker.seen:
        assert tag not in ("script", "link", "iframe", "img")
        assert not any(name.startswith("on") for name in attributes)
        if tag == "pre" or "o-scroll" in (attributes.get("class") or ""):
            assert attributes["tabindex"] == "0"
            assert attributes["aria-label"]
        if tag == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden")
    assert not re.search(r"https?://|@import|url\(", page)
    return checker.seen


def test_html_is_self_contained_in_light_and_dark():
    report = warps.run(RING.format(first="i & 1"), threads=96, regions=REGIONS)
    page = report._repr_html_()
    seen = well_formed(page)
    assert "prefers-color-scheme:dark" in page
    assert 'html[data-theme="dark"] .mg-out' in page
    assert 'html[data-theme="light"] .mg-out' in page
    assert any((a.get("class") or "").startswith("mg-out mg-report") for _, a in seen)
    assert "await mbarrier_wait(w, SB + 8, i &amp; 1)" in page
    assert "in a cycle" in page
    sizes = [float(n) for n in re.findall(r"font(?:-size)?:(?:[^;{}]*?)([\d.]+)px", page)]
    assert min(sizes) >= 12


def test_html_escapes_what_the_kernel_says():
    report = warps.run(
        "ld_shared(w, SB + 4096, 4, 1)  # <script>alert(1)</script> & more", threads=32
    )
    page = report._repr_html_()
    well_formed(page)
    assert "&lt;script&gt;" in page


def test_html_of_a_right_run():
    A, B = gemm_inputs(256, 128, 64, dtype="float16", seed=0)
    D = poisoned((256, 128), "float16")
    report = sim.simulate(gemm.step(3, "hopper").build(256, 128, 64), A, B, D)
    page = report._repr_html_()
    well_formed(page)
    assert "no findings" in page
    assert "Wrote D: 32768 of 32768 elements." in page
    assert report.coverage["D"]["map"] == ["#", "#"]


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
from mlsys_gpu import sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.verification import gemm_inputs, poisoned
from tests.sim import test_report as t, warps
for schedule, seed in (("lazy", 0), ("seeded", 5)):
    for first in ("i & 1", "(i & 1) ^ 1"):
        report = warps.run(
            t.RING.format(first=first), schedule, seed, threads=128, regions=t.REGIONS
        )
        report.seconds = 0
        print(report.to_json())
        print(report)
    race = warps.run(
        "if w.id > 0: st_shared(w, SB + 4 * w.id, 5, 4, 1)\\n"
        "if w.id == 0: ld_shared(w, SB + 4 * (w.lanes % 4), 4, 1)", schedule, seed, threads=128
    )
    race.seconds = 0
    print(race.to_json())
A, B = gemm_inputs(256, 128, 128, dtype="float16", seed=0)
report = sim.simulate(
    gemm.step(3, "blackwell").build(256, 128, 128), A, B, poisoned((256, 128), "float16"),
    schedule="seeded", schedule_seed=5,
)
report.seconds = 0
print(report.to_json())
print(report.explain("D", element=(200, 7)).to_json())
"""


def test_the_same_seeds_give_the_same_bytes_in_every_process():
    root = str(Path(__file__).resolve().parents[2])
    found = []
    for seed in ("1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(root=root)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert len(found[0]) > 10_000
    assert found[0] == found[1]


def test_a_report_keeps_nothing_that_cannot_travel():
    """Reports are handed from process to process: by grading, and by whoever runs many."""
    import pickle

    report = warps.run(RING.format(first="i & 1"), threads=64, regions=REGIONS)
    again = pickle.loads(pickle.dumps(report))
    assert again.to_json() == report.to_json()
    assert again == report


def test_copies_under_way_are_no_cycle():
    """The thread that waits is the one that would copy again; but its bytes are on their way."""
    from mlsys_gpu.sim.debugger import debug

    body = """
    if w.id == 0:
        mbarrier_init(w, SB, 1)
        for i in range(2):
            mbarrier_arrive(w, SB, 1, 16, mask=True)
            bulk_load(w, SB + 64, w.machine.pointers[0], 16, SB, mask=True)
            await mbarrier_wait(w, SB, i & 1)
    else:
        x = 1
    """
    X = np.zeros(4, np.float32)
    program = warps.program(body, tensors=[("X", X)], regions=REGIONS, threads=64)
    with debug(program, X) as session:
        session.run_until("x = 1", warp=1)  # warp 0 waits, and the copy has not landed
        graph = session.graph
    (full,) = [n for n in graph["nodes"] if n["kind"] == "mbarrier"]
    assert (full["pending"], full["bytes"], full["flying"]) == (0, 16, 16)
    assert any(e["kind"] == "acts" for e in graph["edges"])
    assert graph["cycles"] == []
