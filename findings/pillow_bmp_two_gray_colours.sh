#!/usr/bin/env bash
# One would guess: Pillow reads a bitmap (BMP) of 8 bits a pixel the same whatever the length of its palette.
# What happens: if the palette has black and white alone, Pillow takes 8 pixels for each byte: a mask with 15 pixels of white is read as one without any, without an error.
# Versions: pillow 13.0.0; imagecodecs 2026.3.6 reads the pixels as they are.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" pillow==13.0.0 imagecodecs==2026.3.6 numpy==2.4.6
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import io, struct
import imagecodecs, numpy as np, PIL
from PIL import Image
mask = np.zeros((16, 16), np.uint8)
mask[3:8, 9:12] = 1
def bitmap(colours):  # BITMAPINFOHEADER; biClrUsed says how many colours the palette has
    palette = b"".join(struct.pack("BBBB", *colour, 0) for colour in colours)
    start = 54 + len(palette)
    header = struct.pack("<IiiHHIIiiII", 40, 16, 16, 1, 8, 0, 256, 0, 0, len(colours), 0)
    return b"BM" + struct.pack("<IHHI", start + 256, 0, 0, start) + header + palette + mask[::-1].tobytes()
black_white = [(0, 0, 0), (255, 255, 255)]
two, three = bitmap(black_white), bitmap([*black_white, (0, 0, 255)])
white = {name: int((np.asarray(Image.open(io.BytesIO(raw)).convert("L")) == 255).sum()) for name, raw in (("two colours", two), ("three colours", three))}
other = int((imagecodecs.bmp_decode(two, asrgb=False) == 1).sum())
print("pillow", PIL.__version__, "white pixels of 15:", white, "imagecodecs, two colours:", other)
assert white == {"two colours": 0, "three colours": 15} and other == 15
PY
