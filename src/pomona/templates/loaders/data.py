"""The loaders of each client; read your own files here instead.

The rows are made up, so that the project runs at once: one column has the opposite effect at half
of the clients.
"""

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

EFFECTS = {"aachen": 1, "bergen": 1, "cadiz": -1, "delft": -1}  # of the last column, by client
COLUMNS, CLASSES = 8, 2
SPLITS = slice(0, 30), slice(30, 60)

Loader = DataLoader[tuple[torch.Tensor, ...]]


def loaders() -> dict[str, dict[str, Loader]]:
    """Return each client's loaders, always of the same rows: 30 to train, 30 to test."""
    return {name: client_loaders(number) for number, name in enumerate(EFFECTS)}


def client_loaders(number: int) -> dict[str, Loader]:
    """Return the loaders of one client."""
    draw = np.random.default_rng((7, number))
    x = draw.normal(size=(60, COLUMNS))
    effect = [*EFFECTS.values()][number]
    y = x[:, :-1].sum(axis=1) + effect * x[:, -1] + draw.normal(scale=0.5, size=len(x)) > 0
    rows = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.long)
    train, test = (TensorDataset(*(values[split] for values in rows)) for split in SPLITS)
    return {
        "train": DataLoader(train, batch_size=16, shuffle=True),
        "test": DataLoader(test, batch_size=30),
    }
