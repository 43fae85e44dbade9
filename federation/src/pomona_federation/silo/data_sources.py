"""Sources of a silo's samples, to detect that two views may hold the same ones."""

from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Annotated, Literal

from pydantic import Field

from pomona.core.bounds import Sha256
from pomona.core.files import reading, sha256
from pomona.core.settings import Settings
from pomona.data.axes import ImageList, files
from pomona.data.settings import DataSettings

MOST_SOURCES = 10_000  # most sources of one data set, over all names that its files have had


class DataSource(Settings):
    """A file or a folder by its real path, else a data set or a reader by its name.

    ``sha256`` is the file's content hash when recorded; "" for everything else.
    """

    place: Annotated[str, Field(min_length=1, max_length=2**14)]
    sha256: Sha256 | Literal[""] = ""

    def shares(self, source: "DataSource") -> bool:
        """Whether both may hold the same samples: equal paths or files, or one folder containing
        the other.
        """
        if self.sha256 and self.sha256 == source.sha256:
            return True
        path, other_path = PurePath(self.place), PurePath(source.place)
        return path == other_path or path in other_path.parents or other_path in path.parents


def sources(data: DataSettings) -> tuple[DataSource, ...]:
    """The sources that settings name: files and folders, else the data set; custom reader code
    always counts.

    A list of images brings its folder, in which all of them are: two lists may name the same.
    """
    data_files = files(data)
    folders = [path.parent for path in data_files] if isinstance(data, ImageList) else []
    paths = [str(path.resolve()) for path in (*data_files, *folders)]
    names = [data.name] if ":" in data.name or not paths else []
    return tuple(DataSource(place=location) for location in dict.fromkeys([*paths, *names]))


def hashed(sources: Iterable[DataSource]) -> tuple[DataSource, ...]:
    """The same sources with the hash of each plain file, by which it is recognised under another
    name.

    Raises StorageError for a file that cannot be read.
    """
    return tuple(
        DataSource(place=source.place, sha256=_sha256(Path(source.place))) for source in sources
    )


def shared(recorded: Iterable[DataSource], current: Iterable[DataSource]) -> bool:
    """Whether any source in ``recorded`` shares samples with any in ``current``."""
    candidates = list(current)
    return any(a.shares(b) for a in recorded for b in candidates)


def with_names(
    recorded: Iterable[DataSource], current: Iterable[DataSource]
) -> tuple[DataSource, ...]:
    """Recorded sources, plus the paths and contents under which the silo's data now hold the same
    files.

    So a moved file is known by its new path before it grows.
    """
    sources = tuple(recorded)
    locations = {source.place for source in sources}
    contents = {source.sha256 for source in sources if source.sha256}
    return tuple(
        dict.fromkeys(
            (
                *sources,
                *(
                    source
                    for source in current
                    if source.place in locations or source.sha256 in contents
                ),
            )
        )
    )


def _sha256(path: Path) -> str:
    if not path.is_absolute() or not path.is_file():
        return ""
    with reading(path, "fix its permissions"):
        return sha256(path)
