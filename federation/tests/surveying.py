"""A survey without a network: both steps at every silo, and the server's part between them; and
four hospitals.
"""

import os
import tomllib
from pathlib import Path

import pytest

from pomona.data import data_settings
from pomona_federation.survey import agreeing, silo
from pomona_federation.survey.result import SiloDisclosure, SurveyResult
from pomona_federation.survey.settings import SurveySettings

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
EXAMPLE = Path(__file__).parents[2] / "examples" / "heart-disease.toml"
NAMES = tomllib.loads(EXAMPLE.read_text())["data"]["columns"]
CATEGORIES = ("cp", "restecg", "slope", "thal")
FOLDER = Path(os.environ.get("POMONA_DATA", "")) / "heart_disease"


def heart_disease(hospital):
    """A hospital's section data: the meaning of its file, without figures from its rows."""
    if not (path := FOLDER / f"processed.{hospital}.data").is_file():
        pytest.skip("needs heart_disease in POMONA_DATA")
    return data_settings(
        name="table",
        path=path,
        columns=tuple(NAMES),
        label_column="num",
        label_above=0,
        categories=CATEGORIES,
        missing_values={"chol": ("0",)},
    )


def surveyed(silos, survey=None):
    """The result of a survey among silos, given their section data by name."""
    survey = survey or SurveySettings()
    columns = {name: silo.columns(survey, data, 0) for name, data in silos.items()}
    question, notes = agreeing.common_question(survey, columns)
    disclosures = {
        name: SiloDisclosure(
            columns=columns[name], figures=silo.figures(survey, question, data, 0)[0]
        )
        for name, data in silos.items()
    }
    return SurveyResult(survey=survey, question=question, silos=disclosures, notes=notes)
