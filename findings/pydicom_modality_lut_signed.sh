#!/usr/bin/env bash
# One would guess: pydicom's apply_modality_lut looks every stored number up in a table that covers all 16 signed bits.
# What happens: pydicom 3.0.2 subtracts the first mapped number (-32768) in int16, so that all stored numbers from 0 on
# overflow and take the first entry, without a word; converted to int64 before, all are right (PS3.3 C.11.1).
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pydicom==3.0.2 numpy==2.4.2
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import numpy as np, pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import apply_modality_lut
table = Dataset()
table.ModalityLUTType = "US"
table.add_new(0x00283002, "SS", [0, -32768, 16])  # 2**16 entries from -32768 on
table.add_new(0x00283006, "OW", np.arange(2**16)[::-1].astype("<u2").tobytes())
image = Dataset()
image.file_meta = FileMetaDataset()
image.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
image.PixelRepresentation, image.ModalityLUTSequence = 1, [table]
stored = np.array([-32768, -1, 0, 32767], np.int16)
right = 32767 - stored.astype(int)  # entry k is 65535 - k
looked_up = apply_modality_lut(stored, image)
print("pydicom", pydicom.__version__, looked_up, "right:", right)
assert looked_up.tolist() == [65535, 32768, 65535, 65535]
assert apply_modality_lut(stored.astype(np.int64), image).tolist() == right.tolist()
PY
