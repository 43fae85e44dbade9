#!/usr/bin/env bash
# One would guess: dcm2niix refuses a CT series whose slices are unevenly apart, or gives the mean distance.
# What happens: it exits with 0 and writes two volumes: one with the first distance throughout, whose last slice lies 20 mm from its header's
# position, and one resampled (_Eq_1) with twice the slices. Nothing in the first one's header or JSON tells; only a line on the terminal does.
# Versions: dcm2niix 1.0.20260724, nibabel 5.4.2 (which reads the results), pydicom 3.0.2 (which writes the files).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" dcm2niix==1.0.20260724 nibabel==5.4.2 pydicom==3.0.2 numpy==2.4.6
cd "$folder" && mkdir series volumes && PYTHONPATH=$folder python3 - <<'PY'
import json, subprocess
import dcm2niix, nibabel as nib, numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian
positions = [0, 1, 2, 3, 4, 9, 14, 19, 24, 29]  # mm
for k, z in enumerate(positions):
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = ExplicitVRLittleEndian, CTImageStorage, f"1.2.3.{k + 1}"
    d = FileDataset(f"{k}.dcm", {}, file_meta=meta, preamble=bytes(128))
    d.SOPClassUID, d.SOPInstanceUID, d.SeriesInstanceUID, d.StudyInstanceUID, d.Modality = CTImageStorage, f"1.2.3.{k + 1}", "1.2.4", "1.2.5", "CT"
    d.InstanceNumber, d.SeriesNumber, d.PatientPosition = k + 1, 3, "HFS"
    d.Rows = d.Columns = 16
    d.SamplesPerPixel, d.PhotometricInterpretation, d.BitsAllocated, d.BitsStored, d.HighBit, d.PixelRepresentation = 1, "MONOCHROME2", 16, 16, 15, 1
    d.PixelSpacing, d.SliceThickness, d.RescaleSlope, d.RescaleIntercept = [2, 2], 1, 1, 0
    d.ImagePositionPatient, d.ImageOrientationPatient = [0, 0, float(z)], [1, 0, 0, 0, 1, 0]
    d.PixelData = np.full((16, 16), 100 * z, np.int16).tobytes()
    d.save_as(f"series/{k}.dcm", enforce_file_format=True)
run = subprocess.run([dcm2niix.bin, "-f", "ct", "-z", "y", "-o", "volumes", "series"], capture_output=True, text=True)
plain, even = nib.load("volumes/ct.nii.gz"), nib.load("volumes/ct_Eq_1.nii.gz")
values = plain.get_fdata()[0, 0]
last = (plain.affine @ [0, 0, int(values.argmax()), 1])[2]
first = (plain.affine @ [0, 0, int(values.argmin()), 1])[2]
print("dcm2niix exits with", run.returncode, "slices", plain.shape[2], "spacing", plain.header.get_zooms()[2], "extent in mm", abs(last - first), "of", positions[-1])
print("resampled", even.shape[2], "slices", even.header.get_zooms()[2].round(3), "mm apart")
assert run.returncode == 0 and "Interslice distance varies" in run.stdout
assert plain.shape[2] == 10 and plain.header.get_zooms()[2] == 1 and abs(last - first) == 9
assert even.shape[2] == 20 and "arning" not in json.dumps(json.load(open("volumes/ct.json")))
PY
