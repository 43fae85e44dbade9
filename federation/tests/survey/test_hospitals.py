"""Four hospitals' raw files: a survey's results compared with the rows."""

import csv
import tomllib

import numpy as np
import pytest

from pomona.partition.divergence import emd
from pomona_federation.survey import page
from pomona_federation.survey.page import task_of
from pomona_federation.survey.raw_data import read_raw
from pomona_federation.survey.result import moments, pooled, pooled_names, quantile
from pomona_federation.survey.settings import SurveySettings
from pomona_federation.task_settings import TaskSettings
from surveying import CATEGORIES, HOSPITALS, NAMES, heart_disease, surveyed

SURVEY = SurveySettings()


@pytest.fixture(scope="module")
def result():
    return surveyed({hospital: heart_disease(hospital) for hospital in HOSPITALS}, SURVEY)


@pytest.fixture(scope="module")
def central():
    """Cells of the same training rows, read with the standard library: (hospital, column) -> cells,
    None for gaps.
    """
    columns = {}
    for hospital in HOSPITALS:
        settings = heart_disease(hospital)
        rows = list(csv.reader(settings.path.read_text().splitlines()))
        train = read_raw(settings, SURVEY.seed, 0).rows
        for k, name in enumerate(NAMES):
            cells = [rows[i][k] for i in train]
            gaps = {"?"} | ({"0"} if name == "chol" else set())
            columns[hospital, name] = [None if cell in gaps else float(cell) for cell in cells]
    return columns


def values(central, column, hospitals=HOSPITALS):
    """The numbers of a column."""
    return np.array([cell for h in hospitals for cell in central[h, column] if cell is not None])


def test_rows_and_gaps_are_those_of_the_files(result, central):
    for hospital in HOSPITALS:
        figures = result.silos[hospital].figures
        assert figures.rows == len(central[hospital, "age"])
        for name, column in figures.numbers.items():
            gaps = sum(cell is None for cell in central[hospital, name])
            sparse = figures.rows - gaps < SURVEY.least
            assert column.rest == (figures.rows if sparse else gaps if gaps >= SURVEY.least else 0)


@pytest.mark.parametrize("column", ["age", "trestbps", "chol", "thalach", "oldpeak"])
def test_pooled_moments_are_near_those_of_all_rows(result, central, column):
    ours, exact = moments(pooled(result.numbers(column).values())), values(central, column)
    assert abs(ours.mean - exact.mean()) < 0.1 * exact.std()
    assert 0.85 < ours.deviation / exact.std() < 1.02


@pytest.mark.parametrize("column", [name for name in NAMES[:-1] if name not in CATEGORIES])
@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.75, 0.95])
def test_quantiles_of_all_rows_are_within_their_bounds(result, central, column, share):
    by_silo = result.numbers(column)
    hospitals = [h for h in HOSPITALS if by_silo[h].counts]
    exact = np.quantile(values(central, column, hospitals), share, method="inverted_cdf")
    estimate = quantile([by_silo[h] for h in hospitals], share, SURVEY.least)
    low = -np.inf if estimate.low is None else estimate.low
    high = np.inf if estimate.high is None else estimate.high
    assert low < exact <= high
    assert low <= estimate.value <= high


@pytest.mark.parametrize("column", CATEGORIES)
def test_categories_differ_from_all_rows_by_few_at_each_hospital(result, central, column):
    pooled_counts = pooled_names(result.names(column).values())
    for name in pooled_counts:
        exact = int((values(central, column) == float(name)).sum())
        assert abs(pooled_counts[name] - exact) < len(HOSPITALS) * SURVEY.least


def test_label_skew_is_that_of_the_rows(result, central):
    sick = [
        [sum(c <= 0 for c in central[h, "num"]), sum(c > 0 for c in central[h, "num"])]
        for h in HOSPITALS
    ]
    disclosed = [
        [t.figures.classes.by_name.get(name, 0) for name in result.classes]
        for t in result.silos.values()
    ]
    for mine, exact in zip(disclosed, sick, strict=True):
        assert mine == exact or (min(exact) < SURVEY.least and sorted(mine) == [0, sum(exact)])
    assert np.abs(emd(np.array(disclosed)) - emd(np.array(sick))).max() < 0.2


def test_no_single_hospital_tells_an_end_of_a_column(result, central):
    for column in ("age", "trestbps", "chol", "thalach"):
        for hospital, disclosed in result.numbers(column).items():
            exact = values(central, column, [hospital])
            if disclosed.values:
                assert exact.min() < disclosed.values[0]
                assert disclosed.values[-1] < exact.max()


def test_the_page_has_all_of_it(result, tmp_path):
    path = page.write(result, tmp_path)
    text = (tmp_path / "survey.md").read_text()
    assert r"| switzerland | \< 10 | 83 |" in text
    html = path.read_text()
    assert all(
        f'<h2 id="{section}-heading">' in html
        for section in ("silos", "classes", "columns", "shift", "task")
    )
    task = tomllib.loads((tmp_path / "task.toml").read_text())["task"]
    assert TaskSettings.model_validate(task).preprocessing.names == tuple(NAMES[:-1])
    assert type(result).model_validate_json((tmp_path / "survey.json").read_text()) == result


def test_the_task_is_near_what_one_simulation_learns_of_all_rows(result, central):
    task = TaskSettings.model_validate(task_of(result))
    columns = {column.name: column for column in task.preprocessing.columns}
    normalization = dict(
        zip(task.preprocessing.features, zip(task.shift, task.scale, strict=True), strict=True)
    )
    for column in ("age", "trestbps", "chol", "thalach"):
        exact = values(central, column)
        below = np.mean(exact < columns[column].fill), np.mean(exact <= columns[column].fill)
        assert below[0] - 0.05 < 0.5 < below[1] + 0.05
        assert abs(normalization[column][0] - exact.mean()) < 0.1 * exact.std()
        assert 0.75 < normalization[column][1] / exact.std() < 1.02
    assert task.classes == ("num <= 0", "num > 0")
    assert columns["chol"].missing == ("0",)
    assert columns["cp"].values == ("1", "2", "3", "4")
