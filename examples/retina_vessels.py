"""Vessels of the retina, photographed by three cameras: one file per camera and part, ready for
``data.clients``.

    python examples/retina_vessels.py retina256.npz [FOLDER]

The archive has, for each photograph, ``site`` (the camera), ``id``, ``image`` (256, 256, 3) uint8
and ``vessel1`` (256, 256) uint8, the share of each pixel that the first observer marked as vessel,
0 to 255. It is made from STARE (20 photographs), CHASE_DB1 (28) and HRF (45): each cropped to its
field of view, padded to a square and averaged down to 256 pixels a side. Sides are halved once more
here, and the middle of 64 x 64 is kept; a pixel of which a quarter or more is vessel is vessel.
Every fourth person is for testing: CHASE_DB1 has both eyes of each child.

Sources: STARE (https://cecas.clemson.edu/~ahoover/stare/, Hoover et al., 2000), CHASE_DB1 (Kingston
University, CC BY 4.0), HRF (Erlangen, CC BY 4.0; photographs and masks at a quarter of their size).
Vessels of HRF are all coloured pixels of the artery and vein maps of Hemelings et al., 2019
(https://github.com/agaldran/lwnet, which also has the fields of view of CHASE_DB1). An archive made
again will have slightly different pixels and numbers.
"""

import sys
from pathlib import Path

import numpy as np


def halved(images: np.ndarray) -> np.ndarray:
    """(n, 256, 256, ...) -> (n, 128, 128, ...), means of 2 x 2 pixels."""
    return images.reshape(len(images), 128, 2, 128, 2, *images.shape[3:]).mean((2, 4))


def main(source: str, folder: str = ".") -> None:
    """Write FOLDER/SITE-train.npz and FOLDER/SITE-test.npz, each with x (n, 64, 64, 3) and y (n,
    64, 64).
    """
    with np.load(source) as archive:
        site, names, image, vessel = (archive[key] for key in ("site", "id", "image", "vessel1"))
    middle = np.s_[:, 32:96, 32:96]
    x, y = (
        halved(image).round().astype(np.uint8)[middle],
        (halved(vessel) >= 64).astype(np.uint8)[middle],
    )
    for camera in np.unique(site):
        photographs = np.flatnonzero(site == camera)
        people = [
            str(name)[:8] if camera == "chase_db1" else str(name) for name in names[photographs]
        ]
        test = np.unique(people, return_inverse=True)[1] % 4 == 3
        for split, rows in (("train", photographs[~test]), ("test", photographs[test])):
            np.savez(Path(folder) / f"{camera}-{split}.npz", x=x[rows], y=y[rows])


if __name__ == "__main__":
    main(*sys.argv[1:])
