"""The layers of a network, from input to output, and the size of their activations."""

import torch
from torch import Tensor, nn

MOST_BYTES = 2**31  # of one layer's output for one sample


def require_small(
    outline: nn.Module, input_shape: tuple[int, ...], tokens: bool
) -> tuple[int, ...] | None:
    """Return the shape of the outputs (1, ...) of a network on the meta device for one sample.

    The size of the weights does not limit the activations: a network of a few megabytes needs
    gigabytes for an image of 8192 x 8192.

    Args:
        outline: the network.
        input_shape: of one sample as the network receives it.
        tokens: whether its values are token ids.

    Returns:
        The shape; None if the network cannot run on the meta device.

    Raises:
        ValueError: a layer's output has more than ``MOST_BYTES`` bytes in float32.
    """

    def look(module: nn.Module, _: object, outputs: object) -> None:
        if isinstance(outputs, Tensor) and 4 * outputs.numel() > MOST_BYTES:
            raise _LargeError(
                f"a sample of shape {input_shape} takes {4 * outputs.numel() / 1e9:.1f} GB in one "
                f"layer ({type(module).__name__}), at most {MOST_BYTES / 1e9:.1f} GB are computed"
            )

    hooks = [module.register_forward_hook(look) for module in outline.modules()]
    try:
        with torch.no_grad():
            kind = torch.int64 if tokens else torch.float32
            outputs = outline.eval()(torch.empty((1, *input_shape), dtype=kind, device="meta"))
        return tuple(outputs.shape) if isinstance(outputs, Tensor) else None
    except _LargeError:
        raise
    except (
        AttributeError,
        RuntimeError,
        ValueError,
        TypeError,
        IndexError,
        AssertionError,
        NotImplementedError,
    ):
        return None
    finally:
        for hook in hooks:
            hook.remove()


class _LargeError(ValueError):
    pass


def layers(module: nn.Module) -> list[tuple[str, list[str]]]:
    """Return the layers of a network from input to output as (path, parameter names); each
    parameter is in one layer.

    Layers and names are in order of registration, so that each layer is a contiguous slice of the
    parameters. A layer is a submodule that owns parameters directly; in a module with the attribute
    ``parameter_blocks``, a tuple of paths, everything below one of these paths counts as one layer
    instead.
    """
    blocks: tuple[str, ...] = getattr(module, "parameter_blocks", ())
    owned: dict[str, list[str]] = {}
    for name, _ in module.named_parameters():
        path = name.rpartition(".")[0]
        layer = next((block for block in blocks if f"{path}.".startswith(f"{block}.")), path)
        owned.setdefault(layer, []).append(name)
    return list(owned.items())
