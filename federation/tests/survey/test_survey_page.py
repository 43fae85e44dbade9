"""A survey's page in a browser: it fits desktop and phone screens and loads no other resource."""

import json

import pytest

from chromium import screen
from pomona_federation.survey import page
from pomona_federation.survey.result import SiloDisclosure, SurveyResult
from pomona_federation.survey.settings import (
    ColumnSpec,
    ColumnsReply,
    FiguresQuestion,
    FiguresReply,
    Names,
    Numbers,
    SurveySettings,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A survey of six silos with long names and many columns."""
    specs = [ColumnSpec(name=f"measured quantity {k}", kind="number") for k in range(8)]
    specs.append(ColumnSpec(name="ward", kind="category"))
    columns = ColumnsReply(
        rows=60, kind="table", dtype="float32", targets="classes", columns=tuple(specs)
    )
    silos = {}
    for k in range(6):
        numbers = {
            f.name: Numbers(values=(1.0 + k, 20.0, 300.0), counts=(20, 20, 20)) for f in specs[:-1]
        }
        names = {"ward": Names(names=("a rather long name of a ward", "b"), counts=(30, 30))}
        classes = Names(names=("ill", "well")[k % 2 :], counts=(30, 30)[k % 2 :], rest=30 * (k % 2))
        reply = FiguresReply(rows=60, numbers=numbers, names=names, classes=classes)
        silos[f"hospital-number-{k}"] = SiloDisclosure(columns=columns, figures=reply)
    question = FiguresQuestion(columns=tuple(specs))
    absent = {"clinic": "it is not connected"}
    result = SurveyResult(survey=SurveySettings(), question=question, silos=silos, absent=absent)
    return page.write(result, tmp_path_factory.mktemp("survey"))


@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_fits_and_opens_nothing_else(browser, path, width):
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    screen(browser, width)
    browser.get("about:blank")
    browser.get_log("performance"), browser.get_log("browser")
    browser.get(path.as_uri())
    wide, window = browser.execute_script(
        "return [document.documentElement.scrollWidth, window.innerWidth]"
    )
    assert wide <= window
    assert browser.get_log("browser") == []
    log = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {
        m["params"]["request"]["url"] for m in log if m["method"] == "Network.requestWillBeSent"
    }
    assert urls == {path.as_uri()}
    sections = browser.execute_script(
        "return [...document.querySelectorAll('section')].map(s => s.id)"
    )
    assert {"silos", "classes", "columns", "shift", "histograms", "task"} <= set(sections)
    bars = browser.execute_script("return document.querySelectorAll('.histogram rect').length")
    assert bars >= 8 * 3
