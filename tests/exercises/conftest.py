"""One grader for all tests of exercises: its server starts once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlsys_gpu.grading.runner import Grader

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    with Grader(ROOT) as made:
        yield made
