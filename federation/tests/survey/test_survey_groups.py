"""What a silo reads of patients with several rows before it takes part: in a survey, and in a study
whose epsilon is of a row.
"""

from types import SimpleNamespace

import pytest

from pomona.data import data_settings
from pomona.privacy.settings import groups_note
from pomona_federation.silo.outgoing_filter import departing_in_survey, texts
from pomona_federation.survey.raw_data import read_raw
from pomona_federation.survey.settings import Noise, SurveySettings


def table(path, rows_of_each, **settings):
    """Twenty patients with so many rows each."""
    rows = [f"p{k // rows_of_each},{k},{k % 2}\n" for k in range(20 * rows_of_each)]
    path.write_text("patient,age,ill\n" + "".join(rows))
    return data_settings(name="table", path=path, label_column="ill", **settings)


@pytest.mark.parametrize(
    ("rows", "columns", "largest"),
    [(3, {"group_column": "patient"}, 3), (1, {"group_column": "patient"}, 1), (3, {}, 1)],
)
def test_the_largest_group_is_that_of_the_training_rows(rows, columns, largest, tmp_path):
    settings = table(tmp_path / "t.csv", rows, **columns)
    assert read_raw(settings, 0, 0).largest_group == largest


@pytest.mark.parametrize(
    ("noise", "phrases"),
    [
        (None, ("up to 3 training rows", "a cell of 10 may be of 4 alone")),
        (Noise(epsilon=1.5, classes=("0", "1")), ("up to 3 training rows", "epsilon is 4.5")),
    ],
)
def test_a_survey_says_how_little_it_protects_a_patient(noise, phrases):
    federation, survey = SimpleNamespace(server="host:1"), SurveySettings(noise=noise)
    lines = list(texts(departing_in_survey(federation, survey, 3)))
    assert any(all(phrase in line for phrase in phrases) for line in lines)
    single_row_lines = texts(departing_in_survey(federation, survey, 1))
    assert not any("training rows" in line for line in single_row_lines)


def test_a_check_shows_what_epsilon_of_a_row_is_for_a_patient():
    assert [line for line in texts({"groups": groups_note([7], [49.5])}) if "49.5" in line]
