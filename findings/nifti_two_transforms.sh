#!/usr/bin/env bash
# One would guess: where a NIfTI file has both transforms, qform and sform, programs agree on which one counts.
# What happens: nibabel takes the sform whenever it has a code. SimpleITK takes the sform where its code is 1 (scanner), and the
# qform where the sform's is above 1 (aligned, Talairach, MNI152): the same voxel lies elsewhere, without a word from either.
# Versions: nibabel 5.4.2, simpleitk 2.5.7.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" nibabel==5.4.2 simpleitk==2.5.7 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import nibabel, numpy as np, SimpleITK as sitk
qform, sform = np.diag([2.0, 2, 3, 1]), np.diag([2.0, 2, 3, 1])
qform[:3, 3], sform[:3, 3] = [10, 20, 30], [-40, -50, -60]  # mm: first voxel in scanner space, and in that of another scan
names = {10.0: "qform", -40.0: "sform"}
seen = {}
for sform_code in (1, 2, 3, 4):
    image = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), None)
    image.set_qform(qform, 1)
    image.set_sform(sform, sform_code)
    nibabel.save(image, "scan.nii")
    by_nibabel = nibabel.load("scan.nii").affine[0, 3]
    by_itk = -sitk.ReadImage("scan.nii").GetOrigin()[0]  # LPS to RAS
    seen[sform_code] = names[by_nibabel], names[by_itk]
    print("qform code 1, sform code", sform_code, "nibabel:", seen[sform_code][0], "simpleitk:", seen[sform_code][1])
assert seen == {1: ("sform", "sform")} | {code: ("sform", "qform") for code in (2, 3, 4)}
PY
