"""The report page in a browser: one file, legible in light and dark on every width, by keyboard alone."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browsing import colours, contrast, luminance, opened, press, rows, written
from learned_results import clustered, round_infos, showing, weighed
from report_results import degenerate

from chromium import screen
from pomona.record.result import Result
from pomona.results import table
from pomona.results.web.report_page import LiveProgress

pytestmark = pytest.mark.long

FIGURES = {
    "gain", "clients", "confusion", "curves", "traffic", "dr-heatmap", "dr-trajectories", "dr-self",
    "schedule-values", "labels",
}  # fmt: skip


def test_nothing_but_the_file_is_asked_for_and_the_console_is_silent(page: Any) -> None:
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    urls = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    assert any(url.endswith("report.html") for url in urls)
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []
    assert page.get_log("browser") == []


def test_every_figure_is_drawn_with_its_numbers_below(page: Any) -> None:
    sizes = page.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('figure')].map(f => [f.id, "
        "[f.querySelector('svg').getBoundingClientRect().height, "
        "f.querySelectorAll('.numbers tbody tr').length]]))"
    )
    assert set(sizes) == {f"figure-{name}" for name in FIGURES}
    assert all(height > 100 and lines > 0 for height, lines in sizes.values())


@pytest.mark.parametrize("width", [320, 390, 820, 1400])
def test_no_sideways_scrolling(page: Any, width: int) -> None:
    screen(page, width)
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    notes = "return [...document.querySelectorAll('#notes .scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert page.execute_script(notes) == [0]
    outside = (
        "return [...document.querySelectorAll('figure svg text')].filter(t => { "
        "const a = t.getBoundingClientRect(), b = t.closest('svg').getBoundingClientRect(); "
        "return a.left < b.left - 2 || a.right > b.right + 2 || a.bottom > b.bottom + 2; })"
        ".map(t => t.closest('figure').id + ': ' + t.textContent)"
    )
    assert page.execute_script(outside) == []
    letters = (
        "return Math.min(...[...document.querySelectorAll('figure svg text')]"
        ".map(t => t.getBoundingClientRect()).map(b => Math.min(b.width, b.height)).filter(Boolean))"
    )
    assert page.execute_script(letters) > 3


def test_dark_and_light_are_both_readable(page: Any) -> None:
    def system(theme: str) -> dict[str, list[float]]:
        feature = {"name": "prefers-color-scheme", "value": theme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        return colours(page)

    light, dark = system("light"), system("dark")
    assert luminance(light["paper"]) > 0.8
    assert luminance(dark["paper"]) < 0.05
    for theme in (light, dark):
        assert contrast(theme["paper"], theme["ink"]) > 10
        assert contrast(theme["paper"], theme["drawn"]) > 4.5
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_keyboard_alone_reaches_everything_and_shows_where_it_is(page: Any) -> None:
    from selenium.webdriver import ActionChains

    style = "getComputedStyle(document.activeElement)"
    reached = []
    for _ in range(120):
        ActionChains(page).send_keys("\ue004").perform()
        name, outline, width = page.execute_script(
            "const a = document.activeElement; return [a.id || a.className || a.tagName, "
            f"{style}.outlineStyle, parseFloat({style}.outlineWidth)]"
        )
        if name == "BODY":
            break
        assert (outline, width) == ("solid", 3), name
        reached.append(name)
    assert reached[0] == "skip"
    assert {"filter", "sort", "SUMMARY", "A"} <= set(reached)


def test_it_prints_in_light(page: Any) -> None:
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [dark]})
    printed_colours = colours(page)
    assert luminance(printed_colours["paper"]) == 1
    assert contrast(printed_colours["paper"], printed_colours["ink"]) > 15
    assert contrast(printed_colours["paper"], printed_colours["drawn"]) > 15
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_a_link_unfolds_its_section(browser: Any, path: Path) -> None:
    browser.get("about:blank")
    browser.get(path.as_uri() + "#settings")
    folded = "return [...document.querySelectorAll('.fold')].filter(f => f.open).map(f => f.id)"
    assert browser.execute_script(folded) == ["settings"]
    browser.execute_script("document.querySelector('nav a[href=\"#training\"]').click()")
    time.sleep(0.3)
    assert browser.execute_script(folded) == ["training", "settings"]


def test_a_live_page_reads_itself_again_until_the_run_has_ended(
    browser: Any, compared: list[Result], tmp_path: Path
) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    finished_run = compared[3]
    young = replace(finished_run, rounds=finished_run.rounds[:3], final=[], summary={})
    opened(browser, written([young], tmp_path, LiveProgress(1, datetime.now(UTC), 60)))
    browser.execute_script("window.old = true")
    line = "return document.querySelector('.live')?.innerText ?? ''"
    assert "round 3 of 8 is done" in browser.execute_script(line)
    assert browser.execute_script("return document.querySelector('#figure-curves svg') !== null")
    written([finished_run], tmp_path)
    WebDriverWait(browser, 20).until(
        lambda d: (
            d.execute_script("return !window.old && document.readyState === 'complete'")
            and d.execute_script(line) == ""
        )
    )


def test_a_live_page_that_nobody_writes_any_more_gives_up_and_says_so(
    browser: Any, compared: list[Result], tmp_path: Path
) -> None:
    young = replace(compared[3], final=[], summary={})
    past = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    opened(browser, written([young], tmp_path, LiveProgress(1, past, 4)))
    browser.execute_script("window.old = true")
    line = browser.execute_script("return document.querySelector('.live').innerText")
    assert line.startswith("No update since 2026-01-02 03:04:05 UTC")
    time.sleep(2.5)
    assert browser.execute_script("return window.old")
    assert browser.get_log("browser") == []


def cases() -> dict[str, Callable[[], list[Result]]]:
    return {
        "each kind": lambda: [showing(round_infos())],
        "clusters": lambda: [clustered()],
        "epochs": lambda: [weighed()],
        **degenerate(),
    }


@pytest.mark.parametrize("case", cases())
def test_whatever_was_recorded_draws_without_a_fault(
    browser: Any, case: str, tmp_path: Path
) -> None:
    screen(browser, 700)
    opened(browser, written(cases()[case](), tmp_path))
    assert browser.get_log("browser") == []
    numbers = (
        "return [...document.querySelectorAll('figure svg')].filter(f => "
        "/NaN|Infinity|undefined/.test(f.outerHTML)).map(f => f.parentElement.id)"
    )
    assert browser.execute_script(numbers) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 700


def test_every_place_to_touch_is_large_enough(page: Any) -> None:
    """WCAG 2.2, success criterion 2.5.8: 24 by 24 pixels; links inside sentences are exempt."""
    screen(page, 390)
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    small = page.execute_script(
        """
        return [...document.querySelectorAll('a[href], button, input, summary')].filter(e => {
          const box = e.getBoundingClientRect();
          return !e.matches('.skip') && box.width > 0 && (box.width < 23.9 || box.height < 23.9);
        }).map(e => [e.tagName, e.id || e.textContent.trim()]);
        """
    )
    assert small == []


def test_headings_go_down_one_step_at_a_time(page: Any) -> None:
    levels = page.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert [(a, b) for a, b in pairwise(levels) if b > a + 1] == []


def test_a_name_with_a_hyphen_stays_on_its_line(page: Any) -> None:
    for width in range(340, 1200, 61):
        screen(page, width)
        heights = page.execute_script(
            "return [...document.querySelectorAll('h1 .whole')].map(w => [w.textContent, "
            "w.getClientRects().length, w.offsetHeight])"
        )
        assert [text for text, *_ in heights] == ["FedAvg-FT"]
        line = page.execute_script(
            "return parseFloat(getComputedStyle(document.querySelector('h1')).lineHeight)"
        )
        assert all(boxes == 1 and height < 1.5 * line for _, boxes, height in heights), width


def test_tables_sort_by_click_and_by_key(page: Any, compared: list[Result]) -> None:
    initial_rows = rows(page, "#summary")
    head = "#summary th[data-column='2']"
    press(page, f"{head} button", "\ue007")
    values = [float(row[2]) for row in rows(page, "#summary")]
    assert values == sorted((round(100 * r["last"], 2) for r in table(compared)), reverse=True)
    sorting = "return document.querySelector(arguments[0]).getAttribute('aria-sort')"
    assert page.execute_script(sorting, head) == "descending"
    press(page, f"{head} button", " ")
    assert [float(row[2]) for row in rows(page, "#summary")] == sorted(values)
    page.execute_script("document.querySelector('#summary th[data-column=\"0\"] button').click()")
    assert [row[0] for row in rows(page, "#summary")] == sorted(
        (r[0] for r in initial_rows), key=str.lower
    )
    assert (
        page.execute_script("return document.querySelectorAll('#summary [aria-sort]').length") == 1
    )
    # Undefined cells stay last whichever way: clinic 2 has no AUROC.
    for order in ("first", "second"):
        page.execute_script(
            "[...document.querySelectorAll('#clients-table details[open] th')]"
            ".find(h => h.textContent.includes('AUROC')).querySelector('button').click()"
        )
        assert rows(page, "#clients-table details[open]")[-1][0] == "clinic 2", order


def test_settings_are_filtered(page: Any) -> None:
    press(page, "#filter", "SCHEDULE")
    setting_names = page.execute_script(
        "return [...document.querySelectorAll('#settings tbody tr')].filter(r => !r.hidden).map(r "
        "=> r.cells[0].innerText)"
    )
    assert setting_names == ["method.schedule", "method.schedule_share"]
