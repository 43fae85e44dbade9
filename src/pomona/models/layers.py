"""The layers of a network, from input to output."""

from torch import nn


def layers(module: nn.Module) -> list[tuple[str, list[str]]]:
    """Return the layers of a network from input to output as (path, parameter names); each parameter is in one layer.

    Layers and names are in order of registration, so that each layer is a contiguous slice of the parameters. A layer
    is a submodule that owns parameters directly; in a module with the attribute ``parameter_blocks``, a tuple of paths,
    everything below one of these paths counts as one layer instead.
    """
    blocks: tuple[str, ...] = getattr(module, "parameter_blocks", ())
    owned: dict[str, list[str]] = {}
    for name, _ in module.named_parameters():
        path = name.rpartition(".")[0]
        layer = next((block for block in blocks if f"{path}.".startswith(f"{block}.")), path)
        owned.setdefault(layer, []).append(name)
    return list(owned.items())
