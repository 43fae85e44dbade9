#!/usr/bin/env bash
# One would guess: SimpleITK tells an NRRD whose axes are the patient's (space: right-anterior-superior) from one whose
# axes are the scanner's (scanner-xyz) or only right-handed (3D-right-handed), or refuses the latter.
# What happens: it takes any space that it does not convert as the patient's left, posterior, superior, without a word;
# origin and directions look like a patient's, and only the entry NRRD_space of the metadata differs. simpleitk 2.5.7.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" simpleitk==2.5.7
cd "$folder" && PYTHONPATH=$folder python3 - <<'PY'
import SimpleITK as sitk
for space in ("left-posterior-superior", "right-anterior-superior", "scanner-xyz", "3D-right-handed", "3D-left-handed"):
    header = ("NRRD0004\ntype: uchar\ndimension: 3\n" f"space: {space}\n" "sizes: 2 3 4\nspace origin: (5,6,7)\n"
              "space directions: (1,0,0) (0,1,0) (0,0,1)\nencoding: raw\n\n")  # fmt: skip
    with open("a.nrrd", "wb") as file:
        file.write(header.encode() + bytes(24))
    image = sitk.ReadImage("a.nrrd")
    print(sitk.Version_VersionString(), space, image.GetOrigin(), image.GetMetaData("NRRD_space"))
    expected = (-5, -6, 7) if space == "right-anterior-superior" else (5, 6, 7)
    assert image.GetOrigin() == expected
    assert space.startswith("right") or image.GetMetaData("NRRD_space") == space
PY
