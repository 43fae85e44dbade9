"""Methods' own quantities on a page: series, scales, clusters, and the numbers and files behind the
figures.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_results import CFL, clustered, noise, round_infos, showing, weighed
from matplotlib import colors
from PIL import Image

from pomona.record.presentation import Presentation, Quantity
from pomona.record.result import Result
from pomona.results.figures.client_values import epoch_losses, uniform
from pomona.results.figures.plot import ReportFigure, drawing
from pomona.results.figures.relationships import scale
from pomona.results.figures.sections import figures, learned
from pomona.results.figures.series import Series, recorded
from pomona.results.run_numbers import runs
from pomona.results.wording import slug

pytestmark = pytest.mark.long

PARTIAL: list[tuple[int, ...]] = [(0, 2), (1, 2), (0, 1, 2, 3), (0,), (3,)]


@pytest.fixture(autouse=True)
def house_style() -> Iterator[None]:
    with drawing():
        yield


def recorded_series(result: Result) -> dict[str, Series]:
    return recorded(runs([result])[0])


def figures_by_name(result: Result) -> dict[str, ReportFigure]:
    return {picture.name: picture for picture in figures(runs([result])[0])}


@cache
def figures_of_each_kind() -> dict[str, ReportFigure]:
    """The figures of a run with quantities of each kind; tests only look at them."""
    return figures_by_name(showing(round_infos()))


@cache
def drawn_of_clusters() -> dict[str, ReportFigure]:
    """The figures of CFL's run; tests only look at them."""
    return figures_by_name(clustered())


@settings(max_examples=40)
@given(st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=6), st.integers(1, 3))
def test_a_series_holds_what_each_client_showed_last(cohorts: list[set[int]], columns: int) -> None:
    sorted_cohorts = [tuple(sorted(c)) for c in cohorts]
    infos = [{"x": noise(f"x{t}", 5, columns)} for t in range(len(sorted_cohorts))]
    series = recorded_series(showing(infos, sorted_cohorts, n=5))["x"]
    for t in range(len(sorted_cohorts)):
        for i in range(5):
            rounds = [s for s in range(t + 1) if i in sorted_cohorts[s]]
            expected = infos[rounds[-1]]["x"][i] if rounds else np.full(columns, np.nan)
            np.testing.assert_array_equal(series.values[t, i], expected)
    assert series.participants == sorted(set().union(*cohorts))


def test_what_is_no_number_a_client_is_passed_over() -> None:
    base = showing([{"flat": np.zeros(3)}] * 2, n=3)
    for broken in (np.array(1.0), np.zeros((2, 2)), np.zeros((3, 2, 2)), np.zeros((3, 0))):
        object.__setattr__(base.rounds[1], "info", {"flat": np.zeros(3), "odd": broken})
        assert list(recorded_series(base)) == ["flat"]


def test_words_fit_the_shape() -> None:
    presentation = showing([{}]).presentation
    by_name, quantity = {q.name: q for q in presentation.quantities}, presentation.quantity
    assert quantity("attention", 6, 6) == by_name["attention"]
    assert quantity("attention", 4, 6).kind == "values"  # a user's method may call other things so
    assert quantity("gates", 6, 6) == by_name["gates"]
    assert quantity("cluster", 2, 6).kind == "values"
    assert (
        quantity("mine", 6, 6).kind,
        quantity("mine", 1, 6).kind,
        quantity("mine", 1, 1).kind,
    ) == ("matrix", "values", "values")
    assert {q.kind for q in by_name.values()} == {"matrix", "values", "clusters", "epochs"}


@pytest.mark.parametrize(
    ("values", "low", "high", "extend", "cmap"),
    [
        ([0.2, 0.1, 0.3], 0.1, 0.3, "neither", "Blues"),
        ([0.2, -0.1, np.nan], -0.2, 0.2, "neither", "RdBu_r"),
        ([0.2, 0.2], 0.0, 0.2, "neither", "Blues"),
        ([0.0, 0.0], 0.0, 1.0, "neither", "Blues"),
        ([np.nan], 0.0, 1.0, "neither", "Blues"),
        ([1.0] * 99 + [50.0], 0.0, 1.0, "max", "Blues"),
        ([1.0] * 98 + [50.0, -50.0], -1.0, 1.0, "both", "RdBu_r"),
    ],
)
def test_scale(values: list[float], low: float, high: float, extend: str, cmap: str) -> None:
    style, actual = scale(np.array(values))
    assert (style["vmin"], style["vmax"], actual, style["cmap"].name) == (low, high, extend, cmap)


def test_matrix_numbers_and_blank_rows() -> None:
    infos = round_infos()
    picture = figures_by_name(showing(infos, PARTIAL))["attention-heatmap"]
    assert sorted({r["round"] for r in picture.rows}) == [1, 3, 5]
    for row in picture.rows:
        t, i = row["round"] - 1, row["client"]
        attended = [s for s in range(t + 1) if i in PARTIAL[s]]
        values = [row[f"attention clinic {j + 1}"] for j in range(6)]
        assert values == (infos[attended[-1]]["attention"][i].tolist() if attended else [None] * 6)
    # Clients who never came stand last, and their rows have the colour of nothing.
    assert [r["client"] for r in picture.rows[-2:]] == [4, 5]
    image = picture.figure.axes[2].images[0]
    blank = np.ma.getmaskarray(image.get_array())
    assert blank[4:].all()
    assert (blank[:4] == np.eye(6, dtype=bool)[:4]).all()
    assert "2 took part in no round" in picture.caption
    assert "FedAvg" in picture.alt
    assert "rounds 1, 3, 5" in picture.alt


def test_trajectories_have_a_panel_for_each_client_that_came() -> None:
    picture = figures_by_name(showing(round_infos(), PARTIAL))["affinity-trajectories"]
    titles = [ax.get_title(loc="left") for ax in picture.figure.axes if ax.get_visible()]
    assert titles == [f"clinic {i + 1}" for i in range(4)]
    assert len(picture.rows) == 5 * 4


def test_clients_judged_by_another_groups_samples_are_marked() -> None:
    """FedFomo's figures 4 and 6: in client i's panel those stand out who hold what it is judged
    by.
    """
    base = showing(round_infos())
    groups = [0, 0, 1, 1, 2, 2]
    base = replace(base, about={**base.about, "groups": groups})
    judged_elsewhere = [i for i in range(6) if groups[i] != groups[::-1][i]]
    assert judged_elsewhere
    marked = figures_by_name(replace(base, about={**base.about, "target_groups": groups[::-1]}))
    for i, ax in enumerate(marked["affinity-trajectories"].figure.axes[:6]):
        assert ax.get_title(loc="left").endswith("*") == (i in judged_elsewhere)
    dots = [
        line for line in marked["affinity-heatmap"].figure.axes[0].lines if line.get_marker() == "."
    ]
    assert len(dots) == len(judged_elsewhere)
    assert sum(len(line.get_xdata()) for line in dots) == sum(
        groups.count(groups[::-1][i]) for i in judged_elsewhere
    )
    plain = figures_by_name(base)
    assert not plain["affinity-heatmap"].figure.axes[0].lines
    assert "test samples come from" not in plain["affinity-trajectories"].caption


def test_values_hold_the_numbers_and_their_mean() -> None:
    infos = round_infos()
    pictures = figures_of_each_kind()
    alpha = pictures["alpha-values"]
    assert [r["alpha"] for r in alpha.rows] == [v for info in infos for v in info["alpha"]]
    line = next(x for x in alpha.figure.axes[0].lines if x.get_label() == "mean over clients")
    np.testing.assert_allclose(line.get_ydata(), [np.mean(info["alpha"]) for info in infos])
    low, high = np.argmin(infos[-1]["alpha"]), np.argmax(infos[-1]["alpha"])
    assert f"clinic {low + 1} has the lowest" in alpha.alt
    assert f"clinic {high + 1} the highest" in alpha.alt
    gates = pictures["gates-values"]
    assert [[r[f"gates_{k + 1}"] for k in range(4)] for r in gates.rows] == np.concatenate(
        [i["gates"] for i in infos]
    ).tolist()
    np.testing.assert_array_equal(gates.figure.axes[1].images[0].get_array(), infos[-1]["gates"].T)
    for k, line in enumerate(gates.figure.axes[0].lines[:4]):
        np.testing.assert_allclose(line.get_ydata(), [info["gates"][:, k].mean() for info in infos])


def test_what_is_alike_for_all_is_one_line() -> None:
    picture = figures_of_each_kind()["inheritance-values"]
    assert len(picture.figure.axes) == 1
    assert len(picture.figure.axes[0].lines) == 1
    assert "It is the same for every client" in picture.caption
    assert uniform(np.array([[[1.0], [np.nan], [1.0]]]))
    assert not uniform(np.array([[[1.0], [2.0]]]))


def test_what_no_catalogue_knows_is_drawn_under_its_own_name() -> None:
    picture = figures_of_each_kind()["my-own-thing-values"]
    assert "“my own thing” as the method records it" in picture.caption
    assert slug("診療") == "unnamed"


def test_one_client_alone_and_one_round() -> None:
    assert "attention-heatmap" not in figures_by_name(showing(round_infos(2, 1), n=1))
    single_round = figures_by_name(showing(round_infos(1), [(2,)]))
    assert "attention-heatmap" in single_round
    assert "attention-trajectories" not in single_round
    assert figures_by_name(showing([{}, {}])) == {}


def test_clusters_are_sorted_and_told_apart() -> None:
    picture = drawn_of_clusters()["cluster-map"]
    last = {r["client"]: r["cluster"] for r in picture.rows if r["round"] == 5}
    assert list(last.values()) == [0, 0, 2, 2, 1, 1]
    image = picture.figure.axes[0].images[0]
    # Rows by last cluster: clients 0 1 | 4 5 | 2 3; before round 3 all are in the first.
    assert image.get_array().T.tolist() == [[0] * 6] * 2 + [[0, 0, 1, 1, 0, 0]] * 2 + [
        [0, 0, 1, 1, 2, 2]
    ]
    assert len({colors.to_hex(image.cmap(k)) for k in range(3)}) == 3
    # Groups 0 0 1 1 2 2 are the clusters.
    assert "adjusted Rand index against the true groups is 1.00" in picture.alt
    assert "2 in cluster 0, 2 in cluster 1, 2 in cluster 2" in picture.alt


def test_without_a_split_all_clients_are_in_one_cluster() -> None:
    pictures = figures_by_name(showing([{"cluster": np.zeros(6)}], method=CFL))
    assert "all 6 are in one cluster" in pictures["cluster-map"].alt


def test_losses_of_weight_learning_are_counted_through_the_rounds() -> None:
    learning_losses = epoch_losses(runs([weighed()])[0], "ala_losses")
    assert learning_losses is not None
    nan = np.nan
    np.testing.assert_array_equal(
        learning_losses.losses.T, [[9, 5, 3, 4], [8, 7, nan, nan], [nan] * 4]
    )
    assert learning_losses.rounds.T.tolist() == [[2, 2, 2, 3], [3, 3, 0, 0], [0] * 4]
    assert learning_losses.stage == [3, 2, 0]
    picture = figures_by_name(weighed())["ala-losses"]
    assert [(r["client"], r["epoch"], r["round"], r["loss"]) for r in picture.rows] == [
        (0, 1, 2, 9.0), (0, 2, 2, 5.0), (0, 3, 2, 3.0), (0, 4, 3, 4.0), (1, 1, 3, 8.0), (1, 2, 3, 7.0),
    ]  # fmt: skip
    # (9 + 8) / 2 = 8.5 at first, (3 + 7) / 2 = 5 at the ends of the stages.
    assert "2 to 3 epochs long, the mean over clients goes from 8.5 to 5." in picture.alt


def test_where_nothing_was_learned_or_losses_are_private_there_is_no_curve() -> None:
    for losses, counts in ((np.zeros((3, 4)), np.zeros(3)), (np.zeros((3, 4)), np.full(3, 2))):
        assert "ala-losses" not in figures_by_name(
            showing([{"ala_losses": losses, "ala_epochs": counts}], n=3)
        )
    # how many count is not known
    assert "ala-losses" not in figures_by_name(showing([{"ala_losses": np.ones((3, 4))}], n=3))


@pytest.mark.parametrize("shape", [(3,), (3, 2, 2)])
def test_a_quantity_that_a_record_calls_epochs_without_having_them_is_left_out(
    shape: tuple[int, ...],
) -> None:
    """A record's own words say how a quantity is drawn: whoever wrote it may be wrong."""
    record = showing([{"told": np.ones(shape), "ala_epochs": np.ones(3)}], n=3)
    quantity = Quantity("told", "epochs", "title", "symbol", "meaning")
    record.about["presentation"] = asdict(Presentation("M", quantities=(quantity,)))
    assert "ala-losses" not in figures_by_name(record)


def test_figures_of_several_runs_are_named_after_their_methods() -> None:
    several = [showing(round_infos(1)), showing([{}], method={"name": "separate"}), clustered()]
    pictures = learned(runs(several))
    assert {p.name.rpartition("-")[2] for p in pictures} == {"fedavg", "cfl"}
    assert {p.title.rpartition(", ")[2] for p in pictures} == {"FedAvg", "CFL"}
    assert learned(runs(several[1:2])) == []
    assert [p.name for p in learned(runs(several[2:]))] == [
        "cluster-map",
        "update-norm-values",
        "cluster-norms-values",
    ]


def test_pictures_fill_their_frame(tmp_path: Path) -> None:
    for picture in [
        *figures_by_name(showing(round_infos(3), PARTIAL[:3])).values(),
        *drawn_of_clusters().values(),
    ]:
        picture.save(tmp_path, ("png",))
        with Image.open(tmp_path / f"{picture.name}.png") as image:
            grey = np.asarray(image.convert("L"))
        assert np.unique(grey).size > 10
        assert (
            np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]]) > 250
        ).mean() > 0.995, picture.name
