"""Numbers at and between all limits of the code, in every number of every settings file, record and
message: taken, and then written and read to the same, or refused as such.
"""

import importlib
import math
import pkgutil
from inspect import isabstract

import pytest
from pydantic import ValidationError

import pomona
import pomona_federation
from data.test_boundary_numbers import VALUES
from pomona.config import resolve
from pomona.core.errors import PomonaError
from pomona.core.settings import Settings

REFUSED = (ValidationError, PomonaError)
NOT_WRITTEN = {"SizePart"}  # its file has a run's keys between its own


def classes():
    """Every class of settings, of both packages."""
    for package in (pomona, pomona_federation):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except ImportError as missing:  # of an optional library
                    assert not str(missing.name).startswith("pomona"), module.name  # noqa: PT017
    left, concrete = [Settings], set()
    while left:
        cls = left.pop()
        left += cls.__subclasses__()
        ours = cls.__module__.startswith("pomona") and cls.__name__ not in NOT_WRITTEN
        if cls is not Settings and ours and not isabstract(cls):
            concrete.add(cls)
    return sorted(concrete, key=lambda kind: (kind.__module__, kind.__qualname__))


def limits(schema):
    """The limits in the schema of a field; None if it takes no numbers."""
    schemas = schema.get("anyOf", [schema])
    if not any(alternative.get("type") in {"number", "integer"} for alternative in schemas):
        return None
    keys = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    return [alternative[key] for alternative in schemas for key in keys if key in alternative]


def values(bounds):
    """All numbers to try, as such and as whole ones."""
    tried = [*VALUES, math.nan, 2**63, 2**64, 10**400]
    for bound in bounds:
        neighbours = (
            [math.nextafter(bound, d) for d in (-math.inf, math.inf)] if abs(bound) < 1e300 else []
        )
        tried += [bound, bound - 1, bound + 1, *neighbours]
    integers = [int(v) for v in tried if isinstance(v, float) and math.isfinite(v) and v == int(v)]
    return [*tried, *integers]


def tried(cls, body, write):
    """The number of values tried in all fields of a class."""
    count = 0
    for name, schema in cls.model_json_schema().get("properties", {}).items():
        if (bounds := limits(schema)) is None:
            continue
        for value in values(bounds):
            count += 1
            try:
                valid = write({**body, name: value})
            except REFUSED:
                continue
            assert cls.model_validate_json(valid.model_dump_json()) == valid, (cls, name, value)
    return count


@pytest.mark.long
def test_every_number_of_every_class_is_taken_or_refused(capsys):
    inputs = fields = 0
    for cls in classes():
        try:
            count = tried(cls, {}, cls.model_validate)
        except Exception as fault:
            raise AssertionError(f"{cls.__module__}.{cls.__qualname__}: {fault!r}") from fault
        inputs, fields = inputs + count, fields + (count > 0)
    with capsys.disabled():
        print(f"\n{fields} classes, {inputs} values")  # noqa: T201
    assert fields > 30


@pytest.mark.slow
@pytest.mark.parametrize("method", ["apple", "fedavg", "ditto"])
def test_every_number_of_a_run_is_taken_or_refused(method):
    tree = {"data": {"name": "digits"}, "method": {"name": method}}
    for name in ("", "data", "partition", "model", "method"):
        section = resolve(tree).model_dump()
        old = (section[name] if name else section) or {}
        keys = [k for k, v in old.items() if isinstance(v, int | float) and not isinstance(v, bool)]
        for key in keys:
            for value in values([]):
                try:
                    config = resolve(tree, {name: {**old, key: value}} if name else {key: value})
                except REFUSED:
                    continue
                assert resolve(config.tree()) == config, (name, key, value)
