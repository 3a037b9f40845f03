"""Debugging: what a session shows is what there is, where it stops is where it says, and a run
under control is the run that there would have been without."""

import ast
import difflib
import gc
import io
import re
import sys
import threading

import numpy as np
import pytest

import mlsys_gpu as mg
from mlsys_gpu import sim
from mlsys_gpu.kernels import gemm
from mlsys_gpu.sim import layouts
from mlsys_gpu.sim.debugger import DebugError, Session, debug
from mlsys_gpu.sim.inspect_state import UNWRITTEN, shown
from mlsys_gpu.sim.shell import Shell, place
from mlsys_gpu.verification import gemm_inputs, poisoned

from . import warps
from .fixtures import blackwell_persistent, debugged

SHAPE = (256, 128, 128)


def inputs(shape=SHAPE, dtype="float16"):
    """A, B and a poisoned D."""
    return *gemm_inputs(*shape, dtype=dtype, seed=3), poisoned(shape[:2], dtype)


@pytest.fixture
def step3():
    """A session with Step 3 of Blackwell, before its first line, and its arrays."""
    arrays = inputs()
    with debug(gemm.step(3, "blackwell").build(*SHAPE), *arrays) as session:
        yield session, *arrays


def hand_written(body, **launch):
    """A session with warps written by hand (see :mod:`.warps`)."""
    arrays = [array for _, array in launch.get("tensors", ())]
    return debug(warps.program(body, **launch), *arrays)


RING = """
if w.id == 0:
    mbarrier_init(w, SB, 1)
    mbarrier_init(w, SB + 8, 1)
await cta_sync(w)
for i in range(5):
    if w.id == 0:
        await mbarrier_wait(w, SB + 8, (i & 1) ^ 1)
        st_shared(w, SB + 64, i, 4, 1)
        warp_sync(w); mbarrier_arrive(w, SB, 1, mask=True)
    else:
        await mbarrier_wait(w, SB, i & 1)
        w.machine.count("sum", int(ld_shared(w, SB + 64, 4, 1)) * 10**i)
        warp_sync(w); mbarrier_arrive(w, SB + 8, 1, mask=True)
"""
RING_LAUNCH = {
    "threads": 64,
    "regions": [["full", 0, 8, [1], "uint64"], ["empty", 8, 8, [1], "uint64"]],
}


# ---------------------------------------------------------------- the same run as without it


class _WithoutStops(ast.NodeTransformer):
    """Takes away where a debugger stops, and gives each site's place in the source."""

    def __init__(self, sites):
        self.sites = sites

    def visit_Expr(self, node):
        call = node.value
        stop = isinstance(call, ast.Call) and getattr(call.func, "id", "") == "at"
        return None if stop else node

    def visit_Pass(self, node):
        return None

    def visit_Assign(self, node):
        if ast.unparse(node.targets[0]) == "w.s":
            node.value = ast.Constant(str(self.sites[ast.literal_eval(node.value)]))
        return node


@pytest.mark.parametrize(
    "build",
    [
        lambda: gemm.step(3, "blackwell").build(*SHAPE),
        lambda: gemm.step(3, "hopper").build(*SHAPE),
        lambda: blackwell_persistent.build(512, 256, 320),
    ],
    ids=["blackwell", "hopper", "persistent"],
)
def test_a_program_for_debugging_is_the_ordinary_one_with_stops(build):
    kernel = build()
    plain, stops = sim.compile(kernel), sim.compile(kernel, debug=True)
    shorter, longer = (
        ast.unparse(_WithoutStops(p.sites).visit(ast.parse(p.source))).splitlines()
        for p in (plain, stops)
    )
    made, more = [], []
    for line in difflib.ndiff(shorter, longer):
        assert line[0] in " +", line
        (made if line[0] == " " else more).append(line[2:])
    assert made == shorter
    # besides, a variable that the kernel never reads is kept, for a person to see
    for line in more:
        name = re.fullmatch(r"\s*(\w+) = [\w. /%+*()]+", line)
        assert name is not None, line
        assert not re.search(rf"\b{name[1]}\b", "\n".join(shorter)), line
    assert not plain.stops
    assert len(stops.stops) > 15
    assert sim.compile(kernel).stops == []  # the cache tells them apart


def outcome(report):
    record = report.to_dict()
    del record["seconds"]
    return record


def transposed():
    """A matrix, and a poisoned one of its transpose's shape."""
    return np.random.default_rng(0).random((64, 96), np.float32), poisoned((96, 64), "float32")


def rows_of_ring(rounds=10):
    A = np.random.default_rng(0).random((rounds, 32), np.float32)
    return A, poisoned((rounds, 32), "float32")


@pytest.mark.parametrize("sync", [True, False])
def test_loops_that_a_plain_run_takes_in_one_step_stop_in_each_iteration(sync):
    kernel = debugged.transpose(64, 96, sync)
    assert "for j_0 in range" not in sim.compile(kernel).source  # it is one step there
    A, D = transposed()
    expected = sim.simulate(kernel, A, D)
    A, E = transposed()
    with debug(kernel, A, E, at="tile[row, col] =", findings=False) as session:
        values = session.variables
        assert (values["j"], values["row"]) == (0, 0)
        session.run_until("tile[row, col] =", warp=2, when="j == 5")
        values = session.variables
        assert (session.warp, values["j"], values["row"]) == (2, 5, 22)
        assert np.array_equal(session.smem("tile").values[18], A[18, :32])
        assert session.step().location.text.strip().startswith("row =")
        session.run_until("tile[row, col] =", when="row == 27")
        assert session.variables["j"] == 6
        report = session.finish()
    assert E.tobytes() == D.tobytes()
    plain, here = outcome(expected), outcome(report)
    # one finding of the loop may count other elements of it, and name another first
    seen = [[(f["code"], f["location"]) for f in one.pop("findings")] for one in (plain, here)]
    assert seen[0] == seen[1]
    assert plain == here
    assert bool(seen[0]) != sync


@pytest.mark.parametrize(
    ("schedule", "seed"), [("eager", 0), ("lazy", 0), ("seeded", 1), ("seeded", 2)]
)
@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_a_session_changes_neither_outputs_nor_findings(arch, schedule, seed):
    kernel = gemm.step(3, arch).build(*SHAPE)
    A, B, D = inputs()
    expected = sim.simulate(kernel, A, B, D, schedule=schedule, schedule_seed=seed)
    A, B, E = inputs()
    with debug(kernel, A, B, E, schedule=schedule, schedule_seed=seed) as session:
        session.break_at("cta_sync")
        stops = 0
        while not session.finished:
            session.cont()
            stops += 1
            if not session.finished and stops % 3 == 0:  # look at everything there is
                for shown in (session, session.variables, session.barriers, session.waits):
                    assert repr(shown)
                session.smem("As")
                if stops % 5 == 0:
                    session.step()
        assert stops > 12
        assert outcome(session.report) == outcome(expected)
    assert E.tobytes() == D.tobytes()


@pytest.mark.parametrize(
    ("body", "launch"),
    [
        (RING, RING_LAUNCH),
        (RING.replace("(i & 1) ^ 1", "i & 1"), RING_LAUNCH),  # nobody ever begins
        (
            "if w.id == 1: st_shared(w, SB, 5, 4, 1)\nif w.id == 0: ld_shared(w, SB, 4, 1)",
            RING_LAUNCH,
        ),
    ],
    ids=["right", "deadlock", "race"],
)
@pytest.mark.parametrize("schedule", ["lazy", "eager"])
def test_findings_are_those_of_a_plain_run(body, launch, schedule):
    program = warps.program(body, **launch)
    expected = outcome(sim.simulate(program, schedule=schedule))
    with debug(program, schedule=schedule) as session:
        stops = [session.stop.reason]
        while not session.finished:
            stops.append(session.cont().reason)
        assert outcome(session.report) == expected
        # a read of what another warp writes later is first "uninitialised", in the end a race
        assert stops.count("finding") >= len(expected["findings"])


# ------------------------------------------------------------------------------- where it stops


def test_lines_by_number_file_and_text(step3):
    session, *_ = step3
    assert session.stop.reason == "start"
    text = next(line for line in session.source(60).splitlines() if "Tx.gemm_async(" in line)
    line = int(text.strip(" >*").split("|")[0])
    for where in (line, f"step3.py:{line}", "Tx.gemm_async"):
        session.restart()
        stop = session.run_until(where)
        assert (stop.reason, stop.warp, stop.cta) == ("line", 0, (0, 0, 0))
        assert stop.location.line == line
        assert session.location.text.strip() == "Tx.gemm_async("
        assert session.variables["k"] == 0


def test_a_line_between_statements_means_the_next_one(step3):
    session, *_ = step3
    line = session.run_until("Tx.gemm_async").location.line
    assert session.run_until(line + 2, warp=0).location.line > line + 2  # its arguments


def test_conditions_warps_and_ctas(step3):
    session, *_ = step3
    session.run_until("mbarrier_wait", warp=2, when="k == 1")
    assert (session.warp, session.variables["k"], session.variables["mma_phase"]) == (2, 1, 1)
    session.run_until("mbarrier_wait", cta=(1, 0), warp=[1, 3])
    assert session.cta == (1, 0, 0)
    assert session.warp in (1, 3)
    assert session.variables["bm"] == 1


@pytest.fixture
def ring():
    """A session with two warps and three buffers between them."""
    with debug(debugged.ring(10), *rows_of_ring()) as session:
        yield session


def test_a_condition_holds_where_it_does_for_any_lane(ring):
    stop = ring.run_until("rows[s, lane] =", when="lane == 4")
    assert stop.text == (
        "warp 0 of CTA (0, 0) comes to debugged.py:65 if lane == 4: true for lane 4"
    )
    stop = ring.run_until("rows[s, lane] =", when="r == 2 and (0 < lane < 3 or not lane != 31)")
    assert stop.text.endswith("true for lanes 1-2, 31")
    assert ring.variables["r"] == 2
    stop = ring.run_until("rows[s, lane] =", when="lane == 32")
    assert stop.reason == "end"
    assert stop.text == (
        "debugged.py:65 if lane == 32: warps came there 7 times, and the condition was never true; "
        "the kernel has run: no findings"
    )


def test_a_condition_counts_the_lanes_that_run_its_line(step3):
    session, *_ = step3
    stop = session.run_until("tcgen05_commit", when="tid == 1")  # lane 0 of warp 0 runs it
    assert stop.reason == "end"


def test_a_condition_that_cannot_be_computed_stops_and_says_so(ring):
    stop = ring.run_until("rows[s, lane] =", when="10 // s == 5")
    assert "this has no truth there (10 // s == 5: " in stop.text
    assert ring.variables["s"] == 0
    assert ring.run_until("rows[s, lane] =", when="s and 10 // s == 5").reason == "line"
    assert ring.variables["s"] == 2


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"where": "full.arrive", "warp": 1}, "warp 1 did not come to debugged.py:66; the kernel"),
        ({"where": "full.arrive", "warp": 1, "cta": 0}, "warp 1 of CTA 0 did not come to"),
        ({"where": "full.arrive", "when": "r == 10"}, "warps came there 10 times, and the cond"),
        (
            {"barrier": "full[1]", "phase": 99},
            "phase 99 of full[1] never came (full_buf[1] has completed phases 0 to 2); the kernel",
        ),
        (
            {"barrier": "full[1]", "phase": 1, "warp": 0},
            "warp 0 did not pass phase 1 of full[1] (full_buf[1] has completed phases 0 to 2)",
        ),
        ({"barrier": "named barrier 3"}, "phases of named barrier 3 never came (named barrier 3"),
        ({"finding": "deadlock"}, "there was no finding deadlock; the kernel has run"),
    ],
)
def test_a_target_that_is_never_reached(ring, ask, words):
    stop = ring.run_until(**ask)
    assert stop.reason == "end"
    assert words in stop.text
    assert ring.stop is stop
    assert ring.breakpoints == []
    ring.restart()
    ring.break_at(**ask)
    assert words in ring.cont().text


def test_a_first_target_that_is_never_reached():
    with debug(debugged.ring(3), *rows_of_ring(3), at="full.arrive", warp=1) as session:
        assert "warp 1 did not come to debugged.py:66" in repr(session)


def test_a_phase_that_is_complete_already(ring):
    ring.run_until(barrier="full[1]", phase=0)
    assert {row["line"].split("(")[0] for row in ring.positions} == {"full.arrive", "full.wait"}
    stop = ring.run_until(barrier="full[1]", phase=0)
    assert stop.text == "phase 0 of full[1] is already complete"
    assert stop.location == ring.location
    stop = ring.run_until(barrier="full_buf[1]", phase=0, warp=1)
    assert stop.text == "warp 1 of CTA (0, 0) has passed phase 0 of full_buf[1]"
    assert ring.variables["r"] == 1
    ring.step(2)
    stop = ring.run_until(barrier="full[1]", phase=0, warp=1)
    assert stop.text == "warp 1 of CTA (0, 0) has passed phase 0 of full_buf[1] already"
    assert ring.run_until(barrier="full", phase=1).text.startswith("phase 1 of full_buf[0] is com")


def test_a_line_in_several_parts_is_come_to_once(step3):
    session, *_ = step3
    session.break_at("tmem.commit", cta=0)
    seen = []
    while session.cont().reason == "line":
        seen.append(session.stop.text)
    line = session.breakpoints[0].place
    assert seen == [f"warp {n} of CTA (0, 0) comes to {line}, CTA 0" for n in range(4)]


def test_at_a_fault_between_warps_it_stands_at_the_line_of_the_finding():
    with debug(debugged.transpose(64, 96, sync=False), *transposed()) as session:
        while "and does not wait for" not in (stop := session.cont()).text:
            assert stop.reason == "finding"
        reader = re.search(r"\] warp (\d) reads", stop.text)
        assert session.warp == int(reader[1])
        assert session.location == stop.finding.location
        assert ">   39 | " in session.where
        assert "has exited since" in session.where
        session.select()
        assert session.where == "warp 0 of CTA (0, 0), exited"


def test_breakpoints_count_their_hits(step3):
    session, *_ = step3
    one = session.break_at("Tx.cta.copy(As", warp=1)
    while not session.finished:
        session.cont()
    assert one.hits == 4  # two K tiles in each of two CTAs
    assert repr(one).endswith("(4 hits)")


def test_steps_are_the_lines_of_one_warp():
    with hand_written(RING, **RING_LAUNCH) as session:
        session.run_until("mbarrier_wait(w, SB, i", warp=1)
        lines = [session.step().location.line for _ in range(7)]
    assert lines == [12, 13, 6, 11, 12, 13, 6]  # the for line is no statement, the if line is


def test_a_step_passes_over_the_helpers_lines(step3):
    session, *_ = step3
    session.run_until("tcgen05_commit", warp=0)
    here = session.location.line
    assert session.step().location.line > here


def test_other_warps_run_as_the_schedule_says_while_one_is_stepped():
    with hand_written(RING, **RING_LAUNCH) as session:
        session.run_until("ld_shared", warp=1)
        assert "sum" not in session._run.machine.counters
        session.step(4)
        assert session._run.machine.counters["sum"] == 0
        assert session.finish().counters["sum"] == 43210


def test_the_next_barrier(step3):
    session, *_ = step3
    session.select(warp=1)
    seen = []
    for _ in range(6):
        seen.append(session.next_barrier().location.text.strip())
    wait = "T.cuda.mbarrier_wait(mma_bar.ptr_to([0]), mma_phase)"
    assert seen == ["T.cuda.cta_sync()", "T.cuda.cta_sync()", wait, "T.cuda.cta_sync()", wait,
                    "T.cuda.cta_sync()"]  # fmt: skip
    assert session.warp == 1


def test_phases_of_a_barrier():
    with hand_written(RING, **RING_LAUNCH) as session:
        stop = session.run_until(barrier="full", phase=3)
        assert stop.reason == "barrier"
        assert stop.text == "phase 3 of full is complete in CTA (0, 0)"
        rows = {row["barrier"]: row for row in session.barriers}
        assert rows["full"]["phase"] == 4  # the phase that is under way
        assert rows["full"]["pending"] == rows["full"]["count"] == 1
        assert rows["empty"]["phase"] == 3
        assert session._run.machine.counters["sum"] == 210


def test_a_warp_that_has_passed_a_phase():
    with hand_written(RING, **RING_LAUNCH) as session:
        stop = session.run_until(barrier="full[0]", phase=2, warp=1)
        assert (stop.warp, stop.location.line) == (1, 12)
        assert session.variables["i"] == 2


def test_the_cta_barrier_has_phases_too(step3):
    session, *_ = step3
    stop = session.run_until(barrier="the CTA barrier", phase=1)
    assert stop.reason == "barrier"
    assert {row["at"] for row in session.positions} != set()
    row = next(r for r in session.barriers if r["barrier"] == "the CTA barrier")
    assert row["phase"] == 2


def test_it_stops_at_a_finding_with_the_machine_as_it_is():
    with hand_written(
        "st_shared(w, SB, 7, 4, 1)\nx = ld_shared(w, SB + 4, 4, 1)\ny = 1"
    ) as session:
        stop = session.cont()
        assert (stop.reason, stop.finding.code) == ("finding", "uninitialised-read")
        assert stop.location.line == 2
        assert [f.code for f in session.findings] == ["uninitialised-read"]
        assert session.cont().reason == "end"


def test_findings_can_be_passed_by_or_chosen():
    body = "ld_shared(w, SB, 4, 1)\nld_shared(w, SB + 4096, 4, 1)"
    program = warps.program(body)
    with debug(program, findings=False) as session:
        session.break_at(finding="out-of-bounds")
        assert session.cont().finding.code == "out-of-bounds"
        assert session.cont().reason == "end"
    with debug(program) as session:
        assert session.finish().findings[0].code == "uninitialised-read"


def test_an_interrupt_stops_at_the_next_line(step3):
    session, *_ = step3
    session._run.interrupted = True  # what Ctrl-C does while the machine runs
    assert session.cont().reason == "interrupted"
    assert session.step().reason == "step"


def test_a_warp_that_exits_ends_its_stepping():
    with hand_written("x = 1\nif w.id == 1: return\ny = 2", threads=64) as session:
        session.select(warp=1)
        assert session.step(5).reason == "exit"
        with pytest.raises(DebugError, match="warp 1 of CTA \\(0, 0\\) has exited"):
            session.step()


# -------------------------------------------------------------------------------- what it shows


def test_scalars_lanes_and_registers(step3):
    session, A, B, _ = step3
    session.run_until("Tx.cast(out", warp=3)
    variables = session.variables
    assert list(variables)[:5] == ["bm", "bn", "wg_id", "warp_id", "tid"]
    assert (variables["bm"], variables["warp_id"], variables["mma_phase"]) == (0, 3, 0)
    assert np.array_equal(variables["tid"], np.arange(96, 128))
    product = A[:128].astype(np.float64) @ B.astype(np.float64).T
    assert np.abs(variables["regs"] - product[96:128]).max() < 1e-4
    assert variables.details["regs"].dtype == "float32"
    assert variables.details["out"].kind == "array"
    assert "k" not in variables  # its loop is over
    with pytest.raises(DebugError, match="no variable 'k' is set where warp 3"):
        variables["k"]
    assert session.print("regs[2, 5] * 2") == pytest.approx(2 * product[98, 5], abs=1e-3)
    assert session.print("mma_phase + 1") == 1


def test_variables_of_a_warp_that_waits(step3):
    session, *_ = step3
    session.run_until("Tx.gemm_async", when="k == 1")
    assert session.warp == 0
    session.select(warp=2)
    assert session.variables["k"] == 1
    assert session.location.text.strip().startswith("T.cuda.mbarrier_wait")
    assert "waits for phase parity 1 of mma_bar" in session.where


def test_what_nothing_has_written_is_no_number(step3):
    session, *_ = step3
    session.run_until("Tx.wg.copy_async(regs_wg", warp=0)
    regs = session.variables.details["regs"]
    assert regs.unwritten == regs.value.size == 32 * 128
    session.step()  # tcgen05.ld fills them when it is waited for
    assert "tcgen05.ld at step3.py" in session.variables.details["regs"].note
    session.step()
    assert session.variables.details["regs"].unwritten == 0
    assert session.variables.details["regs"].note == ""


def test_a_scalar_that_is_not_set_yet(step3):
    session, *_ = step3
    session.run_until("mma_phase: T.int32 = 0", warp=0)
    assert "mma_phase" not in session.variables
    session.step()
    assert session.variables["mma_phase"] == 0
    assert repr(UNWRITTEN) == "<nothing written yet>"


@pytest.mark.parametrize("arch", gemm.ARCHS)
def test_swizzled_tiles_are_shown_as_matrices(arch):
    A, B, D = inputs()
    with debug(gemm.step(3, arch).build(*SHAPE), A, B, D) as session:
        with pytest.raises(DebugError, match="As, Bs"):
            session.smem("Cs")
        blank = session.smem("As")
        assert (blank.state == 0).all()
        session.run_until("cta_sync", warp=1, cta=(1, 0), when="k == 1")
        tile = session.smem("As")
        assert tile.dtype == "float16"
        assert tile.shape == (128, 64)
        rows = np.array([r for r in range(128) if 4 <= r % 16 < 8])  # those that warp 1 copies
        assert np.array_equal(tile.values[rows], A[128 + rows, 64:])
        assert np.array_equal(np.asarray(session.smem("Bs"))[rows], B[rows, 64:])
        assert (tile.state[rows] == 1).all()
        assert {(w["who"], w["location"].text.strip()[:14]) for w in tile.writers} >= {
            ("warp 1", "Tx.cta.copy(As")
        }
        with pytest.raises(DebugError, match="As has no stages: its shape is \\[128, 64\\]"):
            session.smem("As", 1)


def test_stages_and_the_two_ctas_of_a_cluster():
    M, N, K = 512, 256, 320
    A, B, D = inputs((M, N, K))
    with debug(blackwell_persistent.build(M, N, K), A, B, D) as session:
        session.run_until(barrier="full[1]", phase=1)  # the fifth K tile, in stage 1
        for rank in (0, 1):
            tile = session.smem("As", stage=1, cta=(rank, 0))
            rows = slice(128 * rank, 128 * rank + 128)
            assert np.array_equal(tile.values, A[rows, 256:320])
            assert (tile.state == 1).all()
            assert np.array_equal(session.smem("Bs", 1, cta=(rank, 0)).values,
                                  B[64 * rank : 64 * rank + 64, 256:320])  # fmt: skip
        assert session.smem("As").shape == (3, 128, 64)
        with pytest.raises(DebugError, match="As has stages 0 to 2, no 3"):
            session.smem("As", 3)
        acc = session.tmem("acc")
        assert acc.shape == (128, 256)
        assert (acc.state[:, :128] == 1).all()
        assert (acc.state[:, 128:] == 0).all()
        with pytest.raises(DebugError, match="full holds mbarriers"):
            session.smem("full")


def test_copies_are_in_flight_until_their_phase_is_complete():
    X = np.arange(64, dtype=np.float32)
    body = """
    if w.id == 0:
        mbarrier_init(w, SB, 1)
        mbarrier_arrive(w, SB, 1, 256, mask=True)
        bulk_load(w, SB + 256, w.machine.pointers[0], 256, SB, mask=True)
        x = 1
        await mbarrier_wait(w, SB, 0)
        y = 2
    """
    regions = [["full", 0, 8, [1], "uint64"], ["tile", 256, 512, [128], "float32"]]
    with hand_written(body, tensors=[("X", X)], regions=regions) as session:
        session.run_until("x = 1")
        tile = session.smem("tile")
        assert (tile.state[:64] == 2).all()
        assert (tile.state[64:] == 0).all()
        assert "64 of 128 elements in flight" in repr(tile)
        assert session.barriers[0]["in flight"] == session.barriers[0]["bytes"] == 256
        session.run_until("y = 2")
        tile = session.smem("tile")
        assert np.array_equal(tile.values[:64], X)
        assert (tile.state[:64] == 1).all()


def test_layouts_are_tvms():
    tir = pytest.importorskip("tvm.tirx.layout")
    from mlsys_gpu.lowering import layout_facts

    T, S, axis = tir.TileLayout, tir.S, tir.Axis.get
    cases = [
        (tir.ComposeLayout(3, 3, 3, T(S[8192:1])), (128, 64)),
        (tir.ComposeLayout(2, 2, 3, T(S[512:1])), (16, 32)),
        (tir.ComposeLayout(3, 3, 3, T(S[(3, 64, 2, 64) : (8192, 64, 4096, 1)])), (3, 64, 128)),
        (T(S[(16, 8) : (1, 16)]), (16, 8)),
        (T(S[(128, 32) : (1 @ axis("TLane"), 1 @ axis("TCol"))] + 32 @ axis("TCol")), (128, 32)),
        (tir.tcgen05_atom_layout("16x64b", (64, 32), "float32"), (64, 32)),
    ]
    rng = np.random.default_rng(0)
    for layout, shape in cases:
        found = layouts.places(layout_facts(layout), shape)
        for _ in range(40):
            at = [int(rng.integers(n)) for n in shape]
            wanted = {name: int(v) for name, v in layout.apply(*at, shape=list(shape)).items()}
            assert {name: int(found[name][tuple(at)]) for name in wanted} == wanted
    with pytest.raises(ValueError, match="has 8192 elements, the buffer 64"):
        layouts.places(layout_facts(cases[0][0]), (8, 8))


def test_tensor_memory(step3):
    session, A, B, _ = step3
    with pytest.raises(DebugError, match="has not used tensor memory"):
        session.tmem(0)
    session.run_until(barrier="mma_bar", phase=1)
    product = A[:128].astype(np.float64) @ B.astype(np.float64).T
    assert np.abs(session.tmem("acc").values - product).max() < 1e-4
    block = session.tmem(8, 4)
    assert block.shape == (128, 4)
    assert np.abs(block.values - product[:, 8:12]).max() < 1e-4
    assert "the tensor core (for warp 0) at step3.py" in repr(block)
    halves = session.tmem(8, 4, "float16")
    assert np.array_equal(halves.values, block.values.view(np.float16), equal_nan=True)
    assert session.tmem_allocations == [
        {"cta": "(0, 0)", "column": 0, "columns": 512, "allocated at": "step3.py:69"}
    ]
    for bad, words in (
        ((512,), "columns 0 to 511"),
        (("D",), "there are acc"),
        ((0, 0), "one"),
        ((0, 1.5), "n is a number of columns, got 1.5"),
    ):
        with pytest.raises(DebugError, match=words):
            session.tmem(*bad)


def test_products_that_are_queued_are_not_done(step3):
    session, *_ = step3
    session.run_until("tcgen05_commit", warp=0)
    assert "may not be done" in session.tmem("acc").note


def test_views_of_registers_are_matrices(step3):
    session, A, B, _ = step3
    product = A[:128].astype(np.float64) @ B.astype(np.float64).T
    session.run_until(barrier="the CTA barrier", phase=3)  # all warps have their registers
    tile = session.tile("regs_wg")
    assert tile.shape == (128, 128)
    assert np.abs(tile.values - product).max() < 1e-4
    assert session.tile("out_wg").values.dtype == np.float16
    with pytest.raises(DebugError, match="there are regs_wg, out_wg"):
        session.tile("x")


def test_accumulators_of_wgmma_are_up_to_date():
    """They are kept as matrices between products; what is shown is each lane's registers."""
    A, B, D = inputs()
    with debug(gemm.step(3, "hopper").build(*SHAPE), A, B, D) as session:
        session.run_until("cta_sync", warp=2, when="k == 1")
        session.next_barrier()  # the wait for the products
        session.next_barrier()  # the CTA barrier behind it
        acc = session.variables["acc"]
    product = A[:128].astype(np.float64) @ B.astype(np.float64).T
    # PTX ISA, wgmma accumulator fragment: register 4j + 2h + e of lane 4r + c holds row
    # 16w + 8h + r, column 8j + 2c + e; two products of 64 rows lie behind each other.
    for half in (0, 1):
        for lane, register in ((0, 0), (5, 3), (31, 63), (18, 22)):
            j, h, e = register // 4, register // 2 % 2, register % 2
            row = 64 * half + 16 * 2 + 8 * h + lane // 4
            column = 8 * j + 2 * (lane % 4) + e
            assert acc[lane, 64 * half + register] == pytest.approx(product[row, column], abs=1e-4)


def test_who_waits_for_whom():
    with hand_written(RING, **RING_LAUNCH) as session:
        session.run_until("st_shared", warp=0)
        rows = {row["warp"]: row for row in session.waits}
        assert rows["warp 1 of CTA (0, 0)"]["waits for"].startswith("phase parity 0 of full")
        assert rows["warp 1 of CTA (0, 0)"]["line"] == 11
        assert rows["warp 1 of CTA (0, 0)"]["who would have to act"] == (
            "warp 0 of CTA (0, 0) would arrive at line 9"
        )
        assert rows["warp 0 of CTA (0, 0)"]["state"] == "ready"
        assert "waited for by warp 1 of CTA (0, 0)" in repr(session.waits)
        full = next(row for row in session.barriers if row["barrier"] == "full")
        assert full["waiting"] == "warp 1 of CTA (0, 0) (parity 0)"


def test_a_deadlock_can_be_looked_at():
    with hand_written(RING.replace("(i & 1) ^ 1", "i & 1"), **RING_LAUNCH) as session:
        assert session.cont().finding.code == "deadlock"
        assert {row["state"] for row in session.positions} == {"waits"}
        assert len(session.graph["cycles"]) == 1
        session.select(warp=1)
        assert session.variables["i"] == 0
        assert session.cont().reason == "end"
        assert session.report.deadlock["cycles"] == [
            ["warp 0 of CTA (0, 0)", "empty of CTA (0, 0)", "warp 1 of CTA (0, 0)",
             "full of CTA (0, 0)"]
        ]  # fmt: skip


def test_tensors(step3):
    session, A, _, D = step3
    assert np.array_equal(session.tensor("A").values, A)
    assert session.tensor("A").note == "as it was passed: nothing has written it so far"
    assert session.tensor("D").note == "not written so far"
    with pytest.raises(DebugError, match="there are A, B, D"):
        session.tensor("E")
    session.finish()
    assert np.array_equal(session.tensor("D").values, D)


def test_a_tensor_that_the_kernel_does_not_write(ring):
    assert ring.tensor("A").note == "an input: the kernel writes nothing into it"
    assert ring.tensor("D").note == "not written so far"


def test_elements_of_buffers_and_tensors_in_expressions(ring):
    A = ring.tensor("A").values
    ring.run_until("D[r, lane] =", when="r == 4")
    assert ring.print("rows[1, 3]") == A[4, 3]
    assert np.array_equal(ring.print("A[r, lane] - rows[s]"), np.zeros(32))
    assert ring.print("rows[s, lane][5]") == A[4, 5]
    with pytest.raises(DebugError, match="full_buf holds mbarriers"):
        ring.print("full[0]")
    with pytest.raises(DebugError, match=r"rows\[9, 9\]: index 9 is out of bounds"):
        ring.print("rows[9, 9]")


def test_elements_of_tensor_memory_in_expressions(step3):
    session, *_ = step3
    session.run_until("Tx.cast(out", warp=3)
    assert session.print("acc[96, 5] - regs[0, 5]") == 0
    assert session.print("As[0, 3]") == session.smem("As")[0, 3]


def test_names_of_what_was_folded_away():
    with debug(debugged.transpose(64, 96), *transposed()) as session:
        session.run_until("tile[row, col] =")
        words = r"no variable 'm0' .*At debugged\.py:29, 'm0 = T.meta_var\(bm \* TILE\)' gives a"
        with pytest.raises(DebugError, match=words):
            session.print("m0 + 1")
        with pytest.raises(DebugError, match=words):
            session.break_at("tile[row, col] =", when="m0 == 32")
        session.step()
        with pytest.raises(DebugError, match=r"'row' is set .*; there are bm, bn, tid, col, j$"):
            session.variables["row"]


def test_a_stop_shows_its_line(ring):
    stop = ring.run_until("full.arrive")
    line = "debugged.py:66 | full.arrive(s)"
    assert repr(stop) == f"{stop.text}\n  {line}"
    assert ring.step().location is not None
    assert "| s = r % STAGES" in repr(ring.stop)
    page = ring.stop._repr_html_()
    assert "mg-debug" in page
    assert "s = r % STAGES" in page
    assert repr(ring.run_until(finding=True)) == ring.stop.text  # the end has no line


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.array([[0.1997, -2.711, 0.00391]], np.float16), "[[ 0.200 -2.711  0.004]]"),
        (np.array([[1, 2], [3, 4096]], np.float32), "[[   1.    2.]\n [   3. 4096.]]"),
        (np.array([[0.5, np.nan], [1.25, -3]], np.float32), "[[ 0.50   nan]\n [ 1.25 -3.00]]"),
        (np.array([[1.5, 2.5e-6]], np.float32), "[[1.5000e+00 2.5000e-06]]"),
        (np.array([[2.5e-6 * 0, np.inf]], np.float32), "[[ 0. inf]]"),
        (np.array([[1, -20]], np.int32), "[[  1 -20]]"),
        (np.zeros((0, 4), np.float32), "[]"),
    ],
)
def test_numbers_have_one_precision(values, text):
    assert shown(values) == text


def test_a_row_of_a_tile_is_a_line():
    numbers = np.random.default_rng(0).standard_normal((128, 64))
    for dtype in (np.float16, np.float32, np.float64):
        for rows in (numbers.astype(dtype), numbers[:2, :32].astype(dtype)):
            lines = shown(rows).splitlines()
            assert len(lines) == min(len(rows), 9)
            assert {line.count("...") for line in lines} <= {1, 0}
            assert max(len(line) for line in lines) <= 96
            assert "e" not in shown(rows[:, :8])


# ------------------------------------------------------------------------------ its life


def test_restarting_gives_the_same_again(step3):
    session, A, B, D = step3
    before = [x.copy() for x in (A, B, D)]
    where = [session.run_until("mbarrier_wait").text, session.step().text, session.where]
    first = outcome(session.finish())
    output = D.copy()
    assert not np.array_equal(output, before[2])
    session.restart()
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip((A, B, D), before, strict=True))
    assert [session.run_until("mbarrier_wait").text, session.step().text, session.where] == where
    assert outcome(session.finish()) == first
    assert np.array_equal(D, output)


def test_the_callers_arrays_change_at_the_end_alone(step3):
    session, _, _, D = step3
    session.run_until("tmem.dealloc", cta=(1, 0))
    assert np.isnan(D).all()
    session.close()
    assert np.isnan(D).all()


def threads():
    return [t for t in threading.enumerate() if t.name == "mlsys-gpu debug"]


def test_sessions_leave_no_thread_behind():
    before = len(threads())
    one = hand_written(RING, **RING_LAUNCH)
    one.run_until("ld_shared")
    assert len(threads()) == before + 1
    one.close()
    assert len(threads()) == before
    two = hand_written(RING, **RING_LAUNCH)
    assert len(threads()) == before + 1
    del two
    gc.collect()
    assert len(threads()) == before


def test_a_closed_or_ended_session_says_so(step3):
    session, *_ = step3
    session.finish()
    assert session.stop.reason == "end"
    assert repr(session.variables) == "no variables: the kernel has run to its end"
    with pytest.raises(DebugError, match="has run to its end"):
        session.cont()
    session.restart()
    session.close()
    with pytest.raises(DebugError, match="closed"):
        session.step()
    with pytest.raises(DebugError, match="no report before the end"):
        session.report
    with pytest.raises(DebugError, match="closed before the end of the run: restart"):
        session.finish()  # does not lead back to itself
    assert repr(session.variables) == "no variables: the session is closed"


def test_errors_of_the_kernel_reach_the_caller():
    with hand_written("x = 1\ny = x // (w.id * 0)") as session:
        with pytest.raises(ArithmeticError, match=r"divides by zero at warps\.txt:2"):
            session.cont()
        assert session.stop.reason == "end"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"where": "Tx.gemmasync"}, "no line of the kernel contains 'Tx.gemmasync'"),
        ({"where": 5}, "line 5 is no statement of the kernel: they are in lines 62 to 123"),
        ({"where": "other.py:70"}, "no line of the kernel is in other.py; there are .*step3.py"),
        ({"barrier": "mma"}, "no barrier is called 'mma'; there are .*mma_bar.*named barrier N"),
        ({"barrier": "mma_bar[1]"}, "mma_bar has one barrier: there is no mma_bar.1."),
        ({"barrier": "As"}, "As is no barrier; there are mma_bar, the CTA barrier"),
        ({"barrier": "As", "phase": 1}, "As is no barrier; there are mma_bar, the CTA barrier"),
        ({"barrier": 3}, "barrier is a name, such as .*: got 3"),
        ({"barrier": "mma_bar", "phase": -1}, "phases count from 0"),
        ({"barrier": "mma_bar", "phase": 1.5}, "phase is a non-negative integer, got 1.5"),
        ({"barrier": "mma_bar", "phase": "x"}, "phase is a non-negative integer, got 'x'"),
        ({"barrier": "mma_bar", "phase": True}, "phase is a non-negative integer, got True"),
        ({"where": 94, "when": 3}, "an expression is a string, such as .*: got 3"),
        ({"where": 9.5}, "a line is a number, or a part of its text: got 9.5"),
        ({"where": 94, "warp": "x"}, "warp is the index of a warp in its CTA, or several: got 'x'"),
        ({"where": 94, "warp": [1.5]}, "warp is the index of a warp in its CTA, or several"),
        ({"where": 94, "cta": "x"}, "cta is a block index such as .*: got 'x'"),
        ({"where": 94, "phase": 1}, "a phase belongs to a barrier"),
        ({"where": 94, "warp": 4}, "a CTA has warps 0 to 3, no warp 4"),
        ({"where": 94, "cta": (2, 0)}, "the grid is 2 x 1 x 1 CTAs: there is no CTA"),
        ({"where": 94, "cta": 7}, "CTAs 0 to 1, no CTA 7"),
        ({"where": 94, "when": "j == 1"}, "no variable 'j' is known there; there are .*k"),
        ({"where": 94, "when": "k =="}, "is no expression"),
        ({"where": 94, "when": "open('x')"}, "no calls|operators and subscripts"),
        ({"finding": "bug"}, "no finding has the code 'bug'"),
        ({}, "name one of"),
    ],
)
def test_what_does_not_exist_is_named(step3, ask, words):
    session, *_ = step3
    with pytest.raises(DebugError, match=words):
        session.break_at(**ask)
    assert session.breakpoints == []


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda s: s.step("a"), "step takes a positive number of lines, got 'a'"),
        (lambda s: s.step(1.5), "step takes a positive number of lines, got 1.5"),
        (lambda s: s.step(-5), "step takes a positive number of lines, got -5"),
        (lambda s: s.source(around=-1), "around is a non-negative integer, got -1"),
        (lambda s: s.source(line="x"), "line is the number of a line, got 'x'"),
        (lambda s: s.select("x"), "warp is the index of a warp in its CTA: got 'x'"),
        (lambda s: s.select(cta="x"), "cta is a block index such as .*: got 'x'"),
        (lambda s: s.smem(3), "a buffer's name is a string, such as 'As': got 3"),
        (lambda s: s.print(3), "an expression is a string, such as .*: got 3"),
    ],
)
def test_arguments_of_other_kinds_are_named(step3, ask, words):
    session, *_ = step3
    with pytest.raises(DebugError, match=words):
        ask(session)
    assert session.stop.reason == "start"


def test_barriers_have_their_authors_names_too(ring):
    ring.break_at(barrier="full[1]")
    ring.break_at(barrier="full")
    with pytest.raises(DebugError, match=r"barriers 0 to 2: there is no full_buf\[7\]"):
        ring.break_at(barrier="full[7]")
    with pytest.raises(DebugError, match="rows is no barrier; there are empty_buf, full_buf, the"):
        ring.break_at(barrier="rows")
    with pytest.raises(DebugError, match="is called 'fool'; there are empty_buf, full_buf, the"):
        ring.break_at(barrier="fool")


def test_selection_of_what_does_not_run(step3):
    session, *_ = step3
    with pytest.raises(DebugError, match="CTA \\(1, 0\\) does not run now; these do: \\(0, 0\\)"):
        session.select(cta=(1, 0))


def test_the_public_entry():
    A, B, D = inputs()
    session = mg.debug(gemm.step(3, "hopper").build(*SHAPE), A, B, D, at="wgmma", warp=1)
    assert isinstance(session, Session)
    assert session.warp == 1
    session.close()
    with pytest.raises(ValueError, match="D has shape"):
        mg.debug(gemm.step(3, "hopper").build(*SHAPE), A, B, D[:5])


# ------------------------------------------------------------------------------- in a terminal


def typed(session, *commands):
    """What a shell answers to commands."""
    out = io.StringIO()
    Shell(session, io.StringIO("\n".join(commands) + "\n"), out).cmdloop()
    return out.getvalue()


def test_a_shell(step3):
    session, *_ = step3
    text = typed(
        session,
        "help",
        "break Tx.gemm_async warp 0 if k == 1",
        "c",
        "vars",
        "p k + 10",
        "smem As",
        "smem Nothing",
        "tmem 0 2",
        "barriers",
        "waits",
        "warps",
        "warp 3",
        "list 94",
        "next",
        "nonsense",
        "# a comment",
        "clear 1",
        "until barrier mma_bar 1",
        "step 2",
        "findings",
        "finish",
        "report",
        "restart",
        "quit",
    )
    for words in (
        "barrier full[1] 3",
        "breakpoint 1: step3.py:94, warp 0 if k == 1",
        "warp 0 of CTA (0, 0) comes to step3.py:94",
        ">*  94 |",
        "mma_phase: int32 = 1",
        "\n11\n",
        "As: float16 [128 x 64], shared memory of CTA (0, 0)",
        "error: no buffer in shared memory is called 'Nothing'; there are",
        "tensor memory of CTA (0, 0), columns 0 to 1",
        "waited for by warps 1, 2, 3 of CTA (0, 0)",
        "warp 3 of CTA (0, 0), step3.py:104, waits for phase parity 1 of mma_bar",
        "no command 'nonsense'",
        "no breakpoints",
        "phase 1 of mma_bar is complete",
        "no findings so far",
        "wrote D: 32768 of 32768 elements",
        "is about to begin",
    ):
        assert words in text, words
    with pytest.raises(DebugError, match="closed"):
        session.step()


def test_a_shell_names_commands_as_they_are_typed(ring):
    text = typed(
        ring, "barriers full", "barriers the CTA barrier", "barriers rows", "report",
        "break nowhere", "finish", "step", "vars", "barriers full[1]",
    )  # fmt: skip
    for words in (
        "\nfull: not initialised yet\n",
        "\nthe CTA barrier: not reached yet\n",
        "error: rows is no barrier; there are empty_buf, full_buf, the CTA barrier",
        "error: there is no report before the end of the run: finish goes there",
        "error: no line of the kernel contains 'nowhere' (list shows them)",
        "error: the kernel has run to its end: restart runs it again",
        "no variables: the kernel has run to its end",
    ):
        assert words in text, words
    assert re.search(r"full_buf\[1\] +\(0, 0\) +3 ", text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("93", {"where": "93"}),
        ("step3.py:93 warp 2", {"where": "step3.py:93", "warp": [2]}),
        ("Tx.gemm_async if k == 3", {"where": "Tx.gemm_async", "when": "k == 3"}),
        ('"a line" cta 1,0 warp 0,1', {"where": "a line", "cta": (1, 0), "warp": [0, 1]}),
        ("barrier full[1] 3", {"barrier": "full[1]", "phase": 3}),
        ("barrier full phase 2 warp 1", {"barrier": "full", "phase": 2, "warp": [1]}),
        ("barrier the CTA barrier", {"barrier": "the CTA barrier", "phase": None}),
        ("barrier named barrier 3", {"barrier": "named barrier 3", "phase": None}),
        ("finding", {"finding": True}),
        ("finding race-smem", {"finding": "race-smem"}),
    ],
)
def test_places_in_commands(text, meant):
    assert place(text) == meant


def test_the_command(monkeypatch, capsys):
    """A pipe drives it; the status says whether the run that ended was right."""
    from mlsys_gpu.cli import main

    asked = ["debug", "gemm", "--step", "3", "--shape", "256,128,128", "--arch", "blackwell"]
    commands = "until Tx.gemm_async warp 0\nsmem As\nwaits\nclear\ncontinue\nquit\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(commands))
    assert main([*asked, "--break", "mbarrier_wait warp 1"]) == 0
    shown = capsys.readouterr().out
    assert "comes to step3.py:104, warp 1" in shown
    assert "(warp 1, CTA 0,0) until Tx.gemm_async warp 0" in shown
    assert "As: float16 [128 x 64]" in shown
    assert shown.rstrip().endswith("of its bound")
    for wrong in ("smem Nothing\nquit\n", "nonsense\n", "smem Nothing\ncontinue\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(wrong))
        assert main(asked) == 1
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main([*asked, "--break", "nowhere"]) == 2
    assert "no line of the kernel contains 'nowhere'" in capsys.readouterr().err


# --------------------------------------------------------------------------------- in a notebook


def test_html_forms(step3):
    session, *_ = step3
    session.run_until("Tx.gemm_async", when="k == 1")
    shown = [
        session, session.variables, session.barriers, session.waits, session.positions,
        session.smem("As"), session.tmem(0, 4), session.tmem_allocations,
    ]  # fmt: skip
    for one in shown:
        page = one._repr_html_()
        assert page.startswith("<style>")
        assert 'class="mg-out mg-debug"' in page
        assert "<script" not in page
    assert "<mark>" in session._repr_html_()
    session.finish()
    assert "mg-report" in session._repr_html_()


# -------------------------------------------------------------------------- kernels from outside


def test_a_traced_kernel_with_scalar_arguments():
    """Its registers have no names: they get those that their source lines assign."""
    rmsnorm = pytest.importorskip("tirx_kernels.norm.rmsnorm")
    rng = np.random.default_rng(0)
    X, W = (rng.standard_normal(n).astype(np.float16) for n in (256, 128))
    out = np.zeros(256, np.float16)
    with debug(rmsnorm.get_kernel(128), X, W, out, 2) as session:
        session.run_until("txl.assign(rms,", warp=0)
        variables = session.variables
        assert {"iw", "ww", "xf", "ss", "rms", "row"} <= set(variables)
        rows = X.reshape(2, 128).astype(np.float64)
        row = variables["row"]
        assert variables["ss"][0] == pytest.approx((rows[row] ** 2).sum(), rel=1e-6)
        assert variables.details["rms"].unwritten == 32
        session.step()
        assert variables["row"] == row
        wanted = 1 / np.sqrt((rows[row] ** 2).mean() + 1e-6)
        assert session.variables["rms"][0] == pytest.approx(wanted, rel=1e-3)
        report = session.finish()
    normed = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-6) * W.astype(np.float64)
    assert np.abs(out.reshape(2, 128) - normed).max() < 1e-2
    found = report.explain(out, normed.reshape(-1), element=(130,))
    assert found.writes[0]["who"] == "warp 0 of CTA (1, 0)"
