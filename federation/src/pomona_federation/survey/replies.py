"""What silos and the server tell each other in a survey: bounded types, read at the door.

First a silo names its columns (``ColumnsReply``); the server says how each is to be read (``FiguresQuestion``); then
the silo tells each column in its safe form (``FiguresReply``). No other question can be asked.
"""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from pomona.core.bounds import Count, Finite, Line, plain
from pomona.core.settings import Settings
from pomona.core.targets import Targets
from pomona.data.dataset import Kind, SampleType

MOST_COLUMNS = 2000  # of a table that is surveyed
MOST_CELLS = 1000  # of one column
MOST_WORDS = 10**5
LONGEST = 200  # characters of a name
LONGEST_WORD = 50
DIGITS = 4  # of a value
TINY = 1e-30


def rounded(value: float) -> float:
    """A number as it may be told: four digits, and 0 where it is as good as nothing."""
    return float(f"{value:.{DIGITS}g}") if abs(value) >= TINY else 0.0


def tellable(name: str) -> bool:
    """Whether a category, a class or a column has a name that can be told: one line, not too long."""
    return 0 < len(name) <= LONGEST and plain(name, LONGEST) == name


def _told(name: str) -> str:
    if not tellable(name):
        raise ValueError(f"must be one line of at most {LONGEST} characters")
    return name


ToldName = Annotated[str, AfterValidator(_told)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_WORD, pattern=r"^\w+$")]
ColumnKind = Literal["number", "date", "category"]
Markers = Annotated[tuple[ToldName, ...], Field(max_length=50)]
Cells = Annotated[tuple[Annotated[Count, Field(ge=1)], ...], Field(max_length=MOST_CELLS)]


class SafeColumn(Settings):
    """Rows of each cell of a column, and the rest: those in which it says nothing that could be told."""

    counts: Cells = ()
    rest: Count = 0

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(self.counts) + self.rest


class Numbers(SafeColumn):
    """A column of numbers in its safe form: groups of rows in ascending order, by middle value and number of rows.

    Attributes:
        values: the middle value of each group, all different; days since 2000-01-01 of dates.
        counts: rows of each group.
        rest: rows in which a number is missing.
    """

    values: tuple[Finite, ...] = Field((), max_length=MOST_CELLS)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.values) != len(self.counts):
            raise ValueError("each value has a count")
        if any(b <= a for a, b in pairwise(self.values)) or any(rounded(value) != value for value in self.values):
            raise ValueError(f"values must ascend, and have {DIGITS} digits")
        return self


class Names(SafeColumn):
    """A column of categories in its safe form.

    Attributes:
        names: of the categories that are frequent enough, ascending.
        counts: rows of each.
        rest: rows in which it is missing, or rare.
    """

    names: tuple[ToldName, ...] = Field((), max_length=MOST_CELLS)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.names) != len(self.counts):
            raise ValueError("each name has a count")
        if any(b <= a for a, b in pairwise(self.names)):
            raise ValueError("names must ascend")
        return self

    @property
    def by_name(self) -> dict[str, int]:
        """Rows of each category that was told."""
        return dict(zip(self.names, self.counts, strict=True))


class ColumnForm(Settings):
    """How a column is read: its name, its kind, and which cells stand for a gap beside those that always do."""

    name: ToldName
    kind: ColumnKind
    missing: Markers = ()


Forms = Annotated[tuple[ColumnForm, ...], Field(max_length=MOST_COLUMNS)]


class ColumnsReply(Settings):
    """What a silo has, without any value of it.

    Attributes:
        rows: its training rows.
        kind: of its samples.
        shape: of one sample as read; () for tables, whose columns decide.
        dtype: of samples as read.
        targets: what its labels are.
        labels: names of several targets, and of time and event.
        classes: names of classes as the silo's own settings give them, in the order of their numbers; () if the data
            alone name them.
        columns: that can be asked about; of images the mean and mean square of each channel, of texts their length.
        layout: all columns of a file without a line of names, in order.
    """

    rows: Count
    kind: Kind
    shape: tuple[Annotated[int, Field(ge=1, le=10**6)], ...] = Field((), max_length=4)
    dtype: SampleType
    targets: Targets
    labels: tuple[ToldName, ...] = Field((), max_length=MOST_COLUMNS)
    classes: tuple[ToldName, ...] = Field((), max_length=MOST_CELLS)
    columns: Forms
    layout: tuple[ToldName, ...] = Field((), max_length=MOST_COLUMNS)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise ValueError("two columns have one name")
        return self


class FiguresQuestion(Settings):
    """The columns that all silos have, and how each of them is to read them."""

    columns: Forms


class FiguresReply(Settings):
    """A silo's columns in their safe form; each holds as many rows as the silo has.

    Attributes:
        rows: its training rows.
        numbers, names: of each column, by its name.
        classes: its labels, where targets are classes.
        targets: other targets, by name: numbers, flags, of masks whether a class occurs; of survival the times at
            which an event was seen, which are missing where none was.
        words: of texts, the words in enough of them, and in how many each is.
        untold: columns that it does not tell, and why not.
    """

    rows: Count
    numbers: dict[ToldName, Numbers] = Field({}, max_length=MOST_COLUMNS)
    names: dict[ToldName, Names] = Field({}, max_length=MOST_COLUMNS)
    classes: Names | None = None
    targets: dict[ToldName, Numbers] = Field({}, max_length=MOST_COLUMNS)
    words: dict[Word, Count] = Field({}, max_length=MOST_WORDS)
    untold: dict[ToldName, Line] = Field({}, max_length=MOST_COLUMNS)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        labels = [self.classes] if self.classes else []
        told: list[SafeColumn] = [*self.numbers.values(), *self.targets.values(), *self.names.values(), *labels]
        if any(column.rows != self.rows for column in told):
            raise ValueError(f"each column must hold {self.rows} rows, as many as the silo has")
        if any(count > self.rows for count in self.words.values()):
            raise ValueError("a word cannot be in more texts than there are")
        return self
