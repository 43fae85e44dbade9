"""Files that are no readable image: what they are, and what to do with them."""

from pathlib import Path

from pomona.core import files

PNG = "convert it to PNG or TIFF"
TILES = "export the region or tiles to learn from as PNG or TIFF (OpenSlide, QuPath)"
MICROSCOPE = "export it as OME-TIFF (Fiji with Bio-Formats)"
ARRAYS = "store arrays x and y in one .npz file, and set data.path to it"
FRAMES = "export its frames as PNG, in a folder for each video"
NIFTI = "convert it to NIfTI"
_BY_KIND: dict[tuple[str, str], str] = {
    ("a whole-slide image", TILES): "svs ndpi scn mrxs vms vmu bif tmap",
    ("a file of a microscope", MICROSCOPE): "czi lif nd2 oib oif lsm vsi stk ics ids",
    ("a HEIF or AVIF photograph", PNG): "heic heif avif hif",
    ("a JPEG 2000, JPEG XL or JPEG XR image", PNG): "jp2 j2k j2c jpx jpf jxl jxr wdp",
    ("raw data of a camera", "develop it to TIFF or PNG"): "cr2 cr3 nef arw dng raf orf rw2",
    ("an image with layers", PNG): "psd xcf kra",
    ("a drawing", PNG): "svg eps ps ai emf wmf",
    ("a document", "export its pictures as PNG"): "pdf doc docx ppt pptx djvu",
    ("a video", FRAMES): "mp4 avi mov mkv wmv webm m4v mpg mpeg flv",
    ("NumPy data", ARRAYS): "npy npz",
    ("a file of arrays", ARRAYS): "mat h5 hdf5 he5 zarr tfrecord tfrecords pt pth",
    ("a volume of another format", NIFTI): "mnc minc par rec v ecat 2dseq fdf brik head",
    ("an image of high dynamic range", "save it as TIFF of real numbers"): "exr rgbe pfm",
    ("an icon or texture", PNG): "ico tga dds sgi pcx",
    ("an archive", "unpack it"): "zip tar tgz 7z rar xz",
}
BY_SUFFIX = {
    f".{suffix}": kind for kind, suffixes in _BY_KIND.items() for suffix in suffixes.split()
}
# the first bytes of what may have the wrong suffix
_STARTS = {
    b"%PDF": ".pdf",
    b"%!PS": ".ps",
    b"PK\3\4": ".zip",
    b"\0\0\0\x0cjP": ".jp2",
    b"\xff\x4f\xff\x51": ".jp2",
    b"\x93NUMPY": ".npy",
    b"\x89HDF": ".h5",
    b"8BPS": ".psd",
    b"\x76\x2f\x31\x01": ".exr",
    b"RIFF": ".avi",
    b"<svg": ".svg",
}
_BRANDS = {b"heic": ".heic", b"heix": ".heic", b"mif1": ".heic", b"avif": ".avif"}


def kind_of(path: Path) -> str:
    """Return what a file is by its suffix, and what to do; nothing for other files."""
    kind = BY_SUFFIX.get(path.suffix.lower())
    return f"is {kind[0]}, which is not read; {kind[1]}" if kind else ""


def kind_by_content(path: Path) -> str:
    """Return what a file with the suffix of an image is by its first bytes, and what to do; nothing
    for other files.
    """
    with files.opened(path) as raw:
        start = raw.read(132)
    if start[128:] == b"DICM":
        return f"is DICOM by its content; rename it to {path.stem}.dcm"
    if start[:2] == b"\x1f\x8b" or start[344:347] == b"n+1":
        return "is packed (gzip) or a volume; give it the suffix of its format, as .nii.gz"
    if start[4:8] == b"ftyp":
        suffix = _BRANDS.get(start[8:12], ".mp4")
    else:
        suffix = next((s for magic, s in _STARTS.items() if start.startswith(magic)), "")
    if not suffix:
        return ""
    what, remedy = BY_SUFFIX[suffix]
    return f"is {what} by its content, whatever its name; {remedy}"
