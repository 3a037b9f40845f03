"""A course of one's own to edit, and a grader that stays up for all tests."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlsys_gpu.grading import manifest
from mlsys_gpu.grading.runner import Grader, Submission
from mlsys_gpu.grading.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of exercises/ and solutions/, which is the working directory."""
    place = tmp_path / "course"
    for tree in ("exercises", "solutions"):
        shutil.copytree(
            ROOT / tree, place / tree, ignore=shutil.ignore_patterns(".progress*", "*.bak*")
        )
    monkeypatch.chdir(place)
    monkeypatch.delenv("MLSYS_GPU_COURSE", raising=False)
    return place


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    with Grader(ROOT) as made:
        yield made


@pytest.fixture(scope="session")
def grade(grader: Grader) -> Callable[..., Verdict]:
    """Grades source text: ``grade("12.1", source, seconds=1)``; limits can be set."""
    exercises = manifest.load(ROOT)

    def run(exercise_id: str, source: str, **limits) -> Verdict:
        exercise = dataclasses.replace(manifest.find(exercises, exercise_id), **limits)
        return grader.grade(exercise, Submission(source, "exercises/answer.py"))

    return run
