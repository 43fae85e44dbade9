"""Settings: precedence, typos, files, and round trips of written settings."""

import json
import pickle
from itertools import product

import pytest
import tomli_w
from pydantic import ValidationError

import pomona
from pomona.config import Config, keys, read_overrides, resolve
from pomona.core.errors import ConfigError, StorageError, suggestion
from pomona.core.settings import Settings
from pomona.core.toml import read_file, validated
from pomona.data import data_settings
from pomona.methods import METHODS
from pomona.models import ModelSettings
from pomona.partition import RECIPES


def test_later_layers_win():
    file = {"rounds": 7, "lr": 0.5, "method": {"name": "apple", "mu": 0.1}}
    config = resolve(file, read_overrides(["rounds=9", "method.mu=0.3"]))
    assert (config.rounds, config.lr, config.method.mu) == (9, 0.5, 0.3)
    assert config.batch_size == Config().batch_size


def test_another_method_drops_the_settings_of_the_one_before():
    config = resolve(
        {"method": {"name": "apple", "dr_lr": 0.1}}, {"method": {"name": "fedprox", "mu": 2}}
    )
    assert config.method.model_dump() == {"name": "fedprox", "mu": 2.0}


def test_a_size_is_of_one_network_and_goes_with_its_name():
    for name, key, size in (("mlp", "hidden", [9]), ("fasttext", "width", 9), ("unet", "depth", 2)):
        first = {"model": {"name": name, key: size, "label_smoothing": 0.1}}
        model = resolve(first, read_overrides(["model.name=logistic"])).model
        assert (model.label_smoothing, key in model.model_dump()) == (0.1, False)
        with pytest.raises(ConfigError, match=rf"model\.{key}: only for .*{name}.*; remove it"):
            resolve({"model": {"name": "logistic", key: size}})


def test_tensors_are_skipped_of_weights_alone():
    skipped = {"init_skip": ["fc.*"]}
    with pytest.raises(ConfigError, match=r"model\.init_skip: only with model\.init; remove it"):
        resolve({"model": skipped})
    pinned = resolve({"model": {**skipped, "init_sha256": "0" * 64}})  # a silo names its own file
    assert pinned.tree()["model"]["init_skip"] == skipped["init_skip"]


def test_values_are_toml_else_text():
    assert read_overrides(
        ["a=1", "b.c=1e-3", "b.d=true", "e=mnist", 'f="7"', "g=[1, 2]", "h.ca-125=[-9]"]
    ) == {
        "a": 1,
        "b": {"c": 1e-3, "d": True},
        "e": "mnist",
        "f": "7",
        "g": [1, 2],
        "h": {"ca-125": [-9]},
    }


@pytest.mark.parametrize(
    ("tree", "messages"),
    [
        ({"rouns": 3}, ["'rouns'", "rounds"]),
        ({"method": {"name": "apple", "lamda": 3}}, ["'method.lamda'"]),
        ({"method": {"name": "apple", "drlr": 3}}, ["'method.drlr'", "method.dr_lr"]),
        ({"mu": 1, "method": {"name": "apple"}}, ["'mu'", "method.mu"]),
        ({"data": {"nam": "mnist"}}, ["'data.nam'", "data.name"]),
        ({"partition": {"name": "dirichlet", "betas": 1}}, ["partition.betas", "partition.beta"]),
        ({"method": {"name": "aple"}}, ["method 'aple'", "apple"]),
        ({"partition": {"name": "dirichlett"}}, ["dirichlet"]),
        ({"learning_rate": 0.1}, ["'learning_rate'; did you mean lr"]),
        ({"communication_rounds": 0.1}, ["did you mean rounds?"]),
        ({"local_epochs": 1, "local-epochs": 5}, ["'local-epochs'; did you mean local_epochs?"]),
        ({"rounds": 0}, ["rounds = 0: must be at least 1"]),
        ({"rounds": "many"}, ["rounds = 'many': give a whole number"]),
        ({"lr": float("nan")}, ["lr", "finite"]),
        ({"method": {"name": "apple", "schedule": "linear"}}, ["method.schedule", "cosine"]),
        ({"method": {"mu": 1}}, ["method.name must be set", "apple"]),
        ({"rounds": 0, "batch_size": 0}, ["rounds", "batch_size"]),
        (
            {"data": {"name": "table", "path": "a/" + "x" * 256}},
            ["data.path", "longer than 255 bytes; correct the path"],
        ),
        (
            {"model": {"train": []}},
            [
                "model.train = []: give 'all' or 'head', or a list of at least 1",
                "globs over parameters",
            ],
        ),
        (
            {
                "method": {"name": "fedala"},
                "data": {"name": "table", "path": "a.csv", "drop_columns": "id"},
            },
            ["data.drop_columns = 'id': give a list, [\"id\"]"],
        ),
        ({"model": {"train": ["a", 3]}}, ["model.train.1 = 3: give text"]),
        (
            {"model": {"train": {"lora": {"rank": 0, "on": ["fc"]}}}},
            ["model.train.lora.rank = 0: must be at least 1"],
        ),
        (
            {"data": {"name": "table", "path": "a.csv", "categories": "sex"}},
            ["data.categories = 'sex': give 'refuse' or 'encode', or a list, [\"sex\"] (Columns"],
        ),
        (
            {"secure_aggregation": True},
            [
                "True: this is a section, not a single value; set its keys, such as secure_aggregation.max_"
            ],
        ),
        ({"partition": [[]]}, ["partition = [[]]: give a name, as text"]),
        (
            {"model": {"train": {"lora": {"on": ["fc"], "r": 2}}}},
            ["unknown key 'model.train.lora.r'"],
        ),
    ],
)
def test_a_mistake_names_the_key_its_path_and_near_names(tree, messages):
    with pytest.raises(ConfigError) as caught:
        resolve(tree)
    assert all(message in str(caught.value) for message in messages), str(caught.value)
    assert "\n" not in str(caught.value)
    assert "literal[" not in str(caught.value)  # how a library calls a form


OWNED = {"name": "table", "path": "clean.csv", "label_column": "died", "client_column": "hospital"}
FILES = {"clients": [{"name": "a", "train": "a.npz"}]}


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"data": OWNED},
        {"data": FILES},
        {"data": OWNED, "partition": "iid"},
        {"data": "mnist", "method": "fedala", "partition": "dirichlet", "model": "mlp"},
        {"method": {"name": "fedamp", "lambda": 0.5}, "rounds": 3, "clients": 4},
    ],
)
def test_settings_mean_the_same_from_python_as_from_a_file(tree, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(tree))
    of_python, of_file = Config(**tree), resolve(read_file(path))
    assert of_python == of_file
    assert of_python.toml() == of_file.toml()
    assert pickle.loads(pickle.dumps(of_python)) == of_python.model_copy() == of_python


def test_settings_that_a_new_process_unpickles_can_be_written_at_once():
    def deferred() -> type[Settings]:
        class Deferred(Settings):
            value: int = 1

        assert not Deferred.__pydantic_complete__
        return Deferred

    original, copy_type = deferred(), deferred()
    settings = copy_type.__new__(copy_type)
    settings.__setstate__(original(value=2).__getstate__())
    assert copy_type.__pydantic_complete__
    assert settings.model_dump() == {"value": 2}


def test_who_holds_which_rows_is_the_datas_to_say_where_no_partition_is_named():
    assert Config(data=OWNED).partition == Config(data=data_settings(**OWNED)).partition is None
    assert "partition" not in Config(data=OWNED).tree()


@pytest.mark.parametrize(
    "tree", [{"learning_rte": 1}, {"method": "aple"}, {"lr": 0}, {"rouns": 1}, {"method": [1]}]
)
def test_a_mistake_in_python_is_the_one_line_that_a_file_gets(tree):
    with pytest.raises(ConfigError) as of_python:
        pomona.Config(**tree)
    with pytest.raises(ConfigError) as of_file:
        resolve(tree)
    assert str(of_python.value) == str(of_file.value)
    assert "pydantic" not in str(of_python.value)


@pytest.mark.parametrize(
    "tree",
    [
        {"rounds": True},
        {"lr": True},
        {"seed": False},
        {"membership": {"unseen": [True]}},
        {"membership": {"leaves": {"1": True}}},
        {"method": {"name": "fedavg-ft", "finetune_epochs": True}},
        {"method": {"name": "fedamp", "lambda": True}},
    ],
)
def test_a_truth_value_is_no_number(tree, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(tree))
    for construct in (lambda: Config(**tree), lambda: resolve(read_file(path))):
        with pytest.raises(ConfigError, match="true and false are not numbers") as caught:
            construct()
        assert ";" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_truth_value_stays_one_where_it_is_asked_for():
    assert Config(method={"name": "apfl", "adaptive": True}).method.adaptive is True
    assert ModelSettings(args={"bias": False}).args == {"bias": False}


def test_paths_may_be_text(tmp_path):
    config = Config(
        data={"train_limit": 60, "test_limit": 60},
        rounds=1,
        clients=2,
        model={"name": "mlp", "hidden": [4]},
    )
    result = pomona.run(config, out=str(tmp_path / "run"))
    assert result.folder == tmp_path / "run"
    assert pomona.load(str(tmp_path / "run")).evaluations == result.evaluations


def test_a_folder_with_nul_in_its_name_is_refused():
    with pytest.raises(StorageError, match="NUL"):
        pomona.run(Config(), out="a\0b")


def nested(depth, leaf=1):
    for _ in range(depth):
        leaf = {"a": leaf}
    return leaf


@pytest.mark.parametrize(
    "tree",
    [
        {"data": nested(5000)},
        {"method": {"name": nested(5000)}},
        {"membership": {"joins": nested(5000)}},
        {"data": 1},
        {"data": [1, 2]},
        {"method": [1, 2]},
        {"partition": [[]]},
        {"rounds": 10**5000},
        {"rounds": "9" * 5000},
        {"data": {"path": "a\0b"}},
        {"method": "\x1b[31m" + "x" * 10_000},
    ],
)
def test_nonsense_is_one_short_line(tree):
    with pytest.raises(ConfigError) as caught:
        Config(**tree)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()
    with pytest.raises(ConfigError):
        resolve(tree, tree)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 5000 + "b = 1",
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "{a=" * 5000 + "1" + "}" * 5000,
        f"a = {'9' * 9999}",
    ],
)
def test_a_file_that_is_nested_or_long_beyond_reason_is_one_line(text, tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(read_file(path))
    assert len(str(caught.value)) < 1000


def test_words_nested_or_long_beyond_reason_are_one_line():
    for override in ("a." * 5000 + "b=1", "a=" + "[" * 5000 + "]" * 5000, "rounds=" + "9" * 9999):
        with pytest.raises(ConfigError):
            resolve(read_overrides([override, override]))


def tree_of(key, value):
    """Settings with one dotted key, and any other keys that it requires."""
    needed = {"privacy": {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3}}
    section, dot, key = key.rpartition(".")
    return {section: {**needed.get(section, {}), key: value}} if dot else {key: value}


BEYOND = (10**300, 1e300, -1e300, [10**300], {"1": 10**300})
"""Numbers that no machine can count with, as themselves and in collections."""


@pytest.mark.parametrize("method", METHODS.values(), ids=[*METHODS])
def test_every_number_of_a_method_has_an_upper_bound(method):
    for key, value in product(method.model_fields, BEYOND):
        with pytest.raises((ValidationError, ConfigError)):
            method(**{key: value})


@pytest.mark.parametrize("name", RECIPES)
def test_every_other_number_has_an_upper_bound(name):
    chosen = {"method": {"name": "fedavg"}, "partition": {"name": name}}
    for key, value in product(keys(chosen), BEYOND):
        if key.startswith("partition.") or name == "iid":
            tree = tree_of(key, value)
            with pytest.raises(ConfigError):
                resolve({**tree, "partition": {**chosen["partition"], **tree.get("partition", {})}})


@pytest.mark.parametrize(
    "tree",
    [
        {"lr": 1e300},
        {"model": {"hidden": [10**12]}},
        {"model": {"hidden": [8] * 1001}},
        {"clients": 10**9},
        {"rounds": 10**9},
        {"partition": {"name": "dirichlet", "beta": 1e10}},
        {"method": {"name": "pfedme", "inner_steps": 10**18}},
        {"privacy": {"noise_multiplier": 1e-300, "max_grad_norm": 1.0, "delta": 1e-3}},
        {"privacy": {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-300}},
        {"membership": {"joins": {"1": 10**9}}},
    ],
)
def test_sizes_that_no_run_can_have_are_refused_by_their_key(tree):
    key = next(k for k in tree)
    with pytest.raises(ConfigError, match=key):
        Config(**tree)


MISSING = {"ca-125": [-9], "x-1": [0], "x_1": [1]}


@pytest.mark.parametrize(
    "tree",
    [
        {"method": {"name": "apple", "budget": 3}, "partition": {"name": "dirichlet", "beta": 0.2}},
        {
            "data": {
                "name": "table",
                "path": "a.csv",
                "label_column": "y",
                "missing_values": MISSING,
            }
        },
    ],
    ids=["method", "columns"],
)
def test_what_was_written_runs_the_same_again(tree, tmp_path):
    config = resolve(tree)
    path = tmp_path / "config.toml"
    path.write_text(config.toml())
    assert resolve(read_file(path)) == config


def test_a_file_with_a_mistake_is_named(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml.*line 1"):
        read_file(path)
    with pytest.raises(ConfigError, match="absent"):
        read_file(tmp_path / "absent.toml")
    with pytest.raises(
        ConfigError, match=r"cannot read \S+ \(it is a folder, not a file\); give a TOML file"
    ):
        read_file(tmp_path)


def test_a_word_that_is_neither_file_nor_setting_is_refused():
    with pytest.raises(ConfigError, match="key=value"):
        read_overrides(["rounds"])


def test_known_keys_hold_sections_and_the_chosen_methods_own():
    names = keys({"method": {"name": "apple"}})
    assert {"rounds", "data.name", "method.dr_lr", "model.name", "partition.beta"} <= set(names)
    assert "method.finetune_epochs" not in names


def test_settings_are_plain_json():
    assert json.loads(json.dumps(Config().tree()))["method"] == {"name": "fedavg"}


def test_near_names_fall_back_to_all():
    assert suggestion("zzz", ["b", "a"]) == "known: a, b"
    # near in letters only
    assert suggestion("unet", ["lenet", "mlp"]) == "did you mean lenet? known: lenet, mlp"
    assert suggestion("lenett", [f"vgg{k}" for k in range(40)] + ["lenet"]) == "did you mean lenet?"


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("data.augment", "did you mean augment?"),
        ("model.pretrained", "model has "),
        ("callbacks", "the top level has absence, attack, augment, "),
        ("model.hiden", "did you mean model.hidden?"),
        ("data.drop_column", "did you mean data.drop_columns"),
        ("rouns", "did you mean rounds?"),
        ("dat", "did you mean data?"),
        ("data.rounds", "did you mean rounds?"),
    ],
)
def test_an_unknown_key_is_not_answered_with_a_neighbour_of_another_meaning(key, advice):
    section, _, last = key.rpartition(".")
    with pytest.raises(ConfigError) as caught:
        resolve({section: {last: 1}} if section else {last: 1})
    assert f"unknown key {key!r}; {advice}" in str(caught.value)
    assert ("did you mean" in str(caught.value)) == ("did you mean" in advice)
    assert "apple" in suggestion("aple", ["apple", "fedavg"])


def test_a_key_that_is_no_name_in_python_is_written_as_in_the_paper():
    config = resolve({"method": {"name": "fedamp"}}, read_overrides(["method.lambda=0.5"]))
    assert config.method.lambda_ == config.tree()["method"]["lambda"] == 0.5
    assert "method.lambda" in keys({"method": {"name": "fedamp"}})
    with pytest.raises(ConfigError, match=r"method\.lambda\b"):
        resolve({"method": {"name": "fedamp", "lamda": 1}})


def test_a_key_of_another_choice_is_named_with_those_that_have_it():
    for tree, message in (
        ({"partition": {"name": "iid", "beta": 1}}, "beta is a setting of partition = dirichlet"),
        ({"method": {"name": "fedavg", "dr_lr": 1}}, "dr_lr is a setting of method = apple$"),
    ):
        with pytest.raises(ConfigError, match=rf"unknown key '\w+\.\w+'; {message}"):
            resolve(tree)


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ({"name": "fedamp"}, ["scad_lambda", "scad_a", "mcp_lambda", "mcp_gamma"]),
        ({"name": "fedamp+ala", "attention": "scad"}, ["sigma", "mcp_lambda", "mcp_gamma"]),
        ({"name": "fedamp", "alpha_schedule": "sqrt"}, ["alpha"]),
        ({"name": "heurfedamp", "alpha_schedule": "sqrt"}, ["alpha"]),
        ({"name": "apple"}, ["selection"]),
        ({"name": "fedfomo-ma"}, ["epsilon", "epsilon_decay"]),
        ({"name": "partialfed", "rule": "local-norm"}, ["temperature"]),
        ({"name": "pgfed"}, ["budget"]),
    ],
    ids=str,
)
def test_a_methods_key_without_effect_beside_another_is_refused_and_not_written(method, keys):
    assert not {*keys} & {*Config(method=method).tree()["method"]}
    for key, field in METHODS[method["name"]].model_fields.items():
        if key in keys:
            with pytest.raises(ConfigError, match=rf"method\.{key}: .*; remove it"):
                Config(method={**method, key: field.default or 1})


def test_an_unknown_key_with_a_bracket_is_named_as_any_other():
    class Record(Settings):
        name: str

    for tree in ({"[": True}, {"name": "a", "[": True}):
        with pytest.raises(ConfigError, match=r"\["):
            validated(Record, tree)
    with pytest.raises(ConfigError, match=r"^unknown key 'model.patch.x\['; model.patch has blend"):
        resolve({"model": {"patch": {"size": [1, 2], "x[": 1}}})


def test_an_optimizer_can_be_named_alone():
    common = {"method": "separate", "lr": 0.01}
    assert Config(optimizer="adamw", **common) == Config(optimizer={"name": "adamw"}, **common)
    assert resolve(read_overrides(["optimizer=adamw"])).optimizer.name == "adamw"
