"""What a figure shows, against values computed in Python: one page with known parameters."""

import pytest

from mlsys_gpu import viz
from mlsys_gpu.viz import figures, layouts, order, tiles

pytestmark = pytest.mark.slow


@pytest.fixture
def show(visit, tmp_path, monkeypatch):
    """``show(figure)``: the figure as a notebook's output, alone in a page."""
    monkeypatch.delenv(figures.BOOK_VARIABLE, raising=False)

    def open_figure(*shown, width=900):
        body = "".join(f._repr_html_() for f in shown)
        path = tmp_path / "figure.html"
        path.write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>f</title>{body}</html>',
            encoding="utf-8",
        )
        return visit(path.as_uri(), width=width)

    return open_figure


def facts(figure) -> dict[str, str]:
    return dict(
        figure.locator("dl.mg-readout").evaluate_all(
            "all => all.flatMap(dl => [...dl.children].map(d =>"
            " [d.querySelector('dt').textContent, d.querySelector('dd').textContent]))"
        )
    )


def test_layout_shows_the_addresses_that_python_computes(show):
    seen = show(viz.layout(16, 64, "float16", swizzle=128))
    page = seen.page
    for swizzle in layouts.SWIZZLES:
        page.locator(f".mg-segments input[value='{swizzle}'] + label").click()
        for row, chunk, inner in [(0, 0, 0), (1, 0, 3), (5, 6, 7), (15, 7, 1), (10, 3, 5)]:
            page.locator(f".mg-tile [data-at='{row}.{chunk}']").click()
            page.locator("input[type=number]").fill(str(chunk * 8 + inner))
            offset = layouts.smem_offset(row, chunk * 8 + inner, rows=16, cols=64, swizzle=swizzle)
            shown = facts(page)
            assert shown["element"] == f"({row}, {chunk * 8 + inner})"
            assert shown["byte offset"] == f"{offset} = 0x{offset:04x}"
            assert shown["bank"] == str(layouts.bank(offset))
            # The same chunk is marked in both pictures.
            assert page.locator(".mg-tile .mg-picked").inner_text() == f"{row}.{chunk}"
            assert page.locator(".mg-smem .mg-picked").inner_text() == f"{row}.{chunk}"
    assert seen.errors == []


def test_layout_by_keyboard_and_from_the_memory_side(show):
    page = show(viz.layout(16, 64)).page
    page.locator(".mg-tile [tabindex='0']").focus()
    for key in ["ArrowDown"] * 3 + ["ArrowRight"] * 2:
        page.keyboard.press(key)
    assert facts(page)["element"] == "(3, 16)"
    assert facts(page)["byte offset"].startswith(f"{3 * 128 + (2 ^ 3) * 16} ")
    page.locator(".mg-smem [tabindex='0']").focus()
    page.keyboard.press("ArrowRight")  # the next 16 bytes hold chunk (2 XOR 3) + 1, back again
    assert facts(page)["element"] == f"(3, {((2 ^ 3) + 1 ^ 3) * 8})"


def test_layout_counts_conflicts_and_names_lanes(show):
    page = show(viz.layout(16, 64)).page
    page.get_by_text("down the rows", exact=True).click()
    cost = page.locator(".mg-cost")
    assert "4 passes" in cost.inner_text()
    assert "no bank conflict" in cost.inner_text()
    page.locator(".mg-segments input[value='0'] + label").click()
    assert "32 passes" in cost.inner_text()
    assert "8-way" in cost.inner_text()
    page.locator(".mg-tile [data-at='9.1']").click()
    assert facts(page)["lane"] == "T25"  # lanes 16 to 31 read the second chunk of rows 0 to 15


def test_gemm_tiles_walks_the_k_loop(show):
    M, N, K, tile = 320, 384, 200, (128, 128, 64)
    seen = show(viz.gemm_tiles(M, N, K, tile))
    page = seen.page
    data = tiles.gemm_tiles_data(M, N, K, tile)
    page.locator(".mg-d [aria-label^='tile 2, 1 ']").click()
    picked = next(t for t in data["tiles"] if (t["m"], t["n"]) == (2, 1))
    for step in range(data["k_steps"]):
        shown = facts(page)
        assert shown["CTA"] == "(2, 1)"
        assert shown["rows of A and D"] == "256 to 319"
        assert shown["rows of B, columns of D"] == "128 to 255"
        last = min(K, (step + 1) * 64) - 1
        assert shown["K in this step"] == f"{step * 64} to {last}"
        kib = picked["steps"][step]["loaded"] / 1024
        assert shown["loaded so far"] == f"{kib:g} KiB"
        assert shown["FLOP so far"] == f"{2 * 64 * 128 * (last + 1):,}"
        assert page.locator(".mg-a .mg-now").count() == page.locator(".mg-b .mg-now").count() == 1
        assert page.locator(".mg-a .mg-done").count() == step
        page.get_by_role("button", name="Next: Step of the K loop").click(force=True)
    assert page.get_by_role("button", name="Next: Step of the K loop").is_disabled()
    assert seen.errors == []


def test_hierarchy_goes_down_to_a_thread_by_keyboard(show):
    seen = show(viz.execution_hierarchy("blackwell"))
    page = seen.page
    page.locator(".mg-children [tabindex='0']").focus()
    # cluster 2, CTA 1, warpgroup 1, warp 3, thread 9
    chosen = ((0, 2), (0, 1), (0, 1), (0, 3), (1, 1))
    for down, right in chosen:
        page.keyboard.press("Control+Home")
        for key in ["ArrowDown"] * down + ["ArrowRight"] * right:
            page.keyboard.press(key)
        page.keyboard.press("Space")
    shown = facts(page)
    assert shown["cluster"] == "2 of 8"
    assert shown["blockIdx.x"] == str(2 * 2 + 1)
    assert shown["rank in cluster"] == "1"
    assert shown["warp in CTA"] == str(1 * 4 + 3)
    assert shown["threadIdx.x"] == str(1 * 128 + 3 * 32 + 9)
    assert shown["lane"] == "9"
    assert page.locator("[data-memory=tmem]").count() == 1
    page.get_by_role("button", name="Grid").click()
    assert page.locator(".mg-seen").count() == 1  # the grid as a whole: global memory alone
    assert seen.errors == []


def test_hierarchy_pipeline_differs_between_architectures(show):
    page = show(viz.execution_hierarchy("hopper", tile=(128, 128, 64))).page
    page.locator(".mg-segments input[value='pipeline'] + label").click()
    places = "all => all.map(b => b.dataset.place)"
    assert page.locator(".mg-box").evaluate_all(places) == ["gmem", "smem", "tc", "reg", "gmem2"]
    page.locator(".mg-segments input[value='blackwell'] + label").click()
    assert "tmem" in page.locator(".mg-box").evaluate_all(places)
    page.locator(".mg-pipeline input[type=range]").focus()
    page.keyboard.press("End")
    assert facts(page)["How much"] == "32 KiB"
    assert page.locator(".mg-box.mg-on").evaluate_all(places) == ["reg", "gmem2"]


def test_play_runs_to_the_end_and_stops(show):
    page = show(viz.gemm_tiles(128, 128, 128)).page
    page.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "document.querySelector('.mg-step-shown').textContent === '2 of 2'", timeout=5000
    )
    page.get_by_role("button", name="Play").wait_for(timeout=5000)


def test_a_figure_that_cannot_be_drawn_keeps_its_static_form(show):
    broken = viz.figure(
        "layout", {"rows": 1}, title="t", alt="a", fallback="<table><tr><td>kept</td></tr></table>"
    )
    seen = show(broken, viz.layout(8, 64))
    assert seen.page.get_by_text("kept").is_visible()
    assert seen.page.locator(".mg-tile").count() == 1  # and does not stop the next figure
    assert any("figure layout" in e for e in seen.errors)


@pytest.mark.parametrize("width", [320, 360, 390])
def test_figures_fit_a_phone(show, width):
    page = show(
        viz.layout(8, 64), viz.gemm_tiles(512, 384, 256), viz.execution_hierarchy(), width=width
    ).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_tile_order_shows_the_rounds_that_python_computes(show):
    shapes = [(1024, 1024, 256), (1536, 512, 128)]
    seen = show(viz.tile_order(shapes, ctas=10, groups=(2, 3), group=3))
    page = seen.page

    def picked(text):
        page.locator(".mg-segments label", has_text=text).first.click()

    for shape, name, tiles_m in zip(shapes, ("1,024 ×", "1,536 ×"), (8, 12), strict=True):
        picked(name)
        for group, label in ((2, "2"), (3, "3"), (tiles_m, f"all {tiles_m}")):
            page.locator(f".mg-order-choice input[value='{group}'] + label").click()
            assert (
                page.locator(f".mg-order-choice input[value='{group}'] + label").inner_text()
                == label
            )
            rounds = order.order_traffic(shape, ctas=10, group=group)["rounds"]
            page.get_by_label("Round", exact=True).locator("input").focus()
            page.keyboard.press("Home")
            for number, expected in enumerate(rounds):
                shown = facts(page)
                assert shown["tiles"] == f"{expected['tiles']} of 10 places"
                assert shown["block rows of A"] == str(expected["rows"])
                assert shown["block rows of B"] == str(expected["columns"])
                assert page.locator("rect.mg-order-now").count() == len(expected["boxes"])
                assert (
                    page.locator(".mg-step-shown").inner_text() == f"{number + 1} of {len(rounds)}"
                )
                page.keyboard.press("ArrowRight")
    assert seen.errors == []
