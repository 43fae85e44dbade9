"""What a survey's answers tell its lead of who was among the rows: the audit's attack on messages
of any kind.
"""

import numpy as np
import pytest

from pomona.audit import roc
from pomona.audit.membership import differences
from pomona.audit.roc import Pairs
from pomona.core.rng import stream
from pomona_federation.survey.raw_data import read_raw
from pomona_federation.survey.result import quantile
from pomona_federation.survey.settings import SurveySettings
from surveying import heart_disease, surveyed

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
        rows.append(read_raw(data, seed).rows)
    member = np.stack([np.isin(np.arange(303), own) for own in rows])
    return np.array(sent, np.float64), member


@pytest.mark.slow
def test_a_survey_tells_a_little_of_who_is_in_it(answers):
    sent, member = answers
    found = roc.auc(Pairs.of(differences(sent, member), member))
    assert 0.5 < found.low < found.high < 0.8
    lots = stream(0, "lots").permuted(member.ravel()).reshape(member.shape)
    nothing = roc.auc(Pairs.of(differences(sent, lots), lots))
    assert nothing.low <= 0.5 <= nothing.high
