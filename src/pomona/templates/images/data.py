"""Writes images/SITE/CLASS/*.png: python data.py

The images are made up, so that the project runs at once: noise, with a bright spot in a lesion.
Write your own images instead, in the same folders.
"""

from pathlib import Path

import numpy as np
from PIL import Image

BRIGHTNESS = {"north": 60, "east": 100, "south": 140, "west": 180}  # by site


def main() -> None:
    """Write 20 images of each class at each site, always the same."""
    draw = np.random.default_rng(7)
    for site, brightness in BRIGHTNESS.items():
        for name, contrast in (("healthy", 0), ("lesion", 50)):
            folder = Path("images", site, name)
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(20):
                pixels = draw.normal(brightness, 10, (16, 16))
                row, column = draw.integers(0, 12, 2)
                pixels[row : row + 4, column : column + 4] += contrast
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


if __name__ == "__main__":
    main()
