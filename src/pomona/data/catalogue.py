"""Catalogue of data sets: name, description, files and search folders of each."""

import os
from dataclasses import dataclass
from pathlib import Path

from pomona.core.errors import ConfigError, DataError
from pomona.core.files import expanded
from pomona.data.axes import BundledImages, BundledTable, PublicImages, PublicTexts
from pomona.data.settings import DataSettings, OwnPath


@dataclass(frozen=True)
class CatalogueEntry:
    """An entry of the catalogue.

    Attributes:
        name: the name in settings.
        settings: what section data has for it.
        target: the reader, ``module:function`` from these settings to Dataset.
        kind: image, table or text.
        shape: shape of one input, for display.
        about: content and size, for display.
        source: the public data set to download; empty if there is none.
        folders: possible locations below the data folder.
        markers: files that identify the data set, preferred form first.
    """

    name: str
    settings: type[DataSettings]
    target: str
    kind: str
    shape: str
    about: str
    source: str = ""
    folders: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()


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


def _idx(
    name: str, about: str, source: str, folders: tuple[str, ...], prefix: str = ""
) -> CatalogueEntry:
    marker = f"{prefix}train-images-idx3-ubyte"
    places = tuple(f"{folder}{raw}" for folder in folders for raw in ("", "/raw", "/gzip"))
    return _images(name, "idx:read", "28x28x1", about, source, places, (marker, f"{marker}.gz"))


def _emnist(split: str, about: str) -> CatalogueEntry:
    name, source = f"emnist-{split}", "EMNIST (Cohen et al. 2017), IDX files"
    return _idx(name, about, source, (name, name.replace("-", "_"), "emnist", "EMNIST"), f"{name}-")


def _medmnist(stem: str, channels: int, about: str) -> CatalogueEntry:
    name, source = f"{stem}mnist", "MedMNIST v2 (Yang et al. 2023), 28 x 28"
    shape, places = f"28x28x{channels}", (".", name, "medmnist")
    return _images(name, "published:medmnist", shape, about, source, places, (f"{name}.npz",))


def _cifar(number: int, about: str, markers: tuple[str, ...]) -> CatalogueEntry:
    name, source = f"cifar{number}", f"CIFAR-{number} (Krizhevsky 2009), binary version"
    markers = (f"cifar-{number}-binary.tar.gz", *markers)
    places = (name, f"cifar-{number}", f"cifar_{number}", ".")
    return _images(name, "cifar:read", "32x32x3", about, source, places, markers)


def _images(
    name: str,
    reader: str,
    shape: str,
    about: str,
    source: str,
    folders: tuple[str, ...],
    markers: tuple[str, ...],
) -> CatalogueEntry:
    target = f"pomona.data.{reader}"
    return CatalogueEntry(
        name, PublicImages, target, "image", shape, about, source, folders, markers
    )


_ENTRIES = (
    CatalogueEntry(
        "digits",
        BundledImages,
        "pomona.data.published:digits",
        "image",
        "8x8x1",
        "handwritten digits, 10 classes, 1,797 rows",
    ),
    CatalogueEntry(
        "breast-cancer",
        BundledTable,
        "pomona.data.published:breast_cancer",
        "table",
        "30",
        "tumour nuclei, 2 classes, 569 rows",
    ),
    _idx(
        "mnist",
        "digits, 10 classes, 60,000 + 10,000",
        "MNIST (LeCun, Cortes, Burges), IDX files",
        ("mnist", "MNIST"),
    ),
    _idx(
        "fashion-mnist",
        "clothes, 10 classes, 60,000 + 10,000",
        "Fashion-MNIST (Xiao et al. 2017), IDX files",
        ("fashion-mnist", "fashion_mnist", "FashionMNIST"),
    ),
    _emnist("byclass", "digits and letters, 62 classes, 697,932 + 116,323"),
    _emnist("bymerge", "digits and letters, 47 classes, 697,932 + 116,323"),
    _emnist("balanced", "digits and letters, 47 classes, 112,800 + 18,800"),
    _emnist("letters", "letters, 26 classes, 124,800 + 20,800"),
    _emnist("digits", "digits, 10 classes, 240,000 + 40,000"),
    _emnist("mnist", "digits, 10 classes, 60,000 + 10,000"),
    _cifar(
        10,
        "photographs, 10 classes, 50,000 + 10,000",
        ("cifar-10-batches-bin/data_batch_1.bin", "data_batch_1.bin", "cifar10.npz"),
    ),
    _cifar(
        100,
        "photographs, 100 classes, 50,000 + 10,000",
        ("cifar-100-binary/train.bin", "train.bin", "cifar100.npz", "cifar100_subset.npz"),
    ),
    _medmnist("path", 3, "colon tissue, 9 classes, 100,000 + 7,180"),
    _medmnist("chest", 1, "chest X-rays, 14 flags, 89,687 + 22,433"),
    _medmnist("derma", 3, "skin lesions, 7 classes, 8,010 + 2,005"),
    _medmnist("oct", 1, "retinal tomography, 4 classes, 108,309 + 1,000"),
    _medmnist("pneumonia", 1, "chest X-rays, 2 classes, 5,232 + 624"),
    _medmnist("retina", 3, "retinal photographs, 5 grades, 1,200 + 400"),
    _medmnist("breast", 1, "breast ultrasound, 2 classes, 624 + 156"),
    _medmnist("blood", 3, "blood cells, 8 classes, 13,671 + 3,421"),
    _medmnist("tissue", 1, "kidney cells, 8 classes, 189,106 + 47,280"),
    _medmnist("organa", 1, "abdominal CT, axial, 11 classes, 41,072 + 17,778"),
    _medmnist("organc", 1, "abdominal CT, coronal, 11 classes, 15,392 + 8,268"),
    _medmnist("organs", 1, "abdominal CT, sagittal, 11 classes, 16,392 + 8,829"),
    _images(
        "tiny-imagenet",
        "images.folders:tiny_imagenet",
        "64x64x3",
        "photographs, 200 classes, 100,000 + 10,000",
        "Tiny-ImageNet-200 (Stanford CS231n), unzipped",
        ("tiny-imagenet", "tiny_imagenet", "tiny-imagenet-200"),
        ("val/val_annotations.txt", "tiny-imagenet-200/val/val_annotations.txt"),
    ),
    CatalogueEntry(
        "ag-news",
        PublicTexts,
        "pomona.data.text:ag_news",
        "text",
        "200 tokens",
        "news, 4 classes, 120,000 + 7,600",
        "AG's News, version 3 (Zhang, Zhao, LeCun 2015), CSV files",
        ("ag-news", "ag_news", "ag_news_csv"),
        ("train.csv", "test.csv"),
    ),
)
CATALOGUE = {entry.name: entry for entry in _ENTRIES}
OWN = {
    "table": "own table (CSV, Parquet, Excel, SPSS, ...): set data.path, data.label_column",
    "text": "own texts in a table: set data.path, data.label_column, data.text_columns",
    "images": "own images or volumes: set data.path to class folders or a table of paths",
    "arrays": "own arrays x, y (x_test, y_test) in an .npz archive: set data.path",
}


def data_dir(setting: Path | None = None) -> Path | None:
    """Return the data folder: the setting, else the environment variable, else None."""
    named = setting or os.environ.get("POMONA_DATA")
    return expanded(named) if named else None


def _found(entry: CatalogueEntry, roots: list[Path]) -> Path | None:
    paths = (root / marker for root in roots for marker in entry.markers)
    return next((path for path in paths if path.exists()), None)


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
    found = _found(entry, roots)
    if found is None:
        raise DataError(
            f"{entry.name} not found: none of {', '.join(entry.markers)} is in "
            f"{', '.join(map(str, roots))}; fetch {entry.source} and put its files there, or "
            "correct POMONA_DATA, --data-dir or data.path"
        )
    return found


def own_path(settings: DataSettings) -> Path:
    """Return the path of own data.

    Raises ConfigError if it is not set, DataError if it does not exist.
    """
    assert isinstance(settings, OwnPath)
    if settings.path is None:
        raise ConfigError("own data need a file or folder: set data.path")
    path = expanded(settings.path)
    if not path.exists():
        raise DataError(f"{path} does not exist; correct data.path")
    return path


def describe(folder: Path | None = None) -> tuple[Listing, ...]:
    """Describe each data set without reading it: content, and whether its files are present in the
    data folder.
    """
    base = data_dir(folder)
    own = (Listing(name, name, "any", about, None, "own data") for name, about in OWN.items())
    return (*(_listing(entry, base) for entry in _ENTRIES), *own)


def _listing(entry: CatalogueEntry, base: Path | None) -> Listing:
    if entry.markers:
        found = base and _found(entry, [base / folder for folder in entry.folders])
        present, where = found is not None, str(found) if found else f"fetch {entry.source}"
    else:
        present, where = True, "comes with scikit-learn"
    return Listing(entry.name, entry.kind, entry.shape, entry.about, present, where)
