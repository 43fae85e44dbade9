"""The layers of a network, from input to output; the size of their activations; which parameters
are trained, and so in a row, and how the others are handled.

A parameter with ``requires_grad = False`` is frozen: it is in no row, and keeps its initial or
loaded value. A submodule whose parameters are all frozen runs in evaluation mode with everything
below it: its BatchNorm uses its stored statistics, which are frozen too, and its dropout is off.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from pomona.core.errors import ConfigError
from pomona.core.lazy_torch import Module, Tensor, torch

MOST_BYTES = 2**31  # of one layer's output for one sample


def require_small(
    outline: Module, input_shape: tuple[int, ...], tokens: bool
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

    def check_size(module: Module, _: object, outputs: object) -> None:
        if isinstance(outputs, torch.Tensor) and 4 * outputs.numel() > MOST_BYTES:
            raise _LargeError(
                f"a sample of shape {input_shape} takes {4 * outputs.numel() / 1e9:.1f} GB in one "
                f"layer ({type(module).__name__}); the limit is {MOST_BYTES / 1e9:.1f} GB"
            )

    hooks = [module.register_forward_hook(check_size) for module in outline.modules()]
    try:
        with torch.no_grad():
            dtype = torch.int64 if tokens else torch.float32
            outputs = outline.eval()(torch.empty((1, *input_shape), dtype=dtype, device="meta"))
        return tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else None
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


def layers(module: Module) -> list[tuple[str, list[str]]]:
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


HEAD = "head"
LISTED = 6  # names listed in a message


def unfreeze(module: Module, globs: Sequence[str], key: str) -> None:
    """Train the parameters that match one of the globs; ``"head"`` stands for the last layer.

    Raises ConfigError, naming the setting ``key``, for a glob without matches.
    """
    parameters = dict(module.named_parameters())
    selected = set(layers(module)[-1][1]) if HEAD in globs else set()
    selected |= matching(
        list(parameters), [glob for glob in globs if glob != HEAD], key, "parameter"
    )
    for name in selected:
        parameters[name].requires_grad_(True)


def matching(names: Sequence[str], globs: Sequence[str], key: str, noun: str) -> set[str]:
    """Return the names that match one of the globs.

    Raises ConfigError for a glob without matches.
    """
    matches: set[str] = set()
    for glob in globs:
        matched = {name for name in names if fnmatchcase(name, glob)}
        if not matched:
            examples = ", ".join(names[-LISTED:]) or "none"
            raise ConfigError(
                f"{key}: {glob!r} matches no {noun} of the network; the last of its {len(names)}: "
                f"{examples}"
            )
        matches |= matched
    return matches


def frozen(module: Module) -> dict[str, Tensor]:
    """Return the tensors that training does not change, by name; empty if the whole network is
    trained.
    """
    fixed = {id(tensor) for submodule in evaluated(module) for tensor in submodule.buffers()}
    return {
        name: tensor.detach()
        for name, tensor in module.state_dict(keep_vars=True).items()
        if id(tensor) in fixed
        or (isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad)
    }


def share(module: Module, tensors: Mapping[str, Tensor]) -> None:
    """Make a network use these tensors as its frozen ones, without copying."""
    module.load_state_dict(tensors, strict=False, assign=True)
    for name, parameter in module.named_parameters():
        if name in tensors:
            parameter.requires_grad_(False)


def evaluated(module: Module) -> Iterator[Module]:
    """Yield the outermost submodules whose parameters are all frozen; they run in evaluation
    mode.
    """
    for child in module.children():
        trained = [parameter.requires_grad for parameter in child.parameters()]
        if trained and not any(trained):
            yield child
        else:
            yield from evaluated(child)


def active(module: Module) -> Iterator[tuple[str, Module]]:
    """Yield all submodules by path, the network itself first, except those that run in evaluation
    mode.
    """
    frozen_ids = {
        id(submodule) for outermost in evaluated(module) for submodule in outermost.modules()
    }
    return (
        (path, submodule)
        for path, submodule in module.named_modules()
        if id(submodule) not in frozen_ids
    )


def training_mode(module: Module) -> Callable[[], None]:
    """Put the network into training mode except for its frozen parts; return a function that
    restores the modes.
    """
    frozen_modules = tuple(evaluated(module))

    def enter() -> None:
        module.train()
        for submodule in frozen_modules:
            submodule.eval()

    enter()
    modes = [(submodule, submodule.training) for submodule in module.modules()]

    def restore_modes() -> None:
        # Comparing is cheap, setting the modes is slow and seldom needed.
        # seldom; setting them is slow
        if any(submodule.training is not mode for submodule, mode in modes):
            enter()

    return restore_modes
