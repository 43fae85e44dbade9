"""Static pictures, traffic in its unit, and tables of all runs on the report's page."""

from dataclasses import replace

import numpy as np
import pytest
from report_results import result as made
from test_report_tables import judged

from masks import archive, settings
from pomona.config import resolve
from pomona.results.figures.classification import calibration, calibration_by_client
from pomona.results.figures.plot import drawing
from pomona.results.figures.stills import masks
from pomona.results.run_numbers import runs
from pomona.results.tables.outcomes import outcome_tables
from pomona.results.text.narrative import setup, title
from pomona.results.web.report_page import page
from pomona.results.wording import size
from pomona.simulation import run


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (1_250_000_000, "1.25 GB"),
        (1_234_000_000_000_000, "1,234 TB"),
    ],
)
def test_traffic_is_said_in_the_unit_that_fits(count, text):
    assert size(count) == text


def test_outcomes_are_those_of_each_run():
    apple = judged(2, True)[0].result
    config = {**apple.config, "method": {"name": "fedavg"}}
    fedavg = replace(apple, config=config, about={**apple.about, "method": "fedavg"})
    pair = runs([apple, fedavg])
    at_threshold, calibration = outcome_tables(pair)
    assert at_threshold.header[:3] == ["Run", "Client", "Outcome"]
    assert [row[0] for row in at_threshold.rows] == [run.label for run in pair for _ in range(2)]
    assert {row[0] for row in calibration.rows} == {run.label for run in pair}


def test_clients_own_files_are_called_so():
    result = judged(3, True)[0].result
    files = {"name": "table", "clients": [{"name": "a"}]}
    prepared = runs([replace(result, config={**result.config, "data": files})])
    assert title(prepared).endswith(" on the own files of 3 clients")
    assert "for 3 clients that hold files of their own (" in setup(prepared)


def test_masks_are_on_the_page_with_a_key_of_classes(tmp_path):
    result = run(
        resolve(settings(archive(tmp_path / "masks.npz", n=36)), {"rounds": 1}), tmp_path / "run"
    )
    with drawing():
        pictures = [figure for figure in (masks(runs([result])),) if figure]
        text = page(runs([result]), {"outcome": pictures})
    assert '<figure id="figure-masks"' in text
    assert 'href="data:image/png;base64,' in text
    (key,) = pictures[0].figure.legends
    names = list(result.about["classes"])
    assert [entry.get_text() for entry in key.get_texts()] == names


def test_calibration_by_client_has_each_clients_own_samples() -> None:
    run_ = made("apple", n=3, rounds=1, classes=2)
    with drawing():
        picture = calibration_by_client(runs([run_]))
    assert [ax.get_title("left") for ax in picture.figure.axes] == run_.about["clients"]
    for client, name in enumerate(run_.about["clients"]):
        groups = [row for row in picture.rows if row["client"] == name]
        truth = run_.predictions(client)[1] == 1
        assert sum(row["samples"] for row in groups) == len(truth)
        assert sum(row["cases"] for row in groups) == truth.sum()
        assert len(groups) <= max(2, len(truth) // 20)
    with drawing():
        assert calibration_by_client(runs([made("apple", n=3, rounds=1, classes=3)])) is None
        assert calibration_by_client(runs([made("apple", n=1, rounds=1, classes=2)])) is None


def test_calibration_of_all_clients_and_of_each() -> None:
    run_ = made("apple", n=3, rounds=1, classes=2)
    answers = [run_.predictions(client) for client in range(3)]
    truth = [np.asarray(labels) == 1 for _, labels in answers]
    with drawing():
        picture = calibration(runs([run_]))
    names = ("mean_probability", "share", "low", "high", "cases", "samples")
    means, shares, lows, highs, cases, samples = (
        np.array([row[name] for row in picture.rows]) for name in names
    )
    assert {row["outcome"] for row in picture.rows} == {run_.about["classes"][1]}
    assert (sum(samples), sum(cases)) == (sum(map(len, truth)), sum(map(np.sum, truth)))
    assert np.all(np.diff(means) > 0)
    np.testing.assert_allclose(shares, cases / samples)
    # Wilson's interval has the ends at which the share is 1.96 standard errors away.
    bounds = np.stack([lows, highs])
    inner = (bounds > 1e-9) & (bounds < 1 - 1e-9)
    squared_distances = (shares - bounds)[inner] ** 2 / (bounds * (1 - bounds) / samples)[inner]
    np.testing.assert_allclose(squared_distances, 1.959964**2, rtol=1e-4)
    _, *single, _ = picture.figure.axes[0].lines
    assert len(single) == 3
