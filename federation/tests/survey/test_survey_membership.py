"""What a survey's answers tell its lead: who was among the rows, by the audit's attack on messages
of any kind; and of a row that two answers do not share, by their difference.
"""

from dataclasses import replace

import numpy as np
import pytest

from pomona.audit import roc
from pomona.audit.membership import differences
from pomona.audit.roc import Pairs
from pomona.core.rng import stream
from pomona_federation.survey.protection import safe_classes, safe_names
from pomona_federation.survey.raw_data import read_raw
from pomona_federation.survey.result import quantile
from pomona_federation.survey.settings import SurveySettings
from surveying import CATEGORIES, HOSPITALS, heart_disease, surveyed

RUNS, SHARES = 40, np.linspace(0.05, 0.95, 19)


def vector(figures, least):
    """The numbers of an answer, as many whatever its groups: quantiles of numbers, and counts."""
    row = []
    for _, column in sorted(figures.numbers.items()):
        row += [quantile([column], share, least).value for share in SHARES] + [column.rest]
    for _, column in sorted(figures.names.items()):
        row += [column.by_name.get(f"{k}", 0) + column.by_name.get(f"{k}.0", 0) for k in range(8)]
    return row


@pytest.fixture(scope="module")
def answers():
    data = heart_disease("cleveland")
    table, rows = [], []
    for seed in range(RUNS):
        survey = SurveySettings(seed=seed)
        table.append(vector(surveyed({"cleveland": data}, survey).silos["cleveland"].figures, 10))
        rows.append(read_raw(data, seed, 0).rows)
    member = np.stack([np.isin(np.arange(303), member_rows) for member_rows in rows])
    return np.array(table, np.float64), member


@pytest.mark.slow
def test_a_survey_tells_a_little_of_who_is_in_it(answers):
    table, member = answers
    attack_auc = roc.auc(Pairs.flatten(differences(table, member), member))
    assert 0.5 < attack_auc.low < attack_auc.high < 0.8
    lots = stream(0, "lots").permuted(member.ravel()).reshape(member.shape)
    chance_auc = roc.auc(Pairs.flatten(differences(table, lots), lots))
    assert chance_auc.low <= 0.5 <= chance_auc.high


def counted(raw, column, least=10):
    """A column's reported rows by category, "" being none."""
    if column == "num":
        disclosed = safe_classes(raw.classes(), least)
    else:
        disclosed = safe_names(*raw.categories(column), least)
    return {**disclosed.by_name, "": disclosed.rest}


@pytest.mark.parametrize("hospital", HOSPITALS)
def test_two_answers_that_differ_by_a_row_tell_its_categories(hospital):
    """The category with one row less, if no other count changed, is the row's."""
    data = heart_disease(hospital)
    result = surveyed({hospital: data})
    figures = result.silos[hospital].figures
    raw = read_raw(data, 0, 0, result.question.columns)
    columns = [*figures.numbers.values(), *figures.names.values(), figures.classes]
    assert min(n for disclosed in columns for n in (*disclosed.counts, disclosed.rest) if n) == 10
    right = dict.fromkeys((*CATEGORIES, "num"), 0)
    for k in range(len(raw.rows)):
        remaining, row = (
            replace(raw, rows=rows) for rows in (np.delete(raw.rows, k), raw.rows[k : k + 1])
        )
        for column in right:
            all_rows, fewer = counted(raw, column), counted(remaining, column)
            true = counted(row, column, 1)
            left = {c: n - fewer.get(c, 0) for c, n in all_rows.items() if n != fewer.get(c, 0)}
            right[column] += left == {c: n for c, n in true.items() if n}
    shares = {column: n / len(raw.rows) for column, n in right.items()}
    assert shares["num"] > 0.93
    assert min(shares.values()) > 0.75
