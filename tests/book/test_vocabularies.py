"""The page that compares vocabularies: every name in its tables exists where the page says."""

import ast
import importlib
import importlib.metadata
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mlsys_gpu.kernels import gemm

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "chapters/reference/vocabularies.md"
KERNELS = ROOT / "src/mlsys_gpu/kernels"

# What an extra cell at the end of the page reports of its kernels.
REPORT = """
import json
found = {}
for kernel in (share, pair, ask, *(
    mg.gemm.step(n, arch=arch).build(4096, 4096, 4096)
    for arch in mg.gemm.ARCHS
    for n in (3, 4, mg.gemm.steps(arch)[-1].number)
)):
    made = mg.inspect(kernel)
    found[made.arch + " " + made.name] = made.ptx
if triton:
    found["gluon hopper"] = gluon_ptx(gluon_hopper, 90)
    found["gluon blackwell"] = gluon_ptx(gluon_blackwell, 100)
print("REPORT" + json.dumps(found))
"""


def cards() -> dict[str, dict[str, str]]:
    """Heading of each table -> vocabulary -> what its cell says."""
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("### "):
            heading = line[4:]
        row = re.fullmatch(r"\| (TIRx|PTX|CuTe DSL|CUTLASS C\+\+|Gluon) \| (.*) \|", line)
        if row and heading:
            found.setdefault(heading, {})[row[1]] = row[2]
    return found


def names(vocabulary: str) -> list[tuple[str, str]]:
    """(heading, `code`) for all code of one vocabulary."""
    return [
        (heading, code)
        for heading, card in cards().items()
        for code in re.findall(r"`([^`]+)`", card[vocabulary])
    ]


def code_of_the_page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    return "\n".join(re.findall(r"```\{code-cell\} ipython3\n(.*?)```", text, re.S))


@pytest.fixture(scope="module")
def ptx() -> dict[str, str]:
    """PTX of the page's kernels and of three steps of the ladder."""
    jupytext = pytest.importorskip("jupytext")
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = jupytext.read(PAGE)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
    notebook.cells.append(nbformat.v4.new_code_cell(REPORT))
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    said = "".join(o.get("text", "") for o in notebook.cells[-1].outputs)
    return json.loads(said.partition("REPORT")[2])


def test_every_table_has_all_five_rows():
    found = cards()
    assert len(found) >= 35
    for heading, card in found.items():
        assert list(card) == ["TIRx", "PTX", "CuTe DSL", "CUTLASS C++", "Gluon"], heading
        assert all(card.values()), heading


def test_the_tables_speak_of_every_idea_of_the_ladder():
    ptx_names = " ".join(code for _, code in names("PTX"))
    for word in (
        *("%ctaid", "elect.sync", "multicast", "cta_group::2", "mapa", "expect_tx", "try_wait"),
        *("fence.proxy.async", "setmaxnreg", "bar.sync", "barrier.cluster", "stmatrix"),
        *("wgmma.mma_async", "tcgen05.alloc", "tcgen05.commit", "tcgen05.ld", "try_cancel"),
    ):
        assert word in ptx_names, word


def known_to_tirx(code: str, sources: str) -> bool:
    """Whether this spelling, without its arguments, stands in a kernel."""
    name = re.sub(r"\(.*", "", code.strip('"')).removesuffix(":")
    if code.startswith("T.ptx["):
        # The instruction may be put together from parts, so its beginning has to do.
        name = re.findall(r'"([\w.:]+?)(?:\.sync|\.shared|")', code)[0]
    if "=" in name or name.startswith("if "):
        return all(part.strip() in sources for part in name.split(","))
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", sources) is not None


# Words of TIRx's own library that no kernel of ours needs.
LIBRARY = {
    "Pipeline": "pipeline",
    "WarpRole": "warp_role",
    "WarpgroupRole": "warp_role",
    "ClusterPersistentScheduler2D": "tile_scheduler",
    "ClusterLaunchControlScheduler": "tile_scheduler",
}


@pytest.mark.parametrize(("heading", "code"), names("TIRx"))
def test_tirx_names_stand_in_kernels(heading, code):
    if code in LIBRARY:
        module = importlib.import_module(f"tvm.tirx.lang.{LIBRARY[code]}")
        assert hasattr(module, code)
        return
    sources = code_of_the_page() + "".join(
        path.read_text(encoding="utf-8") for path in sorted(KERNELS.rglob("*.py"))
    )
    assert known_to_tirx(code, sources), code


def stands_in(code: str, ptx: str) -> bool:
    """Whether an instruction that begins so, or a part of one (``.cta_group::2``), is there."""
    begin = "" if code.startswith(".") else r"(?<![\w:])"
    return re.search(rf"{begin}{re.escape(code)}(?!\w)", ptx) is not None


@pytest.mark.slow
def test_ptx_names_stand_in_what_kernels_emit(ptx):
    text = "\n".join(ptx.values())
    missing = [
        (heading, code)
        for heading, code in names("PTX")
        if not re.search(
            rf"(?<![\w:]){re.escape(code)}(?!\w)".replace(r"(?<![\w:])\.", r"\."), text
        )
    ]
    # "tensormap.replace" needs Triton, which is not everywhere.
    if "gluon hopper" not in ptx:
        missing = [m for m in missing if m[1] != "tensormap.replace"]
    assert missing == []


@pytest.mark.slow
def test_what_the_page_says_of_the_compiled_kernels(ptx):
    if "gluon hopper" not in ptx:
        pytest.skip("Triton is not installed")
    ours = [text for title, text in ptx.items() if not title.startswith("gluon")]
    assert not any("tensormap.replace" in text for text in ours)
    hopper, blackwell = ptx["gluon hopper"], ptx["gluon blackwell"]
    assert "tensormap.replace" in hopper
    assert "setmaxnreg.dec" in hopper
    assert "setmaxnreg.inc" in hopper
    assert "tcgen05.mma" in blackwell
    assert "tcgen05.fence" not in blackwell
    assert any("tcgen05.fence" in text for text in ours)
    assert re.search(r"bar\.sync\s+0, 128;\s*(//.*\s*)*@%p\d+ mbarrier\.arrive\.shared", hopper)
    assert "wgmma.fence" in hopper  # the page: fence and commit are the compiler's
    assert "wgmma.commit_group" in hopper
    for step in ("gemm_blackwell", "gemm_hopper"):
        assert any(step in title for title in ptx)


# Where a name of Gluon's may come from, by its first word.
GLUON = "triton.experimental.gluon.language"
HOMES = {
    "gl": [GLUON],
    "tma": [f"{GLUON}.nvidia.hopper.tma"],
    "mbarrier": [f"{GLUON}.nvidia.hopper.mbarrier"],
    "cluster": [f"{GLUON}.nvidia.hopper.cluster"],
    "TensorDescriptor": ["triton.experimental.gluon.nvidia.hopper"],
}
# Arguments, methods, expressions and one module of the future.
NOT_NAMES = {
    *("num_ctas", "cga_layout", "use_acc", "deps", "clc", "multicast=True", "two_ctas=True"),
    *("tcgen05.mma", "i % n", "i // n & 1", "mbarriers=[bar]", "tile.store(value)"),
    *("acc.load(layout)",),
}


def gluon_names() -> list[str]:
    return sorted({code for _, code in names("Gluon")} - NOT_NAMES)


@pytest.mark.parametrize("code", gluon_names())
def test_gluon_names_resolve(code):
    pytest.importorskip("triton", reason="Triton is not installed")
    name = re.sub(r"\(.*", "", code)
    first, *rest = name.split(".")
    if first in ("gl", "tma", "mbarrier", "cluster"):
        found: Any = importlib.import_module(HOMES[first][0])
        path = rest
    else:
        homes = HOMES.get(first, [f"{GLUON}.nvidia.hopper", f"{GLUON}.nvidia.blackwell"])
        modules = [importlib.import_module(home) for home in homes]
        found = next(m for m in modules if hasattr(m, first))
        path = [first, *rest]
    for part in path:
        found = getattr(found, part)
    function = getattr(found, "fn", found)  # what @gluon.jit wraps
    keywords = re.findall(r"(\w+)=", code.partition("(")[2])
    assert set(keywords) <= set(inspect.signature(function).parameters)


def test_the_releases_named_are_those_that_are_pinned():
    text = PAGE.read_text(encoding="utf-8")
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    (triton,) = re.findall(r"^triton==(\d+\.\d+)", pins, re.M)
    (tvm,) = re.findall(r"^apache-tvm==(\d+\.\d+)", pins, re.M)
    assert f"Triton {triton} [^gluon]" in text
    assert f"| {tvm} [^tirx]" in text
    assert {n for arch in gemm.ARCHS for n in (s.number for s in gemm.steps(arch))} >= {3, 4, 6}


def definitions(distribution: str, folder: str) -> set[str] | None:
    """Functions, classes, methods, enum members of a package's sources; None if not installed."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found: set[str] = set()
    for path in files:
        if path.suffix != ".py" or folder not in str(path):
            continue
        for node in ast.walk(ast.parse(Path(str(path.locate())).read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {t.id for t in targets if isinstance(t, ast.Name)}
            if isinstance(node, ast.arg):
                found.add(node.arg)
            if isinstance(node, ast.alias):
                found.add((node.asname or node.name).rpartition(".")[2])
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"\w+", node.value):
                    found.add(node.value)
    return found


def test_cute_names_exist():
    """Runs where `pip install nvidia-cutlass-dsl` brought the sources; the course needs none."""
    known = definitions("nvidia-cutlass-dsl-libs-core", "cutlass/")
    if known is None:
        pytest.skip("nvidia-cutlass-dsl is not installed")
    missing = []
    for heading, code in names("CuTe DSL"):
        if code.startswith(("if ", "tcgen05.mma")):  # a branch of ours; PTX in words
            continue
        last = re.sub(r"\(.*|=.*", "", code).rpartition(".")[2]
        if last not in known:
            missing.append((heading, code))
    assert missing == []


def test_cutlass_names_exist():
    """Runs where `pip install nvidia-cutlass` brought the headers; the course needs none."""
    try:
        files = importlib.metadata.files("nvidia-cutlass") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvidia-cutlass is not installed")
    text = "\n".join(
        Path(str(f.locate())).read_text(encoding="utf-8", errors="replace")
        for f in files
        if f.suffix in (".h", ".hpp") and "/include/" in str(f)
    )
    missing = []
    for heading, code in names("CUTLASS C++"):
        last = re.split(r"[(<]", code)[0].rpartition("::")[2]
        if code.startswith(("if ", "blockIdx", "threadIdx", "__sync")):
            continue
        if not re.search(rf"\b{re.escape(last)}\b", text):
            missing.append((heading, code))
    assert missing == []
