"""Small files of medical images, made on the spot."""

import numpy as np


def write_dicom(path, pixels, **changes):
    """A slice (H, W) as DICOM, without compression; ``changes`` are elements, None to leave one out."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, "1.2.3"
    meta.TransferSyntaxUID = changes.pop("TransferSyntaxUID", ExplicitVRLittleEndian)
    slice_ = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    pixels = np.ascontiguousarray(pixels)
    elements = {
        "SOPClassUID": CTImageStorage, "SOPInstanceUID": "1.2.3", "SeriesInstanceUID": "1.2.4",
        "Rows": pixels.shape[0], "Columns": pixels.shape[1],
        "SamplesPerPixel": 1, "PhotometricInterpretation": "MONOCHROME2", "BitsAllocated": 8 * pixels.itemsize,
        "BitsStored": 8 * pixels.itemsize, "HighBit": 8 * pixels.itemsize - 1,
        "PixelRepresentation": int(pixels.dtype.kind == "i"), "PixelData": pixels.tobytes(),
    } | changes  # fmt: skip
    for name, value in elements.items():
        if value is not None:
            setattr(slice_, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    slice_.save_as(path, enforce_file_format=True)
    return path


def write_series(folder, volume, places=None, **changes):
    """A series of axial slices (D, H, W), written from the last to the first, 2.5 mm apart unless ``places`` says so."""
    for k, slice_ in reversed(list(enumerate(volume))):
        place = 2.5 * k if places is None else places[k]
        spot = {"ImagePositionPatient": [0, 0, place], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
        write_dicom(folder / f"s{(7 * k) % len(volume):03}.dcm", slice_, **{"InstanceNumber": k + 1, **spot, **changes})
    return folder


def write_nifti(path, volume, affine=None, slope=None, shift=0.0):
    """A volume (D, H, W) or (D, H, W, C) as NIfTI with axes x, y, z, to the right, front and head."""
    import nibabel

    axes = np.moveaxis(volume, (0, 1, 2), (2, 1, 0))
    image = nibabel.Nifti1Image(np.ascontiguousarray(axes), np.eye(4) if affine is None else affine)
    if slope is not None:
        image.header.set_slope_inter(slope, shift)
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(image, path)
    return path
