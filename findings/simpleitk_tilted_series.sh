#!/usr/bin/env bash
# One would guess: a CT series with gantry tilt gives SimpleITK an image whose points lie where the headers say.
# What happens: the image is a right-angled block along the normal: the last of six slices is 5.2 mm away from its header's position.
# Versions: simpleitk 2.5.7, pydicom 3.0.2 (which writes the files).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" simpleitk==2.5.7 pydicom==3.0.2 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import numpy as np, SimpleITK as sitk
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian
c, s = np.cos(np.deg2rad(20)), np.sin(np.deg2rad(20))
for k in range(6):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = ExplicitVRLittleEndian, CTImageStorage, f"1.2.3.{k}"
    d = FileDataset(f"{k}.dcm", {}, file_meta=meta, preamble=bytes(128))
    d.SOPClassUID, d.SOPInstanceUID, d.SeriesInstanceUID, d.StudyInstanceUID, d.Modality = CTImageStorage, f"1.2.3.{k}", "1.2.4", "1.2.5", "CT"
    d.Rows = d.Columns = 8
    d.SamplesPerPixel, d.PhotometricInterpretation, d.BitsAllocated, d.BitsStored, d.HighBit, d.PixelRepresentation = 1, "MONOCHROME2", 16, 16, 15, 1
    d.PixelSpacing, d.SliceThickness, d.RescaleSlope, d.RescaleIntercept = [2, 2], 3, 1, 0
    d.ImagePositionPatient, d.ImageOrientationPatient = [0, 0, 3.0 * k], [1, 0, 0, 0, round(c, 8), round(-s, 8)]
    d.PixelData = np.zeros((8, 8), np.int16).tobytes()
    d.save_as(f"{k}.dcm", enforce_file_format=True)
image = sitk.ReadImage([f"{k}.dcm" for k in range(6)])
last = np.array(image.TransformIndexToPhysicalPoint((0, 0, 5)))
apart = np.linalg.norm(last - [0, 0, 15])
print("simpleitk", sitk.Version_VersionString(), "last slice at", last.round(3), "header [0, 0, 15], mm apart", apart.round(3))
assert apart > 4
PY
