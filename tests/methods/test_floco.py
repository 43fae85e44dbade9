"""Floco: points of the simplex, regions, and its reduction to FedAvg."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from torch.testing import assert_close

import pomona
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.shared_parts.floco import (
    WHOLE_SIMPLEX,
    Floco,
    components,
    energy,
    point,
    spread,
)
from problems import Federation, Quadratics, a_round, quadratics, tiny, trained


def test_with_one_corner_it_is_fedavg_to_the_bit_before_and_after_the_regions():
    problem = quadratics(3, samples=5)
    run, avg = trained(Floco(corners=1, region_round=1), problem), trained(FedAvg(), problem)
    assert torch.equal(run.server.model, avg.server)
    for i in range(3):
        for name in ("global", "personal"):
            assert torch.equal(run.model(i, name, "received"), avg.model(i, "global", "received"))


def test_a_step_moves_each_corner_by_its_weight():
    """One client, one step of .5 at the point a: h = a . t, t_m <- t_m - .5 a_m (h - 8)."""
    sample = torch.full((1, 3), 8.0, dtype=torch.float64)
    run = Federation(
        Floco(corners=3, region_round=1, radius=0.0).method(), Quadratics(sample, [[0]])
    )
    run.round(a_round(1, lr=0.0))
    centre = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    run.server = run.server.__class__(run.server.model, run.server.body, centre, run.server.radii)
    model = run.server.model
    run.round(a_round(2, lr=0.5))
    h = centre[0] @ model[2:]
    assert_close(run.server.model[:2], (model[:2] + 8) / 2)
    assert_close(run.server.model[2:], model[2:] - 0.5 * centre[0] * (h - 8))
    assert_close(run.model(0, "personal", "received"), torch.cat([model[:2], h.reshape(1)]))
    assert_close(run.model(0, "global", "received")[2], model[2:].mean())


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(0, 3))
def test_a_point_is_in_the_simplex_and_in_its_region(M, seed, radius):
    draw = np.random.default_rng(seed)
    centre = draw.dirichlet(np.ones(M))
    a = point(draw, centre, radius)
    assert a.sum() == pytest.approx(1)
    assert (a >= -1e-12).all()
    if radius < WHOLE_SIMPLEX:
        assert np.abs(a - centre).sum() <= radius + 1e-9


def test_points_of_the_whole_simplex_are_uniform():
    """Their coordinates have mean 1/3, and variance 1/18, that of Dirichlet(1, 1, 1)."""
    draw = np.random.default_rng(0)
    points = np.stack([point(draw, np.full(3, 1 / 3), WHOLE_SIMPLEX) for _ in range(20000)])
    assert points.mean(0) == pytest.approx(np.full(3, 1 / 3), abs=0.005)
    assert points.var(0) == pytest.approx(np.full(3, 1 / 18), abs=0.002)


def test_components_are_scikit_learns():
    changes = np.random.default_rng(0).normal(size=(8, 20))
    assert components(changes, 3) == pytest.approx(PCA(3).fit_transform(changes))
    assert components(changes[:2], 4).shape == (2, 4)
    assert not components(changes[:1], 4).any()


def test_clients_who_change_alike_are_near_and_others_far():
    """The energy is that of the best of the candidates."""
    draw = np.random.default_rng(0)
    groups = np.repeat(np.eye(3, 12), 4, axis=0) + 0.01 * draw.normal(size=(12, 12))
    centres = spread(components(groups, 3))
    assert centres.sum(1) == pytest.approx(np.ones(12))
    assert (centres >= 0).all()
    distances = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    same_group = np.equal.outer(np.arange(12) // 4, np.arange(12) // 4)
    assert distances[same_group].max() < 0.3 * distances[~same_group].min()
    assert energy(np.array([[0.0, 1.0], [1.0, 0.0]])) == pytest.approx(0.5)


def test_regions_begin_after_their_round_for_those_who_were_there():
    run = Federation(Floco(corners=2, region_round=2).method(), quadratics(4, samples=3))
    run.round(a_round(1))
    assert run.server.radii.flatten().tolist() == [WHOLE_SIMPLEX] * 4
    run.round(a_round(2), ids=(0, 1, 3))
    assert run.server.radii.flatten().tolist() == [0.1, 0.1, WHOLE_SIMPLEX, 0.1]
    assert run.server.centres[2].tolist() == [0.5, 0.5]
    centres = run.server.centres
    run.round(a_round(3))
    assert torch.equal(run.server.centres, centres)
    assert run.replies[3].info["centre"].tolist() == centres[3].tolist()


def test_a_run_on_digits_has_models_of_one_shape_and_repeats():
    single, parallel = (
        pomona.run(tiny("floco", {"region_round": 1, "corners": 3}, workers=w)) for w in (1, 2)
    )
    assert all(torch.equal(single.models[0][k], v) for k, v in parallel.models[0].items())
    assert {r.bytes_up[0] for r in single.rounds} == {4 * (64 * 8 + 8 + 3 * 90)}
