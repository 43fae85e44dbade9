"""The page in a real browser: loads from a single file, on a phone, in dark mode, in print, and
during a run.
"""

import json
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browsing import address, choose, colours, contrast, luminance, opened, written
from learned_results import clustered, each_kind, showing, weighed
from PIL import Image
from report_results import degenerate, result

from chromium import screen
from pomona.record.result import Result
from pomona.results.web.page_data import LiveProgress

pytestmark = pytest.mark.long


def test_nothing_but_the_file_is_asked_for_and_the_console_is_silent(page: Any) -> None:
    choose(page, "run", "FedAvg")
    choose(page, "run", "APPLE")
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [
        e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"
    ]
    assert any(url.endswith("report.html") for url in asked)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert page.get_log("browser") == []


def test_every_figure_is_drawn(page: Any) -> None:
    sizes = page.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('figure')].map(f => [f.id, "
        "[...f.querySelectorAll('.plot svg')].map(s => [s.getBoundingClientRect().height, "
        "s.childElementCount])]))"
    )
    names = ("loss-0", "test-0", "traffic", "schedule", "clients", "gains", "spread", "confusion", "matrix", "graph",
             "history", "own", "labels", "holders")  # fmt: skip
    assert set(sizes) == {f"figure-{name}" for name in names}
    for name, drawn in sizes.items():
        assert len(drawn) == (12 if name == "figure-history" else 1), name
        assert all(height > 100 and parts > 5 for height, parts in drawn), name


@pytest.mark.parametrize("width", [320, 360, 820, 1400])
def test_no_sideways_scrolling(page: Any, width: int) -> None:
    screen(page, width)
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.execute_script("return window.innerWidth") == width
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    wide = page.execute_script(
        "return [...document.querySelectorAll('.plot svg')].filter(s => "
        "s.getBoundingClientRect().right > innerWidth).length"
    )
    assert wide == 0
    # The controls stay in reach and leave most of a phone's screen to the figures.
    assert page.execute_script("return document.querySelector('.controls').offsetHeight") < 130


def test_a_survival_curve_has_the_pages_paper_in_light_and_dark(page: Any) -> None:
    """A picture on white was a white rectangle on a dark page."""
    white, black = (BytesIO() for _ in range(2))
    Image.new("RGB", (64, 64), "white").save(white, "PNG")
    Image.new("RGB", (64, 64), "black").save(black, "PNG")
    seen = []
    for drawn in (white, black):
        source = f"data:image/png;base64,{b64encode(drawn.getvalue()).decode('ascii')}"
        page.execute_script(
            "document.querySelector('#survival-picture')?.remove(); "
            "document.body.insertAdjacentHTML('afterbegin', `<figure class='still' "
            "id='survival-picture'><img src='${arguments[0]}'></figure>`);"
            "return document.querySelector('#survival-picture img').decode()",
            source,
        )
        for theme in ("light", "dark"):
            page.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
            shot = page.find_element("css selector", "#survival-picture img").screenshot_as_png
            pixel = Image.open(BytesIO(shot)).convert("RGB").getpixel((32, 32))
            seen.append(tuple(pixel))
    paper_light, paper_dark, ink_light, ink_dark = seen
    assert max(abs(a - b) for a, b in zip(paper_light, (0xFD, 0xFD, 0xFB), strict=True)) <= 2
    assert max(abs(a - b) for a, b in zip(paper_dark, (0x15, 0x18, 0x1A), strict=True)) <= 2
    assert max(ink_light) < 10
    assert min(ink_dark) > 245


def test_dark_and_light_are_both_readable_and_the_reader_can_choose(page: Any) -> None:
    from selenium.webdriver.common.by import By

    def system(theme: str) -> dict[str, list[float]]:
        page.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": theme}]},
        )
        return colours(page)

    light, dark = system("light"), system("dark")
    assert luminance(light["paper"]) > 0.8
    assert luminance(dark["paper"]) < 0.05
    for theme in (light, dark):
        assert contrast(theme["paper"], theme["ink"]) > 10
        assert contrast(theme["paper"], theme["drawn"]) > 4.5
    # A line narrower than two pixels is smoothed into the paper: a dotted one in a dark colour all
    # but vanishes.
    curves = (
        "return [...document.querySelectorAll('#figure-test-0 .curve')].map(c => "
        "c.getAttribute('stroke-width'))"
    )
    assert min(map(float, page.execute_script(curves))) >= 2
    page.find_element(By.ID, "theme").click()
    assert colours(page) == light
    page.refresh()
    assert colours(page) == light
    page.find_element(By.ID, "theme").click()
    assert colours(page) == dark
    system("light")
    assert colours(page) == dark
    page.execute_script("localStorage.clear()")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_calibration_is_drawn_in_the_page_s_own_colours_and_letters(
    browser: Any, tmp_path: Path
) -> None:
    opened(browser, written([result("apple", n=3, rounds=2, classes=2)], tmp_path))
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    texts = (
        "[...document.querySelectorAll('#figure-calibration svg text')].map(t => "
        "getComputedStyle(t))"
    )
    sizes = browser.execute_script(f"return {texts}.map(s => parseFloat(s.fontSize))")
    assert len(sizes) > 8
    assert max(sizes) <= 12
    fills = browser.execute_script(f"return {texts}.map(s => s.fill)")
    soft = browser.execute_script(
        "return getComputedStyle(document.querySelector('#figure-calibration figcaption')).color"
    )
    assert set(fills) == {soft}
    assert browser.execute_script("return document.querySelectorAll('figure img').length") == 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_keyboard_alone_reaches_everything_and_shows_where_it_is(page: Any) -> None:
    from selenium.webdriver import ActionChains

    style = "getComputedStyle(document.activeElement)"
    reached = []
    for _ in range(120):
        ActionChains(page).send_keys("\ue004").perform()
        name, outline, width = page.execute_script(
            "const a = document.activeElement; return [a.id || (typeof a.className === 'string' "
            f"&& a.className) || a.closest('figure')?.id || a.tagName, {style}.outlineStyle, "
            f"parseFloat({style}.outlineWidth)]"
        )
        if name == "BODY":
            break
        assert (outline, width) == ("solid", 3), name
        reached.append(name)
    assert reached[:2] == ["skip", "theme"]
    assert {
        "run",
        "client",
        "round",
        "play",
        "threshold",
        "filter",
        "legend-0",
        "figure-matrix",
        "figure-graph",
        "sort",
    } <= set(reached)


def test_it_prints_in_light_with_everything_open(page: Any) -> None:
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    shown = colours(page)
    assert luminance(shown["paper"]) == 1
    assert contrast(shown["paper"], shown["ink"]) > 15
    assert (
        page.execute_script("return getComputedStyle(document.querySelector('.controls')).display")
        == "none"
    )
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_a_live_page_reads_itself_again_and_keeps_the_choices(
    browser: Any, compared: list[Result], tmp_path: Path
) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    whole = compared[3]
    young = replace(
        whole,
        rounds=whole.rounds[:3],
        evaluations=[e for e in whole.evaluations if e.round <= 3],
        final=[],
        summary={},
    )
    live = LiveProgress(1, datetime.now(UTC), 60)
    opened(browser, written([young], tmp_path, live), "#learned?client=2&round=2")
    browser.execute_script("window.old = true")
    assert "round 3 of 8 is done" in browser.execute_script(
        "return document.querySelector('.live').textContent"
    )
    written([whole], tmp_path)
    WebDriverWait(browser, 20).until(
        lambda d: d.execute_script("return !window.old && document.readyState === 'complete'")
    )
    assert address(browser) == "#learned?client=2&round=2"
    assert browser.execute_script(
        "return [document.getElementById('round').max, document.querySelectorAll('.live').length]"
    ) == ["7", 0]
    browser.execute_script("window.old = true")
    time.sleep(2.5)
    assert browser.execute_script("return window.old")


def test_a_live_page_that_nobody_writes_any_more_gives_up_and_says_so(
    browser: Any, compared: list[Result], tmp_path: Path
) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    young = replace(compared[3], final=[], summary={})
    now = datetime.now(UTC)
    opened(browser, written([young], tmp_path, LiveProgress(1, now, 4)))
    browser.execute_script("window.old = true")
    line = "return document.querySelector('.live').innerText"
    assert "Running: round 8 of 8" in browser.execute_script(line)
    # It reloads while the page is young, and stops once it finds it older than four
    # seconds.
    WebDriverWait(browser, 20).until(lambda d: "No news since" in d.execute_script(line))
    assert not browser.execute_script("return window.old || false")
    assert (
        f"No news since {now:%Y-%m-%d %H:%M:%S} UTC; the run may have ended."
        in browser.execute_script(line)
    )
    browser.execute_script("window.old = true")
    time.sleep(2.5)
    assert browser.execute_script("return window.old")
    # The run was resumed: asked to, the page looks again and goes on.
    written([young], tmp_path, LiveProgress(1, datetime.now(UTC), 60))
    browser.execute_script("document.getElementById('pause').click()")
    WebDriverWait(browser, 20).until(lambda d: "Running" in d.execute_script(line))
    assert browser.get_log("browser") == []


def kinds() -> dict[str, Callable[[], list[Result]]]:
    return {
        "each kind": lambda: [showing(each_kind())],
        "clusters": lambda: [clustered()],
        "epochs": lambda: [weighed()],
        **degenerate(),
    }


@pytest.mark.parametrize("case", kinds())
def test_whatever_was_recorded_draws_without_a_fault(
    browser: Any, case: str, tmp_path: Path
) -> None:
    from selenium.webdriver.common.by import By

    screen(browser, 700)
    opened(browser, written(kinds()[case](), tmp_path))
    if what := browser.find_elements(By.ID, "what"):
        for option in [
            o.get_attribute("textContent") for o in what[0].find_elements(By.TAG_NAME, "option")
        ]:
            if what[0].is_displayed():
                choose(browser, "what", option)
            assert (
                browser.execute_script(
                    "return document.querySelectorAll('#learned-figures svg').length"
                )
                > 0
            )
    assert browser.get_log("browser") == []
    numbers = (
        "return [...document.querySelectorAll('figure')].filter(f => "
        "/NaN|Infinity|undefined/.test(f.innerHTML)).map(f => f.id)"
    )
    assert browser.execute_script(numbers) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 700


def test_every_place_to_touch_is_large_enough(page: Any) -> None:
    """WCAG 2.2, success criterion 2.5.8: 24 by 24 pixels; links inside sentences are exempt."""
    screen(page, 390)
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    small = page.execute_script(
        """
        return [...document.querySelectorAll('a[href], button, input, select, summary')].filter(e => {
          const box = e.getBoundingClientRect();
          return !e.matches('.skip') && box.width > 0 && (box.width < 23.9 || box.height < 23.9);
        }).map(e => [e.tagName, e.id || e.textContent.trim(), e.getBoundingClientRect().width, e.getBoundingClientRect().height]);
        """
    )
    assert small == []


def test_headings_go_down_one_step_at_a_time(page: Any) -> None:
    levels = page.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')].map(h => Number(h.tagName[1]))"
    )
    assert levels[0] == 1
    assert 4 in levels  # a small chart a client
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


@pytest.mark.parametrize("case", ["history", "own", "holders"])
def test_a_legend_says_which_colour_is_which_client(
    browser: Any, case: str, tmp_path: Path
) -> None:
    plain = result("apple", n=5, rounds=4, classes=3)
    opened(browser, written([replace(plain, about={**plain.about, "groups": []})], tmp_path))
    named, swatches, drawn = browser.execute_script(
        """
        const figure = document.getElementById(`figure-${arguments[0]}`), colour = (e, name) => e.getAttribute(name);
        const swatches = [...figure.querySelectorAll('.legend li')].map(li => [li.textContent, li.querySelector('line, circle')]);
        const pieces = [...figure.querySelectorAll('.plot .curve, .plot .piece')];
        return [swatches.map(s => s[0]), swatches.map(s => colour(s[1], 'stroke') || colour(s[1], 'fill')),
                [...new Set(pieces.map(p => colour(p, 'stroke') || colour(p, 'fill')))]];
        """,
        case,
    )
    assert named == [f"clinic {i + 1}" for i in range(5)]
    assert len(set(swatches)) == 5
    assert set(drawn) == set(swatches)
