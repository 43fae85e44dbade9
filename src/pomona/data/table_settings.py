"""Groups of settings of section ``data`` for tables: how files are read, and the columns' roles."""

import codecs
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self
from unicodedata import normalize

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, WithJsonSchema

from pomona.core.settings import Settings
from pomona.data.preprocessing import TableColumn
from pomona.data.settings import DataSettings


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


def text_encoding(name: str) -> str:
    """Return Python's name of an encoding of texts. Raises ValueError for others."""
    try:
        "".encode(name)
    except LookupError:
        raise ValueError(f"{name!r} is not a text encoding that Python knows") from None
    return codecs.lookup(name).name


Column = Annotated[str | Annotated[int, Field(ge=-(10**6), le=10**6)], BeforeValidator(as_column)]
Marker = Annotated[
    str,
    BeforeValidator(lambda value: value if isinstance(value, str) else str(value)),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]}),
]
Separator = Annotated[Literal["comma", "semicolon", "tab", "bar", "blank"], BeforeValidator(_mark)]
Decimal = Annotated[Literal["point", "comma"], BeforeValidator(_mark)]
Encoding = Annotated[str, Field(max_length=80), AfterValidator(text_encoding)]


class ImageColumn(DataSettings):
    """Column of images.

    Attributes:
        image_column: Column of images, encoded as in files (PNG, JPEG).
    """

    image_column: Column | None = None


class LabelThreshold(DataSettings):
    """Label of numbers.

    Attributes:
        label_above: Two classes from a label column of numbers: those up to this number,
            then those above it.
    """

    label_above: float | None = None


class TextEncoding(Settings):
    """Encoding of texts in files that do not state it.

    Attributes:
        encoding: Encoding, by a name that Python knows. CSV: if unset, UTF-8, or UTF-16 with
            a byte order mark; Western European spreadsheets use cp1252. SAS, SPSS and Stata:
            if unset, as the file states, else UTF-8.
    """

    encoding: Encoding | None = None


class DecimalMark(Settings):
    """Decimal mark of numbers that are texts.

    Attributes:
        decimal: Decimal mark of numbers in CSV files, and of those that a spreadsheet has
            as texts; the other then separates thousands. If unset, a comma where numbers of
            a CSV file have one and cells are divided by another character, else a point.
    """

    decimal: Decimal | None = None


class CsvForm(TextEncoding, DecimalMark):
    """Format of CSV files where it is set instead of detected.

    Attributes:
        separator: Separator of cells; if unset, a comma, or, if line 1 has none, whichever of
            semicolon, tab and bar (else the blank) is equally frequent in lines 1 and 2, or
            occurs once more in line 2 (row names written by R).
    """

    separator: Separator | None = None


class CsvFormat(CsvForm, DataSettings):
    """Format of CSV files."""

    @property
    def csv_form(self) -> CsvForm:
        """The format alone."""
        return CsvForm(separator=self.separator, decimal=self.decimal, encoding=self.encoding)


class CsvHeading(DataSettings):
    """Names of CSV columns.

    Attributes:
        header: Whether line 1 of a CSV names the columns; if unset, it does when a column
            is given by name.
        columns: Names of all columns, in order, of CSV files that have no line of names.
    """

    header: bool | None = None
    columns: tuple[Annotated[str, AfterValidator(partial(normalize, "NFC"))], ...] = ()


class CsvFile(CsvHeading, CsvFormat):
    """Settings that only CSV files have."""


class StatisticsForm(TextEncoding):
    """How files of SAS, SPSS and Stata are read.

    Attributes:
        value_labels: Columns whose values all have value labels: read the 'labels' (texts),
            or the 'codes' that are stored. For features, labels, clients and groups alike.
    """

    value_labels: Literal["labels", "codes"] = "labels"
    _trained: Mapping[str, TableColumn] = PrivateAttr(default_factory=dict)

    def for_model(self, columns: Iterable[TableColumn]) -> Self:
        """Return settings by which the columns of a model are read as in training, whichever of
        their labelled values occur.
        """
        settings = self.model_copy()
        if self.value_labels == "labels":
            settings._trained = {column.name: column for column in columns}
        return settings


class StatisticsFormat(StatisticsForm, DataSettings):
    """SAS, SPSS and Stata files."""


class SpreadsheetForm(DecimalMark):
    """Which cells of a spreadsheet are the table.

    Attributes:
        sheet: Name of the sheet; if unset, the only one that is not empty or hidden.
        header_row: Row with the names of the columns, as the spreadsheet counts; if unset,
            the first row that is not empty.
    """

    sheet: str | None = Field(None, max_length=255)
    header_row: int | None = Field(None, ge=1, le=2**20)


class SpreadsheetFormat(SpreadsheetForm, DataSettings):
    """Spreadsheets."""


class TableForm(CsvForm, StatisticsForm, SpreadsheetForm):
    """How the files of a table are read, in every format; also in the file of a model, for the
    tables that it is asked about.
    """


def table_form(settings: DataSettings) -> TableForm:
    """Return how the settings of data say that their tables are read."""
    values = {k: getattr(settings, k) for k in TableForm.model_fields if hasattr(settings, k)}
    return TableForm(**values)


class Columns(DataSettings):
    """Columns.

    Attributes:
        label_column: Column of the label: name, or number from 0 (-1 is the last). A
            number that is also a column's name means that column.
        label_columns: Columns of several flags (multilabel), several targets (regression),
            or time and event (survival).
        unlabelled: Rows without a label (a gap, or a marker of missing_values for all
            columns): an error, or left out and counted in a note.
        group_column: Column whose equal values mark rows that belong together, such as a
            patient's: never split between parts, one unit in intervals, not a feature; a
            row with a gap counts alone. manifest and npz have `group` instead.
        time_column: Column of ISO dates or numbers: the latest rows are for testing, the
            latest of the rest for validation. Not a feature unless in data.dates.
        subgroup_column: Column by which the report splits results (sex, scanner); still a
            feature unless in drop_columns.
    """

    label_column: Column | None = None
    label_columns: tuple[Column, ...] = ()
    unlabelled: Literal["refuse", "drop"] = "refuse"
    group_column: Column | None = None
    time_column: Column | None = None
    subgroup_column: Column | None = None

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

    @property
    def gives_names(self) -> bool:
        """Whether any setting gives a column by name."""
        return any(isinstance(column, str) for column in self.mentioned)


class OwnerColumn(Columns):
    """Column of clients.

    Attributes:
        client_column: Column that names the client owning a row.
    """

    client_column: Column | None = None


class Features(Columns):
    """Features of a table.

    Attributes:
        drop_columns: Columns that are left out.
        keep_columns: The only columns that become features; all if empty.
        missing: Gaps: an error, or filled with the column's training median (categories:
            the most frequent), and flagged in a further column.
        missing_values: By column, values that mean a gap, such as {cholesterol = [0]}; {'*'
            = [-9]} for all columns. Empty cells, NA, NaN and ? always do.
        censored: Bounds among numbers, such as <5 or >100: an error, or read as the bound
            and counted in a note.
        categories: Columns of categories, one column of 0 and 1 per category: those in a
            list, ["NAME"]; 'encode': all that are mostly not numbers; 'refuse': an error.
        category_share: Categories in a smaller share of the training rows get no column,
            like unknown ones.
        category_limit: Largest number of categories of a column; more are an error.
        dates: Columns of a table with ISO dates (2024-03-01), read as days since
            2000-01-01.
        fit: Training rows that give medians, means and deviations: all clients', or each
            client's own. The columns always come from all.
    """

    drop_columns: tuple[Column, ...] = ()
    keep_columns: tuple[Column, ...] = ()
    missing: Literal["refuse", "median"] = "refuse"
    missing_values: dict[str, tuple[Marker, ...]] = Field({})
    censored: Literal["refuse", "limit"] = "refuse"
    categories: Literal["refuse", "encode"] | tuple[Column, ...] = "refuse"
    category_share: float = Field(0.01, ge=0, le=1)
    category_limit: int = Field(1000, ge=1, le=10**4)
    dates: tuple[Column, ...] = ()
    fit: Literal["pooled", "client"] = "pooled"

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
    """Texts.

    Attributes:
        vocabulary_size: Largest number of tokens, with padding and the unknown token.
        sequence_length: Tokens per text; longer ones are cut, shorter ones padded.
        tokenizer: Folder with the tokenizer.json of a pretrained network, or
            OWNER/NAME@COMMIT in the cache of the Hugging Face Hub; if empty, words of the
            training texts.
    """

    vocabulary_size: int = Field(98635, ge=2, le=10**7)
    sequence_length: int = Field(200, ge=1, le=10**6)
    tokenizer: str = Field("", max_length=4096)

    def idle(self) -> dict[str, str]:
        """A tokenizer has a vocabulary of its own."""
        keys = ("vocabulary_size",) if self.tokenizer else ()
        return super().idle() | dict.fromkeys(keys, "data.tokenizer has its own vocabulary")


class TextColumns(Columns):
    """Columns of texts.

    Attributes:
        text_columns: Columns whose texts are joined.
    """

    text_columns: tuple[Column, ...] = ()

    @property
    def mentioned(self) -> tuple[str | int, ...]:
        """All columns that any setting mentions."""
        return (*super().mentioned, *self.text_columns)
