"""Images in folders, one folder a class; Tiny-ImageNet's own layout."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pomona.data import pixels
from pomona.data.catalogue import locate, own_path
from pomona.data.dataset import Dataset
from pomona.data.settings import DataSettings
from pomona.data.stored import reading
from pomona.errors import DataError, near
from pomona.memory import allocate

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
GRAY, COLOUR = {"1", "L", "LA"}, {"RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"}

Labelled = list[tuple[Path, int]]


def read(settings: DataSettings) -> Dataset:
    """Own images: one folder a class, perhaps inside train/ with test/ or val/ beside it.

    With both test/ and val/, validation images count as training images. All images must have one size, or ``resize``
    must be set. Colour if any image has colour.
    """
    root = own_path(settings)
    if (root / "val" / "val_annotations.txt").exists():
        return _tiny(root, str(root), settings)
    train = root / "train" if (root / "train").is_dir() else root
    classes = settings.classes or tuple(folder.name for folder in _folders(train))
    beside = [root / part for part in ("val", "test") if train != root and (root / part).is_dir()]
    training, testing = [train, *beside[:-1]], beside[-1:]
    labelled = [[item for part in parts for item in _images(part, classes)] for parts in (training, testing)]
    return _dataset(str(root), labelled[0], labelled[1], classes, settings)


def tiny_imagenet(settings: DataSettings) -> Dataset:
    """Tiny-ImageNet-200: training images by class folder, the annotated validation images for testing."""
    return _tiny(locate(settings).parent.parent, "tiny-imagenet", settings)


def _tiny(root: Path, name: str, settings: DataSettings) -> Dataset:
    classes = tuple(folder.name for folder in _folders(root / "train"))
    notes = root / "val" / "val_annotations.txt"
    index = {label: i for i, label in enumerate(classes)}
    testing: Labelled = []
    with reading(notes):
        lines = notes.read_text(encoding="utf-8").splitlines()
    for line, cells in enumerate((text.split("\t") for text in lines if text), start=1):
        if len(cells) < 2 or cells[1] not in index:
            raise DataError(f"{notes}, line {line}: no file name and known class in {cells[:2]}; fetch it again")
        testing.append((notes.parent / "images" / cells[0], index[cells[1]]))
    return _dataset(name, _images(root / "train", classes), testing, classes, settings)


def _folders(root: Path) -> list[Path]:
    """The folders of the classes, by the alphabet."""
    with reading(root):
        return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(root: Path, classes: Sequence[str]) -> Labelled:
    """The images below each class's folder, in the order of their paths."""
    index = {label: i for i, label in enumerate(classes)}
    labelled: Labelled = []
    for folder in _folders(root):
        if folder.name not in index:
            raise DataError(f"{folder}: no such class among the training images; {near(folder.name, classes)}")
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
        labelled += [(path, index[folder.name]) for path in files]
    return labelled


def _dataset(
    name: str, training: Labelled, testing: Labelled, classes: tuple[str, ...], settings: DataSettings
) -> Dataset:
    labelled = training + testing
    if not training:
        raise DataError(f"{name} has no training images; make a folder for each class and put its images there")
    x = _pixels([path for path, _ in labelled], settings)
    y = np.array([label for _, label in labelled], np.int64)
    return Dataset(name, "image", x, y, classes, len(training), pixels.SHIFT, pixels.SCALE)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """An image, and one DataError for whatever is wrong with its file."""
    try:
        with Image.open(path) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as fault:
        raise DataError(f"cannot read the image {path} ({fault}); replace or remove it") from fault


def _form(path: Path) -> tuple[str, tuple[int, int]]:
    """Mode and (width, height) of an image, from its header alone."""
    with _opened(path) as image:
        mode, size = image.mode, image.size
    if mode not in GRAY | COLOUR:
        raise DataError(f"{path} has pixels of mode {mode}, which 8 bits cannot hold; convert it to 8 bits")
    return mode, size


def _pixels(paths: Sequence[Path], settings: DataSettings) -> NDArray[np.generic]:
    forms = [_form(path) for path in paths]
    mode = "L" if all(form in GRAY for form, _ in forms) else "RGB"
    side = settings.resize
    size = (side, side) if side else forms[0][1]
    odd = next((i for i, (_, own) in enumerate(forms) if own != forms[0][1]), None)
    if odd is not None and not side:
        raise DataError(f"{paths[odd]} is {forms[odd][1]} pixels, {paths[0]} {forms[0][1]}; set data.resize")
    x = allocate((len(paths), size[1], size[0], len(mode)), np.uint8, settings.memory_share)
    for path, pixel in zip(paths, x, strict=True):
        with _opened(path) as image:
            sized = image.convert(mode).resize(size, Image.Resampling.BILINEAR)
            pixel[...] = np.asarray(sized).reshape(pixel.shape)
    return x
