#!/usr/bin/env bash
# One would guess that Pillow refuses what it cannot hold (16-bit colour, other maxima), or converts it.
# Without a warning: a 16-bit RGB TIFF stored in planes gives single bytes of the first half of each
# plane; a 16-bit CMYK TIFF and a 16-bit PPM are cut to 8 bits; a PGM with maximum 4095 is multiplied up
# to 65535; a gray PNG of 2 bits is multiplied by 85, so that class numbers 0 to 3 become 0 to 255.
# Versions: Pillow 13.0.0, tifffile 2026.3.3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder/lib" tifffile==2026.3.3 Pillow==13.0.0 numpy==2.4.6
cd "$folder"
PYTHONPATH="$folder/lib" python3 - <<'PY'
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL
import tifffile
from PIL import Image

print("Pillow", PIL.__version__)
plane = (np.arange(100).reshape(10, 10) * 400).astype(np.uint16)
tifffile.imwrite("p.tif", np.stack([plane] * 3), photometric="rgb", planarconfig="separate")
read = np.asarray(Image.open("p.tif"))
print("planes: stored", plane[0, :4].tolist(), "read", read.dtype, read[0, :4, 0].tolist())
assert read.dtype == np.uint8
assert read[0, :4, 0].tolist() == [0, 0, 144, 1]  # low and high bytes of 0 and 400

tifffile.imwrite("k.tif", np.stack([plane] * 4, -1), photometric="separated")
read = np.asarray(Image.open("k.tif"))
print("inks: read", read.dtype, read[0, :4, 0].tolist())
assert np.array_equal(read, np.stack([plane >> 8] * 4, -1))

head = b"P6\n10 10\n65535\n"
Path("c.ppm").write_bytes(head + np.stack([plane] * 3, -1).astype(">u2").tobytes())
read = np.asarray(Image.open("c.ppm"))
print("PPM: read", read.dtype)
assert read.dtype == np.uint8

Path("g.pgm").write_bytes(b"P5\n10 10\n4095\n" + (plane // 10).astype(">u2").tobytes())
read = np.asarray(Image.open("g.pgm"))
print("PGM: stored", (plane // 10)[9, 9], "read", read[9, 9])
assert read[9, 9] == round(3960 / 4095 * 65535)


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


form = struct.pack(">IIBBBBB", 4, 1, 2, 0, 0, 0, 0)
row = zlib.compress(bytes([0, 0b00011011]))
parts = chunk(b"IHDR", form) + chunk(b"IDAT", row) + chunk(b"IEND", b"")
Path("m.png").write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
read = np.asarray(Image.open("m.png"))
print("PNG of 2 bits: stored [0, 1, 2, 3], read", read[0].tolist())
assert read[0].tolist() == [0, 85, 170, 255]
PY
