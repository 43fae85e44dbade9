"""``pomona settings --schema`` agrees with ``Config``: on the repository's files, and on single
values of every setting.
"""

import json
import math
import tomllib
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from pomona.cli import main
from pomona.cli.settings import json_schema as schema
from pomona.config import Config, resolve
from pomona.core.attack import Attack
from pomona.core.errors import ConfigError
from pomona.core.membership import Membership
from pomona.core.training_settings import OPTIMIZERS, Stop
from pomona.data.axes import BundledImages, PublicImages
from pomona.data.section import NAMES
from pomona.experiments.grid import plan
from pomona.experiments.suite import read_suite
from pomona.methods import METHODS
from pomona.models import ModelSettings
from pomona.partition import RECIPES
from pomona.privacy.settings import Privacy

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
RUNS = [
    path
    for folder in ("examples", "reproduction")
    for path in sorted((ROOT / folder).rglob("*.toml"))
    if path.parent.name not in ("numbers", "standing")  # standing: files of a federation
    and "project" not in (tree := tomllib.loads(path.read_text()))
    and "scenario" not in tree
]
SUITES = [
    path
    for folder in ("src/pomona/experiments/suites", "reproduction", "examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.toml"))
    if path.parent.name not in ("numbers", "method_template")
    and "scenario" in tomllib.loads(path.read_text())
]


@cache
def validator():
    Draft202012Validator.check_schema(schema())
    return Draft202012Validator(schema())


def test_the_command_prints_it(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["settings", "--schema"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out) == schema()


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_the_files_of_runs_fit(path):
    validator().validate(tomllib.loads(path.read_text()))


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_runs_of_suites_fit(path):
    """One run of each method in each scenario."""
    pairs = set()
    for group in plan(read_suite(path), "cpu"):
        cell = group.finals[0][0]
        if (key := (cell.scenario, cell.method)) not in pairs:
            pairs.add(key)
            validator().validate(json.loads(json.dumps(cell.config.tree())))
    assert pairs


@pytest.mark.parametrize("value", ["auto", "cpu", "cuda"])
def test_devices_are_those_that_config_resolves(value):
    assert validator().is_valid({"device": value})
    assert not validator().is_valid({"device": "tpu"})


def test_clients_of_a_membership_are_numbers():
    assert validator().is_valid({"membership": {"joins": {"1": 2}}})
    assert not validator().is_valid({"membership": {"joins": {"x": 2}}})


def test_every_method_partition_and_data_set_is_known_by_its_name():
    for section, names in (("method", METHODS), ("partition", RECIPES)):
        for name in names:
            assert validator().is_valid({section: name})
        assert not validator().is_valid({section: "fedavgg"})
    assert validator().is_valid({"method": "fedrep+adam"})
    assert validator().is_valid({"method": {"name": "own:Method", "what": 1}})
    assert validator().is_valid({"data": {"name": "own:read", "path": "x"}})
    assert [name for name in NAMES if not validator().is_valid({"data": name})] == []
    assert validator().is_valid({"data": {"path": "a.csv", "label_column": "y"}})


TARGETS = [
    ((), {}, Config),
    *((("method",), {"name": name}, record) for name, record in METHODS.items()),
    *((("partition",), {"name": name}, record) for name, record in RECIPES.items()),
    *((("optimizer",), {"name": name}, record) for name, record in OPTIMIZERS.items()),
    (("data",), {}, BundledImages),
    (("data",), {"name": "mnist"}, PublicImages),
    (("model",), {}, ModelSettings),
    (("membership",), {"unseen": [1]}, Membership),
    (("attack",), {"clients": [1], "kind": "scale"}, Attack),
    (("stop",), {"patience": 1}, Stop),
    (("privacy",), {"noise_multiplier": 1, "max_grad_norm": 1, "delta": 1e-5}, Privacy),
]
POOL = [-1, 0, 1, 2, 0.5, -0.5, "x", "auto", [], [1], [0.5], ["x"], [[1]], {}, {"0": 1}, {"x": 1}]
OF_RANGE = {
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal", "literal_error"),
    *("string_type", "int_type", "int_parsing", "float_type", "float_parsing", "bool_type"),
    *("bool_parsing", "tuple_type", "dict_type", "extra_forbidden", "too_long", "too_short"),
    *("string_pattern_mismatch", "string_too_short", "string_too_long", "missing", "model_type"),
    *("int_from_float", "finite_number", "union_tag_invalid"),
}


@cache
def properties():
    """Each key's section, the keys beside it and its own schema."""
    sections = schema()["$defs"]
    return [
        (path, base, key, property_schema)
        for path, base, record in TARGETS
        for key, property_schema in record.model_json_schema()["properties"].items()
        if key not in ("name", "args") and (record is not Config or key not in sections)
    ]


def edges(node):
    """The bounds and choices in a schema, and their neighbours."""
    if isinstance(node, list):
        for item in node:
            yield from edges(item)
    elif isinstance(node, dict):
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if key in node:
                bound = node[key]
                integer = node.get("type") == "integer"
                around = (1, -1) if integer else (math.inf, -math.inf)
                yield bound
                yield from (bound + s if integer else math.nextafter(bound, s) for s in around)
        yield from node.get("enum", [node["const"]] if "const" in node else [])
        yield from edges([v for k, v in node.items() if k in ("anyOf", "items", "prefixItems")])


@st.composite
def one_value(draw):
    """A tree with one key beside those that its section must have."""
    path, base, key, values = draw(st.sampled_from(properties()))
    if values.get("type") == "boolean":  # of which 0 and 1 are spellings to Config
        value = draw(st.sampled_from([True, False, "x", 2, []]))
    else:
        pool = [*POOL, *edges(values), *([value] for value in edges(values.get("items", {})))]
        value = draw(st.sampled_from(pool) | st.floats(-10, 10) | st.integers(-10, 10**7))
    tree = {**base, key: value}
    for section in reversed(path):
        tree = {section: tree}
    return tree


@settings(max_examples=300)
@given(one_value())
@example({"method": {"name": "fedrep", "shared": 0.0}})
def test_schema_and_config_agree_on_types_ranges_and_choices(tree):
    """What depends on several keys, or on a text's meaning, is Config's alone to refuse."""
    fits = validator().is_valid(tree)
    try:
        resolve(tree)
    except ConfigError as fault:
        cause = fault.__context__
        types = {e["type"] for e in cause.errors()} if isinstance(cause, ValidationError) else set()
        assert not (fits and types & OF_RANGE), (tree, types)
    else:
        assert fits, (tree, [e.message for e in validator().iter_errors(tree)])


def test_the_defaults_are_in_it():
    properties = schema()["properties"]
    fields = {f.alias or name: f for name, f in Config.model_fields.items()}
    assert properties.keys() == fields.keys()
    plain = [key for key in properties if isinstance(fields[key].default, int | float | str)]
    assert {key: properties[key]["default"] for key in plain} == {
        key: TypeAdapter(object).dump_python(fields[key].default) for key in plain
    }
