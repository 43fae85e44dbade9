"""Small volumes of two hospitals, one with NIfTI files and one with DICOM series, and their
manifest.

    python examples/small_volumes.py

Half of the 24 volumes have a bright block low in the body, on the left, at the back: not in the
middle, where it would be found in an array of any orientation. The files are for trying
docs/guides/own-data.md without data of your own.
"""

import sys
from pathlib import Path

import nibabel
import numpy as np
import pydicom
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

# the affine that converters give to NIfTI of an axial CT: voxels of 2 x 2 x 3 mm, whose first two
# axes run to the left and to the back
TO_RIGHT_FRONT_HEAD = np.array([[-2.0, 0, 0, 7], [0, -2.0, 0, 7], [0, 0, 3.0, 0], [0, 0, 0, 1]])


def write_slice(path: Path, pixels: np.ndarray, k: int) -> None:
    """A file of a series: slice k, 3 mm above the one before."""
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, CTImageStorage
    file = pydicom.dataset.FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
    file.SOPClassUID, file.SOPInstanceUID, file.SeriesInstanceUID = (
        CTImageStorage,
        f"1.2.3.{k}",
        "1.2.3",
    )
    file.Rows, file.Columns, file.SamplesPerPixel = *pixels.shape, 1
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    file.PhotometricInterpretation, file.RescaleSlope, file.RescaleIntercept = (
        "MONOCHROME2",
        1,
        -1024,
    )
    file.Modality, file.InstanceNumber, file.PixelSpacing = "CT", k + 1, [2, 2]
    file.ImagePositionPatient, file.ImageOrientationPatient = [-7, -7, 3 * k], [1, 0, 0, 0, 1, 0]
    file.PixelData = pixels.tobytes()
    file.save_as(path, enforce_file_format=True)


def main(folder: str = ".") -> None:
    """Write FOLDER/volumes.csv and the files that it lists, in FOLDER/volumes."""
    root, draw = Path(folder), np.random.Generator(np.random.Philox(7))
    (root / "volumes").mkdir(parents=True, exist_ok=True)
    lines = ["path,label,client,split"]
    for k in range(24):
        stored = draw.integers(900, 1100, (5, 8, 8)).astype(np.uint16)  # to head, back, left
        stored[1:3, 4:7, 4:7] += 400 * (k % 2)
        site, name = ("north", f"volumes/{k}.nii.gz") if k < 12 else ("south", f"volumes/{k}")
        if site == "north":
            hounsfield = stored.transpose(2, 1, 0).astype(np.int16) - 1024  # to left, back, head
            nibabel.save(nibabel.Nifti1Image(hounsfield, TO_RIGHT_FRONT_HEAD), root / name)
        else:
            (root / name).mkdir(exist_ok=True)
            for z in range(5):
                write_slice(root / name / f"{z}.dcm", stored[z], z)
        lines.append(
            f"{name},{('healthy', 'lesion')[k % 2]},{site},{'test' if k % 12 > 8 else 'train'}"
        )
    (root / "volumes.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
