"""Federations of three clients that train in a fraction of a second, one for each kind of run, on data made here."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pomona.config import Config, resolve
from pomona.core.toml import Tree
from pomona.data import DataSettings
from pomona.methods.base import MethodSettings

BASE: Tree = {"clients": 3, "rounds": 2, "batch_size": 8, "lr": 0.1, "workers": 1}
NETWORK: Tree = {"name": "mlp", "hidden": [8]}
CLASSES = 3

Arrays = tuple[NDArray[np.generic], NDArray[np.generic]]


@dataclass(frozen=True)
class SmallFederation:
    """A federation for any method.

    Attributes:
        settings: what differs from ``BASE``.
        metric: what models are judged by.
        figures: what else the record says of each client's last model.
        frozen: names of the tensors that nobody trains.
    """

    settings: Tree = field(repr=False)
    metric: str
    figures: frozenset[str]
    frozen: frozenset[str] = frozenset()

    def config(self, method: MethodSettings, **over: object) -> Config:
        """A run of a method; ``over``: other settings."""
        return resolve(BASE, self.settings, {"method": method.model_dump(mode="json")}, over)


def discs(
    n: int = 24, side: int = 8, classes: int = 3, seed: int = 0, volume: bool = False
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Bright discs on a dark ground: images (n, side, side, 1), masks (n, side, side); one axis more of volumes."""
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


def masks(_: DataSettings) -> Arrays:
    """A reader: ``discs`` of two classes."""
    return discs()


def clouds(_: DataSettings) -> Arrays:
    """A reader: features (120, 4), a cloud around a corner for each class, and the classes (120,)."""
    draw = np.random.Generator(np.random.Philox(5))
    y = np.arange(120) % CLASSES
    return (3 * np.eye(CLASSES, 4)[y] + draw.normal(size=(len(y), 4))).astype(np.float32), y


def patients(_: DataSettings | None = None) -> Arrays:
    """A reader: features (240, 3), of which the first shortens the time to an event; 40 % are censored."""
    draw = np.random.Generator(np.random.Philox(7))
    x = draw.normal(size=(240, 3)).astype(np.float32)
    seen_at, left_at = draw.exponential(100 * np.exp(-1.5 * x[:, 0])), draw.exponential(150, size=len(x))
    return x, np.column_stack([np.minimum(seen_at, left_at) + 0.01, seen_at <= left_at])


PARTLY_FROZEN = SmallFederation(
    {
        "data": {"name": f"{__name__}:clouds"},
        "model": {"name": "mlp", "hidden": [8, 8], "train": ["fc2.*", "fc3.*"], "cache_features": "off"},
        "lr": 0.3,
    },
    "accuracy",
    frozenset({"auroc", "confusion"}),
    frozenset({"fc1.weight", "fc1.bias"}),
)
SEGMENTATION = SmallFederation(
    {
        "data": {"name": f"{__name__}:masks", "targets": "segmentation"},
        "model": {"name": "unet", "width": 4, "depth": 1},
        "batch_size": 4,
    },
    "dice",
    frozenset({"iou", "regions"}),
)
SURVIVAL = SmallFederation(
    {"data": {"name": f"{__name__}:patients", "targets": "survival", "intervals": 4}, "model": NETWORK},
    "c_index",
    frozenset({"uno_c", "integrated_brier", "dynamic_auroc"}),
)
ADAMW = SmallFederation(
    {"data": {"name": f"{__name__}:clouds"}, "model": NETWORK, "optimizer": {"name": "adamw"}, "lr": 0.01},
    "accuracy",
    frozenset({"auroc", "confusion"}),
)
