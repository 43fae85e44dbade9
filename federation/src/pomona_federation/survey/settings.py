"""Settings of a survey: its questions, and the smallest number of rows disclosed.

All silos consent to them.
"""

from itertools import pairwise
from typing import Annotated, Literal, Self
from unicodedata import category

from pydantic import AfterValidator, FailFast, Field, StringConstraints, model_validator

from pomona.core.bounds import LARGEST, Count, Line, Table, Targets
from pomona.core.settings import Settings
from pomona.data.dataset import InputKind, SampleType

MAX_COLUMNS = 2000  # most columns of a surveyed table
MAX_CELLS = 1000  # of one column
MAX_WORDS = 10**5
LONGEST = 200  # characters of a name
LONGEST_WORD = 50
DIGITS = 4  # of a value
TINY = 1e-30
HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}  # categories of characters that nobody sees
JOINERS = "\u200c\u200d"  # of the same categories, but part of how words are written


def rounded(value: float) -> float:
    """A number in its disclosed form: four digits, and 0 if negligible."""
    return float(f"{value:.{DIGITS}g}") if abs(value) >= TINY else 0.0


def disclosable(name: str) -> bool:
    """Whether the name of a category, class or column can be disclosed: one line, not too long, in
    which all is seen; blanks of any number and width may be.
    """
    hidden = any(c not in JOINERS and category(c) in HIDDEN for c in name)
    return 0 < len(name.strip()) <= len(name) <= LONGEST and not hidden


def _safe(name: str) -> str:
    if not disclosable(name):
        raise ValueError(f"must be one line of at most {LONGEST} characters")
    return name


def _term(text: str) -> str:
    from pomona.data.text import tokens  # late: it imports the readers of tables, which take 50 MB

    if tokens(text) != [text]:
        raise ValueError("must be one word as texts have them")
    return text


SafeName = Annotated[str, AfterValidator(_safe)]
CellValue = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Term = Annotated[str, StringConstraints(max_length=LONGEST_WORD), AfterValidator(_term)]
ColumnKind = Literal["number", "date", "category"]
Markers = Annotated[tuple[SafeName, ...], Field(max_length=50), FailFast()]
Cells = Annotated[
    tuple[Annotated[Count, Field(ge=1)], ...], Field(max_length=MAX_CELLS), FailFast()
]


class SafeColumn(Settings):
    """Rows of each cell of a column, and the rest: those without a disclosable value."""

    counts: Cells = ()
    rest: Count = 0

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(self.counts) + self.rest


class Numbers(SafeColumn):
    """A column of numbers in its safe form: groups of rows in ascending order, by middle value and
    number of rows.

    Attributes:
        values: the middle value of each group, all different; days since 2000-01-01 for dates.
        counts: rows of each group.
        rest: rows with a missing number.
    """

    values: Annotated[tuple[CellValue, ...], Field(max_length=MAX_CELLS), FailFast()] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.values) != len(self.counts):
            raise ValueError("each value has a count")
        if any(b <= a for a, b in pairwise(self.values)) or any(
            rounded(value) != value for value in self.values
        ):
            raise ValueError(f"values must ascend, and have {DIGITS} digits")
        return self


class Names(SafeColumn):
    """A column of categories in its safe form.

    Attributes:
        names: of the categories that are frequent enough, ascending.
        counts: rows of each.
        rest: rows with a missing or rare category.
    """

    names: Annotated[tuple[SafeName, ...], Field(max_length=MAX_CELLS), FailFast()] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.names) != len(self.counts):
            raise ValueError("each name has a count")
        if any(b <= a for a, b in pairwise(self.names)):
            raise ValueError("names must ascend")
        return self

    @property
    def by_name(self) -> dict[str, int]:
        """Rows of each disclosed category."""
        return dict(zip(self.names, self.counts, strict=True))


class ColumnSpec(Settings):
    """How a column is read: its name, its kind, and the cells that mark a gap in addition to the
    usual ones.
    """

    name: SafeName
    kind: ColumnKind
    missing: Markers = ()


ColumnSpecs = Annotated[tuple[ColumnSpec, ...], Field(max_length=MAX_COLUMNS), FailFast()]


class ColumnsReply(Settings):
    """A silo's data, without any of their values.

    Attributes:
        rows: its training rows.
        kind: of its samples.
        shape: of one sample as read; () for tables, whose columns decide.
        dtype: of samples as read.
        targets: kind of its labels.
        labels: names of several targets, and of time and event.
        classes: names of classes from the silo's own settings, in the order of their numbers; () if
            only the data name them.
        columns: that can be surveyed; for images the mean and mean square of each channel, for
            texts their length.
        layout: all columns of a file without a header, in order.
    """

    rows: Count
    kind: InputKind
    shape: tuple[Annotated[int, Field(ge=1, le=10**6)], ...] = Field((), max_length=4)
    dtype: SampleType
    targets: Targets
    labels: Annotated[tuple[SafeName, ...], Field(max_length=MAX_COLUMNS), FailFast()] = ()
    classes: Annotated[tuple[SafeName, ...], Field(max_length=MAX_CELLS), FailFast()] = ()
    columns: ColumnSpecs
    layout: Annotated[tuple[SafeName, ...], Field(max_length=MAX_COLUMNS), FailFast()] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [column.name for column in self.columns]
        if len(set(names)) < len(names):
            raise ValueError("two columns have one name")
        return self


class FiguresQuestion(Settings):
    """The columns that all silos have, and how to read each of them."""

    columns: ColumnSpecs


class FiguresReply(Settings):
    """A silo's columns in their safe form; each covers all rows of the silo.

    Attributes:
        rows: its training rows.
        numbers, names: of each column, by its name.
        classes: its labels, if targets are classes.
        targets: other targets, by name: numbers, flags, for masks whether a class occurs; for
            survival the times of observed events, missing if none was observed.
        words: for texts, the words in enough of them, and the number of texts with each.
        withheld: undisclosed columns, and why.
    """

    rows: Count
    numbers: Table[SafeName, Numbers] = Field({}, max_length=MAX_COLUMNS)
    names: Table[SafeName, Names] = Field({}, max_length=MAX_COLUMNS)
    classes: Names | None = None
    targets: Table[SafeName, Numbers] = Field({}, max_length=MAX_COLUMNS)
    words: Table[Term, Count] = Field({}, max_length=MAX_WORDS)
    withheld: Table[SafeName, Line] = Field({}, max_length=MAX_COLUMNS)

    @model_validator(mode="after")
    def _covers_all_rows(self) -> Self:
        labels = [self.classes] if self.classes else []
        columns: list[SafeColumn] = [
            *self.numbers.values(),
            *self.targets.values(),
            *self.names.values(),
            *labels,
        ]
        if any(column.rows != self.rows for column in columns):
            raise ValueError(f"each column must hold {self.rows} rows, as many as the silo has")
        if any(count > self.rows for count in self.words.values()):
            raise ValueError("a word cannot be in more texts than there are")
        return self


Share = Annotated[float, Field(ge=0, le=1)]


Edges = Annotated[tuple[CellValue, ...], Field(min_length=2, max_length=MAX_CELLS + 1), FailFast()]
CellNames = Annotated[tuple[SafeName, ...], Field(min_length=1, max_length=MAX_CELLS), FailFast()]


class Noise(Settings):
    """Settings of a differentially private survey: epsilon, and the cells of every disclosed
    column.

    Attributes:
        epsilon: epsilon of the whole survey, for each silo's data
        edges: by column or target of numbers: edges of bins, ascending
        categories: by column of categories: those that are counted
        classes: classes that are counted; if empty, nothing about labels is reported
    """

    epsilon: float = Field(gt=0, le=100)
    edges: Table[SafeName, Edges] = Field({}, max_length=MAX_COLUMNS)
    categories: Table[SafeName, CellNames] = Field({}, max_length=MAX_COLUMNS)
    classes: Annotated[tuple[SafeName, ...], Field(max_length=MAX_CELLS), FailFast()] = ()

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
    """The questions of a survey to every silo.

    Attributes:
        least: least count: nothing about fewer rows is reported, nor follows from a difference
        cells: largest number of groups in which a silo reports a column of numbers; more are finer
        columns: columns to ask about; if empty, all that every silo has
        words: texts: largest number of words that a silo reports
        seed: as of a run: rows that it sets aside for testing are not asked about
        category_share: categories in a smaller share of all rows get no column in the next study's
            task
        noise: differential privacy: noise on counts of agreed cells; other columns are not reported
        intervals: survival: most intervals of time in the next study's task
    """

    least: int = Field(10, ge=3, le=10**6)
    cells: int = Field(100, ge=2, le=MAX_CELLS)
    columns: Annotated[tuple[SafeName, ...], Field(max_length=MAX_COLUMNS), FailFast()] = ()
    words: int = Field(20_000, ge=0, le=MAX_WORDS)
    seed: int = Field(0, ge=0, lt=2**63)
    category_share: Share = 0.01
    noise: Noise | None = None
    intervals: int = Field(10, ge=1, le=1000)
