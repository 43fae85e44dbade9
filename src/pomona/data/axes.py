"""The settings of section ``data``, composed of three axes.

Its *content* (a table, texts, images, arrays), its *location* (a path, files of each client, a
repository of the Hub, a program's memory) and its *format* (CSV, Parquet, class folders, ...) each
bring groups of settings. A setting that only another content, location or format has is refused by
name. A new format is one entry of ``FORMATS``; of tables, one of ``data/formats``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PrivateAttr

from pomona.data.array_file import workbook
from pomona.data.formats import formats
from pomona.data.settings import (
    DEFAULT,
    ClassNames,
    DataFolder,
    DataSettings,
    EventTimes,
    FilesByClient,
    HubFiles,
    ImageFiles,
    ImageFolders,
    Images,
    OwnPath,
    TargetKind,
)
from pomona.data.table_settings import (
    Columns,
    CsvFormat,
    Features,
    ImageColumn,
    LabelThreshold,
    OwnerColumn,
    TextColumns,
    Tokens,
)

Group = type[DataSettings]
Name = Annotated[str, Field(description=DataSettings.model_fields["name"].description)]


class ColumnData(Columns, LabelThreshold, EventTimes):
    """Rows with labels in columns."""


class Table(Features, ColumnData):
    """Tables, in any file."""


class Texts(TextColumns, Tokens, ColumnData):
    """Texts in columns, in any file."""


class Arrays(Images, EventTimes):
    """Arrays x and y, of numbers, images or volumes."""


class Pictures(Images, ClassNames):
    """Images or volumes."""


class PictureRows(ImageColumn, Images, ColumnData):
    """Images in a column of a table."""


class ImageList(ImageFiles, Images, LabelThreshold, TargetKind, CsvFormat):
    """A table that lists image files."""


class InMemory(DataSettings):
    """Memory.

    ``pomona.data.memory`` attaches the data to the settings; a record has the settings alone.

    Attributes:
        memory: The data were in a Python program's memory; not for files.
    """

    memory: Literal[True] = True
    _content: Any = PrivateAttr(default=None)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Only what was given."""
        yield from ((k, v) for k, v in super().__repr_args__() if k in self.model_fields_set)


class FileFormat(DataSettings):
    """Format of files.

    Attributes:
        format: Format of the files, where their suffix does not tell it.
    """

    format: str = Field("", max_length=80)


class AxisValue(NamedTuple):
    """A value of one axis.

    Attributes:
        name: in settings, or for messages.
        title: in messages, completing "data ...".
        groups: the settings that it brings.
    """

    name: str
    title: str
    groups: tuple[Group, ...] = ()


def _by_name(*values: AxisValue) -> dict[str, AxisValue]:
    return {value.name: value for value in values}


def _table_formats() -> dict[str, AxisValue]:
    """Return the formats of tables, as their registry has them."""
    values = tuple(
        AxisValue(
            table_format.name,
            f"in {table_format.title} files",
            (table_format.settings,) if table_format.settings else (),
        )
        for table_format in dict.fromkeys(formats().values())
    )
    groups = tuple(dict.fromkeys(group for value in values for group in value.groups))
    return _by_name(*values, AxisValue("mixed", "in files of several formats", groups))


CONTENTS = _by_name(
    AxisValue("table", "a table", (Table,)),
    AxisValue("text", "texts", (Texts,)),
    AxisValue("images", "images", (Pictures,)),
    AxisValue("arrays", "arrays", (Arrays,)),
)
LOCATIONS = _by_name(
    AxisValue("path", "at data.path", (FileFormat, OwnPath)),
    AxisValue("clients", "of data.clients", (FileFormat, FilesByClient)),
    AxisValue("repository", "of the Hugging Face Hub", (HubFiles,)),
    AxisValue("memory", "in memory", (InMemory,)),
)
_TABLES = _table_formats()
FORMATS = {
    "table": _TABLES,
    "text": _TABLES,
    "images": _by_name(
        AxisValue("folders", "in class folders", (ImageFolders,)),
        AxisValue("list", "that a table lists", (ImageList,)),
        AxisValue("idx", "in IDX files"),
    ),
    "arrays": _by_name(AxisValue("npz", "in .npz archives")),
}


@dataclass(frozen=True)
class Source:
    """What data are, where they are, and in which format; names of ``CONTENTS``, ``LOCATIONS`` and
    ``FORMATS``.
    """

    content: str
    location: str
    format: str = ""

    @property
    def values(self) -> tuple[AxisValue, ...]:
        """The values of the axes."""
        formats = FORMATS[self.content]
        return (
            CONTENTS[self.content],
            LOCATIONS[self.location],
            *([formats[self.format]] if self.format in formats else []),
        )

    @property
    def title(self) -> str:
        """The data in messages."""
        content, location, *formats = self.values
        return f"{content.title} {(formats or [location])[0].title}"

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of settings that the data have."""
        groups = [group for value in self.values for group in value.groups]
        if self.content == "images" and self.location == "repository":
            groups = [HubFiles, PictureRows]
        if self.location != "clients" and any(issubclass(group, Columns) for group in groups):
            groups.append(OwnerColumn)
        return tuple(groups)


class BundledImages(Images):
    """Images that come with a library."""

    name: Name = DEFAULT


class BundledTable(DataSettings):
    """A table that comes with a library."""


class PublicImages(Images, OwnPath, DataFolder):
    """Images of the catalogue."""


class PublicTexts(Tokens, OwnPath, DataFolder):
    """Texts of the catalogue."""


class OwnData(DataSettings):
    """The user's own data.

    Attributes:
        source: content, location and format.
    """

    source: ClassVar[Source]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.source, self.__getstate__())


def _restored(source: Source, state: Any) -> DataSettings:
    """Return unpickled settings: their class is composed in the process that needs it."""
    composed = settings_class(source)
    settings = composed.__new__(composed)
    settings.__setstate__(state)
    return settings


@cache
def settings_class(source: Source) -> type[OwnData]:
    """Return the class of settings that data of a source have."""
    members = {
        "__doc__": f"{source.title}.",
        "__annotations__": {"name": Name},
        "name": source.content,
        "source": source,
    }
    name = "".join(value.name.title() for value in source.values)
    return type(name, minimal((*source.groups, OwnData)), members)


def minimal(groups: Iterable[Group]) -> tuple[Group, ...]:
    """Return the groups without those that another one extends, to be bases of one class."""
    distinct = tuple(dict.fromkeys(groups))
    return tuple(g for g in distinct if not any(issubclass(h, g) for h in distinct if h is not g))


@cache
def sources() -> tuple[Source, ...]:
    """Return every source of own data."""
    files = [
        Source(content, location, file_format)
        for content, location in product(CONTENTS, ("path", "clients"))
        for file_format in FORMATS[content]
        if (content, location) != ("images", "clients")
    ]
    hub = [Source(content, "repository") for content in ("table", "text", "images")]
    return (*files, *hub, Source("table", "memory"), Source("arrays", "memory"))


ALL_GROUPS = minimal(group for source in sources() for group in source.groups)


CustomReader: Group = type(
    "CustomReader",
    minimal((*ALL_GROUPS, DataFolder)),
    {"__doc__": "For a reader of the user's own, ``module:function``, which may use any setting."},
)


def files(settings: DataSettings) -> tuple[Path, ...]:
    """Return the files and folders that settings name: the path, or those of each client."""
    paths = [settings.path] if isinstance(settings, OwnPath) else []
    for client in settings.clients if isinstance(settings, FilesByClient) else ():
        paths += [client.train, client.validation, client.test]
    return tuple(workbook(path)[0] for path in paths if path)
