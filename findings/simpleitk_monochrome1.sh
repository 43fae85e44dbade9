#!/usr/bin/env bash
# One would guess: SimpleITK gives a CT's Hounsfield units, slope * stored + intercept, whatever the photometric interpretation, which is about display.
# What happens: stored numbers of MONOCHROME1 are inverted first: the value 24 HU comes out as 2023 for 12 bits. pydicom gives 24. simpleitk 2.5.7.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" simpleitk==2.5.7 pydicom==3.0.2 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import numpy as np, pydicom, SimpleITK as sitk
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian
meta = FileMetaDataset()
meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = ExplicitVRLittleEndian, CTImageStorage, "1.2.3"
d = FileDataset("a.dcm", {}, file_meta=meta, preamble=bytes(128))
d.SOPClassUID, d.SOPInstanceUID, d.SeriesInstanceUID, d.StudyInstanceUID, d.Modality = CTImageStorage, "1.2.3", "1.2.4", "1.2.5", "CT"
d.Rows = d.Columns = 4
d.SamplesPerPixel, d.PhotometricInterpretation, d.BitsAllocated, d.BitsStored, d.HighBit, d.PixelRepresentation = 1, "MONOCHROME1", 16, 12, 11, 0
d.RescaleSlope, d.RescaleIntercept, d.PixelSpacing = 1, -1024, [1, 1]
d.ImagePositionPatient, d.ImageOrientationPatient = [0, 0, 0], [1, 0, 0, 0, 1, 0]
d.PixelData = np.full((4, 4), 1048, np.uint16).tobytes()
d.save_as("a.dcm", enforce_file_format=True)
read = sitk.GetArrayFromImage(sitk.ReadImage("a.dcm")).ravel()[0]
d = pydicom.dcmread("a.dcm")
right = pydicom.pixels.apply_modality_lut(d.pixel_array, d).ravel()[0]
print("simpleitk", sitk.Version_VersionString(), read, "pydicom", pydicom.__version__, right)
assert right == 24 and read == 4095 - 1048 - 1024
PY
