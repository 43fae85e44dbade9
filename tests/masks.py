"""Small images with masks in a file: bright discs on a dark ground, of one class or two."""

import numpy as np

from pomona.testing.small_federations import discs


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
