"""Networks of one's own, for runs with ``model.name = "networks:FUNCTION"``."""

from torch import nn


def normalised_first(settings, input_shape, n_outputs, vocabulary):
    """BatchNorm over the raw pixels: its statistics depend on the samples alone, not on any
    weight.
    """
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, n_outputs))


def hidden(settings, input_shape, n_outputs, vocabulary):
    """BatchNorm between two layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, n_outputs)
    )


def with_dropout(settings, input_shape, n_outputs, vocabulary):
    """Dropout before BatchNorm."""
    layers = hidden(settings, input_shape, n_outputs, vocabulary)
    return nn.Sequential(layers[0], layers[1], nn.Dropout(0.5), *layers[2:])


def dropped(settings, input_shape, n_outputs, vocabulary):
    """Dropout of the raw pixels."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, n_outputs))
