#!/usr/bin/env bash
# One would guess that a boolean mask saved by tifffile is read as it was by Pillow, as other arrays are.
# tifffile writes booleans with the tag MinIsWhite and the bits as they are; Pillow inverts MinIsWhite
# of 1 and 8 bits, and does not invert it in 16 bits or real numbers: the mask comes back inverted, and
# polarity depends on the number type. tifffile itself never inverts.
# Versions: tifffile 2026.3.3, Pillow 13.0.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder/lib" tifffile==2026.3.3 Pillow==13.0.0 numpy==2.4.6
cd "$folder"
PYTHONPATH="$folder/lib" python3 - <<'PY'
import numpy as np
import PIL
import tifffile
from PIL import Image

mask = np.zeros((10, 10), bool)
mask[2:5, 2:5] = True
tifffile.imwrite("m.tif", mask)
print("tifffile", tifffile.__version__, "Pillow", PIL.__version__)
with tifffile.TiffFile("m.tif") as file:
    print("tag", file.pages[0].photometric.name)
read = np.asarray(Image.open("m.tif"))
print("pixels of the mask:", int(mask.sum()), "read by Pillow:", int(read.sum()))
assert np.array_equal(read, ~mask)
assert np.array_equal(tifffile.imread("m.tif"), mask)
gray = np.arange(100).reshape(10, 10)
first = {}
for kind in ("u1", "u2", "f4"):
    tifffile.imwrite("g.tif", gray.astype(kind), photometric="miniswhite")
    first[kind] = float(np.asarray(Image.open("g.tif"))[0, 0])
print("a stored 0 that means white is read as", first)
assert first == {"u1": 255.0, "u2": 0.0, "f4": 0.0}
PY
