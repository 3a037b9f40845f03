"""What the command line and notebooks call."""

import json
from pathlib import Path

import pytest

import mlsys_gpu
from mlsys_gpu.cli import main
from mlsys_gpu.grading import api, manifest, notebook, paths, stubs

RIGHT = """
def locate(thread_idx, block_dim):
    x, y, z = thread_idx
    n = x + block_dim[0] * (y + block_dim[1] * z)
    return n, n // 32, n % 32
"""


def path_of(course: Path, exercise_id: str) -> Path:
    return course / "exercises" / manifest.find(manifest.load(course), exercise_id).file


def solve(course: Path, exercise_id: str) -> None:
    exercise = manifest.find(manifest.load(course), exercise_id)
    solution = (course / "solutions" / exercise.file).read_text()
    path_of(course, exercise_id).write_text(stubs.worked(solution))


# --- check ------------------------------------------------------------------------------------


def test_list(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed) == {"exercises"}
    assert listed["exercises"][0] == {
        "id": "1.1",
        "chapter": 1,
        "kind": "predict",
        "title": "Which warp, which lane?",
    }
    assert len(listed["exercises"]) == len(manifest.load(course))
    assert listed["exercises"] == api.list_exercises()
    assert main(["check", "chapter", "12", "--list"]) == 0
    assert capsys.readouterr().out.startswith("12.1 ")
    assert main(["check", "12.4", "1.1", "12.4", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["12.4", "1.1"]


def test_exit_codes_and_words(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "1.1"]) == 1
    said = capsys.readouterr().out
    assert "graded: exercises/ch01/ex01_1_thread_index.py" in said
    assert "not solved yet" in said
    solve(course, "1.1")
    assert main(["check", "1.1"]) == 0
    assert "passed" in capsys.readouterr().out
    for words in (["99.9"], ["chapter", "77"], [], ["1.1", "99.9"], ["1.1", "chapter"], ["12"]):
        assert main(["check", *words]) == 2
    said = capsys.readouterr().err
    assert "there is no exercise '12' (all of that chapter: `chapter 12`)" in said
    assert "there is no exercise '99.9'; these exist: 1.1, 1.2" in said
    assert "chapter 77 has no exercises" in said


def test_report_and_json(course: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    solve(course, "1.2")
    report = tmp_path / "r.json"
    assert main(["check", "1.2", "--report", str(report), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(report.read_text())
    assert printed["ok"] is True
    assert (printed["passed"], printed["total"]) == (1, 1)
    (result,) = printed["results"]
    assert result["id"] == "1.2"
    assert result["status"] == "passed"
    assert result["file"] == "exercises/ch01/ex01_2_pipeline_depth.py"
    assert isinstance(result["seed"], int)
    assert main(["check", "1.1", "--report", str(tmp_path / "no" / "r.json")]) == 2


def test_a_selection_fails_if_one_fails(course: Path) -> None:
    for n in (1, 2, 3):
        solve(course, f"1.{n}")
    results = api.check_exercises(["1.1"])
    assert results.ok
    path_of(course, "1.2").write_text("def depth(*_):\n    return 1, 1\n")
    exercises = [e for e in manifest.load(course) if e.id in ("1.1", "1.2", "1.3")]
    with api.Grader(course) as grader:
        verdicts = [
            api.grade_file(e.id, path_of(course, e.id), root=course, grader=grader)
            for e in exercises
        ]
    assert [v.ok for v in verdicts] == [True, False, True]
    assert not api.Results(verdicts).ok
    assert "2 of 3 exercises solved" in str(api.Results(verdicts))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def locate(\n", "this is not valid Python"),
        ("x = 1\n", "has no function `locate`, which is what is graded; it defines no function"),
        ("def locat(a, b): pass\n", "it defines locat."),
        ("def locate(a): pass\n", "TypeError"),
        (
            "def locate(a, b):\n    return 1 / 0\n",
            "ex01_1_thread_index.py:2 (`return 1 / 0`): Zero",
        ),
        ("def locate(a, b):\n    return print\n", "the answer is of type builtin_function"),
        ("import torhc\n", "No module named 'torhc'"),
        ("def locate(a, b):\n    return 5\n", "it should be"),
        ("x = '''", "not valid Python"),
        ("\0", "cannot contain null bytes"),
        ("x = 1\n" * 60000, "longer than 256 KB"),
    ],
)
def test_mistakes_are_named(course: Path, source: str, said: str) -> None:
    path_of(course, "1.1").write_text(source)
    (verdict,) = api.check_exercises("1.1").verdicts
    assert not verdict.ok
    assert said in verdict.message, verdict.message
    assert "ex01_1_thread_index.py" in verdict.message or "locate(" in verdict.message


def test_kernel_mistakes_are_named(course: Path) -> None:
    solve(course, "10.4")
    path = path_of(course, "10.4")
    good = path.read_text()
    with api.Grader(course) as grader:
        for old, new, said in (
            ("return finish(", "finish(", "did you forget `return kernel`?"),
            ("return finish(kernel", "return finish(None", "AttributeError"),
            ('return finish(kernel, "first_kernel", "hopper")', "return 7", "returned a int"),
            ('"hopper")', '"blackwell")', "this exercise is for hopper (sm_90a)"),
            ("A[i] + B[i]", "A[i] + C[i]", "ex10_4_first_kernel.py:"),
            ("def build(n):", "def build(m):\n    n = m", "unexpected keyword argument 'n'"),
        ):
            assert old in good
            path.write_text(good.replace(old, new))
            verdict = api.grade_file("10.4", path, root=course, grader=grader)
            assert said in verdict.message, (new, verdict.message)


def test_a_missing_file(course: Path) -> None:
    path_of(course, "1.1").unlink()
    (verdict,) = api.check_exercises("1.1").verdicts
    assert "mlsys-gpu reset 1.1" in verdict.message
    assert not verdict.ok


def test_hints_come_in_steps(course: Path) -> None:
    exercise = manifest.find(manifest.load(course), "10.3")
    shown = []
    for n in range(5):
        path_of(course, "10.3").write_text(f"def copy_plan(*_):\n    return 0, {n}\n")
        (verdict,) = api.check_exercises("10.3").verdicts
        shown.append(verdict.hint)
    assert shown == [exercise.hints[i] for i in (0, 1, 2, 2, 2)]
    again = api.check_exercises("10.3").verdicts[0]  # the same attempt opens no further hint
    assert again.hint == exercise.hints[2]


def test_outside_of_a_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLSYS_GPU_COURSE", str(tmp_path))
    assert main(["check", "all"]) == 2
    assert main(["progress"]) == 2
    assert main(["reset", "1.1"]) == 2
    with pytest.raises(paths.CourseNotFound, match=r"holds no exercises/manifest\.toml"):
        api.list_exercises()
    with pytest.raises(paths.CourseNotFound, match="run this inside the course's directory"):
        api.list_exercises(tmp_path)


# --- reset and progress -----------------------------------------------------------------------


def test_reset(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = path_of(course, "1.1")
    stub = mine.read_text()
    assert main(["reset", "1.1"]) == 0
    assert "kept" not in capsys.readouterr().out
    mine.write_text("# my work\n")
    assert main(["reset", "1.1"]) == 0
    said = capsys.readouterr().out
    assert "exercises/ch01/ex01_1_thread_index.py.bak1" in said
    assert mine.read_text() == stub
    assert mine.with_name(mine.name + ".bak1").read_text() == "# my work\n"
    assert main(["reset", "77.1"]) == 2
    assert "these exist" in capsys.readouterr().err


def test_progress(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert api.progress().next.id == "1.1"  # type: ignore[union-attr]
    solve(course, "1.1")
    solve(course, "1.3")
    for exercise_id in ("1.1", "1.2", "1.3"):
        api.check_exercises(exercise_id)
    found = api.progress()
    assert set(found.solved) == {"1.1", "1.3"}
    assert found.next is not None
    assert found.next.id == "1.2"
    assert main(["progress", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [s["id"] for s in printed["solved"]] == ["1.1", "1.3"]
    assert printed["next"] == "1.2"
    path_of(course, "1.3").write_text("# broken\n")
    assert api.progress().changed == ("1.3",)
    assert main(["progress"]) == 0
    said = capsys.readouterr().out
    assert "Chapter 1: 2 of 7" in said
    assert "(changed since it passed)" in said
    assert "mlsys-gpu check 1.2" in said


def test_nothing_is_recorded_where_that_is_asked_for(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build of the book must not depend on what somebody has tried, nor change it."""
    monkeypatch.setenv("MLSYS_GPU_PROGRESS", "off")
    hints = {api.check("10.3", (n, n)).hint for n in range(4)}
    assert len(hints) == 1
    assert api.check("1.1", (51, 1, 19)).ok
    assert not (course / "exercises" / ".progress.json").exists()
    assert api.progress().solved == {}


def test_a_broken_record_costs_progress_only(course: Path) -> None:
    (course / "exercises" / ".progress.json").write_text("{broken")
    assert api.progress().solved == {}
    solve(course, "1.1")
    assert api.check_exercises("1.1").ok
    assert set(api.progress().solved) == {"1.1"}


# --- in a notebook ----------------------------------------------------------------------------


def test_values(course: Path) -> None:
    assert api.check("1.1", (51, 1, 19)).ok
    assert api.check("10.1", 5 * 128 + 7 * 16 + 8).ok
    wrong = api.check("1.1", (51, 19, 1))
    assert wrong.status == "failed"
    assert "51, 1, 19" not in wrong.message  # a value's right answer is not given away
    assert "Warp and lane have changed places" in wrong.message
    assert wrong.hint
    assert set(api.progress().solved) == {"1.1", "10.1"}


def test_values_where_none_is_asked(course: Path) -> None:
    with pytest.raises(notebook.NotebookError, match="hand over the function that builds"):
        api.check("12.4", 5)
    with pytest.raises(notebook.NotebookError, match="hand over the function `slot`"):
        api.check("1.7", 5)
    with pytest.raises(manifest.UnknownExercise, match=r"these exist: 1\.1"):
        api.check("55.5", 5)


FACTOR = 32


def helper(thread_idx, block_dim):
    return thread_idx[0] + block_dim[0] * (thread_idx[1] + block_dim[1] * thread_idx[2])


def mine(thread_idx, block_dim):
    n = helper(thread_idx, block_dim)
    return n, n // FACTOR, n % FACTOR


def test_a_function_takes_along_what_it_needs(course: Path) -> None:
    for function in (mine, helper):
        function.__module__ = "__main__"  # as in a notebook
    text = notebook.source_of(mine, "locate")
    assert "FACTOR = 32" in text
    assert "def helper(" in text
    assert text.rstrip().endswith("locate = mine")
    verdict = api.check("1.1", mine)
    assert verdict.ok, verdict
    assert verdict.file == "your function `mine`"
    api.check("1.1", helper)
    assert not api.check("1.1", helper).ok


def test_functions_without_a_source(course: Path) -> None:
    with pytest.raises(notebook.NotebookError, match="define the answer with `def`"):
        api.check("1.1", len)
    with pytest.raises(notebook.NotebookError, match="lambda"):
        api.check("1.1", _main(lambda a, b: 0))
    big = object()

    def uses(a, b):
        return big

    with pytest.raises(notebook.NotebookError, match="the answer uses `big`, a object"):
        api.check("1.1", _main(uses))


def _main(function):
    function.__module__ = "__main__"
    return function


def test_a_path(course: Path) -> None:
    answer = course / "elsewhere.py"
    answer.write_text(RIGHT)
    assert api.check("1.1", answer).ok
    assert "1.1" not in api.progress().solved  # not the exercise's own file
    path_of(course, "1.1").write_text(RIGHT)
    assert api.check("1.1", path_of(course, "1.1")).ok
    assert "1.1" in api.progress().solved
    assert api.check("1.1").ok
    assert mlsys_gpu.check is api.check


@pytest.mark.slow
def test_in_a_real_notebook(course: Path) -> None:
    """Functions and kernel builders that exist in cells only."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    kernel = (
        stubs.worked((course / "solutions" / "ch10" / "ex10_4_first_kernel.py").read_text())
        .partition('"""\n\n')[2]
        .partition("\n\nif __name__")[0]
    )
    cells = [
        "import mlsys_gpu as mg\nWARP = 32",
        "def place(x, n):\n    return x // n, x % n",
        "def locate(thread_idx, block_dim):\n"
        "    x, y, z = thread_idx\n"
        "    n = x + block_dim[0] * (y + block_dim[1] * z)\n"
        "    return (n, *place(n, WARP))",
        'mg.check("1.1", locate)',
        'mg.check("1.1", (0, 0, 0))',
        kernel,
        'mg.check("10.4", build)',
        'k = build(100)\ntry:\n    mg.check("10.4", k)\nexcept TypeError as e:\n    print(e)',
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbclient.NotebookClient(
        book, timeout=120, resources={"metadata": {"path": str(course)}}
    ).execute()
    right, wrong, built, refused = (book.cells[i].outputs[0] for i in (3, 4, 6, 7))
    assert "passed" in right.data["text/html"]
    assert "passed" in right.data["text/plain"]
    assert "Hint" in wrong.data["text/html"]
    assert "passed" in built.data["text/plain"], built.data["text/plain"]
    assert "hand over the function that builds it" in refused.text
