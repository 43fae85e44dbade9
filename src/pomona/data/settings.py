"""Settings of section ``data``: those of all data, and groups of others, of which ``kinds`` composes each kind's."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pomona.core.bounds import Finite
from pomona.core.samples import Targets
from pomona.core.settings import Settings


def as_column(value: Any) -> Any:
    """Convert a column written in digits to a number, also from the command line, where every value is text."""
    return int(value) if isinstance(value, str) and len(value) < 10 and value.removeprefix("-").isdecimal() else value


MARKS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "point": "."}


def _mark(value: Any) -> Any:
    """Convert the name of a mark to the mark itself."""
    return next((name for name, mark in MARKS.items() if mark == value), value)


DEFAULT = "digits"
Edge = Annotated[float, Field(gt=0, lt=1e30)]
Column = Annotated[str | Annotated[int, Field(ge=-(10**6), le=10**6)], BeforeValidator(as_column)]
Marker = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else str(value))]
Separator = Annotated[Literal["comma", "semicolon", "tab", "bar"], BeforeValidator(_mark)]
Decimal = Annotated[Literal["point", "comma"], BeforeValidator(_mark)]
Encoding = Literal[
    "utf-8", "utf-16", "latin-1", "mac-roman", "cp437", "cp850", "cp852", "cp866", "cp874", "cp932", "cp949",
    "cp950", "gb18030", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258",
]  # fmt: skip


class DataSettings(Settings):
    """What every kind of data has; subclasses are groups of settings that some kinds have.

    Attributes:
        called: what data of a kind are called in messages; by their name if empty.
        title: what a group is about, a heading in the reference.
        lacking: what is said of data without the group, after their name.
    """

    called: ClassVar[str] = ""
    title: ClassVar[str] = "every kind of data"
    lacking: ClassVar[str] = ""

    name: str = Field(description="A data set of `pomona data list`, or module:function of your own.")
    split: Literal["official", "pooled"] = Field(
        default="official", description="Keep the source's training and test parts, or pool them and split anew."
    )
    test_share: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Share of the rows for testing, where pooled or where the source has no test part.",
    )
    validation_share: float = Field(
        default=0.15, ge=0, lt=1, description="Share of each client's training rows held out for validation."
    )
    train_limit: int | None = Field(
        default=None, ge=1, lt=2**53, description="At most this many training rows, a seeded draw."
    )
    test_limit: int | None = Field(
        default=None, ge=1, lt=2**53, description="At most this many test rows, a seeded draw."
    )
    memory_share: float = Field(
        default=0.25, gt=0, le=1, description="Arrays larger than this share of the machine's memory are kept on disk."
    )


class Normalisation(Settings):
    """Normalisation for each channel of images, or one for all: the network receives ``(x - shift) / scale``."""

    shift: tuple[Finite, ...] = Field(min_length=1, max_length=10**4, description="Numbers that are subtracted.")
    scale: tuple[Annotated[Finite, Field(gt=0)], ...] = Field(
        min_length=1, max_length=10**4, description="Numbers that are divided by."
    )


class ClientFiles(Settings):
    """Files of one client; splits without a file are taken from its training rows."""

    name: str = Field(min_length=1, description="Name of the client.")
    train: Path = Field(description="Training rows (.npz, .parquet, or .csv, .tsv, .txt, .data).")
    validation: Path | None = Field(default=None, description="Validation rows of its own.")
    test: Path | None = Field(default=None, description="Test rows of its own.")


class DataFolder(DataSettings):
    """Where data sets of the catalogue lie."""

    title = "folder of data sets"
    lacking = "is not looked for in the folder of data sets"

    dir: Path | None = Field(
        default=None, description="Folder of the data sets; the environment variable POMONA_DATA if unset."
    )


class OwnPath(DataSettings):
    """Where own data lie."""

    title = "file or folder"
    lacking = "is not read from a file or folder that you name"

    path: Path | None = Field(default=None, description="The file or the folder to read.")


class FilesByClient(DataSettings):
    """Files of each client."""

    title = "files by client"
    lacking = "has no files by client, data.name = clients has"

    clients: tuple[ClientFiles, ...] = Field(default=(), description="Files of each client.")


class Images(DataSettings):
    """Images in any form."""

    title = "images"
    lacking = "has no images"

    resize: int | None = Field(
        default=None, ge=1, le=10**4, description="Side in pixels to which images are resized (bilinear, antialiased)."
    )
    normalise: Literal["default", "training"] | Normalisation = Field(
        default="default",
        description="What a network sees of images: (x - shift) / scale. 'training': each channel with mean 0 and "
        "deviation 1 over the training rows; 'default': so for 16 bits and real numbers, and -1 to 1 for 8 bits, or as "
        "a reader of your own says; or {shift = [...], scale = [...]}. In a federation the agreement says it.",
    )


class ImageFiles(DataSettings):
    """Images in files of their own."""

    title = "image files"
    lacking = "has no image files"

    window: tuple[Finite, Annotated[Finite, Field(gt=0)]] | None = Field(
        default=None,
        description="[centre, width]: image files of more than 8 bits are read as 0 to 255, centre - width / 2 to "
        "centre + width / 2; as they are if unset.",
    )
    skip_bad: bool = Field(
        default=False,
        description="Image files that cannot be read are skipped, counted and named; otherwise they are errors.",
    )


class ClassNames(DataSettings):
    """Names of own data's classes."""

    title = "class names"
    lacking = "has its own names of classes or targets"

    classes: tuple[str, ...] = Field(
        default=(),
        description="Names of own data's classes in the order of their numbers, found in the data if empty; "
        "for targets multilabel and regression the names of the K targets.",
    )


class TargetKind(ClassNames):
    """What own data's labels are."""

    title = "targets"
    lacking = "has targets of one kind only"

    targets: Targets = Field(
        default="classes",
        description="What own data's labels are: class numbers, real targets, 0/1 flags, masks with the class number "
        "of each pixel (segmentation), or times to an event: the time, and 1 if the event was seen then, 0 if not yet "
        "(survival).",
    )


class EventTimes(TargetKind):
    """Times to an event as targets."""

    title = "times to an event"
    lacking = "has no times to an event"

    intervals: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="survival: most intervals of time that a network learns; they end at quantiles of the training "
        "rows' event times.",
    )
    time_edges: Annotated[tuple[Edge, ...], Field(max_length=1000)] = Field(
        default=(), description="survival: where the intervals end, ascending, instead of such quantiles."
    )

    def idle(self) -> dict[str, str]:
        """Intervals of time are for survival."""
        keys = () if self.targets == "survival" else ("intervals", "time_edges")
        return super().idle() | dict.fromkeys(keys, "only for targets = survival")

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if any(b <= a for a, b in pairwise(self.time_edges)):
            raise ValueError("time_edges must ascend: each interval ends after the one before")
        return self


class LabelThreshold(DataSettings):
    """Two classes from a label that is a number."""

    title = "label of numbers"
    lacking = "has no column of labels"

    label_above: float | None = Field(
        default=None,
        description="Two classes from a label column of numbers: those up to this number, then those above it.",
    )


class CsvForm(Settings):
    """Format of CSV files where it is set instead of detected."""

    separator: Separator | None = Field(
        default=None,
        description="What divides the cells of a CSV file; if unset, a comma, or what both of the first two lines have "
        "equally often of semicolons, tabs and bars, if no comma is in the first.",
    )
    decimal: Decimal | None = Field(
        default=None,
        description="The decimal mark of a CSV file; if unset, a point, and a comma too where cells are divided by "
        "another character.",
    )
    encoding: Encoding | None = Field(
        default=None,
        description="How the characters of a CSV file are written; if unset, UTF-8, or UTF-16 where it begins with "
        "that byte order mark. Spreadsheets of Western Europe save cp1252.",
    )


class CsvFormat(CsvForm, DataSettings):
    """Format of CSV files."""

    title = "format of a CSV file"
    lacking = "is no CSV file"

    @property
    def form(self) -> CsvForm:
        """The format alone."""
        return CsvForm(separator=self.separator, decimal=self.decimal, encoding=self.encoding)


def csv_form(settings: DataSettings) -> CsvForm:
    """Return the format of CSV files that settings name; none for other data."""
    return settings.form if isinstance(settings, CsvFormat) else CsvForm()


class CsvHeading(DataSettings):
    """Names of the columns of a CSV file."""

    title = "names of CSV columns"
    lacking = "is no CSV file whose columns may lack names"

    header: bool | None = Field(
        default=None,
        description="Whether line 1 of a CSV names the columns; if unset, it does when a column is given by name.",
    )
    columns: tuple[str, ...] = Field(
        default=(), description="Names of all columns, in order, of CSV files that have no line of names."
    )


class Columns(DataSettings):
    """Columns with a purpose: labels, owners, groups, times, subgroups."""

    title = "columns"
    lacking = "has no columns"

    label_column: Column | None = Field(
        default=None, description="Column of the label: name, or number from 0 (-1 is the last)."
    )
    label_columns: tuple[Column, ...] = Field(
        default=(),
        description="Columns of several flags (multilabel), several targets (regression), or time and "
        "event (survival).",
    )
    unlabelled: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="Rows without a label (a gap, or a marker of missing_values for all columns): an error, "
        "or left out and counted in a note.",
    )
    group_column: Column | None = Field(
        default=None,
        description="Column that says which rows belong together, such as the patient: they are never on "
        "both sides of a split, and intervals count them as one. No feature. A row with an empty cell is by itself. "
        "manifest and npz have a column or an array `group` in its place.",
    )
    time_column: Column | None = Field(
        default=None,
        description="Column with ISO dates or numbers: the latest rows are for testing, the latest of the "
        "others for validation, in place of a draw. No feature, unless data.dates names it.",
    )
    subgroup_column: Column | None = Field(
        default=None,
        description="Column by whose values the report tells results apart (sex, scanner); a feature of a table, too, "
        "unless drop_columns names it.",
    )

    @property
    def labels(self) -> tuple[str | int, ...]:
        """The label columns."""
        return self.label_columns if self.label_column is None else (self.label_column,)

    @property
    def purposes(self) -> dict[str, str | int]:
        """The other columns with a purpose, by the setting that names them."""
        keys = ("client_column", "group_column", "time_column", "subgroup_column")
        return {key: column for key in keys if (column := getattr(self, key, None)) is not None}

    @property
    def mentioned(self) -> tuple[str | int, ...]:
        """All columns that any setting mentions."""
        return (*self.labels, *self.purposes.values())


class OwnerColumn(Columns):
    """Who owns a row."""

    title = "column of clients"
    lacking = "has a file for each client, or no column that names them"

    client_column: Column | None = Field(default=None, description="Column that names the client owning a row.")


class Features(Columns):
    """Columns that become features of a table."""

    title = "features of a table"
    lacking = "has no columns that become features"

    drop_columns: tuple[Column, ...] = Field(default=(), description="Columns that are left out.")
    keep_columns: tuple[Column, ...] = Field(
        default=(), description="Columns of a table that are features; all others are left out. All, if empty."
    )
    missing: Literal["refuse", "median"] = Field(
        default="refuse",
        description="Gaps in a table: an error, or filled with the median of a column's training rows (a category: the "
        "most frequent one), with one more column that is 1 where a gap was.",
    )
    missing_values: dict[str, tuple[Marker, ...]] = Field(
        default={},
        description="By column of a table, values that stand for a gap there, such as {cholesterol = [0]}, and for all "
        "columns {'*' = [-9]}; empty cells, NA, NaN and ? always do.",
    )
    censored: Literal["refuse", "limit"] = Field(
        default="refuse",
        description="Bounds among the numbers of a table, such as <5 or >100: an error, or read as the bound, and "
        "counted in a note.",
    )
    categories: Literal["refuse", "encode"] | tuple[Column, ...] = Field(
        default="refuse",
        description="Columns of a table that hold categories, each of which becomes a column of 0 and 1: those listed; "
        "'encode': all that mostly hold no numbers; 'refuse': such columns are an error.",
    )
    category_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Categories in a smaller share of the training rows get no column: like unknown ones, they are 0 "
        "in all of them.",
    )
    category_limit: int = Field(
        default=1000, ge=1, le=10**4, description="Most different values of a column of categories; more are an error."
    )
    dates: tuple[Column, ...] = Field(
        default=(), description="Columns of a table with ISO dates (2024-03-01), read as days since 2000-01-01."
    )
    fit: Literal["pooled", "client"] = Field(
        default="pooled",
        description="Whose training rows give a table's medians, means and deviations: those of all clients, or each "
        "client's own; the set of columns is always learned from all clients.",
    )

    @property
    def mentioned(self) -> tuple[str | int, ...]:
        """All columns that any setting mentions."""
        listed = () if isinstance(self.categories, str) else self.categories
        return (*super().mentioned, *self.drop_columns, *self.keep_columns, *self.dates, *listed)

    def idle(self) -> dict[str, str]:
        """Frequencies of categories are for columns of categories."""
        keys = ("category_share", "category_limit") if self.categories == "refuse" else ()
        return super().idle() | dict.fromkeys(keys, "only for columns of data.categories, and there are none")


class Tokens(DataSettings):
    """Texts as rows of tokens."""

    title = "texts"
    lacking = "has no texts"

    vocabulary_size: int = Field(
        default=98635, ge=2, le=10**7, description="Most tokens, the padding and the unknown token included."
    )
    sequence_length: int = Field(
        default=200, ge=1, le=10**6, description="Tokens per text; longer ones are cut, shorter ones padded."
    )


class TextColumns(Columns):
    """Columns of texts."""

    title = "columns of texts"
    lacking = "has no columns of texts"

    text_columns: tuple[Column, ...] = Field(default=(), description="Columns whose texts are joined.")

    @property
    def mentioned(self) -> tuple[str | int, ...]:
        """All columns that any setting mentions."""
        return (*super().mentioned, *self.text_columns)
