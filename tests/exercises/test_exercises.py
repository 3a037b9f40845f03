"""Every exercise: its worked answer passes, its stub fails, wrong answers fail, explained."""

import ast
import tomllib
from pathlib import Path

import pytest

from mlsys_gpu.grading import api, manifest, stubs
from mlsys_gpu.grading.runner import Grader

ROOT = Path(__file__).resolve().parents[2]
EXERCISES = manifest.load(ROOT)
IDS = [exercise.id for exercise in EXERCISES]


def wrong_answers() -> list[dict]:
    found = []
    for path in sorted((Path(__file__).parent / "wrong_answers").glob("*.toml")):
        found += tomllib.loads(path.read_text(encoding="utf-8"))["wrong"]
    return found


WRONG = wrong_answers()


def worked(exercise: manifest.Exercise) -> str:
    return stubs.worked((ROOT / "solutions" / exercise.file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("exercise", EXERCISES, ids=IDS)
def test_solution_passes(exercise: manifest.Exercise, grader: Grader) -> None:
    verdict = api.grade_file(
        exercise.id, ROOT / "solutions" / exercise.file, root=ROOT, grader=grader
    )
    assert verdict.ok, str(verdict)
    assert verdict.status == "passed"


@pytest.mark.parametrize("exercise", EXERCISES, ids=IDS)
def test_untouched_stub_fails_and_says_what_to_do(
    exercise: manifest.Exercise, grader: Grader, tmp_path: Path
) -> None:
    stub = tmp_path / Path(exercise.file).name
    stub.write_text(stubs.stub_of(exercise, ROOT), encoding="utf-8")
    verdict = api.grade_file(exercise.id, stub, root=ROOT, grader=grader)
    assert verdict.status == "unsolved", str(verdict)
    assert "not solved yet" in verdict.message or exercise.todo in verdict.message
    assert stub.name in verdict.message  # the file that is graded
    assert verdict.hint == exercise.hints[0]


@pytest.mark.parametrize("wrong", WRONG, ids=[f"{w['id']} {w['name']}" for w in WRONG])
def test_wrong_answer_fails_with_a_message_that_helps(
    wrong: dict, grader: Grader, tmp_path: Path
) -> None:
    exercise = manifest.find(EXERCISES, wrong["id"])
    source = worked(exercise)
    for old, new in wrong["edits"]:
        assert old in source, f"the edit {old!r} fits nothing in {exercise.file}"
        source = source.replace(old, new)
    answer = tmp_path / "answer.py"
    answer.write_text(source, encoding="utf-8")
    verdict = api.grade_file(exercise.id, answer, root=ROOT, grader=grader)
    assert verdict.status == "failed", str(verdict)
    assert wrong["message"] in verdict.message, verdict.message
    assert verdict.hint in exercise.hints


def test_a_right_answer_is_told_what_the_simulator_warns_of(grader: Grader, tmp_path: Path) -> None:
    exercise = manifest.find(EXERCISES, "14.5")
    before, start, rest = worked(exercise).partition("# --- MMA ---")
    role, end, after = rest.partition("# --- Epilogue ---")
    assert "T.ptx.tcgen05.fence__after_thread_sync()" in role
    role = role.replace("T.ptx.tcgen05.fence__after_thread_sync()", "pass")
    answer = tmp_path / "answer.py"
    answer.write_text(before + start + role + end + after, encoding="utf-8")
    verdict = api.grade_file(exercise.id, answer, root=ROOT, grader=grader)
    assert verdict.ok
    assert "Right, with a remark. The simulator found [missing-tcgen05-fence]" in str(verdict)


def test_every_exercise_has_two_wrong_answers() -> None:
    for exercise in EXERCISES:
        assert sum(wrong["id"] == exercise.id for wrong in WRONG) >= 2, exercise.id


@pytest.mark.parametrize("chapter", [1, 10, 12, 13, 14])
def test_a_chapter_has_five_exercises_of_all_four_kinds(chapter: int) -> None:
    mine = [exercise for exercise in EXERCISES if exercise.chapter == chapter]
    assert len(mine) >= 5
    assert {exercise.kind for exercise in mine} == set(manifest.KINDS)
    assert [e.id for e in mine] == [f"{chapter}.{n}" for n in range(1, len(mine) + 1)]


def test_stubs_are_what_the_generator_makes() -> None:
    for exercise in EXERCISES:
        committed = (ROOT / "exercises" / exercise.file).read_text(encoding="utf-8")
        assert committed == stubs.stub_of(exercise, ROOT), (
            f"exercises/{exercise.file}: run python -m mlsys_gpu.grading.stubs"
        )


def test_trees_mirror_each_other() -> None:
    files = {exercise.file for exercise in EXERCISES}
    for tree in ("exercises", "solutions"):
        present = {str(p.relative_to(ROOT / tree)) for p in (ROOT / tree).rglob("*.py")}
        assert present == files, tree


@pytest.mark.parametrize("exercise", EXERCISES, ids=IDS)
def test_stub_reads_well(exercise: manifest.Exercise) -> None:
    """The stub is Python, names its exercise and kind, and keeps to the width of a page."""
    stub = stubs.stub_of(exercise, ROOT)
    docstring = ast.get_docstring(ast.parse(stub))
    assert docstring is not None
    assert docstring.startswith(f"Exercise {exercise.id} ({exercise.kind}): ")
    assert f'check("{exercise.id}", ' in stub
    assert max(len(line) for line in stub.splitlines()[1:]) <= 100
    assert "[solution" not in stub
    assert "[stub]" not in stub
    # What a student changes: the stub is not the worked answer.
    assert stub.partition("\n")[2] != worked(exercise)
