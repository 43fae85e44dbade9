"""Checks of raw data before a study defines their form, and what a survey would disclose."""

from typing import Any

from pomona.data.settings import DataSettings
from pomona_federation.agreement import Federation
from pomona_federation.survey import silo
from pomona_federation.survey.settings import SurveySettings

NAMED = 12  # most columns named in a line


def readable(data: DataSettings, survey: SurveySettings | None = None) -> str:
    """Summary of raw data, as a survey would find it. Raises DataError or ConfigError if they cannot be read."""
    found = silo.columns(survey or SurveySettings(), data)
    names = [form.name for form in found.columns]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    shape = f", each of shape {found.shape}" if found.shape else f"; columns {', '.join(names[:NAMED])}{more}"
    return f"{found.rows} training samples of kind {found.kind}, targets {found.targets}{shape}"


def departing(federation: Federation, survey: SurveySettings) -> dict[str, Any]:
    """List of everything that leaves a silo in a survey, by the keys of ``outgoing_filter.texts``."""
    noise = survey.noise
    asked = ", ".join(survey.columns) or ("those with agreed cells" if noise else "all that every silo has")
    private = f", counted with noise of epsilon {noise.epsilon:g} for all columns together" if noise else ""
    return {
        "to": f"the server at {federation.server}, whose operator sees each silo's answers",
        "columns": f"names and kinds of columns; asked about: {asked}",
        "cells": f"counts of groups of {survey.least} rows or more, {survey.cells} groups a column at most, and each "
        f"group's middle value{private}; of texts, words in as many; once, and the same again in every later survey",
        "faults": "the kind of an error, and one line without paths or data, when it happens",
        "presence": "that it is connected, its address, how long it takes",
        "stays": f"every row, every cell of fewer than {survey.least} rows, smallest and largest values",
    }
