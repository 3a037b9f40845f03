"""Lines that leave their loop, and lines that must stay."""

import pytest

from mlsys_gpu.sim.frontend.hoist import hoist

BEFORE = ["    a = tid * 4", "    b = 3", "    r = fresh(4, 'int32')", "    r[:, 0] = a"]


def moved(*body: str, before: list[str] | None = None) -> list[str]:
    """Which lines of a loop's body stand in front of the loop afterwards."""
    lines = [*(BEFORE if before is None else before), "    for k in range(0, 4):"]
    lines += ["        " + line for line in body]
    after = hoist(lines)
    start = after.index("    for k in range(0, 4):")
    assert sorted(line.strip() for line in after) == sorted(line.strip() for line in lines)
    return [line.strip() for line in after[len(BEFORE if before is None else before) : start]]


@pytest.mark.parametrize(
    "line",
    [
        "x = (a + b) * 2",
        "x = np.arange(0, 8)[None, :]",
        "x = (column(a) ^ wrap(b << 3, 32, True))",
        "x = held(np.where(a < b, a, 0))",
        "x = 17",
    ],
)
def test_arithmetic_on_what_is_set_before(line):
    assert moved(line, "use(w, x)") == [line]


@pytest.mark.parametrize(
    "line",
    [
        "x = a + k",  # the loop's own variable
        "x = ld_global(w, a, 4, 1)",  # memory
        "x = r[:, 0] + a",  # registers may change
        "x = r",  # and so may all of them
        "x = w.rank * 2",
        "x = a // unknown",
        "x = spread(a, 'int32')",  # makes an array that others may keep
        "x = np.random.rand()",
    ],
)
def test_what_must_stay(line):
    assert moved(line, "use(w, x)") == []


def test_a_name_that_is_assigned_twice_stays():
    assert moved("x = a * 2", "use(w, x)", "x = a * 3") == []
    assert moved("x = a * 2", "if (x := f(w)): pass") == []
    assert moved("x = y + 1", "use(w, x)", "y = y + 1", before=["    y = 0"]) == []


def test_chains_move_in_order_and_out_of_several_loops():
    lines = [
        "    a = tid * 4",
        "    for i in range(0, 2):",
        "        u = a + i",
        "        for j in range(0, 3):",
        "            x = a * 2",
        "            y = x + 1",
        "            z = y + i",
        "            use(w, y, z, j)",
    ]
    assert hoist(lines) == [
        "    a = tid * 4",
        "    x = a * 2",
        "    y = x + 1",
        "    for i in range(0, 2):",
        "        u = a + i",
        "        z = y + i",
        "        for j in range(0, 3):",
        "            use(w, y, z, j)",
    ]


def test_what_a_branch_sets_may_not_be_set():
    before = ["    if cond:", "        a = tid * 4", "    b = 3"]
    assert moved("x = a * 2", "y = b * 2", before=before) == ["y = b * 2"]


def test_lines_inside_a_branch_of_the_loop_stay():
    assert moved("if k == 2:", "    x = a * 2") == []
