#!/usr/bin/env bash
# One would guess that Image.open gives the same pixels for a file's name and for its bytes.
# For an uncompressed 8-bit TIFF with the tag Orientation 5 to 8, Pillow maps a named file into memory
# with rows and columns swapped before it turns them: the pixels are scrambled, in the unturned size,
# without a warning. Given the bytes, it turns the image right.
# Versions: Pillow 13.0.0 (also 12.0.0, 11.3.0).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder/lib" Pillow==13.0.0 numpy==2.4.6
cd "$folder"
PYTHONPATH="$folder/lib" python3 - <<'PY'
import io
from pathlib import Path

import numpy as np
import PIL
from PIL import Image

stored = np.arange(120, dtype=np.uint8).reshape(10, 12)
Image.fromarray(stored).save("a.tif", tiffinfo={274: 6})  # 6: to be turned clockwise
named = np.asarray(Image.open("a.tif").copy())
in_bytes = np.asarray(Image.open(io.BytesIO(Path("a.tif").read_bytes())).copy())
right = np.rot90(stored, -1)
print("Pillow", PIL.__version__, "by name", named.shape, "by bytes", in_bytes.shape)
print("by name, first row", named[0].tolist(), "stored", stored[0].tolist(), "right", right[0].tolist())
assert np.array_equal(in_bytes, right)
assert named.shape == stored.shape
assert not np.array_equal(named, stored)
PY
