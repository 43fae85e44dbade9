"""Small images with masks in a file: bright discs on a dark background, of one class or two."""

import numpy as np
from torch import nn

from pomona.testing.task_checks import discs


def archive(path, **arrays):
    """The same as an archive with x and y."""
    x, y = discs(**arrays)
    np.savez(path, x=x, y=y)
    return path


def settings(path, **overrides):
    """A run on such an archive, ready for ``resolve``."""
    base = {
        "method": "fedavg-ft",
        "data": {"name": "arrays", "path": str(path), "targets": "segmentation"},
        "model": {"name": "unet", "width": 4, "depth": 1},
        "clients": 3,
        "rounds": 2,
        "batch_size": 4,
        "lr": 0.1,
        "workers": 1,
    }
    return base | overrides


def pixelwise(settings, input_shape, n_outputs, vocabulary):
    """A network whose output at a pixel depends on that pixel alone."""
    convolution = (nn.Conv2d, nn.Conv3d)[len(input_shape) - 3]
    return nn.Sequential(convolution(input_shape[0], 4, 1), nn.ReLU(), convolution(4, n_outputs, 1))


def normalised(settings, input_shape, n_outputs, vocabulary):
    """The same with BatchNorm."""
    convolution = nn.Conv2d(input_shape[0], 4, 1)
    return nn.Sequential(convolution, nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, n_outputs, 1))
