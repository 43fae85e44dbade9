"""FedPAC: two rounds in plain PyTorch, the programme of head weights, and its reduction to FedRep."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import pomona
from plain_pytorch import Plain, assert_same, averaged, pull, step
from pomona.core.round import Roster
from pomona.methods.prototypes.fedpac import FedPAC, head_weights, mixture
from pomona.methods.shared_parts.fedrep import FedRep
from pomona.testing import Federation, class_points
from problems import PASSES, a_round, tiny, trained


def best(V, D):
    """The weights with the least a' Q a: of each set of clients the stationary point, where it is
    positive.
    """
    Q, candidates = np.diag(V) + D @ D.T, []
    for size in range(1, len(Q) + 1):
        for subset in map(list, combinations(range(len(Q)), size)):
            x = np.linalg.lstsq(Q[np.ix_(subset, subset)], np.ones(size), rcond=None)[0]
            if x.sum() > 0 and (x >= 0).all():
                a = np.zeros(len(Q))
                a[subset] = x / x.sum()
                candidates.append((a @ Q @ a, tuple(a)))
    return np.array(min(candidates)[1])


def test_two_rounds_are_those_of_plain_pytorch():
    plain = Plain("fedpac", {"lambda": 3.0})
    n, K, p = len(plain.own), plain.K, [size / sum(plain.n) for size in plain.n]
    models, C = plain.networks(), {}
    for number in (1, 2):
        V, H = [], []
        for i, model in enumerate(models):
            with torch.no_grad():
                z = model[:-1](plain.x[plain.own[i]]).double()
            m, counts = plain.means(model[:-1], i), plain.counts(i)
            share = {k: c / plain.n[i] for k, c in counts.items()}
            q = torch.stack([share[k] * m[k] if k in m else 0 * z[0] for k in range(K)]).double()
            H.append(q.flatten())
            V.append(float(((z**2).sum() / plain.n[i] - (q**2).sum()) / plain.n[i]))
        for i, model in enumerate(models):
            steps = plain.sgd(model[-1].parameters())
            for x, y in plain.batches(i, number, epochs=1, purpose="head"):
                step(steps, cross_entropy(model(x), y))
            steps = plain.sgd(model[:-1].parameters())
            for x, y in plain.batches(i, number):
                z = model[:-1](x)
                loss = cross_entropy(model[-1](z), y) + (3.0 * pull(z, y, C) if C else 0)
                step(steps, loss)
        last = [{k: t.clone() for k, t in model.state_dict().items()} for model in models]
        C = plain.pooled([plain.means(model[:-1], i) for i, model in enumerate(models)])
        A = [best(np.array(V), torch.stack([H[i] - h for h in H]).numpy()) for i in range(n)]
        assert any(0 < a < 1 for row in A for a in row)
        common = averaged(models, p)
        heads = [averaged([m[-1] for m in models], row.tolist()) for row in A]
        for model, head in zip(models, heads, strict=True):
            model.load_state_dict(common)
            model[-1].load_state_dict(head)
    result = plain.run()
    for i, state in enumerate(last):
        models[i].load_state_dict(state)
        assert_same(result.models[i], models[i])


@settings(max_examples=60)
@given(
    st.integers(1, 6), st.integers(1, 8), st.integers(0, 10**6), st.sampled_from([1e-6, 1.0, 1e6])
)
def test_head_weights_are_the_best_of_the_simplex(n, m, seed, scale):
    draw = np.random.default_rng(seed)
    V, D = scale**2 * draw.exponential(size=n), scale * draw.normal(size=(n, m))
    D[0] = 0  # one's own
    a = mixture(torch.from_numpy(V), torch.from_numpy(D)).numpy()
    assert a.sum() == pytest.approx(1)
    assert a.min() >= 0
    Q, exact = np.diag(V) + D @ D.T, best(V, D)
    assert a @ Q @ a <= exact @ Q @ exact * (1 + 1e-9)
    slope = Q @ a
    assert slope.min() >= a @ slope * (1 - 1e-6)  # the condition of Karush, Kuhn and Tucker


@pytest.mark.parametrize("huge", [1e12, 1e18, 1e30, 1e300])
def test_one_huge_variance_takes_no_weight_and_leaves_those_of_the_others(huge):
    V = torch.tensor([1.0, 2.0, 4.0, huge], dtype=torch.float64)
    a = mixture(V, torch.zeros(4, 5, dtype=torch.float64))
    assert_close(a, V.new_tensor([4, 2, 1, 0]) / 7)


def test_equal_features_weigh_by_variance_and_certain_ones_take_their_own():
    V = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert_close(mixture(V, torch.zeros(3, 5, dtype=torch.float64)), V.new_tensor([4, 2, 1]) / 7)
    differences = torch.tensor([[0.0], [3.0], [-2.0]], dtype=torch.float64)
    a = mixture(torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64), differences)
    assert_close(a, V.new_tensor([1, 0, 0]))
    weights = mixture(torch.zeros(2, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64))
    assert weights.sum().item() == pytest.approx(1)


def test_a_client_cannot_claim_less_variance_than_its_means_have():
    roster, K, f = Roster((4, 4)), 2, 3
    means = torch.randn(2, K * f, generator=torch.Generator().manual_seed(1))
    counts = torch.tensor([[2.0, 2], [3, 1]], dtype=torch.float64)
    p = counts / 4
    minimum = (p.unsqueeze(2) * means.double().view(2, K, f) ** 2).sum((1, 2))
    uplink = {"class_counts": counts, "start_means": means, "mean_square": minimum.unsqueeze(1)}
    lie = {**uplink, "mean_square": torch.tensor([[-1e30], [0.0]], dtype=torch.float64)}
    assert torch.equal(head_weights(uplink, (0, 1), roster), head_weights(lie, (0, 1), roster))


def test_without_pull_and_mixing_it_is_fedrep_to_the_bit():
    ours, problem = {"lambda": 0.0, "mix": False}, class_points(4, 2, 5)
    runs = [pomona.run(tiny(*case)) for case in (("fedpac", ours), ("fedrep",))]
    curves = [[e.loss for e in run.curve("personal", "trained")] for run in runs]
    assert curves[0] == curves[1]
    pac, rep = (Federation(s.method(), problem) for s in (FedPAC(**ours), FedRep()))
    for number in (1, 2, 3):
        pac.round(a_round(number, **PASSES))
        rep.round(a_round(number, **PASSES))
        for i in range(3):
            assert torch.equal(
                pac.model(i, "personal", "trained"), rep.model(i, "personal", "trained")
            )
    assert torch.equal(pac.server.body, rep.server)
    assert all(torch.equal(pac.server.heads[i], rep.state(i).kept[0]) for i in range(3))


def test_absent_clients_keep_their_mixture():
    run = trained(FedPAC(), class_points(4, 4, 4), 2, lr=0.1)
    head = run.server.heads[1].clone()
    run.round(a_round(3), ids=(0, 2))
    assert torch.equal(run.server.heads[1], head)
    assert not torch.equal(run.server.heads[0], head)
