"""Small images with masks: bright discs on a dark ground, of one class or two."""

import numpy as np


def discs(n=24, side=8, classes=3, seed=0, volume=False):
    """Images (n, side, side, 1) uint8 and masks (n, side, side); volumes have one axis more of the same length."""
    rng = np.random.default_rng(seed)
    shape = (side,) * (3 if volume else 2)
    axes = np.indices(shape).reshape(len(shape), *shape)
    y = np.zeros((n, *shape), np.uint8)
    for k in range(n):
        centre = rng.uniform(side / 4, 3 * side / 4, len(shape)).reshape(-1, *[1] * len(shape))
        inside = ((axes - centre) ** 2).sum(0) < (side / 3.5) ** 2
        y[k][inside] = 1 + k % (classes - 1)
    x = 90 * y + rng.integers(0, 40, y.shape)
    return x.astype(np.uint8)[..., None], y


def archive(path, **kind):
    """The same as an archive with x and y."""
    x, y = discs(**kind)
    np.savez(path, x=x, y=y)
    return path


def settings(path, **over):
    """A run on such an archive, ready for ``resolve``."""
    base = {
        "method": "fedavg-ft",
        "data": {"name": "npz", "path": str(path), "targets": "segmentation"},
        "model": {"name": "unet", "width": 4, "depth": 1},
        "clients": 3,
        "rounds": 2,
        "batch_size": 4,
        "lr": 0.1,
        "workers": 1,
    }
    return base | over
