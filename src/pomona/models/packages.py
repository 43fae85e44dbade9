"""Networks of other packages by name: torchvision, timm and MONAI. Their weights come from ``model.init``."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn

from pomona.core.errors import ConfigError, near

# Arguments that would fetch weights, or unpickle a file of them.
FETCHING = ("pretrained", "weights", "checkpoint", "cache_dir", "features_only")


def package(name: str) -> str | None:
    """The package that a network's name begins with; None for any other name."""
    first, colon, _ = name.partition(":")
    return first if colon and first in PACKAGES else None


def build(name: str, args: Mapping[str, Any], input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    """A package's network for samples (C, *sides) and K outputs.

    Raises:
        ConfigError: a package that is not there, a name that it does not know, arguments that the network does not
            take, or those that would fetch weights.
    """
    first, _, rest = name.partition(":")
    if find_spec(first) is None:
        raise ConfigError(f"model.name={name} needs {first}; pip install 'pomona[{first}]'")
    if odd := [key for key in args if key.startswith(FETCHING)]:
        raise ConfigError(f"model.args.{odd[0]}: weights are not fetched; name a file of them in model.init")
    try:
        return PACKAGES[first](rest, dict(args), input_shape, n_outputs)
    except ConfigError:
        raise
    except Exception as fault:  # the package's own checks, of any kind
        line = f"{type(fault).__name__}: {fault}".partition("\n")[0]
        raise ConfigError(f"model.name={name} cannot be built ({line}); see model.args") from fault


def _torchvision(name: str, args: dict[str, Any], input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    models = import_module("torchvision.models")
    _require_known("torchvision", name, models.list_models())
    module: nn.Module = models.get_model(name, weights=None, **{"num_classes": n_outputs, **args})
    return module


def _timm(name: str, args: dict[str, Any], input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    timm = import_module("timm")
    _require_known("timm", name, timm.list_models())
    sizes = {"num_classes": n_outputs, "in_chans": input_shape[0]}
    module: nn.Module = timm.create_model(name, pretrained=False, **{**sizes, **args})
    return module


def _monai(name: str, args: dict[str, Any], input_shape: tuple[int, ...], n_outputs: int) -> nn.Module:
    nets = import_module("monai.networks.nets")
    known = {k: v for k, v in vars(nets).items() if isinstance(v, type) and issubclass(v, nn.Module)}
    _require_known("monai", name, known)
    sizes = {
        "spatial_dims": len(input_shape) - 1,
        "in_channels": input_shape[0],
        "img_size": input_shape[1:],
        "out_channels": n_outputs,
        "num_classes": n_outputs,
    }
    takes = inspect.signature(known[name]).parameters
    module: nn.Module = known[name](**{**{k: v for k, v in sizes.items() if k in takes}, **args})
    return module


def _require_known(first: str, name: str, known: Any) -> None:
    if name not in known:
        raise ConfigError(f"unknown model.name={first}:{name}; {near(name, known)}")


PACKAGES: dict[str, Callable[[str, dict[str, Any], tuple[int, ...], int], nn.Module]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "monai": _monai,
}
