#!/usr/bin/env bash
# One would guess that tifffile gives RGB for a YCbCr TIFF, as it does where JPEG is inside.
# Without JPEG (Pillow and libtiff write such files) it returns luma and chroma as an array of the shape
# of RGB, without a warning: black is (0, 128, 128).
# Versions: tifffile 2026.3.3, Pillow 13.0.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder/lib" tifffile==2026.3.3 Pillow==13.0.0 numpy==2.4.6
cd "$folder"
PYTHONPATH="$folder/lib" python3 - <<'PY'
import numpy as np
import tifffile
from PIL import Image

Image.new("RGB", (16, 16), (0, 0, 0)).convert("YCbCr").save("y.tif")
read = tifffile.imread("y.tif")
print("tifffile", tifffile.__version__, "black is", read[0, 0].tolist())
assert read[0, 0].tolist() == [0, 128, 128]
assert np.asarray(Image.open("y.tif").convert("RGB"))[0, 0].tolist() == [0, 0, 0]
PY
