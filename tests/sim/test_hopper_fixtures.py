"""The Hopper fixtures are right and silent: whatever the number of K tiles, and at ragged edges."""

import pytest

from .fixtures import hopper_persistent
from .planted import Kernel

SCHEDULES = [("eager", 0), ("lazy", 0), ("seeded", 0), ("seeded", 1)]

# Tiles are 128 x 64, K tiles 64, the ring has 3 stages; 2 CTAs share the tiles.
PERSISTENT = {
    "no K tiles": ((256, 128, 64), {"k_tiles": 0}),
    "one K tile": ((256, 64, 64), {}),
    "stages - 1": ((256, 128, 128), {}),
    "stages, two tiles a CTA": ((256, 128, 192), {}),
    "stages + 1, three tiles a CTA": ((384, 128, 256), {}),
    "ragged, and a box past the edge": ((136, 72, 136), {}),
    "more CTAs than tiles": ((128, 64, 64), {"ctas": 3}),
    "five tiles, two CTAs, bfloat16": ((640, 64, 64), {"dtype": "bfloat16"}),
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


@pytest.mark.parametrize("name", PERSISTENT)
def test_persistent(name):
    check(hopper_persistent, *PERSISTENT[name])
