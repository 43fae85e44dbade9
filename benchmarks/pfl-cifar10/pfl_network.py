"""The network of pfl-research's CIFAR-10 benchmark: two convolutions, dropout, two linear layers.

1,626,442 parameters at 3 x 32 x 32 and 10 classes. Pooling comes before ReLU: they commute exactly.
"""

from collections import OrderedDict

from torch import nn

from pomona.models import ModelSettings


def cnn(
    settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int
) -> nn.Sequential:
    """Build the network for images of this shape (C, H, W)."""
    channels, height, width = input_shape
    features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, 32, 3),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3),
            pool=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            dropout1=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            fc1=nn.Linear(features, 128),
            relu3=nn.ReLU(),
            dropout2=nn.Dropout(0.5),
            fc2=nn.Linear(128, n_outputs),
        )
    )
