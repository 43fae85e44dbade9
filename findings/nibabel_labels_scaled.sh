#!/usr/bin/env bash
# One would guess: whole numbers 0, 1, 2 held as float64 and saved with set_data_dtype(uint8) come back as 0, 1, 2.
# What happens: nibabel 5.4.2 scales them to fill uint8 (slope 2/255): label 1 comes back as 0.996, and == 1 is false in every voxel.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" nibabel==5.4.2 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import nibabel, numpy as np
labels = np.zeros((4, 4, 4)); labels[1], labels[2] = 1, 2
image = nibabel.Nifti1Image(labels, np.eye(4)); image.set_data_dtype(np.uint8); nibabel.save(image, "m.nii")
read = nibabel.load("m.nii").get_fdata()
print("nibabel", nibabel.__version__, np.unique(read))
assert np.abs(read - labels).max() > 0.003 and not (read == 1).any()
PY
