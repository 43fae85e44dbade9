"""The public API: docs/api.md lists exactly what the public modules export, and the examples in
docstrings work.
"""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import pomona

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/api.md").read_text()
SECTIONS = dict(re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
SCRIPTS = {
    module: set(re.findall(r"`(\w+)", names))
    for module, names in re.findall(r"^\| `(pomona\.[\w.]+)` \| (.*) \|$", TEXT, re.MULTILINE)
}
TAUGHT = [*sorted((ROOT / "examples").rglob("*.py")), *sorted((ROOT / "docs/guides").glob("*.md"))]
EXAMPLES = (
    "pomona",
    "pomona.config.config",
    "pomona.data.memory",
    "pomona.simulation",
    "pomona.record.paired_gain",
    "pomona.record.run_folder",
    "pomona.record.result",
    "pomona.record.rows",
    "pomona.user_training",
)


@pytest.mark.parametrize("module", SECTIONS)
def test_the_page_names_what_a_module_exports(module):
    lists = "".join(re.findall(r"^(?:- |  ).*", SECTIONS[module], re.MULTILINE))
    exported = importlib.import_module(module).__all__
    assert set(exported) <= set(dir(importlib.import_module(module)))  # what Tab completes
    assert sorted(re.findall(r"`(\w+)`", lists)) == sorted(exported)


@pytest.mark.parametrize("module", SECTIONS)
def test_what_is_public_has_a_docstring_and_types(module):
    public = importlib.import_module(module)
    for name in public.__all__:
        member = getattr(public, name)
        if inspect.isclass(member) or inspect.isfunction(member):
            assert member.__doc__, name
        if inspect.isfunction(member):
            parameters = inspect.signature(member).parameters
            assert {*parameters, "return"} == member.__annotations__.keys(), name


def test_nothing_else_is_offered_at_the_top():
    offered = {
        name
        for name in vars(pomona)
        if not name.startswith("_") and not inspect.ismodule(getattr(pomona, name))
    }
    assert offered - {"TYPE_CHECKING", "Any"} <= set(pomona.__all__)


@pytest.mark.parametrize("module", EXAMPLES)
def test_examples_in_docstrings_work(module):
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert result.attempted
    assert not result.failed


def imported(path):
    """(module, name) of the package's names that a script, or the Python blocks of a document,
    import.
    """
    text = path.read_text()
    blocks = (
        [text]
        if path.suffix == ".py"
        else re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    )
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    froms = [
        node
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pomona")
    ]
    return {(node.module, alias.name) for node in froms for alias in node.names}


@pytest.mark.parametrize(
    "path", [path for path in TAUGHT if imported(path)], ids=lambda path: path.name
)
def test_what_is_taught_imports_public_names_alone(path):
    public = {
        (module, name) for module in SECTIONS for name in importlib.import_module(module).__all__
    }
    public |= {
        (module.rpartition(".")[0], module.rpartition(".")[2]) for module in (*SECTIONS, *SCRIPTS)
    }
    public |= {(module, name) for module, names in SCRIPTS.items() for name in names}
    assert not imported(path) - public


@pytest.mark.parametrize("module", SCRIPTS)
def test_what_scripts_may_use_is_there(module):
    public = importlib.import_module(module)
    first = re.findall(
        r"`(\w+)", re.search(rf"^\| `{re.escape(module)}` \| (.*) \|$", TEXT, re.MULTILINE)[1]
    )[0]
    assert hasattr(public, first)
    assert all(
        hasattr(public, name) for path in TAUGHT for file, name in imported(path) if file == module
    )
