"""Base class of all settings records: frozen, typed, no unknown keys."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from pomona.core.errors import ConfigError

MOST = 2**63  # the integers that TOML can represent
NAME = 255  # bytes, of a file or a folder
LARGEST = 1e30  # a float32 holds 1e38, which leaves room for products with weights


class Settings(BaseModel):
    """Settings from a user. Unknown keys are errors; values are validated on creation."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        populate_by_name=True,  # for a key that is no name in Python: lambda, lambda_ in code
        serialize_by_alias=True,
    )

    @field_validator("*")
    @classmethod
    def _ordinary(cls, value: Any) -> Any:
        """Reject values that would overflow later, or cannot be file names, in every field."""
        for leaf in _leaves(value):
            if isinstance(leaf, int | float) and abs(leaf) > (MOST if isinstance(leaf, int) else LARGEST):
                raise ValueError("the number is too large; give a smaller one")
            if isinstance(leaf, str | Path) and "\0" in str(leaf):
                raise ValueError("a text has a NUL character; remove it")
            if isinstance(leaf, Path) and any(len(os.fsencode(part)) > NAME for part in leaf.parts):
                raise ValueError(f"no file has a name of more than {NAME} bytes; correct the path")
        return value


def refuse_idle(settings: Settings, section: str, keys: Iterable[str], why: str) -> None:
    """Raise ConfigError if one of these keys, which have no effect here, differs from its default."""
    for key in keys:
        if getattr(settings, key) != type(settings).model_fields[key].get_default(call_default_factory=True):
            raise ConfigError(f"{section}{key} {why}; remove it")


def _leaves(value: Any) -> Iterator[Any]:
    """Yield a field's values, including those in tables and tuples; lists hold data rows with bounded types."""
    if isinstance(value, Mapping | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(inner)
    else:
        yield value
