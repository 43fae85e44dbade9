"""Helpers of the tests that drive the report page in a browser."""

from pathlib import Path
from typing import Any

from pomona.record.result import Result
from pomona.results.web.report_page import LiveProgress, refresh, write


def written(results: list[Result], folder: Path, live: LiveProgress | None = None) -> Path:
    """The page of a running run, or of finished ones."""
    return refresh(results[0], folder, live) if live else write(results, folder)


def opened(browser: Any, path: Path, address: str = "") -> None:
    """Load a page, and unfold its sections."""
    # Requests of the browser itself at its start are not those of the page.
    browser.get("about:blank")
    browser.get_log("performance"), browser.get_log("browser")
    browser.get(path.as_uri() + address)
    browser.execute_script(
        "for (const fold of document.querySelectorAll('.fold')) fold.open = true"
    )


def press(page: Any, selector: str, *keys: str) -> None:
    """Focus an element and press keys."""
    from selenium.webdriver import ActionChains

    page.execute_script("document.querySelector(arguments[0]).focus()", selector)
    ActionChains(page).send_keys(*keys).perform()


def rows(page: Any, table: str) -> list[list[str]]:
    """Texts of the first cells of a table body's rows."""
    texts: list[list[str]] = page.execute_script(
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(row =>"
        "[...row.cells].map(cell => cell.innerText.split('\\n')[0].trim()))",
        table,
    )
    return texts


def luminance(colour: list[float]) -> float:
    """Relative luminance (WCAG 2)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (v / 255 for v in colour)
    ]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(foreground: list[float], background: list[float]) -> float:
    low, high = sorted([luminance(foreground), luminance(background)])
    return (high + 0.05) / (low + 0.05)


def colours(page: Any) -> dict[str, list[float]]:
    """Computed colours: the paper, the text, the letters inside drawings."""
    computed: dict[str, list[float]] = page.execute_script(
        """
        const rgb = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
        const body = getComputedStyle(document.body), word = getComputedStyle(document.querySelector("#figure-curves svg text"));
        return {paper: rgb(body.backgroundColor), ink: rgb(body.color), drawn: rgb(word.fill)};
        """
    )
    return computed
