"""The trained part of a network: which parameters are in a row, and what becomes of the others.

A parameter with ``requires_grad = False`` is frozen: it is in no row, and keeps the value it was built or loaded with.
A submodule that has parameters, none of them trained, runs in evaluation mode with everything below it: its BatchNorm
uses the statistics it came with, which are frozen too, and its dropout is off.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from pomona.core.errors import ConfigError
from pomona.models.layers import layers

HEAD = "head"
LISTED = 6  # names that a message shows


def unfreeze(module: nn.Module, globs: Sequence[str], key: str) -> None:
    """Train the parameters that one of the globs matches; ``"head"`` stands for the last layer.

    Raises ConfigError, naming the setting ``key``, for a glob that matches nothing.
    """
    parameters = dict(module.named_parameters())
    wanted = set(layers(module)[-1][1]) if HEAD in globs else set()
    wanted |= matching(list(parameters), [glob for glob in globs if glob != HEAD], key, "parameter")
    for name in wanted:
        parameters[name].requires_grad_(True)


def matching(names: Sequence[str], globs: Sequence[str], key: str, what: str) -> set[str]:
    """The names that one of the globs matches. Raises ConfigError for a glob that matches none."""
    found: set[str] = set()
    for glob in globs:
        fits = {name for name in names if fnmatchcase(name, glob)}
        if not fits:
            some = ", ".join(names[-LISTED:]) or "none"
            raise ConfigError(f"{key}: {glob!r} matches no {what} of the network; the last of its {len(names)}: {some}")
        found |= fits
    return found


def frozen(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that training leaves as they are, by name; empty for a network that is trained whole."""
    fixed = {id(tensor) for part in evaluated(module) for tensor in part.buffers()}
    return {
        name: tensor.detach()
        for name, tensor in module.state_dict(keep_vars=True).items()
        if id(tensor) in fixed or (isinstance(tensor, nn.Parameter) and not tensor.requires_grad)
    }


def share(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Let a network use these tensors for its frozen ones, without a copy."""
    module.load_state_dict(tensors, strict=False, assign=True)
    for name, parameter in module.named_parameters():
        if name in tensors:
            parameter.requires_grad_(False)


def evaluated(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost submodules that have parameters, but none that is trained: they run in evaluation mode."""
    for part in module.children():
        trained = [parameter.requires_grad for parameter in part.parameters()]
        if trained and not any(trained):
            yield part
        else:
            yield from evaluated(part)


def active(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All submodules by path, the network itself first, but for those that run in evaluation mode."""
    still = {id(part) for outermost in evaluated(module) for part in outermost.modules()}
    return ((path, part) for path, part in module.named_modules() if id(part) not in still)


def training_mode(module: nn.Module) -> Callable[[], None]:
    """A function that puts the network into training mode, but for its frozen parts."""
    still = tuple(evaluated(module))

    def enter() -> None:
        module.train()
        for part in still:
            part.eval()

    return enter
