"""Settings of section ``data``: those of all data, and groups of others, of which ``kinds``
composes each kind's.
"""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from unicodedata import normalize

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from pomona.core.bounds import LARGEST, Finite, Targets
from pomona.core.settings import Settings


def as_column(value: Any) -> Any:
    """Convert a column written in digits to a number, also from the command line, where every value
    is text; other names to NFC.
    """
    if not isinstance(value, str):
        return value
    digits = len(value) < 10 and value.removeprefix("-").isdecimal()
    return int(value) if digits and str(int(value)) == value else normalize("NFC", value)


MARKS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "blank": " ", "point": "."}


def _mark(value: Any) -> Any:
    """Convert the name of a mark to the mark itself."""
    return next((name for name, mark in MARKS.items() if mark == value), value)


DEFAULT = "digits"
Edge = Annotated[float, Field(gt=0, le=LARGEST)]
Column = Annotated[str | Annotated[int, Field(ge=-(10**6), le=10**6)], BeforeValidator(as_column)]
Marker = Annotated[
    str,
    BeforeValidator(lambda value: value if isinstance(value, str) else str(value)),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]}),
]
Separator = Annotated[Literal["comma", "semicolon", "tab", "bar", "blank"], BeforeValidator(_mark)]
Decimal = Annotated[Literal["point", "comma"], BeforeValidator(_mark)]
Encoding = Literal[
    "utf-8",
    "utf-16",
    "latin-1",
    "mac-roman",
    "cp437",
    "cp850",
    "cp852",
    "cp866",
    "cp874",
    "cp932",
    "cp949",
    "cp950",
    "gb18030",
    "cp1250",
    "cp1251",
    "cp1252",
    "cp1253",
    "cp1254",
    "cp1255",
    "cp1256",
    "cp1257",
    "cp1258",
]


class DataSettings(Settings):
    """What every kind of data has; subclasses are groups of settings that some kinds have.

    Attributes:
        title: what a group is about, a heading in the reference.
        absence: what is said of data without the group, after their name.
    """

    title: ClassVar[str] = "every kind of data"
    absence: ClassVar[str] = ""

    name: str = Field(
        description="A data set of `pomona data list`; for your own, table, text, images or arrays "
        "(by default what the path, clients or repository hold), or module:function."
    )
    split: Literal["official", "pooled"] = Field(
        default="official",
        description="Keep the source's training and test parts, or pool them and split again.",
    )
    test_share: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Share of the rows for testing, if pooled or if the source has no test part.",
    )
    validation_share: float = Field(
        default=0.15,
        ge=0,
        lt=1,
        description="Share of each client's training rows held out for validation.",
    )
    train_limit: int | None = Field(
        default=None, ge=1, lt=2**53, description="At most this many training rows, a seeded draw."
    )
    test_limit: int | None = Field(
        default=None, ge=1, lt=2**53, description="At most this many test rows, a seeded draw."
    )
    duplicates: Literal["keep", "drop", "error"] = Field(
        default="keep",
        description="Rows that repeat others, inputs and label: kept, with a note on those that "
        "are suspicious; left out, so that each is there once (the first, training before "
        "validation before test); or an error.",
    )
    memory_share: float = Field(
        default=0.25,
        gt=0,
        le=1,
        description="Arrays larger than this share of the machine's memory are kept on disk.",
    )


class Normalisation(Settings):
    """Normalisation for each channel of images, or one for all: the network receives ``(x - shift)
    / scale``.
    """

    shift: tuple[Finite, ...] = Field(
        min_length=1, max_length=10**4, description="Numbers that are subtracted."
    )
    scale: tuple[Annotated[Finite, Field(gt=0)], ...] = Field(
        min_length=1, max_length=10**4, description="Numbers that are divided by."
    )


class ClientFiles(Settings):
    """Files of one client; splits without a file are taken from its training rows."""

    name: str = Field(min_length=1, description="Name of the client.")
    train: Path = Field(description="Training rows: .npz, or a table of any format.")
    validation: Path | None = Field(default=None, description="Its own validation rows.")
    test: Path | None = Field(default=None, description="Its own test rows.")


class DataFolder(DataSettings):
    """Where data sets of the catalogue lie."""

    title = "folder of data sets"
    absence = "is not looked for in the folder of data sets"

    dir: Path | None = Field(
        default=None,
        description="Folder of the data sets; the environment variable POMONA_DATA if unset.",
    )


class OwnPath(DataSettings):
    """Where own data lie."""

    title = "file or folder"
    absence = "is not read from a file or folder that you name"

    path: Path | None = Field(default=None, description="The file or the folder to read.")


class HubFiles(DataSettings):
    """Parquet files of a repository of the Hugging Face Hub."""

    title = "repository of the Hugging Face Hub"
    absence = "is not read from a repository of the Hugging Face Hub"

    repository: str = Field(default="", max_length=200, description="OWNER/NAME of the data set.")
    revision: str = Field(
        default="",
        max_length=200,
        description="Commit of the repository, 40 hexadecimal digits, in the Hub's cache on this "
        "machine: nothing is fetched.",
    )
    subset: str = Field(
        default="",
        max_length=200,
        description="Folder of the repository with the files, where several have some.",
    )
    train_part: str = Field(
        default="train", max_length=80, description="Word in the paths of the training files."
    )
    test_part: str = Field(
        default="test",
        max_length=80,
        description="Word in the paths of the test files; without such files, or if empty, the "
        "training rows are split.",
    )


class ImageColumn(DataSettings):
    """Images in a column of Parquet files."""

    title = "column of images"
    absence = "has no column of images"

    image_column: Column | None = Field(
        default=None, description="Column of images, encoded as in files (PNG, JPEG)."
    )


class FilesByClient(DataSettings):
    """Files of each client."""

    title = "files by client"
    absence = "has no files by client, data.name = clients has"

    clients: tuple[ClientFiles, ...] = Field(default=(), description="Files of each client.")


class Images(DataSettings):
    """Images in any form."""

    title = "images"
    absence = "has no images"

    resize: int | None = Field(
        default=None,
        ge=1,
        le=10**4,
        description="Side in pixels to which images are resized (bilinear, antialiased).",
    )
    normalise: Literal["default", "training"] | Normalisation = Field(
        default="default",
        description="The network sees (x - shift) / scale. 'training': mean 0 and deviation 1 per "
        "channel "
        "over the training rows; 'default': the same above 8 bits, -1 to 1 for 8 bits, or as "
        "your own reader sets it; or {shift = [...], scale = [...]}. A federation's agreement "
        "sets it.",
    )


class ImageFiles(DataSettings):
    """Images in files of their own."""

    title = "image files"
    absence = "has no image files"

    window: tuple[Finite, Annotated[Finite, Field(gt=0)]] | None = Field(
        default=None,
        description="[centre, width]: files above 8 bits, or with a unit, are read as 0 to 255 "
        "from centre - width / 2 to centre + width / 2; as they are if unset.",
    )
    skip_bad: bool = Field(
        default=False,
        description=(
            "Unreadable image files are skipped, counted and named; otherwise they are errors."
        ),
    )


class ImageFolders(ImageFiles):
    """Images in folders."""

    title = "image folders"
    absence = "is not in image folders"

    folders: tuple[Literal["class", "site", "patient", "any"], ...] = Field(
        default=(),
        max_length=20,
        description="Meaning of the levels of folders, below train/ and test/: class, and site (a "
        "client), patient or any. By itself if empty: folders that all hold folders of the same "
        "names are sites.",
    )


class ClassNames(DataSettings):
    """Names of own data's classes."""

    title = "class names"
    absence = "has its own names of classes or targets"

    classes: tuple[str, ...] = Field(
        default=(),
        description="Class names in the order of their numbers, taken from the data if empty; for "
        "multilabel "
        "and regression, names of the K targets.",
    )


class TargetKind(ClassNames):
    """What own data's labels are."""

    title = "targets"
    absence = "has targets of one kind only"

    targets: Targets = Field(
        default="classes",
        description="Kind of label: class numbers, numbers, flags of 0 and 1, masks with a class "
        "number per "
        "pixel (segmentation), or times with 1 for an event and 0 for censored (survival).",
    )


class EventTimes(TargetKind):
    """Times to an event as targets."""

    title = "times to an event"
    absence = "has no times to an event"

    intervals: int = Field(
        default=10,
        ge=1,
        le=1000,
        description=(
            "survival: largest number of time intervals, which end at quantiles of the "
            "training event times."
        ),
    )
    time_edges: Annotated[tuple[Edge, ...], Field(max_length=1000)] = Field(
        default=(), description="survival: ends of the intervals, ascending, instead of quantiles."
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
    absence = "has no column of labels"

    label_above: float | None = Field(
        default=None,
        description=(
            "Two classes from a label column of numbers: those up to this number, then "
            "those above it."
        ),
    )


class TextEncoding(Settings):
    """Encoding of texts in files that do not state it."""

    encoding: Encoding | None = Field(
        default=None,
        description="Encoding. CSV: if unset, UTF-8, or UTF-16 with a byte order mark; Western "
        "European spreadsheets use cp1252. SAS, SPSS and Stata: if unset, as the file states, else "
        "UTF-8.",
    )


class DecimalMark(Settings):
    """Decimal mark of numbers that are texts."""

    decimal: Decimal | None = Field(
        default=None,
        description="Decimal mark of numbers in CSV files, and of those that a spreadsheet has as "
        "texts; the other one then parts thousands. If unset, a comma where numbers of a CSV file "
        "have one and cells are divided by another character, else a point.",
    )


class CsvForm(TextEncoding, DecimalMark):
    """Format of CSV files where it is set instead of detected."""

    separator: Separator | None = Field(
        default=None,
        description="Separator of cells; if unset, a comma, or, if line 1 has none, the one of "
        "semicolon, tab and bar (else the blank) that lines 1 and 2 have equally often, or line 2 "
        "once more, as R writes row names.",
    )


class CsvFormat(CsvForm, DataSettings):
    """Format of CSV files."""

    title = "format of a CSV file"
    absence = "is not a CSV file"

    @property
    def form(self) -> CsvForm:
        """The format alone."""
        return CsvForm(separator=self.separator, decimal=self.decimal, encoding=self.encoding)


class CsvHeading(DataSettings):
    """Names of the columns of a CSV file."""

    title = "names of CSV columns"
    absence = "is not a CSV file whose columns may lack names"

    header: bool | None = Field(
        default=None,
        description=(
            "Whether line 1 of a CSV names the columns; if unset, it does when a column "
            "is given by name."
        ),
    )
    columns: tuple[Annotated[str, AfterValidator(partial(normalize, "NFC"))], ...] = Field(
        default=(),
        description="Names of all columns, in order, of CSV files that have no line of names.",
    )


class CsvFile(CsvHeading, CsvFormat):
    """Settings that only CSV files have."""


class StatisticsForm(TextEncoding):
    """How files of SAS, SPSS and Stata are read."""

    value_labels: Literal["labels", "codes"] = Field(
        default="labels",
        description="Columns whose values all have value labels: read the 'labels' (texts), or the "
        "'codes' that are stored. For features, labels, clients and groups alike.",
    )


class StatisticsFormat(StatisticsForm, DataSettings):
    """Settings that only files of SAS, SPSS and Stata have."""

    title = "SAS, SPSS and Stata files"
    absence = "is not a SAS, SPSS or Stata file"


class SpreadsheetForm(DecimalMark):
    """Which cells of a spreadsheet are the table."""

    sheet: str | None = Field(
        default=None,
        max_length=255,
        description="Name of the sheet; if unset, the only one that is not empty or hidden.",
    )
    header_row: int | None = Field(
        default=None,
        ge=1,
        le=2**20,
        description="Row with the names of the columns, as the spreadsheet counts; if unset, the "
        "first row that is not empty.",
    )


class SpreadsheetFormat(SpreadsheetForm, DataSettings):
    """Settings that only spreadsheets have."""

    title = "spreadsheets"
    absence = "is not a spreadsheet"


class TableForm(CsvForm, StatisticsForm, SpreadsheetForm):
    """How the files of a table are read, in every format; also in the file of a model, for the
    tables that it is asked about.
    """


def table_form(settings: DataSettings) -> TableForm:
    """Return how the settings of data say that their tables are read."""
    values = {
        key: getattr(settings, key) for key in TableForm.model_fields if hasattr(settings, key)
    }
    return TableForm(**values)


class Columns(DataSettings):
    """Columns with a purpose: labels, owners, groups, times, subgroups."""

    title = "columns"
    absence = "has no columns"

    label_column: Column | None = Field(
        default=None,
        description="Column of the label: name, or number from 0 (-1 is the last). Of all columns, "
        "a number that is a column's name means that name.",
    )
    label_columns: tuple[Column, ...] = Field(
        default=(),
        description="Columns of several flags (multilabel), several targets (regression), or time "
        "and "
        "event (survival).",
    )
    unlabelled: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="Rows without a label (a gap, or a marker of missing_values for all columns): "
        "an error, "
        "or left out and counted in a note.",
    )
    group_column: Column | None = Field(
        default=None,
        description="Column whose equal values mark rows that belong together, such as a "
        "patient's: never "
        "split between parts, one unit in intervals, not a feature; a row with a gap "
        "counts alone. manifest and npz have `group` instead.",
    )
    time_column: Column | None = Field(
        default=None,
        description="Column of ISO dates or numbers: the latest rows are for testing, the latest "
        "of the rest "
        "for validation. Not a feature unless in data.dates.",
    )
    subgroup_column: Column | None = Field(
        default=None,
        description=(
            "Column by which the report splits results (sex, scanner); still a feature "
            "unless in drop_columns."
        ),
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
    absence = "has a file for each client, or no column that names them"

    client_column: Column | None = Field(
        default=None, description="Column that names the client owning a row."
    )


class Features(Columns):
    """Columns that become features of a table."""

    title = "features of a table"
    absence = "has no columns that become features"

    drop_columns: tuple[Column, ...] = Field(default=(), description="Columns that are left out.")
    keep_columns: tuple[Column, ...] = Field(
        default=(), description="The only columns that become features; all if empty."
    )
    missing: Literal["refuse", "median"] = Field(
        default="refuse",
        description="Gaps: an error, or filled with the column's training median (categories: the "
        "most "
        "frequent), and flagged in a further column.",
    )
    missing_values: dict[str, tuple[Marker, ...]] = Field(
        default={},
        description="By column, values that mean a gap, such as {cholesterol = [0]}; {'*' = [-9]} "
        "for all "
        "columns. Empty cells, NA, NaN and ? always do.",
    )
    censored: Literal["refuse", "limit"] = Field(
        default="refuse",
        description=(
            "Bounds among numbers, such as <5 or >100: an error, or read as the bound and "
            "counted in a note."
        ),
    )
    categories: Literal["refuse", "encode"] | tuple[Column, ...] = Field(
        default="refuse",
        description="Columns of categories, one column of 0 and 1 per category: those in a list, "
        """["NAME"]; 'encode': all that are mostly not numbers; 'refuse': an error.""",
    )
    category_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description=(
            "Categories in a smaller share of the training rows get no column, like unknown ones."
        ),
    )
    category_limit: int = Field(
        default=1000,
        ge=1,
        le=10**4,
        description="Largest number of categories of a column; more are an error.",
    )
    dates: tuple[Column, ...] = Field(
        default=(),
        description=(
            "Columns of a table with ISO dates (2024-03-01), read as days since 2000-01-01."
        ),
    )
    fit: Literal["pooled", "client"] = Field(
        default="pooled",
        description="Training rows that give medians, means and deviations: all clients', or each "
        "client's "
        "own. The columns always come from all.",
    )

    @property
    def mentioned(self) -> tuple[str | int, ...]:
        """All columns that any setting mentions."""
        listed = () if isinstance(self.categories, str) else self.categories
        return (*super().mentioned, *self.drop_columns, *self.keep_columns, *self.dates, *listed)

    def idle(self) -> dict[str, str]:
        """Frequencies of categories are for columns of categories."""
        keys = ("category_share", "category_limit") if self.categories == "refuse" else ()
        return super().idle() | dict.fromkeys(
            keys, "only for columns of data.categories, and there are none"
        )


class Tokens(DataSettings):
    """Texts as rows of tokens."""

    title = "texts"
    absence = "has no texts"

    vocabulary_size: int = Field(
        default=98635,
        ge=2,
        le=10**7,
        description="Largest number of tokens, with padding and the unknown token.",
    )
    sequence_length: int = Field(
        default=200,
        ge=1,
        le=10**6,
        description="Tokens per text; longer ones are cut, shorter ones padded.",
    )
    tokenizer: str = Field(
        default="",
        max_length=4096,
        description="Folder with the tokenizer.json of a pretrained network, or OWNER/NAME@COMMIT "
        "in the cache of the Hugging Face Hub; if empty, words of the training texts.",
    )

    def idle(self) -> dict[str, str]:
        """A tokenizer has a vocabulary of its own."""
        keys = ("vocabulary_size",) if self.tokenizer else ()
        return super().idle() | dict.fromkeys(keys, "data.tokenizer has its own vocabulary")


class TextColumns(Columns):
    """Columns of texts."""

    title = "columns of texts"
    absence = "has no columns of texts"

    text_columns: tuple[Column, ...] = Field(
        default=(), description="Columns whose texts are joined."
    )

    @property
    def mentioned(self) -> tuple[str | int, ...]:
        """All columns that any setting mentions."""
        return (*super().mentioned, *self.text_columns)
