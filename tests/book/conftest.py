"""The built book, and a headless Chromium to look at it with."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "book" / "_build" / "html"

# Chromium calls home from many corners; a test of a page must see the page's requests alone.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-quic",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


def toc_files() -> list[str]:
    """Every page of the table of contents, the root first, without suffix."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [toc["root"]] + [c["file"] for part in toc["parts"] for c in part["chapters"]]


PAGES = toc_files()


@pytest.fixture(scope="session")
def pages() -> list[str]:
    return PAGES


@pytest.fixture(scope="session")
def book() -> Path:
    """Folder of the built book. It is built as ``make book`` does; what is fresh stays.

    Where several processes share the tests, the first one builds and the others wait for it.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return _build()
    HTML.parent.mkdir(parents=True, exist_ok=True)
    stamp = HTML.parent / "built-for-tests"
    with (HTML.parent / "building-for-tests").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.is_file() and stamp.read_text() == run):
            stamp.unlink(missing_ok=True)
            _build()
            stamp.write_text(run)
    return HTML


def _build() -> Path:
    command = [
        str(Path(sys.executable).with_name("jupyter-book")),
        *("build", str(ROOT), "--path-output", str(ROOT / "book"), "-W", "-n", "--keep-going"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        told = [line for line in lines if "WARNING" in line or "ERROR" in line]
        pytest.fail("the book does not build:\n" + "\n".join(told + lines[-60:]), pytrace=False)
    return HTML


@pytest.fixture(scope="module")
def browser():
    """Chromium of the distribution, driven over the DevTools protocol.

    It closes with its module: tests of the grader, which come later, end processes.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(
        filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None
    )
    if path is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        # Playwright gives each launch a fresh profile of its own.
        chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """A page, and what it said and asked for while it was open."""

    def __init__(self, browser, url: str, width: int, theme: str, javascript: bool):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            java_script_enabled=javascript,
            reduced_motion="reduce",
        )
        self.context.add_init_script(
            f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')"
        )
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("requestfailed", lambda r: self.errors.append(f"failed: {r.url}"))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(url, wait_until="load")

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def elsewhere(self) -> list[str]:
        """Requests that left this machine's disk."""
        return [u for u in self.requests if not u.startswith(("file:", "data:", "blob:"))]


@pytest.fixture
def visit(browser):
    """``visit(url, width=1280, theme="light")``: an open page that records errors and requests."""
    opened: list[Visit] = []

    def open_page(url, width=1280, theme="light", javascript=True):
        opened.append(Visit(browser, str(url), width, theme, javascript))
        return opened[-1]

    yield open_page
    for one in opened:
        one.context.close()


def pytest_generate_tests(metafunc):
    if "page_name" in metafunc.fixturenames:
        metafunc.parametrize("page_name", PAGES)
