"""The page by pointer and keyboard: it shows and reports the record's numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import address, choose, heat, hover, opened, press, rows, told, written

from pomona.record.paired_gain import gains
from pomona.record.result import Result
from pomona.results import table

pytestmark = pytest.mark.long


def test_choosing_a_method_a_client_and_a_round(page: Any) -> None:
    choose(page, "run", "FedAvg")
    assert "FedAvg shows nothing of itself" in page.execute_script(
        "return document.getElementById('learned').innerText"
    )
    assert address(page) == "#?run=fedavg"
    choose(page, "run", "APPLE")
    choose(page, "client", "clinic 3")
    press(page, "#round", "\ue011", "\ue014", "\ue014")  # home, right, right
    assert address(page) == "#?client=2&round=3"
    assert page.execute_script("return document.getElementById('round-now').value") == "3 of 8"
    assert "round 3:" in page.execute_script(
        "return document.getElementById('figure-matrix-words').textContent"
    )
    assert "clinic 3" in page.execute_script(
        "return document.getElementById('figure-loss-0-words').textContent"
    )
    press(page, "#round", "\ue010")  # end: the last round, and whatever comes after it
    assert address(page) == "#?client=2"


def test_choices_in_the_address_are_taken_up(browser: Any, path: Path) -> None:
    opened(browser, path, "#learned?client=4&round=2&hide=fedavg,separate")
    state = (
        "return [run.selectedOptions[0].text, client.selectedOptions[0].text, round.value, "
        "scrollY > 500]"
    )
    assert browser.execute_script(state.replace("round.", "document.getElementById('round').")) == [
        "APPLE", "clinic 5", "1", True,
    ]  # fmt: skip
    pressed = (
        "return [...document.querySelectorAll('.legend button')].map(b => "
        "b.getAttribute('aria-pressed'))"
    )
    assert browser.execute_script(pressed) == ["false", "false", "true", "true"]
    for nonsense in (
        "#learned?client=99&round=77&run=nobody",
        "#nowhere?client=-1&round=x&what=z&hide=,",
        "#%E0%A4%A",
    ):
        opened(browser, path, nonsense)
        assert browser.execute_script("return document.querySelectorAll('figure').length") == 14
        assert browser.get_log("browser") == []


def test_hovering_the_heat_map_tells_the_records_number(page: Any, compared: list[Result]) -> None:
    choose(page, "client", "all clients")
    press(page, "#round", "\ue011", "\ue014", "\ue014", "\ue014")
    matrix = dict(compared[3].matrices("dr"))[4]
    left, top, width, height = heat(page)
    names = page.execute_script(
        "return [...document.querySelectorAll('#figure-matrix text.tick.end')].slice(0, 12).map(t "
        "=> t.textContent)"
    )
    order = [int(name.split()[1]) - 1 for name in names]
    for row, column in ((0, 5), (7, 2), (11, 11)):
        title, value = hover(
            page,
            "#figure-matrix svg",
            left + (column + 0.5) * width / 12,
            top + (row + 0.5) * height / 12,
        )
        i, j = order[row], order[column]
        assert title == f"p(clinic {i + 1}, clinic {j + 1})"
        assert value == f"{float(f'{np.float32(matrix[i, j]):.4g}'):g} in round 4".replace(
            "-", "\N{MINUS SIGN}"
        )


def test_arrow_keys_read_the_heat_map(page: Any, compared: list[Result]) -> None:
    # into the map, right twice, down
    press(page, "#figure-matrix svg", "\ue015", "\ue014", "\ue014", "\ue015")
    title, value = told(page)
    i, j = (int(name.split()[1]) - 1 for name in title[2:-1].split(", "))
    matrix = dict(compared[3].matrices("dr"))[8]
    assert value == f"{float(f'{np.float32(matrix[i, j]):.4g}'):g} in round 8".replace(
        "-", "\N{MINUS SIGN}"
    )
    press(page, "#figure-matrix svg", "\ue00c")  # escape
    assert told(page) == []


def test_curves_answer_with_the_records_means(page: Any, compared: list[Result]) -> None:
    press(page, "#figure-test-0 svg", "\ue014", "\ue014", "\ue014")
    title, *lines = told(page)
    assert title == "round 3"
    said = dict(line.rsplit(": ", 1) for line in lines)
    apple = next(e for e in compared[3].curve("personal", "trained") if e.round == 3)
    assert said["APPLE, personal trained"] == f"{100 * np.mean(apple.accuracy):.2f} %"
    choose(page, "client", "clinic 7")
    press(page, "#figure-loss-0 svg", "\ue014")
    said = dict(line.rsplit(": ", 1) for line in told(page)[1:])
    assert float(said["APPLE"]) == pytest.approx(compared[3].rounds[0].loss[6], rel=5e-4)


def test_bars_tell_accuracy_and_gain(page: Any, compared: list[Result]) -> None:
    press(page, "#figure-gains svg", "\ue015")
    name, *lines = told(page)
    client = int(name.split()[1]) - 1
    apple, separate = (
        compared[k].curve("personal", "trained")[-1].accuracy[client] for k in (3, 0)
    )
    gain = gains(compared[3], compared[0])[0][client]
    assert gain.value == pytest.approx(apple - separate, abs=0.02)  # whole samples
    bounds = f"{100 * gain.low:.2f} to {100 * gain.high:.2f}".replace("-", "\N{MINUS SIGN}")
    assert f"APPLE: +{100 * gain.value:.2f} (95 % interval {bounds}), better" in lines
    press(page, "#figure-clients svg", "\ue015")
    name, *lines = told(page)
    accuracy = compared[3].curve("personal", "trained")[-1].accuracy
    best = int(np.argmax(accuracy))
    assert name == f"clinic {best + 1}"
    assert lines[-1].startswith(f"APPLE: {100 * accuracy[best]:.2f} (95 % interval ")


def test_without_the_models_answers_every_gain_is_hollow(
    browser: Any, compared: list[Result], tmp_path: Path
) -> None:
    opened(browser, written([replace(run, answers={}) for run in compared], tmp_path))
    fills = browser.execute_script(
        "return [...document.querySelectorAll('#figure-gains svg [stroke-width=\"1.2\"]')]"
        ".map(mark => mark.getAttribute('fill'))"
    )
    assert fills == ["var(--paper)"] * len(compared[0].about["clients"]) * (len(compared) - 1)


def test_the_graph_draws_what_reaches_the_threshold(page: Any, compared: list[Result]) -> None:
    matrix = dict(compared[3].matrices("dr"))[8]
    off = np.abs(matrix[~np.eye(12, dtype=bool)])
    for steps in (0, 20):
        press(page, "#threshold", "\ue011", *["\ue014"] * steps)
        output = page.execute_script("return document.getElementById('edges').value")
        bound = float(output.split(":")[0].removeprefix("≥ "))
        drawn = page.execute_script(
            "return document.querySelectorAll('#figure-graph [data-edge]').length"
        )
        assert output.endswith(f": {drawn} of 132")
        assert (off >= bound * 1.001).sum() <= drawn <= (off >= bound * 0.999).sum()
    edges = page.execute_script(
        "return [...document.querySelectorAll('#figure-graph [data-edge]')].map(e => "
        "e.dataset.edge)"
    )
    # An arrow from j to i is the entry of row i, column j.
    assert all(
        abs(matrix[i, j]) >= bound * 0.999 for j, i in (map(int, edge.split("-")) for edge in edges)
    )


def test_playing_goes_through_the_rounds_and_stops_at_the_last(page: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    page.execute_script(
        "window.seen = []; new MutationObserver(() => "
        "seen.push(document.getElementById('round-now').value))"
        ".observe(document.getElementById('round-now'), {childList: true})"
    )
    press(page, "#round", " ")
    assert (
        page.execute_script("return document.getElementById('play').getAttribute('aria-pressed')")
        == "true"
    )
    WebDriverWait(page, 20).until(
        lambda d: d.execute_script("return document.getElementById('play').textContent") == "Play"
    )
    seen = list(dict.fromkeys(page.execute_script("return seen")))
    assert seen == [f"{r} of 8" for r in range(1, 9)]


def test_tables_sort_by_click_and_by_key(page: Any, compared: list[Result]) -> None:
    at_start = rows(page, "#summary")
    head = "#summary th[data-column='2']"
    press(page, f"{head} button", "\ue007")
    shown = [float(row[2]) for row in rows(page, "#summary")]
    assert shown == sorted((round(100 * r["last"], 2) for r in table(compared)), reverse=True)
    assert (
        page.execute_script(
            "return document.querySelector(arguments[0]).getAttribute('aria-sort')", head
        )
        == "descending"
    )
    press(page, f"{head} button", " ")
    assert [float(row[2]) for row in rows(page, "#summary")] == sorted(shown)
    page.execute_script("document.querySelector('#summary th[data-column=\"0\"] button').click()")
    assert [row[0] for row in rows(page, "#summary")] == sorted(
        (r[0] for r in at_start), key=str.lower
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


def test_the_legend_hides_a_run(page: Any) -> None:
    count = "return document.querySelectorAll('#figure-loss-0 .curve').length"
    assert page.execute_script(count) == 4
    press(page, "#legend-1", " ")
    assert page.execute_script(count) == 3
    assert page.execute_script("return document.activeElement.id") == "legend-1"
    assert address(page) == "#?hide=fedavg"


def test_settings_are_filtered(page: Any) -> None:
    press(page, "#filter", "SCHEDULE")
    shown = page.execute_script(
        "return [...document.querySelectorAll('#settings tbody tr')].filter(r => !r.hidden).map(r "
        "=> r.cells[0].innerText)"
    )
    assert shown == ["method.schedule", "method.schedule_share"]
