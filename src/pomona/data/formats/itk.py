"""Images and volumes that SimpleITK reads: NRRD (.nrrd, .nhdr) and MetaImage (.mha, .mhd)."""

import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core import bounds, files
from pomona.core.errors import DataError, listed
from pomona.data.array_file import file
from pomona.data.images import package
from pomona.data.images.grid import LPS_TO_RAS, Grid
from pomona.data.images.image_file import ROUNDED, ImageFile, in_mm, scaled, stored_type, volume

MOST_HEADER = 1 << 20  # bytes
MOST_SEGMENTS = 2**16 - 1  # as in DICOM
DATA_FILE = re.compile(
    rb"^(?:data ?file|ElementDataFile)\s*[:=]\s*(.*?)\s*$", re.MULTILINE | re.IGNORECASE
)
# what a header has if it says where its voxels lie in the patient; NRRD has other spaces too
ORIENTED = re.compile(
    rb"^(?:space\s*:\s*(?:(?:left|right)-(?:anterior|posterior)-superior|[LR][AP]S)"
    rb"|(?:TransformMatrix|Rotation|Orientation)\s*[:=])",
    re.MULTILINE | re.IGNORECASE,
)
# a scale of the values, which ITK ignores
SCALED = re.compile(
    rb"^(old ?m(?:in|ax)|ElementToIntensityFunction\w+)\s*[:=]", re.MULTILINE | re.IGNORECASE
)
# of lengths, which ITK ignores
UNITS = re.compile(rb"^(?:(?:space )?units|DistanceUnits)\s*[:=](.*)", re.MULTILINE | re.IGNORECASE)
BZIP2 = re.compile(rb"^encoding\s*:\s*bz", re.MULTILINE | re.IGNORECASE)
# of 3D Slicer
SEGMENT = re.compile(rb"^Segment(\d+)_(Name|LabelValue):=(.*?)\s*$", re.MULTILINE)


def opened(path: Path) -> ImageFile:
    """Open an image (H, W, C) or a volume (D, H, W, C) from its header.

    Raises:
        DataError: not such a file, or numbers or axes that are not read.
        ConfigError: SimpleITK is not installed.
    """
    header = _header(path)
    if BZIP2.search(header):
        raise DataError(f"{path} is packed by bzip2, which is not read; save it by gzip, or raw")
    reader = _reader(path)
    size, channels = tuple(map(int, reader.GetSize())), int(reader.GetNumberOfComponents())
    dtype, attributes = _dtype(path, reader), _attributes(path, header, reader)
    load = partial(_values, path, dtype)
    if len(size) == 2:
        shape = (*size[::-1], channels)
        return ImageFile(path, shape, dtype, load, traits=_traits(reader), **attributes)
    if len(size) != 3:
        raise DataError(
            f"{path} has {len(size)} axes ({' x '.join(map(str, size))}); a volume has three: "
            "save each time point, or each layer of segments, in its own file"
        )
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(reader.GetDirection(), (3, 3)) * reader.GetSpacing()
    affine[:3, 3] = reader.GetOrigin()
    oriented = ORIENTED.search(header) is not None
    grid = Grid.from_affine(path, size, LPS_TO_RAS @ affine if oriented else affine, oriented)
    if channels > 1:
        line = f"the {channels} components of each voxel are read as channels"
        attributes["notes"] += (line,)
    return volume(grid, channels, dtype, lambda: load().transpose(2, 1, 0, 3), **attributes)


def _traits(reader: Any) -> tuple[tuple[str, str], ...]:
    """Return to which axes of space rows and columns of an image run, and its pixels' size."""
    axes = np.reshape(reader.GetDirection(), (2, 2)).T
    largest = zip(axes, abs(axes).argmax(axis=1), strict=True)
    sides = ", ".join(("x", "-x", "y", "-y")[2 * k + int(axis[k] < 0)] for axis, k in largest)
    return ("rows and columns to", sides), ("pixels of", in_mm(reader.GetSpacing()[::-1]))


def _attributes(path: Path, header: bytes, reader: Any) -> dict[str, Any]:
    """Return further attributes of an ``ImageFile``: segments and remarks."""
    notes = [ROUNDED] if "64-bit float" in _type_name(path, reader) else []
    if scaled_by := sorted({name.decode() for name in SCALED.findall(header)}):
        notes.append(f"the header scales the values ({listed(scaled_by)}), which is not applied")
    units = {*re.findall(r"[^\W\d_]+", b" ".join(UNITS.findall(header)).decode(errors="replace"))}
    if units := units - {"mm", "millimeter", "millimeters"}:
        notes.append(f"the header gives lengths in {listed(sorted(units))}, which count as mm here")
    facts: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
    for number, key, text in SEGMENT.findall(header):
        facts[number][key] = text
    segments = [
        (_label(path, fact.get(b"LabelValue", b"1")), fact.get(b"Name", b""))
        for fact in facts.values()
    ]
    names = tuple(
        (number, bounds.plain(name.decode(errors="replace"), 60))
        for number, name in segments
        if number  # 0 is the background
    )
    if len(dict(names)) < len(names):
        raise DataError(
            f"{path} has segments with one LabelValue, in layers; export them as one label map"
        )
    return {"segments": names, "notes": tuple(notes)}


def _label(path: Path, text: bytes) -> int:
    """Return a segment's number in the mask. Raises DataError for one that cannot be."""
    if text.isdigit() and len(text) <= len(str(MOST_SEGMENTS)) and int(text) <= MOST_SEGMENTS:
        return int(text)
    raise DataError(
        f"{path} gives a segment the LabelValue {bounds.plain(text.decode(errors='replace'), 20)}; "
        "renumber the segments from 1 on"
    )


def _header(path: Path) -> bytes:
    """Return the text of a header.

    Raises DataError for a header that names a data file elsewhere, or several.
    """
    with files.opened(file(path)) as raw:
        text = raw.read(MOST_HEADER).replace(b"\r", b"")
    is_nrrd = text.startswith(b"NRRD")
    if is_nrrd:
        text = text.partition(b"\n\n")[0]
    elif b"NDims" not in text:  # SimpleITK would print
        raise DataError(f"{path} is not an NRRD or MetaImage file; save it again, or as NIfTI")
    if not (data_file := DATA_FILE.search(text)):
        return text
    name = data_file[1].decode("utf-8", "replace")
    if name not in {"", "LOCAL"}:
        if Path(name).name != name or name.upper().startswith("LIST") or "%" in name:
            raise DataError(
                f"{path} names its data file {bounds.plain(name, 80)!r}; it must be one file in "
                "the same folder: save it as .nrrd or .mha, in one file"
            )
        file(path.parent / name)
    return text if is_nrrd else text[: data_file.end()]


def _reader(path: Path) -> Any:
    """Return SimpleITK's reader of the suffix, with the header read. Raises DataError."""
    simpleitk = package("SimpleITK", path)
    simpleitk.ProcessObject.SetGlobalDefaultNumberOfThreads(1)
    reader = simpleitk.ImageFileReader()
    # chosen by the suffix, never by the content
    reader.SetImageIO("MetaImageIO" if path.suffix.lower().startswith(".m") else "NrrdImageIO")
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError as fault:
        reason = bounds.plain(str(fault).strip().splitlines()[-1], 80)
        raise DataError(f"cannot read {path} ({reason}); save it again, or as NIfTI") from None
    return reader


def _type_name(path: Path, reader: Any) -> str:
    """Return the type of the values, as "vector of 16-bit signed integer"."""
    return str(package("SimpleITK", path).GetPixelIDValueAsString(reader.GetPixelID()))


def _dtype(path: Path, reader: Any) -> np.dtype[Any]:
    """Return the image dtype that holds all values. Raises DataError for complex numbers."""
    name = _type_name(path, reader)
    if "complex" in name or "label" in name:
        raise DataError(f"{path} holds {name}; store whole or real numbers")
    number = "float" if "float" in name else "uint" if "unsigned" in name else "int"
    bits = name.partition("-bit")[0].split()[-1]
    return stored_type(np.dtype(f"{number}{bits}"))


def _values(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values (z, y, x, C) or (y, x, C) as stored."""
    image = _reader(path).Execute()
    values = package("SimpleITK", path).GetArrayFromImage(image)
    channels = image.GetNumberOfComponentsPerPixel()
    return scaled(values if channels > 1 else values[..., np.newaxis], 1.0, 0.0, dtype, path)
