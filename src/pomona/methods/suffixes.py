"""A method's settings with those of an addition, as one class under a joint name."""

from collections.abc import Callable, Mapping
from types import new_class
from typing import Any, ClassVar, Literal

from pomona.core.errors import ConfigError
from pomona.core.settings import Settings
from pomona.methods import base


def with_suffix(
    settings_class: type[base.MethodSettings],
    suffix: str,
    extra_settings: type[Settings],
    method: Callable[[Any], base.Method],
    title: str | None = None,
    fixed: Mapping[str, Any] = {},
) -> type[base.MethodSettings]:
    """Return settings that combine a method's with an addition's in one section.

    Args:
        settings_class: the method's settings.
        suffix: ends the class's name as given, and the method's name in lower case after a plus
            sign.
        extra_settings: the addition's settings.
        method: the method from the joint settings.
        title: title of the new method, whose name is the title in lower case; NAME+suffix if
            None.
        fixed: values of the method's keys that are no longer available.
    """
    plain = settings_class.model_fields["name"].default
    name = title.lower() if title else f"{plain}+{suffix.lower()}"
    body = {
        "__module__": method.__module__,
        "__annotations__": {"name": Literal[name], **dict.fromkeys(fixed, ClassVar)},
        "name": name,
        "method": method,
        **fixed,
    }
    class_name = title or f"{settings_class.__name__}{suffix[0].upper()}{suffix[1:]}"
    combined: type[base.MethodSettings] = new_class(
        class_name, (settings_class, extra_settings), exec_body=lambda space: space.update(body)
    )
    return combined


def require_mean(settings_class: type[base.MethodSettings], suffix: str, clause: str) -> None:
    """Raise ConfigError for a method whose server state is not just a mean; ``clause`` precedes
    "the mean of the uplinks' models" in the message.
    """
    plain = settings_class.model_fields["name"].default
    if not settings_class().method().server.averages:
        raise ConfigError(
            f"unknown method '{plain}+{suffix}': {clause} the mean of the uplinks' models, and the "
            f"server of {plain} keeps something else; take {plain}, or another method "
            f"with +{suffix}"
        )
