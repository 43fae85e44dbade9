"""VGG-11: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015.

Eight 3x3 convolutions (configuration A) with five poolings, then three linear layers. Adapted to small images: poolings
round up (so any side from 1 works, and multiples of 32 shrink as published), positions are averaged, the hidden layers
have 512 units instead of 4096, and there is no dropout (it would use a global generator).

As an embedder for latent partitions, ``net[:-2]`` gives the output of the second linear layer, (B, 512), as in
FedFomo's code.
"""

from collections import OrderedDict

from torch import nn

from pomona.models import ModelSettings
from pomona.models.compatibility import image

_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
_HIDDEN = 512


def vgg11(settings: ModelSettings, input_shape: tuple[int, ...], n_outputs: int, vocabulary: int) -> nn.Sequential:
    """Build a VGG-11. Raises ConfigError unless the samples are images."""
    before, _, _ = image(settings.name, input_shape, vocabulary)
    steps: OrderedDict[str, nn.Module] = OrderedDict()
    for stage, widths in enumerate(_STAGES, start=1):
        for number, after in enumerate(widths, start=1):
            steps[f"conv{stage}_{number}"] = nn.Conv2d(before, after, 3, padding=1)
            if number == len(widths):  # before ReLU: they commute exactly
                steps[f"pool{stage}"] = nn.MaxPool2d(2, ceil_mode=True)
            steps[f"relu{stage}_{number}"] = nn.ReLU()
            before = after
    steps["mean"] = nn.AdaptiveAvgPool2d(1)
    steps["flatten"] = nn.Flatten()
    for number in (1, 2):
        steps[f"fc{number}"] = nn.Linear(before, _HIDDEN)
        steps[f"relu{number}"] = nn.ReLU()
        before = _HIDDEN
    steps["fc3"] = nn.Linear(before, n_outputs)
    return nn.Sequential(steps)
