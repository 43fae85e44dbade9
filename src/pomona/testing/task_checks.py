"""Checks of a method's runs on further tasks: a partly frozen network, masks, times to an event,
AdamW.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from pomona.config import Config, resolve
from pomona.core.errors import ConfigError
from pomona.core.toml import Tree
from pomona.data import DataSettings
from pomona.methods.base import MethodSettings
from pomona.record.result import Result
from pomona.scenario import Scenario
from pomona.simulation import run, simulate
from pomona.testing.problems import equal
from pomona.testing.round_checks import DRAWS

BASE: Tree = {
    "clients": 3,
    "rounds": 2,
    "batch_size": 8,
    "lr": 0.1,
    "workers": 1,
    "engine": "torch",
}
NETWORK: Tree = {"name": "mlp", "hidden": [8]}
CLASSES = 3

Arrays = tuple[NDArray[np.generic], NDArray[np.generic]]


@dataclass(frozen=True)
class SmallFederation:
    """A federation for any method.

    Attributes:
        settings: differences from ``BASE``.
        metric: the headline metric.
        figures: further metrics in the record for each client's last model.
        frozen: names of the frozen tensors.
    """

    settings: Tree = field(repr=False)
    metric: str
    figures: frozenset[str]
    frozen: frozenset[str] = frozenset()

    def config(self, method: MethodSettings, **overrides: object) -> Config:
        """Return a run of a method; ``overrides``: other settings."""
        return resolve(BASE, self.settings, {"method": method.model_dump(mode="json")}, overrides)


def discs(
    n: int = 24, side: int = 8, classes: int = 3, seed: int = 0, volume: bool = False
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return bright discs on a dark ground: images (n, side, side, 1), masks (n, side, side); or
    volumes.
    """
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
    """Read ``discs`` of two classes."""
    return discs()


def clouds(_: DataSettings) -> Arrays:
    """Return features (120, 4), a cloud around a corner for each class, and the classes (120,)."""
    draw = np.random.Generator(np.random.Philox(5))
    y = np.arange(120) % CLASSES
    return (3 * np.eye(CLASSES, 4)[y] + draw.normal(size=(len(y), 4))).astype(np.float32), y


def patients(_: DataSettings | None = None) -> Arrays:
    """Return features (240, 3), of which the first shortens the time to an event; 40 % are
    censored.
    """
    draw = np.random.Generator(np.random.Philox(7))
    x = draw.normal(size=(240, 3)).astype(np.float32)
    event_times = draw.exponential(100 * np.exp(-1.5 * x[:, 0]))
    censoring = draw.exponential(150, size=len(x))
    return x, np.column_stack([np.minimum(event_times, censoring) + 0.01, event_times <= censoring])


PARTLY_FROZEN = SmallFederation(
    {
        "data": {"name": f"{__name__}:clouds"},
        "model": {
            "name": "mlp",
            "hidden": [8, 8],
            "train": ["*fc2.*", "*fc3.*"],
            "cache_features": "off",
        },
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
    {
        "data": {"name": f"{__name__}:patients", "targets": "survival", "intervals": 4},
        "model": NETWORK,
    },
    "c_index",
    frozenset({"uno_c", "integrated_brier", "dynamic_auroc"}),
)
ADAMW = SmallFederation(
    {
        "data": {"name": f"{__name__}:clouds"},
        "model": NETWORK,
        "optimizer": {"name": "adamw"},
        "lr": 0.01,
    },
    "accuracy",
    frozenset({"auroc", "confusion"}),
)


def trains(federation: SmallFederation, settings: MethodSettings) -> None:
    """Assert that a run trains only what is not frozen, uses its task's metrics, and is repeatable;
    or is refused in one line, if the card's tasks leave out this one.
    """
    tasks = settings.method().card.tasks
    if tasks and federation.settings["data"].get("targets", "classes") not in tasks:
        _refused(federation, settings, "method.name")
        return
    config = federation.config(settings)
    scenario = Scenario.prepare(config)
    initial = {name: tensor.clone() for name, tensor in scenario.network.frozen.items()}
    result = simulate(scenario)
    _trained_alone(federation, scenario, result)
    assert equal(scenario.network.frozen, initial)
    _learnt(federation, settings, result)
    repeated = simulate(Scenario.prepare(config.model_copy(update={"workers": 2})))
    alike = outcome(repeated) == outcome(result) and all(
        equal(repeated.models[i], model) for i, model in result.models.items()
    )
    assert alike, f"two runs of one seed, on one worker and on two, differ: {DRAWS}"


def outcome(result: Result) -> object:
    """Return all numbers of a run's record."""
    info = [{k: v.tolist() for k, v in r.info.items()} for r in result.rounds]
    return (
        [(r.loss, r.bytes_down, r.bytes_up) for r in result.rounds],
        info,
        result.evaluations,
        result.final,
    )


def _trained_alone(federation: SmallFederation, scenario: Scenario, result: Result) -> None:
    """Assert that rows and personal models have the trained tensors, and none of the frozen
    ones.
    """
    # in one body or two
    layers = {".".join(name.split(".")[-2:]) for name in scenario.network.frozen}
    assert layers == federation.frozen
    trained = {
        k: p.shape
        for k, p in scenario.module().named_parameters()
        if k not in scenario.network.frozen
    }
    assert len(scenario.initial()) == sum(shape.numel() for shape in trained.values())
    for client in range(scenario.config.clients):
        assert {k: tensor.shape for k, tensor in result.models[client].items()} == trained


def _learnt(federation: SmallFederation, settings: MethodSettings, result: Result) -> None:
    """Assert finite losses, a falling loss of the headline models, and the task's metrics for each
    model.
    """
    _everybody_trained(result)
    curve = result.curve(*settings.method().card.headline)
    losses = [float(np.mean(np.array(evaluation.loss, dtype=float))) for evaluation in curve]
    assert losses[-1] < losses[0], (
        f"the loss of the headline models does not fall in {len(losses)} rounds of "
        f"{federation.settings}: {', '.join(f'{loss:.4g}' for loss in losses)}; if another term "
        "of the objective outweighs it, check with a smaller weight of that term"
    )
    assert all(evaluation.metric == federation.metric for evaluation in curve)
    values = [value for evaluation in curve for value in evaluation.value if value is not None]
    assert values
    assert all(0 <= value <= 1 for value in values)
    for figures in result.final:
        assert federation.figures | {federation.metric} <= figures.keys()


def _everybody_trained(result: Result) -> None:
    """Assert that all clients answered in all rounds, with finite losses."""
    clients = tuple(range(len(result.about["clients"])))
    assert all(r.cohort == clients and not r.refused for r in result.rounds)
    assert all(loss is not None and isfinite(loss) for r in result.rounds for loss in r.loss)


def a_run_trains_a_partly_frozen_network(settings: MethodSettings) -> None:
    """Check classification: the last two of three layers are in rows and models; the first is
    unchanged, to the bit.
    """
    trains(PARTLY_FROZEN, settings)


def a_run_trains_segmentation(settings: MethodSettings) -> None:
    """Check segmentation of images with a small U-Net."""
    trains(SEGMENTATION, settings)


def a_run_trains_survival(settings: MethodSettings) -> None:
    """Check times to an event, some of them censored."""
    trains(SURVIVAL, settings)


def a_run_trains_with_adamw_or_refuses_it(settings: MethodSettings) -> None:
    """Check training with AdamW if the card's rule supports any steps, else its refusal in one line
    before training.
    """
    if settings.method().card.needs.steps == "any":
        trains(ADAMW, settings)
    else:
        _refused(ADAMW, settings, "optimizer.name")


def _refused(federation: SmallFederation, settings: MethodSettings, key: str) -> None:
    """Assert that a run is refused because of a key, in one line."""
    try:
        run(federation.config(settings))
    except ConfigError as refusal:
        message = str(refusal)
    else:
        raise AssertionError(f"{key}: the card excludes this run, but it ran")
    assert message.startswith(key), message
    assert "\n" not in message


TASK_CHECKS: tuple[Callable[[MethodSettings], None], ...] = (
    a_run_trains_a_partly_frozen_network,
    a_run_trains_segmentation,
    a_run_trains_survival,
    a_run_trains_with_adamw_or_refuses_it,
)
