"""The settings of each kind of data; ``section`` says which a data set has."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr

from pomona.data.settings import (
    DEFAULT,
    ClassNames,
    Columns,
    CsvFormat,
    CsvHeading,
    DataFolder,
    DataSettings,
    EventTimes,
    Features,
    FilesByClient,
    HubFiles,
    ImageColumn,
    ImageFiles,
    Images,
    LabelThreshold,
    OwnerColumn,
    OwnPath,
    TargetKind,
    TextColumns,
    Tokens,
)


class BundledImages(Images):
    """Images that come with a library."""

    name: str = Field(default=DEFAULT, description=DataSettings.model_fields["name"].description)


class BundledTable(DataSettings):
    """A table that comes with a library."""


class PublicImages(Images, OwnPath, DataFolder):
    """Images of the catalogue."""


class PublicTexts(Tokens, OwnPath, DataFolder):
    """Texts of the catalogue."""


class ColumnData(Columns, LabelThreshold, EventTimes):
    """Rows with labels in columns."""


class Table(Features, ColumnData):
    """Tables, in any file."""


class Texts(TextColumns, Tokens, ColumnData):
    """Texts in columns, in any file."""


class CsvTable(CsvHeading, CsvFormat, OwnerColumn, OwnPath, Table):
    """An own table as CSV."""


class ParquetTable(OwnerColumn, OwnPath, Table):
    """An own table as Parquet."""

    called = "a Parquet file"


class CsvTexts(CsvHeading, CsvFormat, OwnerColumn, OwnPath, Texts):
    """Own texts as CSV."""


class ParquetTexts(OwnerColumn, OwnPath, Texts):
    """Own texts as Parquet."""

    called = "a Parquet file of texts"


class Arrays(Images, EventTimes):
    """Arrays x and y in archives."""


class NpzArrays(OwnPath, Arrays):
    """Own arrays in one archive."""


class ClientCsvTables(CsvHeading, CsvFormat, FilesByClient, Table):
    """CSV files of each client."""

    called = "a table in CSV files of data.clients"


class ClientParquetTables(FilesByClient, Table):
    """Parquet files of each client."""

    called = "a table in Parquet files of data.clients"


class ClientCsvTexts(CsvHeading, CsvFormat, FilesByClient, Texts):
    """Texts in CSV files of each client."""

    called = "data.clients with text_columns"


class ClientParquetTexts(FilesByClient, Texts):
    """Texts in Parquet files of each client."""

    called = "data.clients in Parquet files with text_columns"


class ClientArrays(FilesByClient, Arrays):
    """Archives of each client."""

    called = "an .npz file of data.clients"


class HubTable(HubFiles, OwnerColumn, Table):
    """A table of the Hugging Face Hub."""


class HubTexts(HubFiles, OwnerColumn, Texts):
    """Texts of the Hugging Face Hub."""

    called = "hf with text_columns"


class HubImages(ImageColumn, HubFiles, Images, OwnerColumn, ColumnData):
    """Images of the Hugging Face Hub."""

    called = "hf with image_column"


class InMemory(DataSettings):
    """Data in Python's memory, which ``pomona.data.memory`` puts beside the settings; a record has
    the settings alone.
    """

    _content: Any = PrivateAttr(default=None)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Only what was given."""
        yield from ((k, v) for k, v in super().__repr_args__() if k in self.model_fields_set)


class MemoryArrays(InMemory, Arrays):
    """Arrays in memory."""


class MemoryFrame(InMemory, OwnerColumn, Table):
    """A table in memory."""

    called = "a frame"


class ImageFolder(ImageFiles, Images, ClassNames, OwnPath):
    """Own images, one folder a class."""


class ImageManifest(ImageFiles, Images, LabelThreshold, TargetKind, CsvFormat, OwnPath):
    """Own images or volumes that a CSV file lists."""


class IdxImages(Images, ClassNames, OwnPath):
    """Own images in IDX files."""


class OwnReader(
    TextColumns,
    Tokens,
    ImageColumn,
    HubFiles,
    ImageFiles,
    Images,
    Features,
    OwnerColumn,
    LabelThreshold,
    EventTimes,
    CsvHeading,
    CsvFormat,
    FilesByClient,
    OwnPath,
    DataFolder,
    DataSettings,
):
    """For a reader of the user's own, ``module:function``, which may look at any setting."""


def files(settings: DataSettings) -> tuple[Path, ...]:
    """Return the files and folders that settings name: the path, or those of each client."""
    found = [settings.path] if isinstance(settings, OwnPath) else []
    for client in settings.clients if isinstance(settings, FilesByClient) else ():
        found += [client.train, client.validation, client.test]
    return tuple(path for path in found if path)
