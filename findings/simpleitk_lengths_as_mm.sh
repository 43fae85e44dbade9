#!/usr/bin/env bash
# One would guess: SimpleITK, whose lengths are mm, converts those of a header that gives them in another unit (NRRD's
# space units, MetaImage's DistanceUnits), as it does for NIfTI, or refuses the file.
# What happens: it takes the numbers as mm without a word; a microscope's voxels are 1,000 times as large. Written as
# NIfTI they are mm for every other program. simpleitk 2.5.7.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" simpleitk==2.5.7
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import struct

import SimpleITK as sitk

nrrd = ('NRRD0004\ntype: uchar\ndimension: 3\nspace: left-posterior-superior\nsizes: 2 3 4\n'
        'space units: "um" "um" "um"\nspace directions: (5,0,0) (0,5,0) (0,0,5)\nencoding: raw\n\n')  # fmt: skip
meta = ("ObjectType = Image\nNDims = 3\nDistanceUnits = um\nElementSpacing = 5 5 5\nDimSize = 2 3 4\n"
        "ElementType = MET_UCHAR\nElementDataFile = LOCAL\n")  # fmt: skip
for name, header in (("a.nrrd", nrrd), ("a.mha", meta)):
    with open(name, "wb") as file:
        file.write(header.encode() + bytes(24))
    image = sitk.ReadImage(name)
    print(sitk.Version_VersionString(), name, "5 um are", image.GetSpacing(), "mm")
    assert image.GetSpacing() == (5, 5, 5)
sitk.WriteImage(image, "a.nii")
with open("a.nii", "rb") as file:
    content = bytearray(file.read())
assert content[123] & 7 == 2 and struct.unpack("<3f", content[80:92]) == (5, 5, 5)  # NIfTI's code of mm
content[123] = content[123] & ~7 | 3  # of um
with open("b.nii", "wb") as file:
    file.write(content)
print("NIfTI: 5 um are", sitk.ReadImage("b.nii").GetSpacing(), "mm")
assert abs(sitk.ReadImage("b.nii").GetSpacing()[0] - 0.005) < 1e-6
PY
