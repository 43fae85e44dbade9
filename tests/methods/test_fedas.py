"""FedAS: two rounds in plain PyTorch, its loss of alignment, its weights, and its reduction to FedPer."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import pomona
from plain_pytorch import Plain, assert_same, averaged, step
from pomona.core.round import Roster
from pomona.methods.shared_parts.fedas import FedAS, aligned, ratios
from pomona.methods.shared_parts.fedper import FedPer
from pomona.objective.training import LocalTraining
from pomona.testing import Federation, class_points
from problems import PASSES, a_round, tiny


def test_two_rounds_are_those_of_plain_pytorch():
    plain = Plain("fedas", {"alignment_lr": 0.03, "alignment_epochs": 2})
    models = plain.networks()
    shared = models[0][:-1].state_dict()
    for number in (1, 2):
        shared, traces = {k: t.clone() for k, t in shared.items()}, []
        for i, model in enumerate(models):
            P = plain.means(model[:-1], i)  # of the last body, before the received one is taken
            model[:-1].load_state_dict(shared)
            steps = plain.sgd(model[:-1].parameters(), lr=0.03)
            for x, y in plain.batches(i, number, epochs=2, purpose="alignment"):
                z = model[:-1](x)
                loss = sum(((z[y == k] - P[int(k)]) ** 2).mean() for k in y.unique())
                step(steps, loss)
            steps = plain.sgd(model.parameters())
            for x, y in plain.batches(i, number):
                step(steps, cross_entropy(model(x), y))
            trace = 0.0
            for x, y in plain.batches(i, number, epochs=1, purpose="fisher"):
                slopes = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
                trace += sum(float((g**2).sum()) for g in slopes)
            traces.append(trace)
        shared = averaged([m[:-1] for m in models], [t / sum(traces) for t in traces])
    result = plain.run()
    for i, model in enumerate(models):
        assert_same(result.models[i], model)
    received = plain.networks()
    for model, trained in zip(received, models, strict=True):
        model.load_state_dict({**trained.state_dict(), **shared})
    losses = result.curve("personal", "received")[-1].loss
    for i, model in enumerate(received):
        with torch.no_grad():
            rows = plain.tests[i]
            assert losses[i] == pytest.approx(
                float(cross_entropy(model(plain.x[rows]), plain.y[rows])), rel=1e-5
            )


def test_without_alignment_and_by_samples_it_is_fedper_to_the_bit():
    ours, problem = {"alignment_epochs": 0, "weigh": "samples"}, class_points(4, 2, 5)
    runs = [pomona.run(tiny(*case)) for case in (("fedas", ours), ("fedper",))]
    curves = [[e.loss for e in run.curve("personal", "received")] for run in runs]
    assert curves[0] == curves[1]
    fedas, per = (Federation(s.method(), problem) for s in (FedAS(**ours), FedPer()))
    for number in (1, 2, 3):
        fedas.round(a_round(number, **PASSES))
        per.round(a_round(number, **PASSES))
        for i in range(3):
            for when in ("received", "trained"):
                assert torch.equal(fedas.model(i, "personal", when), per.model(i, "personal", when))
    assert torch.equal(fedas.server, per.server)


def test_the_alignment_has_the_slope_of_its_formula():
    problem = class_points(7)
    training = LocalTraining(problem, (0,), Roster((7,)), a_round())
    draw = torch.Generator().manual_seed(2)
    w = torch.randn(problem.size, generator=draw, dtype=torch.float64)
    P = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    index = torch.tensor([0, 1, 2, 3, 6])  # classes 0, 1, 2, 0, 0

    def value(w):
        z = problem._forward(w, index)[1]
        distances = [((z[problem.y[index] == k] - P[k]) ** 2).mean() for k in range(3)]
        return torch.stack(distances).sum()

    losses, G = problem.gradient(w.unsqueeze(0), [index], [aligned(training, P)(index)])
    assert_close(losses[0], value(w))
    for j in range(problem.size):
        step = torch.zeros(problem.size, dtype=torch.float64)
        step[j] = 1e-5
        assert_close(G[0, j], (value(w + step) - value(w - step)) / 2e-5, rtol=1e-6, atol=1e-8)
    assert not G[0, problem.head.columns].any()


def test_clients_count_by_their_traces_of_any_size():
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    for unit in (1e-200, 1.0, 1e200):
        uplink = {"fisher": unit * torch.tensor([[3.0], [1.0]], dtype=torch.float64)}
        assert_close(p * ratios(p, uplink, p, a_round()), p.new_tensor([0.75, 0.25]))
    untraced = {"fisher": torch.zeros(2, 1, dtype=torch.float64)}
    assert_close(p * ratios(p, untraced, p, a_round()), p.new_tensor([0.5, 0.5]))


def test_the_alignment_brings_the_received_body_nearer_to_the_clients_own():
    """After a round whose training rests: features under the new body, and the means of the last."""
    problem, distances = class_points(6, 6), []
    for rate in (1e-9, 0.05):
        run = Federation(FedAS(alignment_lr=rate, alignment_epochs=5).method(), problem)
        run.round(a_round(1, epochs=20, lr=0.05))
        body_before = run.state(0).body.clone()
        run.round(a_round(2, epochs=1, lr=1e-12))
        means = [
            problem.features(torch.cat([b, run.state(0).head], 1)[0], 0, "train")
            for b in (body_before, run.state(0).body)
        ]
        y = problem.y[problem.rows[0]]
        class_means = torch.stack([means[0][y == k].mean(0) for k in range(3)])
        distances.append(float((means[1] - class_means[y]).square().mean()))
    assert distances[1] < distances[0]
