"""Base class of all settings records: frozen, typed, no unknown keys."""

import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError

MAX_INTEGER = 2**63  # the integers that TOML can represent
NAME = 255  # bytes, of a file or a folder
LARGEST = 1e30  # a float32 holds 1e38, which leaves room for products with weights
S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """Settings from a user. Unknown keys are errors; values are validated on creation.

    The description of a key is its line in the class's docstring, below ``Attributes:``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        populate_by_name=True,  # for a key that is no name in Python: lambda, lambda_ in code
        serialize_by_alias=True,
        defer_build=True,  # until first used: a command uses few of all methods' and data's
    )

    def __init_subclass__(cls, **options: Any) -> None:
        """Describe the keys, before pydantic reads them."""
        super().__init_subclass__(**options)
        types = inspect.get_annotations(cls)
        for key, text in descriptions(cls.__doc__ or "").items():
            if key in types and "ClassVar" not in str(get_origin(types[key])):
                types[key] = Annotated[types[key], Field(description=text)]
        cls.__annotations__ = types

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Complete the class, which pydantic 2.12 does not do before it writes unpickled
        settings.
        """
        type(self).model_rebuild()
        super().__setstate__(state)

    @field_validator("*")
    @classmethod
    def _ordinary(cls, value: Any) -> Any:
        """Reject values that would overflow later, or cannot be file names, in every field."""
        for leaf in _leaves(value):
            if isinstance(leaf, int | float) and abs(leaf) > (
                MAX_INTEGER if isinstance(leaf, int) else LARGEST
            ):
                raise ValueError("the number is too large; give a smaller one")
            if isinstance(leaf, str | Path) and "\0" in str(leaf):
                raise ValueError("a text has a NUL character; remove it")
            if isinstance(leaf, Path) and any(
                len(os.fsencode(component)) > NAME for component in leaf.parts
            ):
                raise ValueError(f"a file name is longer than {NAME} bytes; correct the path")
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _numbers(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Reject truth values for numbers, and keys without end: each unknown one is a fault, which
        takes a kilobyte.
        """
        if isinstance(value, Mapping) and len(value) > 1000:
            raise PydanticCustomError("keys", "more than 1000 keys")
        settings = handler(value)
        if isinstance(value, Mapping) and (
            misplaced := {
                field.alias or name: "true and false are not numbers; give a number"
                for name, field in cls.model_fields.items()
                if _counted(value.get(name, value.get(field.alias)), getattr(settings, name))
            }
        ):
            raise refusal(cls.__name__, misplaced)
        return settings

    def idle(self) -> dict[str, str]:
        """Return the keys that have no effect beside the values of others, each with the reason.

        It is an error to give one, even with its default value, and they are not written.
        """
        return {}

    @model_validator(mode="after")
    def _none_idle(self) -> Self:
        if misplaced := {
            key: f"{reason}; remove it"
            for key, reason in self.idle().items()
            if key in self.model_fields_set
        }:
            raise refusal(type(self).__name__, misplaced)
        return self

    @model_serializer(mode="wrap")
    def _without_idle(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        idle = self.idle()
        return {key: value for key, value in handler(self).items() if key not in idle}


def descriptions(docstring: str) -> dict[str, str]:
    """Return the text of each name below ``Attributes:`` of a docstring, as one line."""
    attributes = inspect.cleandoc(docstring).partition("\nAttributes:\n")[2]
    texts = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", attributes, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in texts}


def validate_section(
    settings_class: type[S], section: Mapping[str, Any], misplaced: Mapping[str, str]
) -> S:
    """Validate a section as settings of one kind.

    Args:
        settings_class: the settings.
        section: what was given.
        misplaced: those of its keys that only other kinds have, each with the reason.

    Raises ValidationError with every bad key or value.
    """
    valid_keys = {key: value for key, value in section.items() if key not in misplaced}
    try:
        settings = settings_class.model_validate(valid_keys)
    except ValidationError as fault:
        raise refusal(settings_class.__name__, misplaced, fault) from None
    if misplaced:
        raise refusal(settings_class.__name__, misplaced)
    return settings


def refusal(
    title: str, misplaced: Mapping[str, str], beside: ValidationError | None = None
) -> ValidationError:
    """Return the error that names each misplaced key with a reason, besides the errors of another
    one.
    """
    lines = [_detail("misplaced", reason, (key,)) for key, reason in misplaced.items()]
    errors = beside.errors(include_url=False, include_context=False) if beside else []
    lines += [
        _detail(error["type"], error["msg"], error["loc"], error["input"]) for error in errors
    ]
    return ValidationError.from_exception_data(title, lines)


def _detail(
    error_type: str, message: str, location: tuple[int | str, ...], value: Any = None
) -> InitErrorDetails:
    return InitErrorDetails(
        type=PydanticCustomError(error_type, message), loc=location, input=value
    )


def require_name(section: Mapping[str, Any], choices: Iterable[str]) -> str:
    """Return the name that selects a section's settings.

    Raises PydanticKnownError unless it is a known one.
    """
    name = section.get("name")
    if name is None:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'name'"})
    if not isinstance(name, str) or name not in choices:
        context = {"discriminator": "'name'", "tag": str(name), "expected_tags": ", ".join(choices)}
        raise PydanticKnownError("union_tag_invalid", context)
    return name


def _counted(raw: Any, value: Any) -> bool:
    """Return whether a truth value has become a number, also in a tuple or a table."""
    if isinstance(raw, Mapping) and isinstance(value, Mapping):
        raw, value = tuple(raw.values()), tuple(value.values())
    if isinstance(raw, list | tuple) and isinstance(value, tuple):
        return any(map(_counted, raw, value))
    return isinstance(raw, bool) and type(value) in {int, float}


def _leaves(value: Any) -> Iterator[Any]:
    """Yield a field's values, including those in tables and tuples; lists hold data rows with
    bounded types.
    """
    if isinstance(value, Mapping | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(inner)
    else:
        yield value
