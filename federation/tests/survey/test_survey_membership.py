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


def told(figures, least):
    """The numbers of an answer, as many whatever its groups: quantiles of numbers, and counts."""
    found = []
    for _, column in sorted(figures.numbers.items()):
        found += [quantile([column], share, least).value for share in SHARES] + [column.rest]
    for _, column in sorted(figures.names.items()):
        found += [column.by_name.get(f"{k}", 0) + column.by_name.get(f"{k}.0", 0) for k in range(8)]
    return found


@pytest.fixture(scope="module")
def answers():
    data = heart_disease("cleveland")
    sent, rows = [], []
    for seed in range(RUNS):
        survey = SurveySettings(seed=seed)
        sent.append(told(surveyed({"cleveland": data}, survey).silos["cleveland"].figures, 10))
        rows.append(read_raw(data, seed, 0).rows)
    member = np.stack([np.isin(np.arange(303), own) for own in rows])
    return np.array(sent, np.float64), member


@pytest.mark.slow
def test_a_survey_tells_a_little_of_who_is_in_it(answers):
    sent, member = answers
    found = roc.auc(Pairs.flatten(differences(sent, member), member))
    assert 0.5 < found.low < found.high < 0.8
    lots = stream(0, "lots").permuted(member.ravel()).reshape(member.shape)
    nothing = roc.auc(Pairs.flatten(differences(sent, lots), lots))
    assert nothing.low <= 0.5 <= nothing.high


def counted(raw, column, least=10):
    """A column's reported rows by category, "" being none."""
    if column == "num":
        told = safe_classes(raw.classes(), least)
    else:
        told = safe_names(*raw.categories(column), least)
    return {**told.by_name, "": told.rest}


@pytest.mark.parametrize("hospital", HOSPITALS)
def test_two_answers_that_differ_by_a_row_tell_its_categories(hospital):
    """The category with one row less, if no other count changed, is the row's."""
    data = heart_disease(hospital)
    found = surveyed({hospital: data})
    figures = found.silos[hospital].figures
    raw = read_raw(data, 0, 0, found.question.columns)
    columns = [*figures.numbers.values(), *figures.names.values(), figures.classes]
    assert min(n for one in columns for n in (*one.counts, one.rest) if n) == 10
    right = dict.fromkeys((*CATEGORIES, "num"), 0)
    for k in range(len(raw.rows)):
        rest, row = (
            replace(raw, rows=rows) for rows in (np.delete(raw.rows, k), raw.rows[k : k + 1])
        )
        for column in right:
            before, after = counted(raw, column), counted(rest, column)
            true = counted(row, column, 1)
            left = {c: n - after.get(c, 0) for c, n in before.items() if n != after.get(c, 0)}
            right[column] += left == {c: n for c, n in true.items() if n}
    shares = {column: n / len(raw.rows) for column, n in right.items()}
    assert shares["num"] > 0.93
    assert min(shares.values()) > 0.75
