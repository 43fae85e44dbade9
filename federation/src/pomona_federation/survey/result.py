"""The result of a survey: the silos' disclosures, kept as one file, from which page and task are made."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from pydantic import Field

from pomona.core.bounds import PLACES, Line
from pomona.core.settings import Settings
from pomona.data.targets import in_order
from pomona_federation.survey.replies import (
    ColumnForm,
    ColumnsReply,
    FiguresQuestion,
    FiguresReply,
    Names,
    Numbers,
    ToldName,
)
from pomona_federation.survey.settings import SurveySettings


class SiloTold(Settings):
    """Everything that one silo disclosed."""

    columns: ColumnsReply
    figures: FiguresReply


class SurveyResult(Settings):
    """A finished survey.

    Attributes:
        survey: its settings.
        question: how the columns were read.
        silos: the disclosures of each, by name, in order.
        absent: silos that disclosed nothing, and why.
        notes: remarks, one line each.
    """

    survey: SurveySettings
    question: FiguresQuestion
    silos: dict[ToldName, SiloTold] = Field(min_length=1, max_length=PLACES)
    absent: dict[ToldName, Line] = Field({}, max_length=PLACES)
    notes: tuple[Line, ...] = Field((), max_length=10**4)

    @property
    def one(self) -> ColumnsReply:
        """The common form of samples and targets at all silos."""
        return next(iter(self.silos.values())).columns

    @property
    def rows(self) -> int:
        """Training rows of all silos."""
        return sum(told.figures.rows for told in self.silos.values())

    @property
    def forms(self) -> Sequence[ColumnForm]:
        """The surveyed columns."""
        return self.question.columns

    def numbers(self, column: str) -> dict[str, Numbers]:
        """A column of numbers by silo, for the silos that disclosed it."""
        found = {name: told.figures.numbers.get(column) for name, told in self.silos.items()}
        return {name: own for name, own in found.items() if own}

    def names(self, column: str) -> dict[str, Names]:
        """A column of categories by silo, for the silos that disclosed it."""
        found = {name: told.figures.names.get(column) for name, told in self.silos.items()}
        return {name: own for name, own in found.items() if own}

    def targets(self) -> dict[str, dict[str, Numbers]]:
        """Targets other than classes, by target and silo."""
        keys = dict.fromkeys(key for told in self.silos.values() for key in told.figures.targets)
        by_silo = {name: told.figures.targets for name, told in self.silos.items()}
        return {key: {name: own[key] for name, own in by_silo.items() if key in own} for key in keys}

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes: from the silos' settings, else those disclosed, in order."""
        given = {told.columns.classes for told in self.silos.values()}
        if len(given) == 1 and (known := next(iter(given))):
            return known
        if self.one.targets == "segmentation":
            return in_order(self.targets())
        return in_order(name for told in self.silos.values() for name in (told.figures.classes or Names()).names)

    def words(self) -> Mapping[str, int]:
        """Words, and the number of texts of all silos with each."""
        counts: dict[str, int] = {}
        for told in self.silos.values():
            for word, n in told.figures.words.items():
                counts[word] = counts.get(word, 0) + n
        return counts
