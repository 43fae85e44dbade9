"""States survive the round trip through named tensors."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pomona.core.errors import CheckpointError
from pomona.core.state import apply, flatten, rebuild


@dataclass(frozen=True)
class Leaf:
    weight: Tensor
    flag: Tensor


@dataclass(frozen=True)
class Nested:
    inner: Any
    weight: Tensor


def tensors():
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    dtypes = st.sampled_from(
        [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
    )
    return st.builds(lambda shape, dtype: torch.ones(shape).to(dtype), shapes, dtypes)


states = st.recursive(
    st.none() | tensors(),
    lambda inner: st.builds(Nested, inner, tensors()) | st.builds(Leaf, tensors(), tensors()),
    max_leaves=6,
)


def equal_trees(a, b):
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if a is None:
        return b is None
    return type(a) is type(b) and all(
        equal_trees(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__
    )


@given(states, st.sampled_from(["server", "client.3"]))
def test_rebuild_inverts_flatten(state, prefix):
    """The template gives structure only: its values, shapes and dtypes do not come through."""
    template = apply(lambda t: torch.full((1,), 9.0), state)
    assert equal_trees(rebuild(template, flatten(state, prefix), prefix), state)


def test_paths_name_the_way_from_the_prefix():
    state = Nested(Leaf(torch.zeros(1), torch.ones(2)), torch.zeros(3))
    assert {path: len(t) for path, t in flatten(state, "client.1").items()} == {
        "client.1.inner.weight": 1,
        "client.1.inner.flag": 2,
        "client.1.weight": 3,
    }
    assert list(flatten(torch.zeros(1), "server")) == ["server"]
    assert flatten(None, "server") == {}
    assert flatten(Nested(None, torch.zeros(1)), "s").keys() == {"s.weight"}


def test_states_side_by_side_do_not_mix():
    """Client 1's prefix is also how client 10's begins."""
    state_1 = Leaf(torch.tensor([1.0]), torch.tensor(True))
    state_10 = Leaf(torch.tensor([10.0]), torch.tensor(False))
    tensors = flatten(state_1, "client.1") | flatten(state_10, "client.10")
    assert len(tensors) == 4
    assert equal_trees(rebuild(state_1, tensors, "client.1"), state_1)
    assert equal_trees(rebuild(state_1, tensors, "client.10"), state_10)


def test_apply_changes_every_tensor_and_nothing_else():
    state = Nested(Leaf(torch.tensor([1.0]), torch.tensor([2.0])), torch.tensor([3.0]))
    doubled = apply(lambda t: t * 2, state)
    assert [float(t) for t in flatten(doubled, "s").values()] == [2.0, 4.0, 6.0]
    assert [float(t) for t in flatten(state, "s").values()] == [1.0, 2.0, 3.0]
    assert apply(torch.clone, None) is None


@pytest.mark.parametrize(
    "state", [3, "a", [torch.zeros(1)], Leaf, Nested({"a": 1}, torch.zeros(1))]
)
def test_what_is_no_state_is_not_silently_kept(state):
    with pytest.raises(TypeError, match="a state is None, a tensor or a dataclass"):
        flatten(state, "s")
    with pytest.raises(TypeError):
        apply(torch.clone, state)


def test_missing_and_unknown_tensors_are_named():
    state = Leaf(torch.zeros(1), torch.zeros(1))
    with pytest.raises(
        CheckpointError, match=r"'server'.*missing: server\.flag; unknown: server\.old"
    ):
        rebuild(state, {"server.weight": torch.zeros(1), "server.old": torch.zeros(1)}, "server")
    with pytest.raises(CheckpointError, match=r"unknown: server\.weight"):
        rebuild(None, {"server.weight": torch.zeros(1)}, "server")
