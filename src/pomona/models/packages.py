"""Networks from other packages by name: torchvision, timm, MONAI and transformers.

Their weights come from ``model.init``.

Names and arguments may come from another party's file. Nothing is downloaded or unpickled for them,
and the size of the networks is limited, by the numbers among the arguments and by the number of
modules.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from itertools import count
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from pomona.core.errors import ConfigError
from pomona.core.registry import require
from pomona.core.synonyms import intended
from pomona.models import huggingface

# Prefixes of arguments that would download weights, or unpickle a file of them.
FETCHING = ("pretrained", "weights", "checkpoint", "bin_checkpoint", "cache_dir")
# networks with a language model that their constructor downloads
ELSEWHERE = "monai.networks.nets.transchex"
LARGEST = 10**6  # largest number in the arguments
MODULES = 20_000  # modules in one network


def package(name: str) -> str | None:
    """Return the package at the start of a network's name; None if there is none."""
    first, colon, _ = name.partition(":")
    return first if colon and first in PACKAGES else None


def build(
    name: str,
    args: Mapping[str, Any],
    input_shape: tuple[int, ...],
    n_outputs: int,
    vocabulary: int = 0,
) -> nn.Module:
    """Build a package's network for samples (C, *sides), or texts, and K outputs.

    Raises:
        ConfigError: the package is not installed, does not have the network, or the arguments are
            unknown or would download weights.
    """
    first, _, network_name = name.partition(":")
    require(first, f"model.name={name}")
    if fetching := [key for key in args if key.startswith(FETCHING)]:
        raise ConfigError(
            f"model.args.{fetching[0]}: weights are never downloaded; name a file of weights in "
            "model.init"
        )
    if large := [key for key, value in args.items() if _largest(value) > LARGEST]:
        raise ConfigError(f"model.args.{large[0]} holds a number above {LARGEST}; lower it")
    with _bounded():
        return PACKAGES[first](network_name, dict(args), input_shape, n_outputs, vocabulary)


def _torchvision(
    name: str, args: dict[str, Any], input_shape: tuple[int, ...], n_outputs: int, _: int
) -> nn.Module:
    models = import_module("torchvision.models")
    _require_known("torchvision", name, models.list_models())
    builder = models.get_model_builder(name)
    module: nn.Module = builder(**{"num_classes": n_outputs, **args, **_unfetched(builder)})
    return module


def _timm(
    name: str, args: dict[str, Any], input_shape: tuple[int, ...], n_outputs: int, _: int
) -> nn.Module:
    timm = import_module("timm")
    _require_known("timm", name, timm.list_models())
    sizes = {"num_classes": n_outputs, "in_chans": input_shape[0]}
    module: nn.Module = timm.create_model(name, pretrained=False, **{**sizes, **args})
    return module


def _monai(
    name: str, args: dict[str, Any], input_shape: tuple[int, ...], n_outputs: int, _: int
) -> nn.Module:
    nets = import_module("monai.networks.nets")
    networks = {
        k: v for k, v in vars(nets).items() if isinstance(v, type) and issubclass(v, nn.Module)
    }
    networks = {k: v for k, v in networks.items() if v.__module__ != ELSEWHERE}
    _require_known("monai", name, networks)
    sizes = {
        "spatial_dims": len(input_shape) - 1,
        "in_channels": input_shape[0],
        "img_size": input_shape[1:],
        "out_channels": n_outputs,
        "num_classes": n_outputs,
    }
    parameters = inspect.signature(networks[name]).parameters
    accepted_sizes = {k: v for k, v in sizes.items() if k in parameters}
    module: nn.Module = networks[name](**{**accepted_sizes, **args, **_unfetched(networks[name])})
    return module


def _unfetched(builder: Callable[..., nn.Module]) -> dict[str, Any]:
    """Return arguments that prevent a builder from downloading weights, as some do by default."""
    parameters = inspect.signature(builder).parameters.values()
    return {
        p.name: False if isinstance(p.default, bool) else None
        for p in parameters
        if p.name.startswith(FETCHING)
    }


def _largest(value: Any) -> float:
    """Return the largest absolute number in a JSON value; 0 without any."""
    if isinstance(value, dict | list | tuple):
        return max(map(_largest, value.values() if isinstance(value, dict) else value), default=0)
    return abs(value) if isinstance(value, int | float) else 0


@contextmanager
def _bounded() -> Iterator[None]:
    """Raise ConfigError when more than ``MODULES`` modules are created."""
    created = count(1)

    def count_module(*_: object) -> None:
        if next(created) > MODULES:
            raise ConfigError(
                f"the network has more than {MODULES} modules; lower the sizes in model.args"
            )

    handle = register_module_module_registration_hook(count_module)
    try:
        yield
    finally:
        handle.remove()


def _require_known(first: str, name: str, available: Any) -> None:
    if name not in available:
        # of a thousand, too many for a message
        close = intended(name, available) or get_close_matches(name, available, n=3)
        hint = (
            f"did you mean {' or '.join(close)}?"
            if close
            else f"see the list in the documentation of {first}"
        )
        raise ConfigError(f"unknown model.name={first}:{name}; {hint}")


PACKAGES: dict[str, Callable[[str, dict[str, Any], tuple[int, ...], int, int], nn.Module]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "monai": _monai,
    "transformers": huggingface.build,
}
