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
def parts_of(draw, d):
    """Slices of a row of d numbers, in order, some of them empty or adjacent."""
    ends = sorted(draw(st.lists(st.integers(0, d), max_size=8)))
    return [slice(a, b) for a, b in zip(ends[::2], ends[1::2], strict=False)]


def test_cosines_are_pytorchs_and_0_with_a_row_of_zeros():
    W, origin = torch.randn(
        2, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    W[3] = origin[3]
    far = W - origin
    expected = torch.nn.functional.cosine_similarity(far.unsqueeze(1), far.unsqueeze(0), dim=2)
    cosines = cosine_similarity(chunked(W) - origin)
    assert_close(cosines, expected)
    assert not cosines[3].any()
    assert_close(cosine_similarity(chunked(W) - origin, scale=3.0), 3 * expected)


@given(st.data(), st.integers(0, 12), st.integers(0, 3))
def test_what_is_taken_out_and_what_is_left_make_the_row_again(data, d, n):
    parts = data.draw(parts_of(d))
    W = torch.arange(n * d, dtype=torch.float64).reshape(n, d)
    taken, left = partly_shared.select_columns(W, *parts), partly_shared.drop_columns(W, *parts)
    assert taken.shape[1] + left.shape[1] == d
    assert torch.equal(partly_shared.insert_columns(left, taken, *parts), W)
    mask = torch.zeros(d, dtype=torch.bool)
    for part in parts:
        mask[part] = True
    assert torch.equal(taken, W[:, mask])
    assert torch.equal(left, W[:, ~mask])


def test_a_row_that_is_put_together_has_memory_of_its_own():
    rest, values = torch.zeros(1, 3), torch.ones(1, 2)
    for parts in ((slice(1, 3),), ()):
        W = partly_shared.insert_columns(rest, values[:, : 2 * len(parts)], *parts)
        W.add_(5)
        assert not rest.any()


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


PLACES = {"a.weight": 2, "a.bias": 1, "b.weight": 3, "b.bias": 1, "c.weight": 1}
ENDS = [0, *accumulate(PLACES.values())]
ROW = Initial(
    torch.zeros,
    LAYERS,
    parameters=tuple(
        ParameterSlice(name, (size,), *ends)
        for (name, size), ends in zip(PLACES.items(), pairwise(ENDS), strict=True)
    ),
)


def test_a_head_is_what_stands_above_the_shared_layers_and_a_foot_below():
    assert partly_shared.head(ROW, None) == partly_shared.head(ROW, 2) == (slice(7, 8),)
    assert partly_shared.head(ROW, 0) == partly_shared.foot(ROW, 0) == (slice(0, 8),)
    assert partly_shared.head(ROW, 3) == (slice(8, 8),)
    assert partly_shared.foot(ROW, 1) == (slice(0, 7),)
    assert partly_shared.top(ROW, 2, "method.layers") == (slice(3, 8),)
    for wrong in (-1, 4):
        with pytest.raises(ConfigError, match="set it to 3 or less"):
            partly_shared.head(ROW, wrong)


def test_a_whole_number_of_layers_is_one_as_in_every_other_setting():
    method = METHODS["fedrep"]
    assert method(shared=2.0).shared == method(shared=2).shared == 2
    for wrong in (1.5, True, -1):
        with pytest.raises(ValidationError, match="shared"):
            method(shared=wrong)


def test_globs_share_what_they_match_and_keep_the_rest_in_as_few_pieces_as_can_be():
    for kept in (partly_shared.head, partly_shared.foot):
        assert kept(ROW, ("*.bias",)) == (slice(0, 2), slice(3, 6), slice(7, 8))
        assert kept(ROW, ("a.*", "c.weight")) == (slice(3, 7),)
        assert kept(ROW, ("*",)) == ()
    assert partly_shared.top(ROW, ("a.*", "b.w*"), "k") == (slice(0, 6),)
    with pytest.raises(
        ConfigError, match=r"method\.shared: 'd\.\*' matches no parameter .* b\.bias, c\.weight"
    ):
        partly_shared.head(ROW, ("a.*", "d.*"))


@pytest.mark.parametrize("steps", [{"momentum": 0.9}, {"optimizer": Adam(name="adamw")}])
def test_scattered_parts_move_as_they_do_alone_in_a_row(steps):
    """The coordinates of a quadratic are independent; what is not moved is not, to the bit."""
    problem, parts = quadratics(2, samples=6, d=7), (slice(1, 2), slice(4, 6))
    round_ = a_round(epochs=2, batch_size=4, **steps)
    training = LocalTraining(problem, (0, 1), Roster((6, 6)), round_)
    start = torch.ones(2, 7, dtype=torch.float64)
    scattered, whole = start.clone(), sgd(training, start.clone(), round_)
    partly_shared.sgd(training, scattered, round_, parts)
    for part in parts:
        assert torch.equal(scattered[:, part], whole[:, part])
        assert not torch.equal(scattered[:, part], start[:, part])
    fixed = partly_shared.drop_columns(scattered, *parts)
    assert torch.equal(fixed, partly_shared.drop_columns(start, *parts))
