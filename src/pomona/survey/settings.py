"""Settings of a survey: what is asked, and how few rows are never told of. All silos consent to them."""

from typing import Annotated

from pydantic import Field

from pomona.core.settings import Settings
from pomona.survey.replies import MOST_CELLS, MOST_COLUMNS, MOST_WORDS, ToldName

Share = Annotated[float, Field(ge=0, le=1)]


class SurveySettings(Settings):
    """What a survey asks of every silo."""

    least: int = Field(
        10, ge=3, le=10**6, description="least count: nothing is told of fewer rows, not by a difference either"
    )
    cells: int = Field(
        100, ge=2, le=MOST_CELLS, description="most groups in which a silo tells a column of numbers; more are finer"
    )
    columns: tuple[ToldName, ...] = Field(
        (), max_length=MOST_COLUMNS, description="columns that are asked about; all that every silo has if empty"
    )
    words: int = Field(20_000, ge=0, le=MOST_WORDS, description="of texts: most words that a silo tells")
    seed: int = Field(
        0, ge=0, lt=2**63, description="as of a run: what is put aside for testing with it is not asked about"
    )
    category_share: Share = Field(
        0.01, description="categories in a smaller share of all rows get no column in the next study's task"
    )
    intervals: int = Field(10, ge=1, le=1000, description="survival: most intervals of time in the next study's task")
