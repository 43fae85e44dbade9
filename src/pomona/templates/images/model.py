"""My network, for images of any size and number of channels."""

from torch import nn


def network(settings: object, input_shape: tuple[int, ...], outputs: int, *_: object) -> nn.Module:
    """Return two convolutions and an output for each class, of images (channels, rows, columns)."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(16, outputs),
    )
