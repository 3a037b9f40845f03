"""Where operands come from: what is reported, and what correct kernels do that must not be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlsys_gpu import sim
from mlsys_gpu.kernels.gemm.hopper import step1
from mlsys_gpu.sim.machine import memory, provenance
from mlsys_gpu.sim.machine.core import Machine

from . import warps
from .sources import module_from

ROWS, STEPS = 16, 4
K = 16 * STEPS
TENSORS = [("A", np.zeros((64, 256), np.float16)), ("B", np.zeros((64, 256), np.float16))]


@pytest.fixture
def machine():
    program = warps.program("pass", tensors=TENSORS)
    tensors = [
        memory.Tensor(i, name, array, 2, array.shape) for i, (name, array) in enumerate(TENSORS)
    ]
    return Machine(program, tensors, "eager", 0, True)


def tile(rows=0, first=0, count=ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates (row, column) of a K-major tile: K runs over columns."""
    row = rows + np.arange(count)[:, None]
    column = first + np.arange(K)[None, :]
    shape = (count, K)
    return np.broadcast_to(row, shape), np.broadcast_to(column, shape)


def marks(tensor: int, row, last) -> dict[str, np.ndarray]:
    """The three patterns of an operand with these elements."""
    row, last = np.asarray(row), np.asarray(last)
    return {
        "last": last.astype(np.uint16),
        "row": row.astype(np.uint16),
        "hash": provenance._hash(tensor, row, last),
    }


class Examiner:
    """Feeds products to the examination, and returns what it says (or nothing)."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.lives: dict[Any, Any] = {}

    def __call__(self, a, b, accumulate=False, accumulator="acc", bytes_of_a=None):
        warp: Any = type("W", (), {"threads": lambda self: "warp 0"})()
        places = np.arange(ROWS * K // 8).reshape(ROWS, -1)
        products = [
            provenance.Product(
                warp,
                0,
                "mma",
                accumulator,
                accumulate,
                a[kind],
                b[kind],
                (places if bytes_of_a is None else bytes_of_a, places),
                (False, False),
                ("float16", "float16"),
            )
            for kind in ("last", "row", "hash")
        ]
        before = len(self.machine.findings)
        try:
            provenance._examine_product(self.machine, self.machine.tensors, products, self.lives)
        except provenance.Stop:
            assert len(self.machine.findings) == before + 1
            finding = list(self.machine.findings.values())[-1]
            assert finding.code == "wrong-operand"
            return finding.message
        return None


@pytest.fixture
def examine(machine):
    return Examiner(machine)


def test_a_product_over_two_tiles_is_silent(examine):
    for first in (0, K):
        a, b = marks(0, *tile(4, first)), marks(1, *tile(8, first))
        assert examine(a, b, accumulate=first > 0) is None


def test_silent_on_what_correct_kernels_do(examine):
    a, b = marks(0, *tile()), marks(1, *tile())
    assert examine(a, b) is None
    assert examine(a, b, accumulator="another") is None  # the same operands for another tile
    assert examine(a, b) is None  # and again, over what has been read meanwhile
    # Parts of one packed tensor: K runs over other columns of it, at a constant distance.
    assert examine(marks(0, *tile(0, 0)), marks(0, *tile(32, 128)), accumulator="packed") is None
    # A whole K tile is left out on purpose (a block-sparse product).
    assert examine(marks(0, *tile(0, 128)), marks(1, *tile(0, 128)), True) is None
    # Rows in any order: a gather.
    row, column = tile()
    shuffled = np.random.default_rng(0).permutation(ROWS)
    assert examine(marks(0, row[shuffled], column), b, accumulator="gather") is None


def test_silent_on_transposed_operands(examine):
    """K runs over rows of B, as V's does in attention; A was computed."""
    computed = {k: v.astype(np.uint16) for k, v in marks(0, *tile()).items()}
    rng = np.random.default_rng(1)
    computed = {kind: rng.integers(0, 1 << 16, (ROWS, K)).astype(np.uint16) for kind in computed}
    row, column = np.broadcast_arrays(np.arange(K)[None, :], np.arange(ROWS)[:, None])
    assert examine(computed, marks(1, row % 64, column)) is None


def test_rows_of_one_head_of_several(examine):
    """K runs over every third row of B, and over neighbouring columns of A."""
    row, column = np.broadcast_arrays(np.arange(K)[None, :], np.arange(ROWS)[:, None])
    for first in (0, K):
        b = marks(1, 3 * (row + first) + 1, column)
        assert examine(marks(0, *tile(0, first)), b, accumulate=first > 0) is None
    # eight rows of the head too far
    b = marks(1, 3 * (row + 2 * K + 8) + 1, column)
    said = examine(marks(0, *tile(0, 2 * K + 8)), b, accumulate=True)
    assert "goes on with A[:, 136:152] and leaves out A[:, 128:136]" in said


def test_a_head_that_drifts_apart_from_its_columns(examine):
    row, column = np.broadcast_arrays(np.arange(K)[None, :], np.arange(ROWS)[:, None])
    b = marks(1, 3 * (row + np.where(row < 16, 0, 8)) + 1, column)
    assert "do not advance together" in examine(marks(0, *tile()), b)


def test_silent_on_rows_that_were_filled_with_zeros(examine):
    a = marks(0, *tile())
    for pattern in a.values():
        pattern[ROWS // 2 :] = 0
    assert examine(a, marks(1, *tile())) is None


def test_a_swizzle_that_does_not_match(examine):
    row, column = (x.copy() for x in tile())
    column[1::2] ^= 8
    said = examine(marks(0, row, column), marks(1, *tile()))
    assert "row 0 of operand A is A[0, 0] and row 1 is A[1, 8]" in said


def test_a_step_that_leaves_the_row(examine):
    row, column = (x.copy() for x in tile())
    row[:, 48:] += 1
    column[:, 48:] -= 40
    said = examine(marks(0, row, column), marks(1, *tile()))
    assert "row 0 of operand A begins with A[0, 0]" in said
    assert "at K position 48 (K step 3) goes on with A[1, 8]" in said


def test_operands_that_drift_apart(examine):
    row, column = (x.copy() for x in tile())
    column[:, 16:] += 8
    said = examine(marks(0, *tile()), marks(1, row, column))
    assert "K step 1 multiplies A[:, 16:32] by B[:, 24:40]" in said


def test_columns_that_count_twice(examine):
    row, column = (x.copy() for x in tile())
    column[:, 16:] -= 8
    said = examine(marks(0, row, column), marks(1, row, column))
    assert "K step 1 adds A[:, 8:24]" in said
    assert "products of A[:, 8:16] already" in said


def test_columns_that_are_left_out(examine):
    row, column = (x.copy() for x in tile())
    column[:, 16:] += 8
    said = examine(marks(0, row, column), marks(1, row, column))
    assert "goes on with A[:, 24:40] and leaves out A[:, 16:24]" in said


def test_the_same_tile_added_again(examine):
    a, b = marks(0, *tile()), marks(1, *tile())
    assert examine(a, b) is None
    assert "K step 0 adds A[:, 0:16]" in examine(a, b, accumulate=True)


def test_rows_that_are_the_same_bytes(examine):
    places = np.arange(ROWS * K // 8).reshape(ROWS, -1)
    places[8:] = places[4 : 4 + ROWS - 8]
    row, column = (x.copy() for x in tile())
    row[8:] = row[4 : 4 + ROWS - 8]
    said = examine(marks(0, row, column), marks(1, *tile()), bytes_of_a=places)
    assert "rows 4 and 8 of operand A are the same bytes" in said


def test_a_new_sum_begins_with_a_product_of_unknown_operands(examine):
    """The ragged end of K comes first where a tile is walked through from its end: what was summed
    before that product is gone all the same."""
    a, b = marks(0, *tile()), marks(1, *tile())
    assert examine(a, b) is None
    blank = {kind: np.where(np.arange(K) < 8, a[kind], 0) for kind in a}
    assert examine(blank, blank, accumulate=False) is None
    assert examine(a, b, accumulate=True) is None
    assert "holds the products of A" in examine(a, b, accumulate=True)


def test_another_tensor_behind_the_first(examine):
    row, column = tile()
    a, other = marks(0, row, column), marks(1, row, column)
    for kind in a:
        a[kind][-1, 48:] = other[kind][-1, 48:]
    said = examine(a, marks(1, *tile()))
    assert "B[15, 48]" in said


FLAT = {
    "        B: T.Buffer((N, K), dtype),\n": "        B_flat: T.Buffer((N * K,), dtype),\n",
    "        T.device_entry()\n": "        T.device_entry()\n"
    '        B = T.decl_buffer((N, K), dtype, data=B_flat.data, scope="global")\n',
}


@pytest.mark.parametrize(
    ("find", "replace", "code"),
    [
        ("", "", ""),
        ("SWIZZLE = 1, 1024 // 16, 3", "SWIZZLE = 1, 1024 // 16, 2", "wrong-operand"),
    ],
)  # fmt: skip
def test_a_matrix_in_a_flat_tensor(find, replace, code, tmp_path):
    """A tensor that the kernel takes flattened has one row; its matrix has as many as ever."""
    text = Path(step1.__file__).read_text()
    for old, new in {**FLAT, find: replace}.items():
        assert old in text
        text = text.replace(old, new, 1)
    kernel = module_from(tmp_path / "kernel.py", text).build(128, 128, 64)
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((128, 64)).astype(np.float16) for _ in range(2))
    d = np.zeros((128, 128), np.float16)
    report = sim.simulate(kernel, a, b.reshape(-1), d)
    assert [f.code for f in report.findings] == ([code] if code else []), report
    if not code:
        wanted = a.astype(np.float64) @ b.astype(np.float64).T
        assert (np.abs(d - wanted) <= 2.0**-10 * (1 + np.abs(wanted))).all()
