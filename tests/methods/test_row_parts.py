"""Parts of rows: extraction, remainder, and reassembly."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.core.errors import ConfigError
from pomona.methods import partly_shared
from pomona.methods.base import chunked
from pomona.methods.row_algebra import cosine_similarity

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


def test_a_head_is_what_stands_above_the_shared_layers():
    assert partly_shared.head(LAYERS, None) == partly_shared.head(LAYERS, 2) == slice(7, 8)
    assert partly_shared.head(LAYERS, 0) == slice(0, 8)
    assert partly_shared.head(LAYERS, 3) == slice(8, 8)
    for wrong in (-1, 4):
        with pytest.raises(ConfigError, match="set it to 3 or less"):
            partly_shared.head(LAYERS, wrong)
