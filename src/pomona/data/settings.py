"""Settings of section ``data``: data set, location, columns and splits."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pomona.core.bounds import Finite
from pomona.core.settings import Settings, refuse_idle
from pomona.core.targets import Targets


def as_column(value: Any) -> Any:
    """Convert a column written in digits to a number, also from the command line, where every value is text."""
    return int(value) if isinstance(value, str) and len(value) < 10 and value.removeprefix("-").isdecimal() else value


Edge = Annotated[float, Field(gt=0, lt=1e30)]
Column = Annotated[str | Annotated[int, Field(ge=-(10**6), le=10**6)], BeforeValidator(as_column)]
Marker = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else str(value))]


MARKS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "point": "."}


def _mark(value: Any) -> Any:
    """Convert the name of a mark to the mark itself."""
    return next((name for name, mark in MARKS.items() if mark == value), value)


Separator = Annotated[Literal["comma", "semicolon", "tab", "bar"], BeforeValidator(_mark)]
Decimal = Annotated[Literal["point", "comma"], BeforeValidator(_mark)]
Encoding = Literal[
    "utf-8", "utf-16", "latin-1", "mac-roman", "cp437", "cp850", "cp852", "cp866", "cp874", "cp932", "cp949",
    "cp950", "gb18030", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258",
]  # fmt: skip


class CsvForm(Settings):
    """Format of CSV files where it is set instead of detected; see the settings of the same names."""

    separator: Separator | None = None
    decimal: Decimal | None = None
    encoding: Encoding | None = None


_FORM = tuple(CsvForm.model_fields)
_LABELS = ("targets", "classes", "intervals", "time_edges")
_PIXELS = ("resize", "normalise")
_FILES = (*_PIXELS, "window", "skip_bad")
_COLUMNS = (
    *_LABELS, "header", "label_column", "label_columns", "label_above", "unlabelled", "drop_columns", "keep_columns",
    "columns", "client_column", "group_column", "time_column", "subgroup_column",
)  # fmt: skip
_CELLS = ("missing", "missing_values", "censored", "categories", "category_share", "category_limit", "dates", "fit")
_WORDS = ("vocabulary_size", "sequence_length")
_TABLE, _TEXT, _ARRAYS = (*_COLUMNS, *_CELLS), (*_FORM, *_COLUMNS, "text_columns", *_WORDS), (*_LABELS, *_PIXELS)
# Keys for readers of own data, besides those of every data set; others are refused with the reader's name.
KEYS: dict[str, tuple[str, ...]] = {
    "csv": (*_FORM, *_TABLE),
    "parquet": _TABLE,
    "csv-text": _TEXT,
    "folder": ("classes", *_FILES),
    "manifest": ("targets", "classes", "label_above", *_FORM, *_FILES),
    "npz": _ARRAYS,
    "idx": ("classes", *_PIXELS),
    "clients": ("clients", *dict.fromkeys((*_TABLE, *_TEXT, *_ARRAYS))),
    "ag-news": _WORDS,
}
PUBLIC = (*_PIXELS, "targets")  # all other data sets with a registered name


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


class DataSettings(Settings):
    """Data set, location, and how to read it."""

    name: str = Field(default="digits", description="A data set of `pomona data list`, or module:function of your own.")
    dir: Path | None = Field(
        default=None, description="Folder of the data sets; the environment variable POMONA_DATA if unset."
    )
    path: Path | None = Field(default=None, description="Own data: the file or the folder to read.")
    clients: tuple[ClientFiles, ...] = Field(default=(), description="Files of each client, for the name 'clients'.")

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

    resize: int | None = Field(
        default=None, ge=1, le=10**4, description="Side in pixels to which images are resized (bilinear, antialiased)."
    )
    window: tuple[Finite, Annotated[Finite, Field(gt=0)]] | None = Field(
        default=None,
        description="[centre, width]: image files of more than 8 bits are read as 0 to 255, centre - width / 2 to "
        "centre + width / 2; as they are if unset.",
    )
    skip_bad: bool = Field(
        default=False,
        description="Image files that cannot be read are skipped, counted and named; otherwise they are errors.",
    )
    normalise: Literal["default", "training"] | Normalisation = Field(
        default="default",
        description="What a network sees of images: (x - shift) / scale. 'training': each channel with mean 0 and "
        "deviation 1 over the training rows; 'default': so for 16 bits and real numbers, and -1 to 1 for 8 bits, or as "
        "a reader of your own says; or {shift = [...], scale = [...]}. In a federation the agreement says it.",
    )
    targets: Targets = Field(
        default="classes",
        description="What own data's labels are: class numbers, real targets, 0/1 flags, masks with the class number "
        "of each pixel (segmentation), or times to an event: the time, and 1 if the event was seen then, 0 if not yet "
        "(survival).",
    )
    classes: tuple[str, ...] = Field(
        default=(),
        description="Names of own data's classes in the order of their numbers, found in the data if empty; "
        "for targets multilabel and regression the names of the K targets.",
    )
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
    header: bool | None = Field(
        default=None,
        description="Whether line 1 of a CSV names the columns; if unset, it does when a column is given by name.",
    )
    label_column: Column | None = Field(
        default=None, description="CSV column of the label: name, or number from 0 (-1 is the last)."
    )
    label_columns: tuple[Column, ...] = Field(
        default=(),
        description="CSV columns of several flags (multilabel), several targets (regression), or time and "
        "event (survival).",
    )
    label_above: float | None = Field(
        default=None,
        description="Two classes from a label column of numbers: those up to this number, then those above it.",
    )
    unlabelled: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="Rows of a table without a label (a gap, or a marker of missing_values for all columns): an error, "
        "or left out and counted in a note.",
    )
    drop_columns: tuple[Column, ...] = Field(default=(), description="CSV columns that are left out.")
    keep_columns: tuple[Column, ...] = Field(
        default=(), description="Columns of a table that are features; all others are left out. All, if empty."
    )
    columns: tuple[str, ...] = Field(
        default=(), description="Names of all columns, in order, of CSV files that have no line of names."
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
        "client's own; which categories and gaps have a column is learnt from all in either case.",
    )
    client_column: Column | None = Field(default=None, description="CSV column that names the client owning a row.")
    group_column: Column | None = Field(
        default=None,
        description="Column of a table that says which rows belong together, such as the patient: they are never on "
        "both sides of a split, and intervals count them as one. No feature. A row with an empty cell is by itself. "
        "manifest and npz have a column or an array `group` in its place.",
    )
    time_column: Column | None = Field(
        default=None,
        description="Column of a table with ISO dates or numbers: the latest rows are for testing, the latest of the "
        "others for validation, in place of a draw. No feature, unless data.dates names it.",
    )
    subgroup_column: Column | None = Field(
        default=None,
        description="Column of a table by whose values the report tells results apart (sex, scanner); a feature, too, "
        "unless drop_columns names it.",
    )
    text_columns: tuple[Column, ...] = Field(default=(), description="CSV columns whose texts are joined.")
    vocabulary_size: int = Field(
        default=98635, ge=2, le=10**7, description="Most tokens, the padding and the unknown token included."
    )
    sequence_length: int = Field(
        default=200, ge=1, le=10**6, description="Tokens per text; longer ones are cut, shorter ones padded."
    )

    @property
    def form(self) -> CsvForm:
        """The format of CSV files."""
        return CsvForm(separator=self.separator, decimal=self.decimal, encoding=self.encoding)

    @model_validator(mode="after")
    def _placed(self) -> "DataSettings":
        """Refuse keys that the named reader does not use; a user's own reader may use any."""
        if ":" in self.name:
            return self
        known = KEYS.get(self.name, (*PUBLIC, "classes") if self.targets != "classes" else PUBLIC)
        for key in dict.fromkeys(key for keys in KEYS.values() for key in keys):
            readers = [name for name, keys in KEYS.items() if key in keys]
            if key not in known:
                refuse_idle(self, "data.", (key,), f"is for {', '.join(readers)}, data.name is {self.name}")
        if self.targets != "survival":
            refuse_idle(self, "data.", ("intervals",), "is for targets = survival")
        if self.categories == "refuse":
            refuse_idle(self, "data.", ("category_share", "category_limit"), "is for columns of data.categories")
        return self

    @model_validator(mode="after")
    def _times(self) -> "DataSettings":
        """Refuse interval ends that are not ascending, or without times as targets."""
        if self.time_edges and self.targets != "survival":
            raise ValueError("time_edges is for targets = survival; remove it, or set data.targets")
        if any(b <= a for a, b in pairwise(self.time_edges)):
            raise ValueError("time_edges must ascend: each interval ends after the one before")
        return self
