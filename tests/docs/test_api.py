"""The public API: docs/api.md names exactly what the public modules export, and the examples in docstrings work."""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import pomona

TEXT = (Path(__file__).parents[2] / "docs/api.md").read_text()
SECTIONS = dict(re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
EXAMPLES = (
    "pomona",
    "pomona.config",
    "pomona.simulation",
    "pomona.record.paired_gain",
    "pomona.record.reading",
    "pomona.record.result",
    "pomona.record.rows",
)


@pytest.mark.parametrize("module", SECTIONS)
def test_the_page_names_what_a_module_exports(module):
    exported = importlib.import_module(module).__all__
    assert re.findall(r"^\| `(\w+)", SECTIONS[module], re.MULTILINE) == sorted(exported, key=str.lower)


@pytest.mark.parametrize("module", SECTIONS)
def test_what_is_public_has_a_docstring_and_types(module):
    public = importlib.import_module(module)
    for name in public.__all__:
        thing = getattr(public, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name
        if inspect.isfunction(thing):
            parameters = inspect.signature(thing).parameters
            assert {*parameters, "return"} == thing.__annotations__.keys(), name


def test_nothing_else_is_offered_at_the_top():
    offered = {
        name for name in vars(pomona) if not name.startswith("_") and not inspect.ismodule(getattr(pomona, name))
    }
    assert offered - {"TYPE_CHECKING", "Any"} <= set(pomona.__all__)


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_in_docstrings_work(module):
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted
    assert not result.failed
