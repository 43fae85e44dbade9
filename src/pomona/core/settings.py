"""The base of every settings record: frozen, typed, and closed to unknown keys."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from pomona.core.errors import ConfigError

MOST = 2**63  # what an integer of TOML can be
NAME = 255  # bytes, of a file or a folder
LARGEST = 1e30  # a float32 holds 1e38, so that a product with a weight is left room


class Settings(BaseModel):
    """Values a user sets. Unknown keys are errors; values are checked when the record is made."""

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
        """Refuse what later arithmetic would overflow with and what no file can be called, in every field."""
        for leaf in _leaves(value):
            if isinstance(leaf, int | float) and abs(leaf) > (MOST if isinstance(leaf, int) else LARGEST):
                raise ValueError("no run counts with numbers as large; give a smaller one")
            if isinstance(leaf, str | Path) and "\0" in str(leaf):
                raise ValueError("a text has a NUL character; take it out")
            if isinstance(leaf, Path) and any(len(os.fsencode(part)) > NAME for part in leaf.parts):
                raise ValueError(f"no file has a name of more than {NAME} bytes; correct the path")
        return value


def refuse_idle(settings: Settings, section: str, keys: Iterable[str], why: str) -> None:
    """Raise ConfigError if one of these keys, which do nothing here, has another value than its default."""
    for key in keys:
        if getattr(settings, key) != type(settings).model_fields[key].get_default(call_default_factory=True):
            raise ConfigError(f"{section}{key} {why}; take it out")


def _leaves(value: Any) -> Iterator[Any]:
    """What a field holds, in its tables and tuples too; lists are rows of data, which their own types bound."""
    if isinstance(value, Mapping | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(inner)
    else:
        yield value
