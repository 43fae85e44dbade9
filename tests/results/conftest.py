"""A browser for tests of the report page, and a page of four runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import opened, written
from report_results import comparison

from chromium import screen
from pomona.core.notes import Note
from pomona.record.result import Result


@pytest.fixture(scope="session")
def compared() -> list[Result]:
    return comparison(rounds=8)


@pytest.fixture(scope="session")
def path(compared: list[Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    first, *others = compared
    noted = replace(
        first, notes=[Note("3 columns become 4 features: " + "age, sex=F, " * 9, "data")]
    )
    return written([noted, *others], tmp_path_factory.mktemp("report"))


@pytest.fixture
def page(browser: Any, path: Path) -> Any:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    screen(browser, 1200)
    opened(browser, path)
    return browser
