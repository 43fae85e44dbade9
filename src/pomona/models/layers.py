"""The layers of a network, from input to output."""

from torch import nn


def layers(module: nn.Module) -> list[tuple[str, list[str]]]:
    """The layers of a network from input to output: (path, names of its parameters); each parameter is in one layer.

    Layers and names stand in order of registration, so that each layer is a slice of the parameters in a row. A layer
    is a submodule that owns parameters directly; a module with the attribute ``parameter_blocks``, a tuple of paths,
    has everything below one of these paths counted as one layer instead.
    """
    blocks: tuple[str, ...] = getattr(module, "parameter_blocks", ())
    owned: dict[str, list[str]] = {}
    for name, _ in module.named_parameters():
        path = name.rpartition(".")[0]
        layer = next((block for block in blocks if f"{path}.".startswith(f"{block}.")), path)
        owned.setdefault(layer, []).append(name)
    return list(owned.items())
