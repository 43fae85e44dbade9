"""A survey with noise: the mechanism's distribution, its sensitivity, and a silo's disclosures."""

from dataclasses import replace
from itertools import product
from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pomona.core.errors import ProtocolError
from pomona.data import data_settings
from pomona_federation.survey import agreeing, page, silo
from pomona_federation.survey.page import task_of
from pomona_federation.survey.protection import (
    NoisyData,
    agreed_columns,
    apportioned,
    geometric,
    safe_classes,
    safe_names,
    safe_numbers,
)
from pomona_federation.survey.raw_data import read_raw
from pomona_federation.survey.settings import (
    ColumnSpec,
    FiguresQuestion,
    FiguresReply,
    Noise,
    SurveySettings,
)
from surveying import surveyed

EDGES = (20.0, 40.0, 60.0, 80.0)
CELLS = {"edges": {"age": EDGES}, "categories": {"ward": ("A", "B")}, "classes": ("ill", "well")}
EXACT = 100.0  # an epsilon at which noise is 0 but for a chance of exp(-16) a count


def generator(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def with_noise(epsilon, **cells):
    return SurveySettings(noise=Noise(epsilon=epsilon, **(cells or CELLS)))


def table(folder, name="north", rows=400, wards="AAAB"):
    draw = generator(1)
    ages = draw.integers(10, 95, rows)
    lines = [
        f"{age},{wards[k % len(wards)]},{'ill' if age > 50 else 'well'}"
        for k, age in enumerate(ages)
    ]
    path = folder / f"{name}.csv"
    path.write_text("\n".join(["age,ward,outcome", *lines]) + "\n")
    return data_settings(name="table", path=path, label_column="outcome", test_share=0.2)


def figures(data, survey, disclosed=None, seed=0):
    question = FiguresQuestion(columns=silo.columns(survey, data, 0).columns)
    return silo.figures(survey, question, data, 0, disclosed, generator(seed))


@pytest.mark.parametrize("a", [0.1, 0.5, 0.9])
def test_noise_has_the_distribution_of_its_formula(a):
    n = 200_000
    samples = geometric(n, a, generator())
    for z in range(-3, 4):
        p = (1 - a) / (1 + a) * a ** abs(z)
        assert abs((samples == z).mean() - p) < 5 * sqrt(p * (1 - p) / n)


@pytest.mark.long
def test_one_row_that_differs_moves_the_counts_by_two_a_column(tmp_path):
    """So the probabilities of any noisy counts differ by at most exp(epsilon): a^-2 for each of K
    columns.
    """
    noise = Noise(epsilon=1, **CELLS)
    data, counted = table(tmp_path, rows=30), []
    lines = data.path.read_text().splitlines()
    training = read_raw(data, 0, 0).rows
    row = int(training[0]) + 1
    for age, ward, outcome in product(("15", "45", "99", ""), ("A", "B", "C"), ("ill", "well")):
        data.path.write_text(
            "\n".join([*lines[:row], f"{age},{ward},{outcome}", *lines[row + 1 :]]) + "\n"
        )
        counts = []
        noisy = NoisyData(replace(read_raw(data, 0, 0), rows=training), noise, generator())
        object.__setattr__(
            noisy, "_noisy", lambda exact, counts=counts: counts.append(exact) or exact
        )
        noisy.numbers("age"), noisy.categories("ward"), noisy.classes()
        counted.append(counts)
    assert all(len(counts) == noise.columns for counts in counted)
    for counts_a, counts_b in product(counted, counted):
        assert all(np.abs(a - b).sum() <= 2 for a, b in zip(counts_a, counts_b, strict=True))
    a = exp(-noise.epsilon / (2 * noise.columns))
    assert a ** (-2 * noise.columns) == pytest.approx(exp(noise.epsilon))


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=8), st.integers(0, 100))
def test_counts_are_made_to_sum_to_the_rows(noisy, rows):
    rounded = apportioned(np.array(noisy), rows)
    assert rounded.sum() == rows
    assert (rounded >= 0).all()
    above = np.maximum(noisy, 0)
    if above.sum() == rows:
        assert (rounded == above).all()
    if above.sum():
        assert (np.abs(rounded - above * rows / above.sum()) < 1).all()
    else:
        assert rounded[-1] == rows


def test_with_little_noise_agreed_cells_are_told_in_their_safe_form(tmp_path):
    data, survey = table(tmp_path, wards="AAAAABBBBC"), with_noise(EXACT)
    reply, _ = figures(data, survey)
    raw = read_raw(data, 0, 0)
    ages, n = raw.numbers("age"), len(raw.rows)
    middles = np.select([ages < 40, ages < 60], [30.0, 50.0], 70.0)
    assert reply.numbers == {"age": safe_numbers(middles, 10, 100)}
    counts, missing = raw.categories("ward")
    assert reply.names["ward"] == safe_names(
        {w: counts[w] for w in "AB"}, counts["C"] + missing, 10
    )
    assert reply.classes == safe_classes(raw.classes(), 10)
    assert reply.rows == n
    assert not reply.words


@pytest.mark.long
def test_much_noise_changes_what_is_told_and_keeps_its_form(tmp_path):
    data = table(tmp_path)
    replies = [figures(data, with_noise(0.01), seed=seed)[0] for seed in range(5)]
    assert len({reply.model_dump_json() for reply in replies}) > 1
    assert all(FiguresReply.model_validate(reply.model_dump()) == reply for reply in replies)


def test_what_was_told_with_noise_is_told_again(tmp_path):
    data, survey = table(tmp_path), with_noise(0.5)
    first, disclosed = figures(data, survey)
    assert figures(data, survey, disclosed, seed=1) == (first, disclosed)
    noiseless = SurveySettings()
    question = FiguresQuestion(columns=silo.columns(noiseless, data, 0).columns)
    assert silo.figures(noiseless, question, data, 0, disclosed)[0] == first


def test_columns_without_agreed_cells_are_not_offered(tmp_path):
    data = table(tmp_path)
    survey = with_noise(1.0, edges={"age": EDGES, "other": (0.0, 1.0)})
    assert [(f.name, f.kind) for f in silo.columns(survey, data, 0).columns] == [("age", "number")]
    reply, _ = figures(data, survey)
    assert not reply.names
    assert reply.classes.counts == ()
    as_category = FiguresQuestion(columns=(ColumnSpec(name="age", kind="category"),))
    with pytest.raises(ProtocolError, match="differs from their agreed cells"):
        silo.figures(survey, as_category, data, 0)
    ward = FiguresQuestion(columns=(ColumnSpec(name="ward", kind="category"),))
    with pytest.raises(ProtocolError, match="does not have or was not to be asked about"):
        silo.figures(survey, ward, data, 0)


def test_the_page_says_so_and_the_task_is_made_from_noisy_counts(tmp_path):
    result = surveyed({name: table(tmp_path, name) for name in ("north", "south")}, with_noise(5.0))
    assert task_of(result)["classes"] == ["ill", "well"]
    page.write(result, tmp_path / "out")
    text = (tmp_path / "out" / "survey.md").read_text()
    assert "differentially private with epsilon 5, in 3 columns" in text
    assert (
        agreeing.common_question(result.survey, {n: s.columns for n, s in result.silos.items()})[1]
        == ()
    )


@pytest.mark.parametrize(
    "invalid",
    [
        {"epsilon": 0, "edges": {"age": EDGES}},
        {"epsilon": 1},
        {"epsilon": 1, "edges": {"age": (1.0,)}},
        {"epsilon": 1, "edges": {"age": (2.0, 1.0)}},
        {"epsilon": 1, "edges": {"age": (1.0, 1.000001, 1.000002)}},
        {"epsilon": 1, "edges": {"age": EDGES}, "categories": {"age": ("A",)}},
        {"epsilon": 1, "categories": {"ward": ("A", "A")}},
        {"epsilon": 1, "classes": ("ill", "ill")},
    ],
)
def test_cells_that_cannot_be_counted_are_refused(invalid):
    with pytest.raises(ValidationError):
        Noise(**invalid)


def test_bins_of_a_target_tell_no_column_of_its_name(tmp_path):
    """Both would be counted, by the epsilon of one."""
    columns = silo.columns(SurveySettings(), table(tmp_path), 0)
    noise = Noise(epsilon=1.0, edges={"age": EDGES})
    assert [column.name for column in agreed_columns(columns, noise).columns] == ["age"]
    assert agreed_columns(columns.model_copy(update={"labels": ("age",)}), noise).columns == ()


def test_a_page_of_a_survey_that_tells_no_class_has_no_table_of_classes(tmp_path):
    result = surveyed({"north": table(tmp_path)}, with_noise(1.0, edges={"age": EDGES}))
    text = (page.write(result, tmp_path / "page").parent / "survey.md").read_text()
    assert "Classes by silo" not in text
    assert "nan" not in text
