"""A method's settings with those of an addition to its server, as one class under a joint name."""

from collections.abc import Callable
from types import new_class
from typing import Any, Literal

from pomona.core.errors import ConfigError
from pomona.core.settings import Settings
from pomona.methods import base


def with_suffix(
    kind: type[base.MethodSettings],
    suffix: str,
    own: type[Settings],
    method: Callable[[Any], base.Method],
    called: str | None = None,
) -> type[base.MethodSettings]:
    """Return settings that combine a method's with an addition's in one section.

    Args:
        kind: the method's settings.
        suffix: of the joint name, after a plus sign.
        own: the addition's settings.
        method: the method from the joint settings.
        called: title of the new method, whose name is the title in lower case; NAME+suffix if
            None.
    """
    name = called.lower() if called else f"{kind.model_fields['name'].default}+{suffix}"
    body = {
        "__module__": method.__module__,
        "__annotations__": {"name": Literal[name]},
        "name": name,
        "method": method,
    }
    title = called or f"{kind.__name__}{suffix.capitalize()}"
    both: type[base.MethodSettings] = new_class(
        title, (kind, own), exec_body=lambda space: space.update(body)
    )
    return both


def require_mean(kind: type[base.MethodSettings], suffix: str, what: str) -> None:
    """Raise ConfigError for a method whose server state is not just a mean; ``what`` has its place
    in the sentence before "the mean of the uplinks' models".
    """
    plain = kind.model_fields["name"].default
    if not kind().method().server.averages:
        raise ConfigError(
            f"unknown method '{plain}+{suffix}': {what} the mean of the uplinks' models, and the "
            f"server of {plain} keeps more or other than that; take {plain}, or another method "
            f"with +{suffix}"
        )
