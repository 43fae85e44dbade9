"""Bounds of norms, each at its limit: which numbers a bound is made of, and which tensor differs most."""

from math import inf, nan

import pytest
import torch

from pomona.federation.admission import Expected, History, admit
from pomona.federation.exchange import Arrival, Reply
from pomona.federation.norm_bounds import (
    FACTOR,
    FACTOR_AUXILIARY,
    FACTOR_EARLY,
    UNBOUNDED,
    Bound,
    Measure,
    bounds,
    largest,
)
from pomona.methods.base import Rows

WIDTH = 4


def row(norm, width=WIDTH):
    return torch.tensor([norm, *[0.0] * (width - 1)])


def models(*norms, used=None, width=WIDTH):
    """Models of these norms, of which receivers get those ``used``, by number; else all."""
    bank = torch.stack([row(n, width) for n in norms])
    return Rows(bank, torch.tensor(range(len(norms)) if used is None else used))


def bound(norms=(), history=(), rows=None, extra=False, width=WIDTH, name="model", **measure):
    example = {name: torch.zeros(width), "ids": torch.zeros(2, dtype=torch.long)}
    result = bounds(
        {name: history},
        {i: {name: n} for i, n in enumerate(norms)},
        example,
        [name] if extra else [],
        Measure(rows or {}, **measure),
    )
    assert [*result] == [name]
    return result[name]


EARLY = [
    # until five norms are known: 1, what was sent, or what others confirm, times the early factor
    ({"norms": [5.0]}, FACTOR_EARLY),
    ({"norms": [5.0], "rows": {"model": models(7.0)}}, FACTOR_EARLY * 7),
    ({"norms": [5.0], "rows": {"model": models(7.0, 9.0, 99.0, used=[0, 1])}}, FACTOR_EARLY * 9),
    ({"norms": [5.0], "rows": {"model": models(7.0), "shares": models(9.0)}}, FACTOR_EARLY * 7),
    ({"norms": [5.0], "rows": {"model": models(9.0, width=5)}}, FACTOR_EARLY),
    ({"norms": [5.0], "initial": lambda: row(7.0)}, FACTOR_EARLY * 7),
    ({"norms": [5.0], "initial": lambda: row(7.0, width=5)}, FACTOR_EARLY),
    ({"norms": [5.0], "initial": lambda: row(7.0), "name": "shares"}, FACTOR_EARLY),
    (
        {"norms": [5.0], "initial": lambda: row(7.0), "rows": {"model": models(3.0)}},
        FACTOR_EARLY * 3,
    ),
    # zeros say nothing; of two the smaller, of more the median
    ({"norms": [0.0, 0.0, 5.0, 6.0]}, FACTOR_EARLY * 5),
    ({"norms": [0.5, 3.0, 5.0, 7.0]}, FACTOR_EARLY * 4),
    ({"norms": [3.0, 5.0], "history": [7.0]}, FACTOR_EARLY * 5),
    # numbers about samples, and a single number
    ({"norms": [5.0], "samples": 600, "extra": True}, 1200.0),
    ({"norms": [5.0], "samples": 400, "extra": True}, FACTOR_EARLY),
    ({"norms": [5.0], "samples": 600}, FACTOR_EARLY),
    ({"norms": [5.0], "samples": 7, "extra": True, "width": 1}, FACTOR_AUXILIARY * 7),
    ({"norms": [5.0], "samples": 7, "width": 1}, FACTOR_EARLY),
    # two far above what was sent, but the larger within the factor of the smaller, and the like
    ({"norms": [2e3, 2e6]}, FACTOR_EARLY * 2e3),
    ({"norms": [1e3, 2e6]}, FACTOR_EARLY * 1e3),
    ({"norms": [3e9], "history": [0.0, 2e3]}, FACTOR_EARLY * 2e3),
]
LATER = [
    ({"history": [1.0, 2.0, 3.0, 50.0, 2.5], "norms": [1e9] * 5}, FACTOR * 2.5),
    ({"history": [1.0, 2.0, 3.0, 4.0], "norms": [8.0]}, FACTOR * 3),
    ({"history": [0.5] * 5}, FACTOR * 0.5),
    ({"history": [2.0] * 5, "extra": True}, FACTOR_AUXILIARY * 2),
    ({"history": [1e305] * 5, "extra": True}, UNBOUNDED),
]


@pytest.mark.parametrize(("norms", "largest_norm"), EARLY + LATER)
def test_the_largest_norm_to_accept(norms, largest_norm):
    assert bound(**norms) == Bound(pytest.approx(largest_norm, rel=1e-12))


@pytest.mark.parametrize("history", [[], [0.0]])
def test_two_that_contradict_each_other_split_the_round(history):
    assert bound(norms=[3e9, 2e3], history=history) == Bound(UNBOUNDED, (2e3, 3e9))


def test_a_norm_is_accepted_up_to_its_bound():
    limit = Bound(2.0)
    assert limit.excess(2.0) == ""
    for norm in (2.1, inf, nan):
        assert "the bound is 2" in limit.excess(norm)
    split = Bound(UNBOUNDED, (2e3, 3e9))
    assert all(n in split.excess(norm) for norm in (2e3, 3e9) for n in ("2e+03", "3e+09"))
    assert split.excess(5.0) == ""


LARGEST = [
    # norms by client; tensors beside models; client, tensor, second, factor, stands out
    ([{"a": 2.0}, {"a": 20.0}], (), (1, "a", 0, 10.0, False)),  # a tenth of the factor
    ([{"a": 2.0}, {"a": 20.5}], (), (1, "a", 0, 10.25, True)),
    ([{"a": 20.5}, {"a": 2.0}, {"a": 0.0}], (), (0, "a", 1, 10.25, True)),
    ([{"a": 0.5}, {"a": 1.0}], (), (1, "a", 0, 2.0, False)),
    ([{"a": 1.0}, {"a": 2.0, "b": 99.0}], (), (1, "a", 0, 2.0, False)),
    # by the ratio, relative to what is usual of a tensor
    ([{"a": 100.0, "b": 1.0}, {"a": 200.0, "b": 4.0}], (), (1, "b", 0, 4.0, False)),
    ([{"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 4.0}], ("b",), (1, "a", 0, 2.0, False)),
    ([{"b": 1.0}, {"b": 2e5}], ("b",), (1, "b", 0, 2e5, True)),
]


@pytest.mark.parametrize(("norms", "auxiliary", "expected"), LARGEST)
def test_the_client_whose_norm_stands_out_most(norms, auxiliary, expected):
    top = largest(dict(enumerate(norms)), auxiliary)
    assert (top.client, top.tensor, top.second, top.factor, top.outlier) == expected
    assert top.norm == norms[top.client][top.tensor]


def test_a_client_is_struck_for_its_excess_in_any_tensor_but_not_for_a_contradiction():
    """Of two whose models contradict each other one sends a loss at its bound, one beyond it."""
    spec = {"model": torch.zeros(WIDTH), "loss": torch.zeros(1)}
    expected = Expected("run", 1, {0: 7, 1: 7}, spec, 2, auxiliary={"loss"})
    losses = {0: 7 * FACTOR_AUXILIARY, 1: 8 * FACTOR_AUXILIARY}
    arrivals = [
        Arrival(Reply(i, {"model": row(norm), "loss": torch.tensor([losses[i]])}), "run", 1, 7)
        for i, norm in ((0, 2e3), (1, 3e9))
    ]
    verdict = admit(arrivals, expected, History(norms={"loss": (7.0,) * 5}))
    assert [(r.client, r.struck) for r in verdict.rejected] == [(0, False), (1, True)]


def test_counts_may_reach_the_samples_of_the_largest_client():
    expected = Expected(
        "run", 1, {0: 10, 1: 600}, {"counts": torch.zeros(WIDTH)}, 2, auxiliary={"counts"}
    )
    for norm, accepted in ((1199.0, True), (1201.0, False)):
        verdict = admit(
            [Arrival(Reply(1, {"counts": row(norm)}), "run", 1, 600)], expected, History()
        )
        assert bool(verdict.accepted) == accepted
