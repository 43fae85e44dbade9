"""My network and its training, in plain PyTorch."""

import torch
from data import CLASSES, COLUMNS, Loader
from torch import nn
from torch.nn.functional import cross_entropy


def network() -> nn.Module:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(COLUMNS, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def train(model: nn.Module, loader: Loader) -> torch.Tensor:
    """Train one epoch; return the last batch's loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


def test(model: nn.Module, loader: Loader) -> tuple[float, float]:
    """Return mean loss and accuracy."""
    x, y = (torch.cat(values) for values in zip(*loader, strict=True))
    with torch.no_grad():
        outputs = model(x)
    return float(cross_entropy(outputs, y)), float((outputs.argmax(1) == y).float().mean())
