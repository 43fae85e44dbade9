"""My network, for volumes of any size and number of channels."""

from torch import nn


def network(settings: object, input_shape: tuple[int, ...], outputs: int, *_: object) -> nn.Module:
    """Return two convolutions and an output for each class, of volumes (channels, *sides)."""
    return nn.Sequential(
        nn.Conv3d(input_shape[0], 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool3d(1),
        nn.Flatten(),
        nn.Linear(16, outputs),
    )
