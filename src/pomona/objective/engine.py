"""Engines: packages that compute a run's losses and gradients in place of PyTorch.

A package adds one by an entry point of the group ``pomona.engines``. The entry point's name is the
value of setting ``engine``; its object is a function without arguments that returns an ``Engine``,
or raises ``EngineError`` on a machine that it does not support.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from torch import nn

from pomona.core.errors import worded
from pomona.models.parameter_space import ParameterSpace
from pomona.objective.dataset import DeviceDataset, Precision
from pomona.objective.objective import Criterion, Objective

ENTRY_POINTS = "pomona.engines"
INTERFACE = 2
"""Number of this interface. An engine names the one that it was written for; older ones are
refused.
"""
NATIVE = "native"  # the engine that ``engine = "auto"`` tries
INSTALL = "pip install --upgrade pomona-native, or make native in a clone"


class EngineError(Exception):
    """The reason, in one line, why an engine cannot be used or does not support a computation."""


@dataclass(frozen=True)
class Computation:
    """What a run computes: the loss of a network on resident data.

    Attributes:
        module: the network.
        space: its parameter space.
        data: the resident data.
        criterion: (outputs (b, K), targets) -> per-sample losses (b,).
        precision: of forward and backward.
        batch_size: the most samples of a step.
    """

    module: nn.Module
    space: ParameterSpace
    data: DeviceDataset
    criterion: Criterion
    precision: Precision
    batch_size: int


class Engine(Protocol):
    """An engine on this machine.

    Attributes:
        interface: the ``INTERFACE`` that it was written for.
        package: the distribution that has it.
        release: its version, and after a space the kind of processor that it uses; runs record it.
        emulates_bf16: whether this processor has no instructions for its products in bf16.
    """

    interface: int
    package: str
    release: str
    emulates_bf16: bool

    def objective(self, computation: Computation) -> Objective:
        """Return the objective, whose results for a row are the same bits whatever other rows are
        in a call.

        Raises EngineError for a network, a loss, data or a batch size that it does not support.
        """


def load_engine(name: str) -> Engine:
    """Return an installed engine.

    Raises EngineError if it is not installed, or cannot be used on this machine or by this version.
    """
    points = tuple(entry_points(group=ENTRY_POINTS, name=name))
    if not points:
        package = "the package pomona-native" if name == NATIVE else f"a package with engine {name}"
        raise EngineError(f"{package} is not installed" + f"; {INSTALL}" * (name == NATIVE))
    package = points[0].dist.name if points[0].dist else points[0].module
    remedy = INSTALL if name == NATIVE else f"pip install --upgrade {package}"
    try:
        engine: Engine = points[0].load()()
    except EngineError:
        raise
    except Exception as fault:  # binaries for another Python or another machine raise any type
        raise EngineError(
            f"the package {package} cannot be imported ({worded(fault)}); {remedy}"
        ) from fault
    if (interface := getattr(engine, "interface", 0)) != INTERFACE:
        raise EngineError(
            f"the package {package} has interface {interface}, this Pomona calls {INTERFACE}; "
            f"{remedy}"
        )
    return engine


def usable_engines() -> Iterator[Engine]:
    """Yield the installed engines that can be used here."""
    for name in sorted(entry_points(group=ENTRY_POINTS).names):
        with suppress(EngineError):
            yield load_engine(name)
