"""Suites: reading, precedence of layers, and error messages."""

import math
from typing import get_args

import pytest
from bench_suites import SUITE, changed
from hypothesis import given
from hypothesis import strategies as st

from pomona.config import resolve
from pomona.core.errors import ConfigError
from pomona.experiments.bench_results import _settings
from pomona.experiments.grid import choose, digest, plan, points
from pomona.experiments.suite import Size, SizePart, read_suite, suites

SUITES = list(suites().values())


@pytest.mark.parametrize("size", get_args(Size))
@pytest.mark.parametrize("file", SUITES, ids=lambda p: p.stem)
def test_every_suite_of_the_package_can_be_planned(file, size):
    suite = read_suite(file)
    groups = plan(suite, size)
    assert groups
    for group in groups:
        assert len(group.points) <= suite.sized(size).points


def test_small_suites_come_with_the_package():
    assert set(suites()) == {"choose-a-method", "digits", "liars"}


LAYERS = [
    ("base", lambda s, v: s["base"].update(batch_size=v)),
    ("scenario", lambda s, v: s["scenario"]["dirichlet"].update(batch_size=v)),
    ("method", lambda s, v: s["method"]["apple"].update(batch_size=v)),
    (
        "method in the scenario",
        lambda s, v: s["method"]["apple"].update(at={"dirichlet": {"batch_size": v}}),
    ),
    ("size", lambda s, v: s.setdefault("size", {}).setdefault("smoke", {}).update(batch_size=v)),
    (
        "size in the scenario",
        lambda s, v: (
            s.setdefault("size", {})
            .setdefault("smoke", {})
            .update(at={"dirichlet": {"batch_size": v}})
        ),
    ),
    ("point", lambda s, v: s["search"].update(batch_size=[v])),
]


@pytest.mark.parametrize("top", range(len(LAYERS)), ids=[name for name, _ in LAYERS])
def test_later_layers_win(top):
    suite = changed()
    for k, (_, write) in enumerate(LAYERS[: top + 1]):
        write(suite, 10 + k)
    groups = plan(read_suite(suite), "smoke")
    (apple,) = [g for g in groups if g.method == "apple"]
    assert {c.config.batch_size for c in apple.cells()} == {10 + top}


def test_a_size_has_its_own_seeds_points_scenarios_and_methods():
    suite = changed(
        scenario={"a": {}, "b": {"methods": ["apple"]}, "c": {}},
        size={"smoke": {"seeds": [7], "points": 1, "scenarios": ["a", "b"], "rounds": 1}},
    )
    groups = plan(read_suite(suite), "smoke")
    assert [(g.scenario, g.method) for g in groups] == [
        ("a", "separate"),
        ("a", "apple"),
        ("b", "apple"),
    ]
    assert all(not g.trials and [c.seed for c in g.finals[0]] == [7] for g in groups)
    assert len(plan(read_suite(suite), "cpu")) == 5


def test_a_part_has_the_pairs_of_its_names_that_the_size_has():
    scenarios = {"a": {}, "b": {"methods": ["apple"]}, "c": {}}
    suite = read_suite(changed(scenario=scenarios, size={"smoke": {"scenarios": ["a", "b"]}}))
    for size, columns in (("cpu", "abc"), ("smoke", "ab")):
        all_pairs = [(s, m) for s in columns for m in suite.method if (s, m) != ("b", "separate")]
        assert suite.pairs(size) == all_pairs
        assert suite.pairs(size, ["b", "a"]) == [pair for pair in all_pairs if pair[0] != "c"]
        assert suite.pairs(size, methods=["separate"]) == [
            pair for pair in all_pairs if pair[1] == "separate"
        ]
        assert suite.pairs(size, ["a"], ["apple"]) == [("a", "apple")]
    for size, names, message in (
        ("smoke", (["c"],), "no scenario 'c' in this suite at size smoke; known: a, b"),
        ("cpu", (["a", "d"],), "no scenario 'd' in this suite at size cpu; known: a, b, c"),
        ("cpu", (["b"], ["separate"]), "no method is left in any scenario at size cpu"),
    ):
        with pytest.raises(ConfigError, match=message):
            suite.pairs(size, *names)


def test_columns_and_sizes_name_rows_by_patterns():
    scenarios = {"a-1": {"methods": ["app*"]}, "a-2": {"methods": ["apple", "*ate"]}, "b": {}}
    size = {"smoke": {"scenarios": ["a-*"], "methods": ["*p*e"]}}
    suite = read_suite(changed(scenario=scenarios, size=size))
    smoke_pairs = [("a-1", "apple"), ("a-2", "separate"), ("a-2", "apple")]
    assert suite.pairs("smoke") == smoke_pairs
    assert suite.pairs("cpu") == [*smoke_pairs, ("b", "separate"), ("b", "apple")]


def tried(suite, size):
    """Method -> the points that a size tries."""
    return {g.method: [dict(p) for p in g.points] for g in plan(read_suite(suite), size)}


def test_a_size_has_its_own_grid_in_place_of_the_suites_and_of_a_methods():
    sizes = {
        "smoke": {
            "search": {"lr": [0.1, 0.2]},
            "search_of": {"apple": {"method": {"mu": [1, 2]}}},
            "points": 4,
        }
    }
    suite = changed(points=4, size=sizes)
    assert tried(suite, "cpu") == {
        "separate": [{"lr": 0.001}, {"lr": 0.3}],
        "apple": [{"lr": 0.001, "method.dr_lr": 0.01}, {"lr": 0.3, "method.dr_lr": 0.01}],
    }
    assert tried(suite, "smoke") == {
        "separate": [{"lr": 0.1}, {"lr": 0.2}],
        "apple": [{"lr": lr, "method.mu": mu} for lr in (0.1, 0.2) for mu in (1, 2)],
    }
    # Each alone leaves the other as it was, and an empty grid is none.
    assert tried(changed(size={"cpu": {"search": {}}}), "cpu") == {
        "separate": [{}],
        "apple": [{"method.dr_lr": 0.01}],
    }
    assert tried(changed(size={"cpu": {"search_of": {"apple": {}}}}), "cpu")["apple"] == [
        {"lr": 0.001},
        {"lr": 0.3},
    ]


@pytest.mark.long
@pytest.mark.parametrize("size", get_args(Size))
@pytest.mark.parametrize("file", SUITES, ids=lambda p: p.stem)
def test_a_size_without_a_grid_tries_what_the_suite_and_its_rows_say(file, size):
    """Its cells are those of a suite whose size repeats these grids: none has another folder for
    what was not said.
    """
    suite = read_suite(file)
    size_part = suite.size.get(size, SizePart())
    if size_part.search is None and not size_part.search_of:
        grids = {
            "search": suite.search,
            "search_of": {name: row.search for name, row in suite.method.items()},
        }
        spelled = suite.model_copy(
            update={"size": {**suite.size, size: size_part.model_copy(update=grids)}}
        )
        assert plan(spelled, size) == plan(suite, size)
        searched = suite.sized(size).points > 1
        for name, row in suite.method.items():
            assert suite.space(size, name) == ({**suite.search, **row.search} if searched else {})


def test_a_row_may_have_a_name_of_its_own():
    suite = changed(
        method={
            "FedAvg+1": {"method": "fedavg-ft"},
            "M=2": {"method": {"name": "apple", "budget": 2}},
        }
    )
    configs = [g.finals[0][0].config for g in plan(read_suite(suite), "cpu")]
    assert [c.method.name for c in configs] == ["fedavg-ft", "apple"]
    assert configs[1].method.budget == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sedes": [1]}, "unknown key 'sedes'; did you mean seeds?"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [-1]}, "seeds.0 = -1"),
        ({"points": 0}, "points = 0"),
        ({"size": {"huge": {}}}, "huge"),
        ({"scenario": {}}, "scenario"),
        ({"scenario": {"a/b": {}}}, "a/b"),
        ({"scenario": {"..": {}}}, ".."),
        (
            {"method": {"apple": {"serch": {}}}},
            "method.apple: unknown key 'serch'; did you mean search?",
        ),
        ({"method": {"apple": {"at": {"dirichle": {}}}}}, "no scenario 'dirichle'"),
        (
            {"method": {"appel": {}}},
            "scenario dirichlet, method appel: unknown method 'appel'; did you mean apple",
        ),
        (
            {"scenario": {"a": {"methods": ["appel"]}}},
            "no method 'appel' in this suite; did you mean apple?",
        ),
        ({"scenario": {"a": {"methods": ["fed*"]}}}, "no method 'fed*' in this suite"),
        (
            {"size": {"cpu": {"scenarios": ["x"]}}},
            "no scenario 'x' in this suite; known: dirichlet",
        ),
        (
            {"size": {"cpu": {"search_of": {"appel": {"lr": [1]}}}}},
            "no method 'appel' in this suite; did you mean apple?",
        ),
        ({"size": {"cpu": {"search": {"lr": []}}}}, "size.cpu.search"),
        ({"size": {"cpu": {"search": {"method.nu": [1, 2]}}}}, "unknown key 'method.nu'"),
        ({"seeds": [0, 1, 0]}, "seeds: a seed is given twice"),
        ({"base": {"round": 3}}, "base: unknown key 'round'; did you mean rounds?"),
        ({"base": {"seeds": [0, 1]}}, "base: the key 'seeds' belongs at the top of the suite"),
        ({"base": {"seed": 7}}, "seed cannot be set in a suite; give seeds = [...]"),
        ({"settings": {"workers": 4}}, "workers cannot be set in a suite; give --jobs"),
        ({"method": {"apple": {"search": {"seed": [1, 2]}}}}, "seed cannot be set in a suite"),
        ({"base": {"rounds": 0}}, "scenario dirichlet, method separate: rounds = 0"),
        ({"search": {"lr": []}}, "search.lr"),
        ({"search": {"method.nu": [1, 2]}}, "unknown key 'method.nu'"),
        (
            {"base": {"data": {"name": "digits", "validation_share": 0}}},
            "data.validation_share = 0",
        ),
        (
            {
                "scenario": {"dirichlet": {"methods": ["apple"]}},
                "size": {"cpu": {"methods": ["separate"]}},
            },
            "no method",
        ),
    ],
)
def test_a_mistake_is_named_before_anything_runs(changes, message):
    with pytest.raises(ConfigError) as fault:
        plan(read_suite(changed(**changes)), "cpu")
    assert message in str(fault.value)


def test_a_file_is_named_in_its_mistakes(tmp_path):
    with pytest.raises(ConfigError, match="no file"):
        read_suite(str(tmp_path / "none.toml"))
    (tmp_path / "a.toml").write_text("title = \n")
    with pytest.raises(ConfigError, match=r"a\.toml: not valid TOML: Invalid value \(at line 1"):
        read_suite(tmp_path / "a.toml")
    (tmp_path / "a.toml").write_text("titel = 'x'\n")
    with pytest.raises(ConfigError, match=r"a\.toml: .*did you mean title"):
        read_suite(tmp_path / "a.toml")


SPACES = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(), min_size=1, max_size=4, unique=True)
)


@given(SPACES, st.integers(1, 8), st.integers(0, 9))
def test_the_budget_is_the_same_for_all(space, budget, seed):
    chosen = points(space, budget, seed, "apple")
    grid = points(space, 10**6, seed, "apple")
    assert len(grid) == math.prod(len(values) for values in space.values())
    assert len(chosen) == min(budget, len(grid))
    indices = [grid.index(p) for p in chosen]
    assert indices == sorted(set(indices))
    assert chosen == points(space, budget, seed, "apple")


def test_each_method_has_a_draw_of_its_own_and_every_point_can_be_drawn():
    space = {"lr": list(range(6))}
    draws = {seed: points(space, 1, seed, "apple")[0]["lr"] for seed in range(60)}
    # Uniform over 6: that one value is missed by 60 draws has a chance below 6 * (5/6)^60 = 1e-4.
    assert set(draws.values()) == set(range(6))
    assert any(points(space, 1, seed, "fedavg")[0]["lr"] != draws[seed] for seed in range(60))


@given(st.lists(st.none() | st.floats(-1, 1), max_size=6))
def test_the_first_of_the_best_points_is_chosen(scores):
    chosen = choose(scores)
    if chosen is None:
        assert all(s is None for s in scores)
    else:
        assert all(s is None or s < scores[chosen] for s in scores[:chosen])
        assert all(s is None or s <= scores[chosen] for s in scores)


def test_a_folder_follows_from_what_a_result_depends_on():
    plain = resolve(SUITE["base"])
    without_effect = [{"workers": 3}, {"checkpoint_every": 2}, {"momentum": 0.0}]
    with_effect = [
        {"lr": 0.5},
        {"seed": 1},
        {"method": "apple"},
        {"partition": "iid"},
        {"data": {"train_limit": 239}},
    ]
    assert {digest(resolve(SUITE["base"], tree)) for tree in without_effect} == {digest(plain)}
    hashes = [digest(resolve(SUITE["base"], tree)) for tree in with_effect]
    assert len({digest(plain), *hashes}) == 1 + len(with_effect)


def test_a_larger_privacy_budget_is_the_same_folder_and_stays_among_the_settings():
    """A cell that has spent its budget goes on where it is, instead of paying anew."""
    private = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "delta": 1e-5,
        "acknowledge": ["metrics", "sample-counts"],
    }
    with_budget = {
        **SUITE,
        "base": {**SUITE["base"], "privacy": {**private, "epsilon_budget": 8.0}},
    }
    folders = {
        digest(resolve(SUITE["base"], {"privacy": {**private, "epsilon_budget": epsilon}}))
        for epsilon in (1.0, 8.0)
    }
    assert len(folders) == 1
    [group, *_] = plan(read_suite(with_budget), "smoke")
    assert _settings(group.finals[0][0])["privacy"]["epsilon_budget"] == 8.0


def test_a_trial_and_the_result_of_its_point_and_seed_are_one_run():
    for group in plan(read_suite(SUITE), "cpu"):
        assert [c.folder for c in group.trials] == [row[0].folder for row in group.finals]
        assert len({c.folder for c in group.cells()}) == 4


def test_one_point_is_no_search_but_the_settings_as_they_stand():
    suite = read_suite(
        {
            "title": "t",
            "points": 1,
            "seeds": [0],
            "base": {"data": "digits", "lr": 0.05, "rounds": 1},
            "search": {"lr": [0.1, 0.3]},
            "scenario": {"s": {}},
            "method": {"fedavg": {}},
        }
    )
    (group,) = plan(suite, "cpu")
    assert group.points == ({},)
    assert [c.config.lr for c in group.finals[0]] == [0.05]


def test_a_grid_is_drawn_from_without_being_made():
    """Ten keys of 50 values are 10^17 points; 12 are more than a generator numbers."""
    space = {f"k{i}": list(range(50)) for i in range(10)}
    chosen = points(space, 3, 0, "apple")
    assert len({tuple(p.items()) for p in chosen}) == 3
    assert all(p.keys() == space.keys() for p in chosen)
    assert points({"a": [1, 2], "b": [3, 4, 5]}, 6, 0, "x") == tuple(
        {"a": a, "b": b} for a in (1, 2) for b in (3, 4, 5)
    )
    with pytest.raises(ConfigError, match=r"has 2\.4e\+20 points; the limit is 4\.6e\+18"):
        points(space | {"x": space["k0"], "y": space["k0"]}, 3, 0, "apple")


@pytest.mark.parametrize("text", ["a = " + "[" * 10_000, "a = " + "{b=" * 10_000])
def test_a_suite_that_is_nested_deep_is_one_line(text, tmp_path):
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"suite\.toml: "):
        read_suite(tmp_path / "suite.toml")
