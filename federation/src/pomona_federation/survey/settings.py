"""Settings of a survey: its questions, and the smallest number of rows disclosed.

All silos consent to them.
"""

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from pomona.core.settings import Settings
from pomona_federation.survey.replies import (
    MAX_CELLS,
    MAX_COLUMNS,
    MAX_WORDS,
    CellValue,
    SafeName,
    rounded,
)

Share = Annotated[float, Field(ge=0, le=1)]


Edges = Annotated[tuple[CellValue, ...], Field(min_length=2, max_length=MAX_CELLS + 1)]
CellNames = Annotated[tuple[SafeName, ...], Field(min_length=1, max_length=MAX_CELLS)]


class Noise(Settings):
    """Settings of a differentially private survey: epsilon, and the cells of every disclosed
    column.
    """

    epsilon: float = Field(
        gt=0, le=100, description="epsilon of the whole survey, for each silo's data"
    )
    edges: dict[SafeName, Edges] = Field(
        {},
        max_length=MAX_COLUMNS,
        description="by column or target of numbers: edges of bins, ascending",
    )
    categories: dict[SafeName, CellNames] = Field(
        {}, max_length=MAX_COLUMNS, description="by column of categories: those that are counted"
    )
    classes: tuple[SafeName, ...] = Field(
        (),
        max_length=MAX_CELLS,
        description="classes that are counted; if empty, nothing about labels is reported",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.columns:
            raise ValueError(
                "agree on the cells of a column, by edges, categories or classes; else nothing is "
                "reported"
            )
        if twice := sorted({*self.edges} & {*self.categories}):
            raise ValueError(f"{twice[0]} has edges and categories; a column has one of them")
        for name in self.edges:
            if any(b <= a for a, b in pairwise(self.edges[name])) or len(
                {*self.middles(name)}
            ) < len(self.middles(name)):
                raise ValueError(
                    f"edges of {name} must ascend, with middles that differ in four digits"
                )
        for name, values in {**self.categories, "classes": self.classes}.items():
            if len({*values}) < len(values):
                raise ValueError(f"{name} names a cell twice")
        return self

    @property
    def columns(self) -> int:
        """Number of columns, labels and targets that are counted."""
        return len(self.edges) + len(self.categories) + bool(self.classes)

    def middles(self, name: str) -> tuple[float, ...]:
        """The middle of each bin of a column, to four digits."""
        return tuple(rounded(a + (b - a) / 2) for a, b in pairwise(self.edges[name]))


class SurveySettings(Settings):
    """The questions of a survey to every silo."""

    least: int = Field(
        10,
        ge=3,
        le=10**6,
        description=(
            "least count: nothing about fewer rows is reported, nor follows from a difference"
        ),
    )
    cells: int = Field(
        100,
        ge=2,
        le=MAX_CELLS,
        description=(
            "largest number of groups in which a silo reports a column of numbers; more are finer"
        ),
    )
    columns: tuple[SafeName, ...] = Field(
        (),
        max_length=MAX_COLUMNS,
        description="columns to ask about; if empty, all that every silo has",
    )
    words: int = Field(
        20_000, ge=0, le=MAX_WORDS, description="texts: largest number of words that a silo reports"
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="as of a run: rows that it sets aside for testing are not asked about",
    )
    category_share: Share = Field(
        0.01,
        description=(
            "categories in a smaller share of all rows get no column in the next study's task"
        ),
    )
    noise: Noise | None = Field(
        None,
        description=(
            "differential privacy: noise on counts of agreed cells; other columns are not reported"
        ),
    )
    intervals: int = Field(
        10, ge=1, le=1000, description="survival: most intervals of time in the next study's task"
    )
