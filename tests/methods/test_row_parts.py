"""Parts of rows: extraction, remainder, and reassembly."""

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.testing import assert_close

from pomona.core.errors import ConfigError
from pomona.core.training_settings import Adam
from pomona.methods import METHODS
from pomona.methods.base import Initial, LocalTraining, ParameterSlice, Roster, chunked, sgd
from pomona.methods.row_algebra import cosine_similarity
from pomona.methods.shared_parts import partly_shared
from problems import a_round, quadratics

LAYERS = (slice(0, 3), slice(3, 7), slice(7, 8))


@st.composite
def row_slices(draw, d):
    """Slices of a row of d numbers, in order, some of them empty or adjacent."""
    bounds = sorted(draw(st.lists(st.integers(0, d), max_size=8)))
    return [slice(a, b) for a, b in zip(bounds[::2], bounds[1::2], strict=False)]


def test_cosines_are_pytorchs_and_0_with_a_row_of_zeros():
    W, origin = torch.randn(
        2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    W[3] = origin[3]
    D = W - origin
    expected = torch.nn.functional.cosine_similarity(D.unsqueeze(1), D.unsqueeze(0), dim=2)
    cosines = cosine_similarity(chunked(W) - origin)
    assert_close(cosines, expected)
    assert not cosines[3].any()
    assert_close(cosine_similarity(chunked(W) - origin, scale=3.0), 3 * expected)


@given(st.data(), st.integers(0, 12), st.integers(0, 3))
def test_what_is_taken_out_and_what_is_left_make_the_row_again(data, d, n):
    slices = data.draw(row_slices(d))
    W = torch.arange(n * d, dtype=torch.float64).reshape(n, d)
    selected, left = (
        partly_shared.select_columns(W, *slices),
        partly_shared.drop_columns(W, *slices),
    )
    assert selected.shape[1] + left.shape[1] == d
    assert torch.equal(partly_shared.insert_columns(left, selected, *slices), W)
    mask = torch.zeros(d, dtype=torch.bool)
    for columns in slices:
        mask[columns] = True
    assert torch.equal(selected, W[:, mask])
    assert torch.equal(left, W[:, ~mask])


def test_a_row_that_is_put_together_has_memory_of_its_own():
    remainder, values = torch.zeros(1, 3), torch.ones(1, 2)
    for slices in ((slice(1, 3),), ()):
        W = partly_shared.insert_columns(remainder, values[:, : 2 * len(slices)], *slices)
        W.add_(5)
        assert not remainder.any()


def test_parts_stand_where_their_layers_do():
    row = torch.arange(8)
    assert partly_shared.drop_columns(row, partly_shared.top_layers(LAYERS, 1)).tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    assert row[partly_shared.top_layers(LAYERS, 2)].tolist() == [3, 4, 5, 6, 7]
    assert partly_shared.drop_columns(row, partly_shared.top_layers(LAYERS, 3)).tolist() == []
    assert (
        partly_shared.drop_columns(row, partly_shared.top_layers(LAYERS, 0)).tolist()
        == row.tolist()
    )


SIZES = {"a.weight": 2, "a.bias": 1, "b.weight": 3, "b.bias": 1, "c.weight": 1}
BOUNDS = [0, *accumulate(SIZES.values())]
ROW = Initial(
    torch.zeros,
    LAYERS,
    parameters=tuple(
        ParameterSlice(name, (size,), *span)
        for (name, size), span in zip(SIZES.items(), pairwise(BOUNDS), strict=True)
    ),
)


def test_a_head_is_what_stands_above_the_shared_layers_and_a_foot_below():
    assert partly_shared.head(ROW, None) == partly_shared.head(ROW, 2) == (slice(7, 8),)
    assert partly_shared.head(ROW, 0) == partly_shared.foot(ROW, 0) == (slice(0, 8),)
    assert partly_shared.head(ROW, 3) == (slice(8, 8),)
    assert partly_shared.foot(ROW, 1) == (slice(0, 7),)
    assert partly_shared.top(ROW, 2, "method.layers") == (slice(3, 8),)
    for invalid in (-1, 4):
        with pytest.raises(ConfigError, match="set it to 3 or less"):
            partly_shared.head(ROW, invalid)


def test_a_whole_number_of_layers_is_one_as_in_every_other_setting():
    method = METHODS["fedrep"]
    assert method(shared=2.0).shared == method(shared=2).shared == 2
    for invalid in (1.5, True, -1):
        with pytest.raises(ValidationError, match="shared"):
            method(shared=invalid)


def test_globs_share_what_they_match_and_keep_the_rest_in_as_few_pieces_as_can_be():
    for private in (partly_shared.head, partly_shared.foot):
        assert private(ROW, ("*.bias",)) == (slice(0, 2), slice(3, 6), slice(7, 8))
        assert private(ROW, ("a.*", "c.weight")) == (slice(3, 7),)
        assert private(ROW, ("*",)) == ()
    assert partly_shared.top(ROW, ("a.*", "b.w*"), "k") == (slice(0, 6),)
    with pytest.raises(
        ConfigError, match=r"method\.shared: 'd\.\*' matches no parameter .* b\.bias, c\.weight"
    ):
        partly_shared.head(ROW, ("a.*", "d.*"))


@pytest.mark.parametrize("steps", [{"momentum": 0.9}, {"optimizer": Adam(name="adamw")}])
def test_scattered_parts_move_as_they_do_alone_in_a_row(steps):
    """The coordinates of a quadratic are independent; what is not moved is not, to the bit."""
    problem, slices = quadratics(2, samples=6, d=7), (slice(1, 2), slice(4, 6))
    round_ = a_round(epochs=2, batch_size=4, **steps)
    training = LocalTraining(problem, (0, 1), Roster((6, 6)), round_)
    initial = torch.ones(2, 7, dtype=torch.float64)
    scattered, complete = initial.clone(), sgd(training, initial.clone(), round_)
    partly_shared.sgd(training, scattered, round_, slices)
    for columns in slices:
        assert torch.equal(scattered[:, columns], complete[:, columns])
        assert not torch.equal(scattered[:, columns], initial[:, columns])
    fixed = partly_shared.drop_columns(scattered, *slices)
    assert torch.equal(fixed, partly_shared.drop_columns(initial, *slices))
