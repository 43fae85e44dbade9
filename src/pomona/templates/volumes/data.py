"""Writes volumes.csv and the NIfTI files that it lists: python data.py

The volumes are made up, so that the project runs at once: noise, with a bright spot in a lesion.
List your own files instead: NIfTI, NRRD, or folders with a DICOM series.
"""

import csv
from pathlib import Path

import nibabel
import numpy as np

BRIGHTNESS = {"north": 600, "east": 700, "south": 800, "west": 900}  # by site


def main() -> None:
    """Write 12 volumes of each class at each site, always the same."""
    draw = np.random.default_rng(7)
    Path("volumes").mkdir(exist_ok=True)
    with Path("volumes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label", "client"])
        for site, brightness in BRIGHTNESS.items():
            for number in range(24):
                label, contrast = ("lesion", 400) if number % 2 else ("healthy", 0)
                voxels = draw.normal(brightness, 50, (8, 8, 8))
                x, y, z = draw.integers(0, 5, 3)
                voxels[x : x + 3, y : y + 3, z : z + 3] += contrast
                path = Path("volumes", f"{site}-{number}.nii.gz")
                nibabel.save(nibabel.Nifti1Image(voxels.astype(np.int16), np.eye(4)), path)
                rows.writerow([path.as_posix(), label, site])


if __name__ == "__main__":
    main()
