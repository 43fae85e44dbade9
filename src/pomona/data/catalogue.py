"""Catalogue of data sets: name, description, files and search folders of each."""

import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pomona.core.errors import ConfigError, DataError
from pomona.core.files import expanded
from pomona.core.toml import read_file
from pomona.data.array_file import workbook
from pomona.data.axes import BundledImages, BundledTable, PublicImages, PublicTexts
from pomona.data.settings import DataSettings, OwnPath


@dataclass(frozen=True)
class CatalogueEntry:
    """An entry of the catalogue; ``catalogue.toml`` explains its fields."""

    name: str
    reader: str
    kind: str
    shape: str
    about: str
    source: str = ""
    folders: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def settings(self) -> type[DataSettings]:
        """What section data has for it."""
        if self.source:
            return PublicTexts if self.kind == "text" else PublicImages
        return BundledTable if self.kind == "table" else BundledImages

    @property
    def target(self) -> str:
        """The reader, ``module:function`` from its settings to Dataset."""
        return f"pomona.data.{self.reader}"

    def located(self, roots: list[Path]) -> Path | None:
        """Return the file below these folders that identifies it, if there is one."""
        folders = [root / below for root in roots for below in ("", "raw", "gzip")]
        paths = (folder / marker for folder, marker in product(folders, self.markers))
        return next((path for path in paths if path.exists()), None)


@dataclass(frozen=True)
class Listing:
    """A data set in a listing; ``present`` is None for own data, ``where`` its path or how to get
    it.
    """

    name: str
    kind: str
    shape: str
    about: str
    present: bool | None
    where: str


def _entry(name: str, fields: dict[str, Any]) -> CatalogueEntry:
    frozen: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    return CatalogueEntry(name, **frozen)


_TREE = read_file(Path(__file__).with_name("catalogue.toml"))
CATALOGUE = {name: _entry(name, fields) for name, fields in _TREE.items()}
OWN_DATA = {
    "table": "own table (CSV, Parquet, Excel, SPSS, ...): set data.path, data.label_column",
    "text": "own texts in a table: set data.path, data.label_column, data.text_columns",
    "images": "own images or volumes: set data.path to class folders or a table of paths",
    "arrays": "own arrays x, y (x_test, y_test) in an .npz archive: set data.path",
}


def data_dir(setting: Path | None = None) -> Path | None:
    """Return the data folder: the setting, else the environment variable, else None."""
    folder = setting or os.environ.get("POMONA_DATA")
    return expanded(folder) if folder else None


def locate(settings: PublicImages | PublicTexts) -> Path:
    """Return the file that identifies a catalogued data set, below ``path`` if set, else below the
    data folder.

    Raises:
        DataError: it is missing; the message names the places searched and the download.
    """
    entry, base = CATALOGUE[settings.name], data_dir(settings.dir)
    if settings.path is not None and expanded(settings.path).is_file():
        return expanded(settings.path)
    if settings.path is None and base is None:
        raise DataError(
            f"no data folder to find {entry.name} in: point POMONA_DATA or --data-dir at the "
            f"folder that holds {entry.folders[0]}/{entry.markers[0]}, from {entry.source}"
        )
    roots = (
        [expanded(settings.path)]
        if settings.path
        else [(base or Path()) / name for name in entry.folders]
    )
    path = entry.located(roots)
    if path is None:
        raise DataError(
            f"{entry.name} not found: none of {', '.join(entry.markers)} is in "
            f"{', '.join(map(str, roots))}; fetch {entry.source} and put its files there, or "
            "correct POMONA_DATA, --data-dir or data.path"
        )
    return path


def own_path(settings: DataSettings) -> Path:
    """Return the path of own data.

    Raises ConfigError if it is not set, DataError if it does not exist.
    """
    assert isinstance(settings, OwnPath)
    if settings.path is None:
        raise ConfigError("your own data needs a file or folder: set data.path")
    path = expanded(settings.path)
    if not workbook(path)[0].exists():
        raise DataError(f"{path} does not exist; correct data.path")
    return path


def describe(folder: Path | None = None) -> tuple[Listing, ...]:
    """Describe each data set without reading it: content, and whether its files are present in the
    data folder.
    """
    base = data_dir(folder)
    own_data = (Listing(n, n, "any", text, None, "own data") for n, text in OWN_DATA.items())
    return (*(_listing(entry, base) for entry in CATALOGUE.values()), *own_data)


def _listing(entry: CatalogueEntry, base: Path | None) -> Listing:
    present, location = True, "comes with scikit-learn"
    if entry.source:
        path = entry.located([base / folder for folder in entry.folders]) if base else None
        present, location = path is not None, str(path or f"fetch {entry.source}")
    return Listing(entry.name, entry.kind, entry.shape, entry.about, present, location)
