"""The Hopper fixtures are right and silent: whatever the number of K tiles, and at ragged edges.

``MLSYS_GPU_TEST_SEEDS=50`` runs them over 50 seeds instead of three.
"""

import os

import pytest

from .fixtures import hopper_cluster, hopper_persistent, hopper_rows, hopper_split
from .planted import Kernel

#: Seeds beside eager and lazy. In clusters of two, seed 1 holds rank 0 back, and seed 2 rank 1.
SEEDS = int(os.environ.get("MLSYS_GPU_TEST_SEEDS", "3"))
SCHEDULES = [("eager", 0), ("lazy", 0)] + [("seeded", seed) for seed in range(SEEDS)]

CASES = {
    # Tiles are 128 x 64, K tiles 64, the ring has 3 stages; 2 CTAs share the tiles.
    "persistent, no K tiles": (hopper_persistent, (256, 128, 64), {"k_tiles": 0}),
    "persistent, one K tile": (hopper_persistent, (256, 64, 64), {}),
    "persistent, stages - 1": (hopper_persistent, (256, 128, 128), {}),
    "persistent, stages, two tiles a CTA": (hopper_persistent, (256, 128, 192), {}),
    "persistent, stages + 1, three tiles a CTA": (hopper_persistent, (384, 128, 256), {}),
    "persistent, ragged, a box past the edge": (hopper_persistent, (136, 72, 136), {}),
    "persistent, CTAs without a tile": (hopper_persistent, (128, 64, 64), {"ctas": 3}),
    "persistent, bfloat16": (hopper_persistent, (640, 64, 64), {"dtype": "bfloat16"}),
    # Tiles are 128 x 64 for a cluster of two CTAs; the ring has 2 stages.
    "cluster, no K tiles": (hopper_cluster, (128, 128, 64), {"k_tiles": 0}),
    "cluster, stages - 1": (hopper_cluster, (128, 64, 64), {}),
    "cluster, stages, two tiles": (hopper_cluster, (128, 128, 128), {}),
    "cluster, stages + 1, a CTA past the edge": (hopper_cluster, (192, 64, 192), {}),
    "cluster, ragged, two clusters": (hopper_cluster, (200, 136, 72), {"clusters": 2}),
    # Blocks of 4 rows, a ring of 2 slots; 2 CTAs share the blocks.
    "rows, one CTA without a block": (hopper_rows, (4, 32), {}),
    "rows, one block a CTA": (hopper_rows, (8, 64), {}),
    "rows, slots": (hopper_rows, (16, 4), {}),
    "rows, slots + 1 and slots, ragged": (hopper_rows, (18, 100), {}),
    "rows, less than a block": (hopper_rows, (3, 132), {}),
    # Blocks of 4 rows.
    "split, one block": (hopper_split, (4, 64), {}),
    "split, three blocks, ragged": (hopper_split, (10, 100), {}),
}


def check(module, shape, options):
    kernel = Kernel(module, shape, options)
    for schedule, seed in SCHEDULES:
        report, arrays = kernel.run(schedule=schedule, schedule_seed=seed)
        assert not report.findings, report
        assert report.completed
        assert kernel.right(arrays)
        for written in report.coverage.values():
            assert written["written"] == written["elements"]
            assert written["twice"] == 0


@pytest.mark.parametrize("name", CASES)
def test_right_and_silent(name):
    check(*CASES[name])
