#!/usr/bin/env bash
# One would guess: ReadImage("scan.nii.gz") returns what scan.nii.gz holds.
# What happens: if a scan.nii lies beside it, SimpleITK takes the header from scan.nii.gz and the voxels from scan.nii, without a
# word; so a mask that was corrected and saved packed keeps the old voxels. nibabel reads the file that is named.
# Versions: simpleitk 2.5.7, nibabel 5.4.2.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" nibabel==5.4.2 simpleitk==2.5.7 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import nibabel, numpy as np, SimpleITK as sitk
for name, value, side in (("scan.nii", 7, 1.0), ("scan.nii.gz", 42, 5.0)):
    voxels = np.full((2, 3, 4), value, np.int16)
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([side, side, side, 1])), name)
seen = {}
for name in ("scan.nii", "scan.nii.gz"):
    image = sitk.ReadImage(name)
    seen[name] = image.GetSpacing()[0], int(sitk.GetArrayFromImage(image)[0, 0, 0])
    print(name, "simpleitk: mm and value", seen[name], "nibabel: value", int(nibabel.load(name).dataobj[0, 0, 0]))
assert seen == {"scan.nii": (1.0, 7), "scan.nii.gz": (5.0, 7)}
PY
