"""Which parameters are chosen where numbers tie: by one rule, on whatever engine they were computed."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pomona
from pomona.methods.base import largest
from pomona.methods.row_algebra import TIE
from problems import tiny


def by_sorting(values, count):
    """The rule, number by number."""
    smallest = sorted(values, reverse=True)[count - 1]
    above = {j for j, v in enumerate(values) if v > smallest * (1 + TIE)}
    tied = [j for j, v in enumerate(values) if j not in above and v >= smallest * (1 - TIE)]
    return above | set(tied[: count - len(above)])


@given(st.lists(st.sampled_from([0.0, 1e-9, 0.5, 1.0, 2.0]), min_size=1), st.data())
def test_equal_numbers_are_taken_in_order_whatever_their_rounding(values, data):
    count = data.draw(st.integers(1, len(values)))
    noise = data.draw(st.lists(st.floats(-1e-6, 1e-6), min_size=len(values), max_size=len(values)))
    exact = torch.tensor([values], dtype=torch.float64)
    rounded = exact * (1 + torch.tensor(noise, dtype=torch.float64))
    expected = by_sorting(values, count)
    assert len(expected) == count
    for numbers in (exact, rounded):
        assert set(largest(numbers, count)[0].nonzero().squeeze(1).tolist()) == expected


@pytest.mark.long
@pytest.mark.skipif(find_spec("pomona_native") is None, reason="needs pomona-native")
@pytest.mark.parametrize(
    "method", [{"name": "fedselect", "rate": 0.3}, {"name": "fedcac", "beta": 2}], ids=str
)
def test_both_engines_choose_the_same_parameters_where_changes_are_equal(method):
    """Pixels of digits that always go together have gradients that are equal; without weight decay
    their weights change alike.
    """
    config = tiny(
        method["name"],
        {k: v for k, v in method.items() if k != "name"},
        clients=5,
        partition={"name": "dirichlet", "beta": 1.0},
        momentum=0.9,
        weight_decay=0.0,
        seed=3,
        rounds=4,
        lr=0.1,
    )
    by_torch, by_native = (
        pomona.run(config.model_copy(update={"engine": engine})) for engine in ("torch", "native")
    )
    assert by_native.config["engine"] == "native"
    for client, model in by_torch.models.items():
        for name, tensor in model.items():
            np.testing.assert_allclose(by_native.models[client][name], tensor, atol=2e-6)
