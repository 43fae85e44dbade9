"""A method's settings with those of an addition, as one class under a joint name."""

from collections.abc import Callable, Mapping
from types import new_class
from typing import Any, ClassVar, Literal

from pomona.core.errors import ConfigError
from pomona.core.settings import Settings
from pomona.methods import base


def with_suffix(
    kind: type[base.MethodSettings],
    suffix: str,
    own: type[Settings],
    method: Callable[[Any], base.Method],
    called: str | None = None,
    fixed: Mapping[str, Any] = {},
) -> type[base.MethodSettings]:
    """Return settings that combine a method's with an addition's in one section.

    Args:
        kind: the method's settings.
        suffix: ends the class's name as given, and the method's name in lower case after a plus
            sign.
        own: the addition's settings.
        method: the method from the joint settings.
        called: title of the new method, whose name is the title in lower case; NAME+suffix if
            None.
        fixed: values of the method's keys that are no longer available.
    """
    plain = kind.model_fields["name"].default
    name = called.lower() if called else f"{plain}+{suffix.lower()}"
    body = {
        "__module__": method.__module__,
        "__annotations__": {"name": Literal[name], **dict.fromkeys(fixed, ClassVar)},
        "name": name,
        "method": method,
        **fixed,
    }
    title = called or f"{kind.__name__}{suffix[0].upper()}{suffix[1:]}"
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
