"""Files that are no readable image: what the frequent ones are, and what to do with them."""

from collections.abc import Sequence
from pathlib import Path

from pomona.core import files

_CONTENTS = {
    "a whole-slide image; export tiles as PNG or TIFF (OpenSlide, QuPath)": "svs ndpi scn mrxs",
    "a file of a microscope; export it as OME-TIFF (Fiji with Bio-Formats)": "czi lif nd2 oib lsm",
    "a HEIF or AVIF photograph; convert it to PNG or TIFF": "heic heif avif",
    "a JPEG 2000, JPEG-LS or JPEG XL image; convert it to PNG or TIFF": "jp2 j2k jls jxl",
    "a volume in a format that is not read; convert it to NIfTI": "mnc gipl mrc vtk vti",
    "raw data of a camera; develop it to TIFF or PNG": "cr2 nef arw dng",
    "a document; export its pictures as PNG": "pdf docx pptx",
    "a video; export its frames as PNG, in a folder for each video": "mp4 avi mov mkv",
    "NumPy data; store arrays x and y in one .npz file, and set data.path to it": "npy npz",
    "a file of arrays; store arrays x and y in one .npz file": "mat h5 hdf5 h5ad nc zarr pt",
    "an archive; unpack it": "zip tar 7z rar",
}
BY_SUFFIX = {f".{end}": text for text, suffixes in _CONTENTS.items() for end in suffixes.split()}
# the first bytes of what often has the wrong suffix
_SIGNATURES = {
    b"%PDF": ".pdf",
    b"PK\3\4": ".zip",
    b"\0\0\0\x0cjP": ".jp2",
    b"\x93NUMPY": ".npy",
    b"\x89HDF": ".h5",
}
_PHOTOGRAPHS = {b"heic", b"heix", b"mif1", b"avif"}


def by_content(path: Path, formats: Sequence[str]) -> str:
    """Return the message for a file that is none of these formats, by its first bytes."""
    with files.opened(path) as raw:
        start = raw.read(132)
    suffix = next((end for magic, end in _SIGNATURES.items() if start.startswith(magic)), "")
    if start[4:8] == b"ftyp":
        suffix = ".heic" if start[8:12] in _PHOTOGRAPHS else ".mp4"
    if suffix:
        return f"{path} is {BY_SUFFIX[suffix]} (by its content, whatever its name)"
    if start[128:] == b"DICM" or start[:4] in {b"II*\0", b"MM\0*"} or start[:2] == b"\x1f\x8b":
        return f"{path} is DICOM, TIFF or gzip by content; give it its suffix (.dcm, .tif, .nii.gz)"
    reason = f"it is not {', '.join(formats)}" if start else "it is empty"
    return f"cannot read the image {path} ({reason}); replace or remove it"
