"""Helpers of the tests that drive the report page in a browser."""

from pathlib import Path
from typing import Any

from pomona.record.result import Result
from pomona.results.run_numbers import runs
from pomona.results.web.page_data import LiveProgress
from pomona.results.web.report_page import page as report


def written(results: list[Result], out: Path, live: LiveProgress | None = None) -> Path:
    """The page alone; other tests draw its pictures."""
    path = out / "report.html"
    path.write_text(report(runs(results), live=live), encoding="utf-8")
    return path


def opened(browser: Any, path: Path, address: str = "") -> None:
    """Load a page, and unfold its sections."""
    # What the browser opens of its own accord when it starts is no business of the page.
    browser.get("about:blank")
    browser.get_log("performance"), browser.get_log("browser")
    browser.get(path.as_uri() + address)
    browser.execute_script(
        "for (const fold of document.querySelectorAll('.fold')) fold.open = true"
    )


def choose(page: Any, control: str, text: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(page.find_element(By.ID, control)).select_by_visible_text(text)


def press(page: Any, selector: str, *keys: str) -> None:
    """Focus an element and press keys."""
    from selenium.webdriver import ActionChains

    page.execute_script("document.querySelector(arguments[0]).focus()", selector)
    scrolled(page)
    ActionChains(page).send_keys(*keys).perform()


def scrolled(page: Any) -> None:
    """Wait until the page has handled a scroll: its tooltip hides then, and scroll events come with
    a frame.
    """
    page.execute_async_script(
        "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(arguments[0])))"
    )


def hover(page: Any, selector: str, x: float, y: float) -> list[str]:
    """Point at a position of a drawing, in its own units; returns the page's text."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    drawing = page.find_element(By.CSS_SELECTOR, selector)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", drawing)
    scrolled(page)
    width, height, wide, high = page.execute_script(
        "const b = arguments[0].getBoundingClientRect(), v = arguments[0].viewBox.baseVal;"
        "return [b.width, b.height, v.width, v.height]",
        drawing,
    )
    offset = round(x * width / wide - width / 2), round(y * height / high - height / 2)
    ActionChains(page).move_to_element_with_offset(drawing, *offset).perform()
    return told(page)


def told(page: Any) -> list[str]:
    lines: list[str] = page.execute_script(
        "const tip = document.getElementById('tip');"
        "return tip.hidden ? [] : [...tip.children].map(line => line.textContent)"
    )
    return lines


def address(page: Any) -> str:
    found: str = page.execute_script("return location.hash")
    return found


def heat(page: Any) -> tuple[float, float, float, float]:
    """The frame of the heat map: left, top, width, height."""
    box: list[float] = page.execute_script(
        "const i = document.querySelector('#figure-matrix image');"
        "return ['x', 'y', 'width', 'height'].map(name => Number(i.getAttribute(name)))"
    )
    return box[0], box[1], box[2], box[3]


def rows(page: Any, table: str) -> list[list[str]]:
    """Texts of the first cells of a table body's rows."""
    found: list[list[str]] = page.execute_script(
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(row =>"
        "[...row.cells].map(cell => cell.innerText.split('\\n')[0].trim()))",
        table,
    )
    return found


def luminance(colour: list[float]) -> float:
    """Relative luminance (WCAG 2)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (v / 255 for v in colour)
    ]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def colours(page: Any) -> dict[str, list[float]]:
    """Computed colours: the paper, the text, the words inside drawings."""
    found: dict[str, list[float]] = page.execute_script(
        """
        const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
        const body = getComputedStyle(document.body), word = getComputedStyle(document.querySelector("svg text.tick"));
        return {paper: rgb(body.backgroundColor), ink: rgb(body.color), drawn: rgb(word.fill)};
        """
    )
    return found
