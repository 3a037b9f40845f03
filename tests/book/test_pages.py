"""The built pages as a reader meets them: opened from disk in Chromium, by mouse and keyboard."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]

THEMES = ("light", "dark")


def url(book, page_name):
    return (book / f"{page_name}.html").as_uri()


@pytest.mark.parametrize("theme", THEMES)
def test_a_page_is_silent_and_asks_no_other_host(book, visit, page_name, theme):
    seen = visit(url(book, page_name), theme=theme)
    seen.page.wait_for_timeout(300)
    assert seen.errors == []
    assert seen.elsewhere() == []
    assert seen.page.evaluate("document.documentElement.dataset.theme") == theme


def test_a_page_never_scrolls_sideways(book, visit, page_name):
    page = visit(url(book, page_name)).page
    for width in (1280, 768, 390, 360):
        page.set_viewport_size({"width": width, "height": 900})
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            culprits = page.evaluate(
                """width => [...document.querySelectorAll('main *')]
                    .filter(e => e.getBoundingClientRect().right > width + 1
                        && !e.closest('pre, .mg-scroll, table, mjx-container, .mg-fig-static'))
                    .slice(0, 5).map(e => e.outerHTML.slice(0, 160))""",
                width,
            )
            pytest.fail(f"{wide} px on a screen of {width}: {culprits}")


SMALL_TEXT = """() => {
          const found = [];
          const ours = '.mg-fig, .mg-static, .mg-recorded, .mg-badge';
          for (const box of document.querySelectorAll(ours)) {
            const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
            while (walker.nextNode()) {
              const node = walker.currentNode, parent = node.parentElement;
              if (!node.data.trim() || parent.closest('script, style, .mg-hidden')) continue;
              if (!parent.getClientRects().length) continue;
              let size = parseFloat(getComputedStyle(parent).fontSize);
              const svg = parent.closest('svg');
              if (svg) size *= svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
              if (size < 11.95) found.push([size, node.data.trim().slice(0, 30)]);
            }
          }
          return found;
        }"""


def test_text_in_figures_is_12_px_or_more(book, visit, page_name):
    page = visit(url(book, page_name)).page
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(SMALL_TEXT) == [], width


@pytest.mark.parametrize(("theme", "width"), [("light", 390), ("dark", 1280)])
def test_accessibility(book, visit, page_name, theme, width):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    page = visit(url(book, page_name), theme=theme, width=width).page
    page.wait_for_timeout(200)
    # A change of theme fades, and takes its time on a busy machine: half a colour has no contrast.
    page.evaluate("Promise.all(document.getAnimations().map(a => a.finished.catch(() => 0)))")
    found = axe.Axe().run(page).response["violations"]
    told = [
        f"{v['id']} ({v['impact']}): {v['help']}: {n['target']} {n['html'][:120]}"
        for v in found
        for n in v["nodes"][:3]
    ]
    assert told == []


@pytest.mark.parametrize("word", ["warpgroup", "swizzle", "accumulator"])
def test_search_finds_a_word_from_disk(book, visit, word):
    seen = visit((book / "search.html").as_uri() + f"?q={word}")
    seen.page.wait_for_selector("#search-results li a", timeout=10_000)
    links = seen.page.eval_on_selector_all("#search-results li a", "all => all.map(a => a.href)")
    assert any("/chapters/part" in link for link in links)
    assert seen.errors == []
    assert seen.elsewhere() == []
    with seen.page.expect_navigation():
        seen.page.click("#search-results li a")
    assert word in seen.page.text_content("main").lower()


def test_the_search_field_of_a_page_leads_to_results(book, visit, pages):
    page = visit(url(book, pages[1])).page
    field = page.locator("input[type=search]:visible").first
    if not field.count():
        page.keyboard.press("Control+k")
        field = page.locator("input[type=search]:visible").first
    field.fill("cluster")
    with page.expect_navigation():
        field.press("Enter")
    page.wait_for_selector("#search-results li a", timeout=10_000)


def test_the_theme_button_changes_page_and_figures(book, visit, pages):
    page = visit(url(book, pages[1])).page
    ground = "getComputedStyle(document.querySelector('figure.mg-fig')).backgroundColor"
    seen = {}
    for _ in range(3):
        seen[page.evaluate("document.documentElement.dataset.theme")] = page.evaluate(ground)
        page.locator("button.theme-switch-button:visible").first.click()
    assert set(seen) == {"light", "dark"}
    assert seen["light"] != seen["dark"]


def test_figures_have_a_static_form_without_javascript(book, visit, page_name):
    seen = visit(url(book, page_name), javascript=False)
    for figure in seen.page.locator("figure.mg-fig").all():
        assert figure.locator(".mg-fig-static table, .mg-fig-static svg").first.is_visible()
        assert figure.locator("figcaption").is_visible()


def test_figures_answer_to_every_control(book, visit, page_name):
    """Whatever figure a chapter shows: each button, choice, slider and cell works in silence."""
    seen = visit(url(book, page_name))
    page = seen.page
    for figure in page.locator("figure.mg-fig").all():
        assert figure.get_attribute("data-ready") == "yes"
        status = figure.locator("[role=status]")
        for choice in figure.locator(".mg-segments label").all():
            if choice.is_visible():
                choice.click()
        for radio in figure.locator(".mg-segments input").all():
            radio.focus()
            page.keyboard.press("ArrowRight")
        for grid in figure.locator("[role=grid]").all():
            if not grid.is_visible():
                continue
            start = grid.locator("[tabindex='0']")
            assert start.count() == 1
            start.focus()
            before = page.evaluate("document.activeElement.getAttribute('aria-label')")
            for key in ("Home", "ArrowRight", "ArrowDown", "End", "ArrowLeft"):
                page.keyboard.press(key)
            after = page.evaluate("document.activeElement.getAttribute('aria-label')")
            many = grid.locator("[role=gridcell]").count() > 1
            assert before != after or not many
            page.keyboard.press("Space")
        for slider in figure.locator("input[type=range]").all():
            if slider.is_visible():
                slider.focus()
                before = slider.input_value()
                page.keyboard.press("End")
                page.keyboard.press("Home")
                page.keyboard.press("ArrowRight")
                assert slider.input_value() != before or slider.get_attribute("max") == "0"
        if not status.inner_text().strip():  # a figure with none of these has buttons alone
            for button in figure.locator("button").all():
                if button.is_visible() and button.is_enabled():
                    button.click()
        assert status.inner_text().strip()
    assert seen.errors == []


def test_focus_is_visible_in_figures(book, visit, page_name):
    page = visit(url(book, page_name)).page
    for figure in page.locator("figure.mg-fig").all():
        figure.locator(
            "button:enabled:visible, [role=gridcell][tabindex='0']:visible"
        ).first.focus()
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Tab")
        shown = page.evaluate(
            """() => { const e = document.activeElement;
                 const style = n => getComputedStyle(n);
                 const box = e.closest('.mg-segments') || e;
                 return [style(box).outlineStyle, parseFloat(style(box).outlineWidth)]; }"""
        )
        assert shown[0] == "solid"
        assert shown[1] >= 2


def test_listings_are_the_files_that_ran(book, visit, page_name):
    page = visit(url(book, page_name)).page
    listings = page.locator(".literal-block-wrapper").evaluate_all(
        """all => all.map(block => {
             const code = block.querySelector('pre').cloneNode(true);
             code.querySelectorAll('.linenos').forEach(number => number.remove());
             return [block.querySelector('.code-block-caption').textContent, code.textContent];
           })"""
    )
    for caption, code in listings:
        path = re.search(r"src/\S+\.py", caption)
        if path is None or "→" in caption:
            continue
        source = (ROOT / path.group()).read_text(encoding="utf-8")
        assert code.strip() in source, caption
