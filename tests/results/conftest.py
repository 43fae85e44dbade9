"""A browser for tests of the report page, and a page of four runs."""

from pathlib import Path
from typing import Any

import pytest
from browsing import opened, written
from report_results import comparison

from chromium import screen
from pomona.record.result import Result


@pytest.fixture(scope="session")
def compared() -> list[Result]:
    return comparison(rounds=8)


@pytest.fixture(scope="session")
def path(compared: list[Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(compared, tmp_path_factory.mktemp("report"))


@pytest.fixture
def page(browser: Any, path: Path) -> Any:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    screen(browser, 1200)
    opened(browser, path)
    return browser
