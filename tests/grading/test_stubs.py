"""Stubs from solutions: what the generator makes, and that it never touches a student's work."""

from pathlib import Path

import pytest

from mlsys_gpu.grading import manifest, stubs

SOLUTION = '''"""Exercise 1.1 (predict): x."""


def f(a):
    """Doubles."""
    # [solution]
    b = a
    return b + a
    # [stub]
    # # Your code: double a.
    # raise NotImplementedError("double a")
    #
    # [end]


# [solution only]
SECRET = 1
# [end]
if __name__ == "__main__":
    print(f(1))
'''


def test_what_a_stub_looks_like() -> None:
    head, _, body = stubs.make_stub(SOLUTION, "1.1").partition("\n")
    assert head.startswith("# Exercise 1.1. Stub ")
    assert "mlsys-gpu reset 1.1" in head
    assert body == (
        '"""Exercise 1.1 (predict): x."""\n\n\ndef f(a):\n    """Doubles."""\n'
        "    # Your code: double a.\n"
        '    raise NotImplementedError("double a")\n\n\n\n'
        'if __name__ == "__main__":\n    print(f(1))\n'
    )


def test_what_a_worked_answer_looks_like() -> None:
    text = stubs.worked(SOLUTION)
    assert "    b = a\n    return b + a\n" in text
    assert "SECRET = 1" in text
    assert "NotImplementedError" not in text
    assert "[" not in text.replace("[]", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\n", r"no \[solution\] marker"),
        ("# [solution]\nx = 1\n", "has no end"),
        ("# [solution]\n# [end]\n", r"found \[end\]"),
        ("# [stub]\n# [end]\n", r"found \[stub\]"),
        ("# [solution]\n# [solution]\n", r"found \[solution\]"),
        ("# [solution]\n# [stub]\nx = 1\n# [end]\n", "has to be a comment"),
        ("# [solution only]\nx = 1\n# [end]\n", r"no \[solution\] marker"),
    ],
)
def test_markers_out_of_order(text: str, said: str) -> None:
    with pytest.raises(stubs.StubError, match=said):
        stubs.make_stub(text, "1.1")


def test_untouched_is_told_from_edited() -> None:
    stub = stubs.make_stub(SOLUTION, "1.1")
    older = stubs.make_stub(SOLUTION.replace("double a", "twice a"), "1.1")
    assert stubs.is_untouched(stub)
    assert stubs.is_untouched(older)
    assert not stubs.is_untouched(stub.replace("Doubles", "Triples"))
    assert not stubs.is_untouched(stub + "\n")
    assert not stubs.is_untouched(stub.partition("\n")[2])
    assert not stubs.is_untouched("")


def test_generating_again_changes_nothing(course: Path) -> None:
    before = {p: p.read_bytes() for p in (course / "exercises").rglob("*.py")}
    assert set(stubs.write_stubs(course).values()) == {"unchanged"}
    assert before == {p: p.read_bytes() for p in (course / "exercises").rglob("*.py")}
    assert stubs.main(["--check", "--root", str(course)]) == 0


def test_a_students_work_is_never_written_over(course: Path) -> None:
    exercise = manifest.load(course)[0]
    mine = course / "exercises" / exercise.file
    mine.write_text(mine.read_text() + "# my notes\n")
    kept = mine.read_bytes()
    solution = course / "solutions" / exercise.file
    solution.write_text(solution.read_text().replace("(predict)", "(predict!)"))
    assert stubs.write_stubs(course)[exercise.id] == "kept"
    assert mine.read_bytes() == kept


def test_an_older_stub_is_brought_up_to_date(course: Path) -> None:
    exercise = manifest.load(course)[0]
    solution = course / "solutions" / exercise.file
    solution.write_text(solution.read_text().replace("which lane?", "which lane is it?"))
    assert stubs.main(["--check", "--root", str(course)]) == 1
    assert stubs.write_stubs(course, dry=True)[exercise.id] == "written"
    assert stubs.write_stubs(course)[exercise.id] == "written"
    text = (course / "exercises" / exercise.file).read_text()
    assert "which lane is it?" in text
    assert stubs.is_untouched(text)


def test_reset_keeps_every_version(course: Path) -> None:
    exercise = manifest.load(course)[0]
    mine = course / "exercises" / exercise.file
    stub = mine.read_text()
    assert stubs.reset(exercise, course) is None  # nothing to keep
    assert not list(mine.parent.glob("*.bak*"))
    for number in (1, 2, 3):
        mine.write_text(f"# attempt {number}\n")
        kept = stubs.reset(exercise, course)
        assert kept == mine.with_name(f"{mine.name}.bak{number}")
        assert kept.read_text() == f"# attempt {number}\n"
        assert mine.read_text() == stub
    mine.unlink()
    assert stubs.reset(exercise, course) is None
    assert mine.read_text() == stub
