"""Damaged or made-up inputs: from bytes, from the tree of a parsed text, and from pydantic
models.
"""

import json
import tomllib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tomli_w
from hypothesis import strategies as st
from pydantic import BaseModel

from damage import damages, places

Path_ = tuple[Any, ...]

EXTREMES = [
    None, True, False, -1, 0, 1, 2**31, 2**53, 2**63, 10**30, 10**400, -(10**400), 5e-324, 1e308, -1e308,
    float("inf"), float("nan"), "", "0", "x" * 501, "/etc/passwd", "../../keys/silo.key", "module:function",
    "[/red]", "<script>alert(1)</script>", "\x1b]0;x\x07\n", "\u202e", "\x00", "=1+1", "1e999", "9" * 5000, [], {}, [[]], {"": {}},
]  # fmt: skip
"""Values where code has been seen to break: ends of number types, foreign paths and markup,
emptiness.
"""


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


values = st.one_of(
    st.sampled_from(EXTREMES),
    st.builds(nested, st.sampled_from([10, 70, 400])),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=6,
    ),
)


# From bytes.


# From trees.


@st.composite
def edits(draw: st.DrawFn, positions: list[Path_]) -> Callable[[Any], Any]:
    """A function that changes a tree at one position: replaced, deleted, duplicated, renamed, or
    copied there.
    """
    operation, value, name = draw(st.integers(0, 5)), draw(values), draw(st.text(max_size=6))
    path, source = draw(st.sampled_from(positions)), draw(st.sampled_from(positions))

    def edit(tree: Any) -> Any:
        try:
            holder = value_at(tree, path[:-1])
            if operation == 1:
                del holder[path[-1]]
            elif operation == 2 and isinstance(holder, list):
                holder.insert(path[-1], deepcopy(holder[path[-1]]))
            elif operation == 3 and isinstance(holder, dict):
                holder[name] = holder.pop(path[-1])
            elif operation == 4:
                holder[path[-1]] = deepcopy(value_at(tree, source))
            else:
                holder[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            pass  # an edit before has taken the place away
        return tree

    return edit


def value_at(tree: Any, path: Path_) -> Any:
    """The value at a position."""
    for key in path:
        tree = tree[key]
    return tree


@dataclass(frozen=True)
class TextFormat:
    """A tree's text format."""

    read: Callable[[str], Any]
    write: Callable[[Any], str]


def _lines(tree: list[Any]) -> str:
    return "".join(json.dumps(line) + "\n" for line in tree)


JSON = TextFormat(json.loads, json.dumps)
LINES = TextFormat(lambda text: [json.loads(line) for line in text.splitlines()], _lines)
TOML = TextFormat(tomllib.loads, tomli_w.dumps)


@dataclass(frozen=True)
class Valid:
    """A valid input from which others are made; ``format`` if it is the text of a tree."""

    data: bytes
    format: TextFormat | None = None

    @cached_property
    def tree(self) -> Any:
        """The parsed tree."""
        assert self.format
        return self.format.read(self.data.decode())

    @cached_property
    def positions(self) -> list[Path_]:
        """All positions of the tree."""
        return list(places(self.tree))


def damaged(valid: Valid) -> st.SearchStrategy[bytes]:
    """The input with one to three damages to its bytes."""
    return st.lists(damages(), min_size=1, max_size=3).map(
        lambda changes: _apply(changes, valid.data)
    )


def edited(valid: Valid) -> st.SearchStrategy[bytes]:
    """The input's tree with one to three edits, as text; unchanged if no text can express it."""

    def written(changes: list[Callable[[Any], Any]]) -> bytes:
        assert valid.format
        try:
            return valid.format.write(_apply(changes, deepcopy(valid.tree))).encode()
        except (TypeError, ValueError, AttributeError, RecursionError):
            return valid.data

    return st.lists(edits(valid.positions), min_size=1, max_size=3).map(written)


def inputs(valid: Valid) -> st.SearchStrategy[bytes]:
    """Damaged and edited inputs, and pure noise."""
    variants = (
        damaged(valid)
        if valid.format is None
        else st.one_of(edited(valid), edited(valid), damaged(valid))
    )
    return st.one_of(variants, variants, variants, st.binary(max_size=60))


def _apply(changes: list[Callable[[Any], Any]], value: Any) -> Any:
    for change in changes:
        value = change(value)
    return value


# From models.


def accepted_bodies(record: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies that a model accepts, from its JSON schema; also with mapping keys that it may
    refuse.
    """
    schema = record.model_json_schema()
    return _values(schema, schema.get("$defs", {}))


def _values(schema: dict[str, Any], definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a schema in pydantic's vocabulary."""
    match schema:
        case {"$ref": str(name)}:
            return _values(definitions[name.rpartition("/")[2]], definitions)
        case {"anyOf": list(options)}:
            return st.one_of([_values(option, definitions) for option in options])
        case {"const": value}:
            return st.just(value)
        case {"enum": list(options)}:
            return st.sampled_from(options)
        case {"type": "null"}:
            return st.none()
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "integer"}:
            maximum = schema.get("maximum", schema.get("exclusiveMaximum", 2**63) - 1)
            return st.integers(schema.get("minimum", -(2**63)), maximum)
        case {"type": "number"}:
            minimum, maximum = schema.get("minimum"), schema.get("maximum")
            return st.floats(minimum, maximum, allow_nan=False, allow_infinity=False)
        case {"type": "string", "pattern": str(pattern)}:
            text = st.from_regex(pattern, fullmatch=True)
            return text.filter(lambda t: len(t) <= schema.get("maxLength", len(t)))
        case {"type": "string"}:
            return st.text(
                min_size=schema.get("minLength", 0), max_size=min(20, schema.get("maxLength", 20))
            )
        case {"type": "array", "prefixItems": list(options)}:
            return st.tuples(*(_values(option, definitions) for option in options)).map(list)
        case {"type": "array"}:
            return st.lists(
                _values(schema["items"], definitions), max_size=min(3, schema.get("maxItems", 3))
            )
        case {"type": "object", "properties": dict(fields)}:
            return st.fixed_dictionaries(
                {name: _values(field, definitions) for name, field in fields.items()}
            )
        case {"type": "object"}:
            names = st.sampled_from(["0", "1", "2", "6", "core", "model"])
            return st.dictionaries(
                names, _values(schema.get("additionalProperties", {}), definitions), max_size=3
            )
    return values


def messages(record: type[BaseModel], valid: Valid) -> st.SearchStrategy[bytes]:
    """Bodies of a kind: fully made up, a valid one with one made-up field, and the output of
    ``inputs``.
    """
    bodies = accepted_bodies(record)
    generated = bodies.map(lambda body: json.dumps(body).encode())
    swapped = st.builds(
        lambda body, field: json.dumps({**valid.tree, field: body.get(field)}).encode(),
        bodies,
        st.sampled_from(sorted(record.model_fields)),
    )
    return st.one_of(generated, swapped, inputs(valid))
