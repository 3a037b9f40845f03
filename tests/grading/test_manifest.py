"""The manifest's rules, each broken once."""

from pathlib import Path

import pytest

from mlsys_gpu.grading import checks, manifest

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
[[exercise]]
id = "3.1"
kind = "predict"
title = "A"
file = "ch03/a.py"
check = "ch03:a"
todo = "Do it."
hints = ["one"]
"""


def load(tmp_path: Path, text: str) -> tuple[manifest.Exercise, ...]:
    (tmp_path / "exercises").mkdir(exist_ok=True)
    (tmp_path / "exercises" / "manifest.toml").write_text(text)
    return manifest.load(tmp_path)


def test_a_good_entry(tmp_path: Path) -> None:
    (exercise,) = load(tmp_path, GOOD + "limits = { seconds = 2.5 }\n")
    assert (exercise.chapter, exercise.seconds, exercise.memory_mb) == (3, 2.5, 2048)
    assert exercise.to_dict() == {"id": "3.1", "chapter": 3, "kind": "predict", "title": "A"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('id = "3.1"\n', "", "needs id"),
        ('id = "3.1"', 'id = "3"', "chapter.number"),
        ('"predict"', '"guess"', "not one of predict, write, debug, optimise"),
        ('hints = ["one"]', "hints = []", "at least one hint"),
        ('"ch03/a.py"', '"../a.py"', "not a Python file below exercises/"),
        ('todo = "Do it."', 'todo = "Do it."\nnote = "x"', "unknown fields note"),
        ('hints = ["one"]', 'hints = ["one"]\nlimits = { hours = 1 }', "limits are"),
        ("[[exercise]]", "[exercise", "not valid TOML"),
    ],
)
def test_a_broken_entry(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(manifest.ManifestError, match=said):
        load(tmp_path, GOOD.replace(old, new))


def test_nothing_twice(tmp_path: Path) -> None:
    with pytest.raises(manifest.ManifestError, match=r"two exercises have the id '3\.1'"):
        load(tmp_path, GOOD + GOOD)


def test_selecting() -> None:
    exercises = manifest.load(ROOT)
    assert manifest.select(exercises, "all") == exercises
    assert [e.id for e in manifest.select(exercises, "12.3")] == ["12.3"]
    assert [e.id for e in manifest.select(exercises, "12.3 1.2 12.3")] == ["12.3", "1.2"]
    assert {e.chapter for e in manifest.select(exercises, "chapter 10")} == {10}
    for selector in ("99.1", "chapter 99", "chapter twelve", "", "1.1 99.1", "1.1 all", "chapter"):
        with pytest.raises(manifest.UnknownExercise, match=r"1\.1, 1\.2"):
            manifest.select(exercises, selector)


def test_ids_are_in_order_of_number_not_of_text(tmp_path: Path) -> None:
    text = "".join(
        GOOD.replace("3.1", f"3.{n}")
        .replace('"A"', f'"{n}"')
        .replace("a.py", f"a{n}.py")
        .replace("ch03:a", f"ch03:a{n}")
        for n in (10, 2, 1)
    )
    assert [e.id for e in load(tmp_path, text)] == ["3.1", "3.2", "3.10"]


def test_every_check_exists_and_none_is_left_over() -> None:
    exercises = manifest.load(ROOT)
    for exercise in exercises:
        assert isinstance(checks.load(exercise.check), checks.Predict | checks.Kernel)
    for bad in ("ch01", "ch01:nothing", "ch99:x", "base:Call", "../x:y"):
        with pytest.raises(ValueError, match="check"):
            checks.load(bad)
    named = {exercise.check for exercise in exercises}
    for module in ("ch01", "ch10", "ch12"):
        present = vars(__import__(f"mlsys_gpu.grading.checks.{module}", fromlist=["x"]))
        for name, value in present.items():
            if isinstance(value, checks.Predict | checks.Kernel):
                assert f"{module}:{name}" in named
