"""The trained part of a network: which parameters are in a row, and how the others are handled.

A parameter with ``requires_grad = False`` is frozen: it is in no row, and keeps its initial or
loaded value. A submodule whose parameters are all frozen runs in evaluation mode with everything
below it: its BatchNorm uses its stored statistics, which are frozen too, and its dropout is off.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from pomona.core.errors import ConfigError
from pomona.models.layers import layers

HEAD = "head"
LISTED = 6  # names listed in a message


def unfreeze(module: nn.Module, globs: Sequence[str], key: str) -> None:
    """Train the parameters that match one of the globs; ``"head"`` stands for the last layer.

    Raises ConfigError, naming the setting ``key``, for a glob without matches.
    """
    parameters = dict(module.named_parameters())
    wanted = set(layers(module)[-1][1]) if HEAD in globs else set()
    wanted |= matching(list(parameters), [glob for glob in globs if glob != HEAD], key, "parameter")
    for name in wanted:
        parameters[name].requires_grad_(True)


def matching(names: Sequence[str], globs: Sequence[str], key: str, what: str) -> set[str]:
    """Return the names that match one of the globs.

    Raises ConfigError for a glob without matches.
    """
    found: set[str] = set()
    for glob in globs:
        fits = {name for name in names if fnmatchcase(name, glob)}
        if not fits:
            some = ", ".join(names[-LISTED:]) or "none"
            raise ConfigError(
                f"{key}: {glob!r} matches no {what} of the network; the last of its {len(names)}: "
                f"{some}"
            )
        found |= fits
    return found


def frozen(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that training does not change, by name; empty if the whole network is
    trained.
    """
    fixed = {id(tensor) for part in evaluated(module) for tensor in part.buffers()}
    return {
        name: tensor.detach()
        for name, tensor in module.state_dict(keep_vars=True).items()
        if id(tensor) in fixed or (isinstance(tensor, nn.Parameter) and not tensor.requires_grad)
    }


def share(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Make a network use these tensors as its frozen ones, without copying."""
    module.load_state_dict(tensors, strict=False, assign=True)
    for name, parameter in module.named_parameters():
        if name in tensors:
            parameter.requires_grad_(False)


def evaluated(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost submodules whose parameters are all frozen; they run in evaluation
    mode.
    """
    for part in module.children():
        trained = [parameter.requires_grad for parameter in part.parameters()]
        if trained and not any(trained):
            yield part
        else:
            yield from evaluated(part)


def active(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield all submodules by path, the network itself first, except those that run in evaluation
    mode.
    """
    still = {id(part) for outermost in evaluated(module) for part in outermost.modules()}
    return ((path, part) for path, part in module.named_modules() if id(part) not in still)


def training_mode(module: nn.Module) -> Callable[[], None]:
    """Return a function that puts the network into training mode except for its frozen parts."""
    still = tuple(evaluated(module))

    def enter() -> None:
        module.train()
        for part in still:
            part.eval()

    return enter
