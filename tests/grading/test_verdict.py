"""A verdict as text and HTML."""

from pathlib import Path

import numpy as np

from mlsys_gpu.grading import manifest
from mlsys_gpu.grading.checks.base import Call, Output, compare, describe_mismatch, show
from mlsys_gpu.grading.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]


def verdict(**changes) -> Verdict:
    made = Verdict.of(manifest.find(manifest.load(ROOT), "1.1"), "exercises/a.py")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_html_is_escaped() -> None:
    made = verdict(
        status="failed",
        message="<script>alert(1)</script> `a<b`",
        hint="<i>",
        hint_step=1,
        output="<img src=x>\x1b[31m",
    )
    text = made._repr_html_()
    assert "<script>" not in text
    assert "<img" not in text
    assert "<code>a&lt;b</code>" in text
    assert "\x1b" not in text
    assert "\x1b" not in str(made)
    assert "Hint 1 of 3: <i>" in str(made)


def test_a_right_answer_shows_no_hint_and_no_prints() -> None:
    made = verdict(status="passed", hint="h", output="debug", after="Well done.")
    assert "Hint" not in str(made)
    assert "debug" not in str(made)
    assert "Well done." in str(made)
    assert "Well done." in made._repr_html_()


def test_comparing() -> None:
    assert compare(3, 3) is None
    assert compare(3.0, 3) is None
    assert compare(True, 1) is None  # a phase may be the value of a comparison
    assert compare(True, 0) == ""
    assert compare("3", 3) == ", an integer"
    assert compare(3.1, 3) == ""
    assert compare(1.0 + 1e-9, 1.0) is None
    assert compare(float("nan"), 1.0) == ""
    assert compare([1, 2], (1, 2)) is None
    assert compare([1, 3], (1, 2), ("a", "b")) == ": b is wrong"
    assert compare([1], (1, 2), ("a", "b")) == ", 2 values (a, b)"
    assert compare({"a": 1}, {"a": 1}) is None
    assert compare({"a": 2}, {"a": 1}) == ": a is wrong"
    assert compare({}, {"a": 1}) == ", a dictionary with the keys a"
    assert compare(1, True) == ""
    assert compare("x", "x") is None
    assert show([1.23456789, "a"]) == "(1.23457, 'a')"
    assert str(Call("f", [1], {"k": (2,)})) == "f(1, k=(2))"


def test_mismatches_name_the_first_wrong_element() -> None:
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((6, 8))
    output = Output("D", "float16", expected)
    right = expected.astype(np.float16)
    assert describe_mismatch(output, right) is None

    off = right.copy()
    off[2, 3] = np.nextafter(off[2, 3], np.float16(np.inf))
    off[2, 3] = np.nextafter(off[2, 3], np.float16(np.inf))
    text = describe_mismatch(output, off)
    assert text is not None
    assert text.startswith("D[2, 3] is ")
    assert text.endswith("every other element is right.")

    unwritten = output.poisoned()
    assert describe_mismatch(output, unwritten) == (
        "D is never written: all of its 48 elements hold what was there before."
    )
    unwritten[:, :5] = right[:, :5]
    text = describe_mismatch(output, unwritten)
    assert text == (
        "D[0, 5] is never written, and it is the first of 18 wrong elements out of 48, all within "
        "rows 0 to 5 and columns 5 to 7."
    )
    computed = right.copy()
    computed[1, 1] = np.nan
    text = describe_mismatch(output, computed)
    assert text is not None
    assert text.startswith("D[1, 1] is NaN and should be")


def test_half_a_unit_in_the_last_place_is_the_limit() -> None:
    expected = np.array([1.0, 1.0, 2.9e-8])
    got = np.array([1.0, 1.0 + 2.0**-10, 0.0], np.float16)
    wrong = describe_mismatch(Output("D", "float16", expected), got)
    assert wrong is not None
    assert wrong.startswith("D[1] is 1.00098 and should be 1; ")
