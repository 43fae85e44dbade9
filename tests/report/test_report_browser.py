"""The page in a real browser: opens from a file, asks nobody for anything, fits a phone, follows the dark mode."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_results import comparison

from pomona.report import write

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")
FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "disable-dev-shm-usage",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = write(comparison(rounds=8), tmp_path_factory.mktemp("report"))
    # What the browser opens of its own accord when it starts is no business of the page.
    browser.get("about:blank")
    browser.get_log("performance"), browser.get_log("browser")
    browser.get(path.as_uri())
    return browser


def colours(page: Any, theme: str) -> dict[str, list[float]]:
    """Computed colours under a theme: the paper, the text, and the text inside the first drawing."""
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
    found: dict[str, list[float]] = page.execute_script(
        """
        const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
        const inked = [...document.querySelectorAll("svg [style*=currentColor]")][0];
        const body = getComputedStyle(document.body);
        return {paper: rgb(body.backgroundColor), ink: rgb(body.color), drawn: rgb(getComputedStyle(inked).fill)};
        """
    )
    return found


def luminance(colour: list[float]) -> float:
    """Relative luminance (WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_nothing_but_files_is_asked_for(page: Any) -> None:
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert any(url.endswith("report.html") for url in asked)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_console_is_silent(page: Any) -> None:
    assert page.get_log("browser") == []


def test_every_drawing_has_a_size(page: Any) -> None:
    sizes = page.execute_script(
        "return [...document.querySelectorAll('figure svg')]"
        ".map(s => [s.getBoundingClientRect().width, s.getBoundingClientRect().height])"
    )
    assert len(sizes) == 11
    assert min(min(size) for size in sizes) > 150


def test_fonts_inside_drawings_cannot_be_missing(page: Any) -> None:
    assert page.execute_script("return document.querySelectorAll('svg text').length") == 0


@pytest.mark.parametrize("width", [320, 390, 820, 1400])
def test_no_sideways_scrolling(page: Any, width: int) -> None:
    metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.execute_script("return window.innerWidth") == width
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_dark_and_light_are_both_readable(page: Any) -> None:
    light, dark = colours(page, "light"), colours(page, "dark")
    assert luminance(light["paper"]) > 0.8
    assert luminance(dark["paper"]) < 0.05
    for theme in (light, dark):
        assert contrast(theme["paper"], theme["ink"]) > 10
        assert theme["drawn"] == theme["ink"]


def test_keyboard_reaches_links_and_shows_where_it_is(page: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    page.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    style = "getComputedStyle(document.activeElement)"
    assert page.execute_script("return document.activeElement.className") == "skip"
    outline = page.execute_script(f"return [{style}.outlineStyle, parseFloat({style}.outlineWidth)]")
    assert outline == ["solid", 3]
