"""The helpers that kernels share, against the PTX ISA."""

import pytest

from mlsys_gpu.kernels.common import wgmma_fragment


def holder(layout, m, n, M, N):
    """(thread of the warpgroup, register) that ``layout`` gives element (m, n)."""
    place = layout.apply(m * N + n)
    values = {str(axis): int(value) for axis, value in place.items()}
    thread = values.pop("tid_in_wg", 0)
    (register,) = values.values()
    return thread, register


# PTX ISA, wgmma .m64nNk16, accumulator D: row and column of d0 … in a few threads. Thread 0 holds
# (0, 0), (0, 1), then eight rows down, then eight columns to the right; lane 4 is one row down;
# warp 1 sixteen.
ISA = [
    (0, 0, 0, 0),
    (0, 1, 0, 1),
    (8, 0, 0, 2),
    (8, 1, 0, 3),
    (0, 8, 0, 4),
    (8, 9, 0, 7),
    (0, 2, 1, 0),
    (0, 6, 3, 0),
    (1, 0, 4, 0),
    (7, 7, 31, 1),
    (15, 7, 31, 3),
    (16, 0, 32, 0),
    (63, 127, 127, 63),
]


@pytest.mark.parametrize(("m", "n", "thread", "register"), ISA)
def test_the_fragment_of_one_wgmma_is_the_isas(m, n, thread, register):
    assert holder(wgmma_fragment(64, 128), m, n, 64, 128) == (thread, register)


def test_a_taller_tile_stacks_fragments():
    tall = wgmma_fragment(128, 128)
    assert holder(tall, 64, 0, 128, 128) == (0, 64)
    assert holder(tall, 64 + 8, 1, 128, 128) == (0, 64 + 3)
    places = {holder(tall, m, n, 128, 128) for m in range(128) for n in range(128)}
    assert places == {(t, r) for t in range(128) for r in range(128)}
