"""The catalogue: every class of faults is mapped, planted and found; unbroken kernels are silent.

``catalogue.json`` in the package is made from the planted faults' files, which
:mod:`.test_mutants` holds to what the simulator does. ``MLSYS_GPU_UPDATE=1 pytest
tests/sim/test_catalogue.py`` writes it. ``MLSYS_GPU_TEST_SEEDS=50`` runs the unbroken kernels over
50 seeds instead of three.
"""

import json
import os
from collections import Counter
from typing import Any

import pytest

from mlsys_gpu import sim
from mlsys_gpu.sim import catalogue

from .planted import DECLARED, FIXTURES, Planted, kernel_from, line_of, planted

#: The classes of the catalogue of public reports that are the simulator's business. Left out are
#: benchmarking (l2-persist-state, benchmark-mistake), dependent launches (pdl-dependency) and the
#: arithmetic of attention.
REPORTED = """
    mbarrier-phase-parity stage-reuse-before-consumed mbarrier-arrival-count mbarrier-expect-tx
    missing-fence-proxy-async missing-tcgen05-fence missing-async-completion-commit
    missing-tcgen05-wait negative-control wgmma-fence-wait bulk-async-wait tmem-lifecycle
    cta-group-2-protocol tmem-lane-quarter elect-and-divergence named-barrier cluster-peer-exit
    cluster-scope-and-multicast tensormap-or-smem-alignment swizzle-mismatch
    k-advance-in-swizzle-atom descriptor-lbo-sbo-idesc scheduler-tail clc-protocol
    setmaxnreg-budget barrier-init-visibility integer-overflow partial-tile-oob accumulate-init
""".split()


def test_every_reported_class_is_mapped():
    assert sorted(catalogue.CLASSES) == sorted(REPORTED)
    for name, fault in catalogue.CLASSES.items():
        assert set(fault.codes) <= set(sim.CODES), name
        assert bool(fault.codes) == (name != "negative-control")


@pytest.mark.parametrize("name", REPORTED)
def test_every_class_is_planted_twice_on_different_kernels(name):
    kind = "control" if name == "negative-control" else "mutant"
    entries = [entry for entry in planted(kind) if entry.entry.get("class") == name]
    assert len(entries) >= 2
    assert len({entry.kernel for entry in entries}) >= 2, [entry.kernel for entry in entries]
    for entry in entries:
        if kind == "mutant":
            assert entry.entry["code"] in catalogue.CLASSES[name].codes, entry.id


def test_every_planted_fault_has_a_class():
    for entry in (*planted("mutant"), *planted("control")):
        assert entry.entry["class"] in catalogue.CLASSES, entry.id
    assert Counter(e.id for e in planted("mutant")).most_common(1)[0][1] == 1


# ------------------------------------------------------------------------------------- the table


def _shown(entry: Planted) -> dict[str, Any]:
    """How runs without checks end, and where the checks find the fault."""
    ends = dict.fromkeys(DECLARED, "right")
    for field, end in (("numbers_show", "wrong"), ("hangs", "hangs"), ("stops", "stops")):
        text = entry.entry.get(field, "")
        for name in DECLARED if text == "all" else text.split():
            assert ends[name] == "right", (entry.id, name)
            ends[name] = end
    seeds = Counter(ends[name] for name in DECLARED if name.isdigit())
    text = entry.entry.get("found_in", "all")
    found = len(DECLARED) if text == "all" else len(text.split())
    if entry.kind == "control":
        found = 0
    return {
        "eager": ends["eager"],
        "lazy": ends["lazy"],
        "seeded": {end: seeds[end] for end in ("right", "wrong", "hangs", "stops") if seeds[end]},
        "happens-before": f"{found} of {len(DECLARED)}",
    }


def recorded() -> dict[str, Any]:
    """The catalogue as the planted faults' files have it."""
    order = list(catalogue.CLASSES)
    faults = []
    for entry in (*planted("mutant"), *planted("control")):
        line = None
        if entry.kind == "mutant":
            source = entry.source()
            number = line_of(source, entry.entry["line"])
            line = {"number": number, "text": source.splitlines()[number - 1].strip()}
        faults.append(
            {
                "class": entry.entry["class"],
                "kernel": entry.kernel,
                "fault": entry.name,
                "shape": list(entry.shape),
                "code": entry.entry.get("code"),
                "line": line,
                "shown_by": _shown(entry),
            }
        )
    faults.sort(key=lambda fault: (order.index(fault["class"]), fault["kernel"], fault["fault"]))
    return {"schedules": list(DECLARED), "faults": faults}


def test_the_table_is_what_the_planted_faults_are():
    text = json.dumps(recorded(), indent=1) + "\n"
    if os.environ.get("MLSYS_GPU_UPDATE"):
        catalogue.FILE.write_text(text)
    again = "run it with MLSYS_GPU_UPDATE=1, and commit the file"
    assert catalogue.FILE.read_text() == text, again


# ---------------------------------------------------------------------------- unbroken kernels

#: Seeds beside eager and lazy. In clusters of two, seed 1 holds rank 0 back, and seed 2 rank 1.
SEEDS = int(os.environ.get("MLSYS_GPU_TEST_SEEDS", "3"))
SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", seed) for seed in range(SEEDS)]

#: Shapes that have triggered faults of this kind: 0, 1, stages - 1, stages and stages + 1 K tiles;
#: odd numbers of K tiles and of tiles; several tiles a CTA; ragged edges.
UNBROKEN: dict[str, list[tuple[tuple[int, ...], dict[str, Any]]]] = {
    "blackwell_persistent": [
        ((256, 64, 64), {"tile_n": 64, "stages": 3, "k_tiles": 0}),
        ((256, 64, 64), {"tile_n": 64, "stages": 3}),
        ((256, 64, 128), {"tile_n": 64, "stages": 3}),
        ((256, 64, 192), {"tile_n": 64, "stages": 3}),
        ((256, 64, 256), {"tile_n": 64, "stages": 3}),
        ((256, 192, 320), {"tile_n": 64, "stages": 2, "clusters": 1}),
        ((300, 136, 200), {"tile_n": 64, "stages": 2, "clusters": 2}),
        ((136, 200, 72), {"tile_n": 128, "clusters": 1, "dtype": "bfloat16"}),
    ],
    "blackwell_clc": [
        ((256, 64, 64), {"stages": 3}),
        ((256, 64, 128), {"stages": 3}),
        ((256, 64, 192), {"stages": 3}),
        ((256, 64, 256), {"stages": 3}),
        ((256, 320, 192), {"stages": 2}),
        ((300, 136, 200), {"stages": 2}),
        ((264, 72, 136), {"dtype": "bfloat16"}),
    ],
    "blackwell_multicast": [
        ((256, 64, 64), {"stages": 3, "k_tiles": 0}),
        ((256, 64, 64), {"stages": 3}),
        ((256, 64, 128), {"stages": 3}),
        ((256, 64, 192), {"stages": 3}),
        ((256, 64, 256), {"stages": 3}),
        ((384, 128, 448), {"stages": 2}),
        ((300, 136, 200), {"stages": 2, "tile_n": 128, "dtype": "bfloat16"}),
    ],
    "blackwell_steal": [
        ((1, 4), {}),
        ((2, 64), {}),
        ((9, 516), {}),
    ],
}


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        pytest.param(name, *case, id=f"{name}-{'x'.join(map(str, case[0]))}-{i}")
        for name, cases in UNBROKEN.items()
        for i, case in enumerate(cases)
    ],
)
def test_unbroken_kernels_are_right_and_silent(name, shape, options, tmp_path):
    source = (FIXTURES / f"{name}.py").read_text()
    kernel = kernel_from(source, tmp_path, shape, options)
    for schedule, seed in SCHEDULES:
        report, arrays = kernel.run(schedule=schedule, schedule_seed=seed)
        assert not report.findings, report
        assert kernel.right(arrays), (schedule, seed)
        for written in report.coverage.values():
            assert written["written"] == written["elements"]
            assert written["twice"] == 0
