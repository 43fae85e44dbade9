"""FedProto: two rounds in plain PyTorch, its reduction to training alone, and answers by
prototypes.
"""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import pomona
from plain_pytorch import Plain, assert_same, pull, step
from pomona.methods.personal_regularisation.separate import Separate
from pomona.methods.prototypes.fedproto import FedProto, by_prototypes
from pomona.testing import Federation, class_points
from problems import PASSES, a_round, tiny

pytestmark = pytest.mark.long


def pooled_alike(client_means, classes):
    return {
        k: torch.stack([means[k] for means in client_means if k in means]).mean(0)
        for k in range(classes)
        if any(k in means for means in client_means)
    }


@pytest.mark.parametrize("weigh", ["samples", "clients"])
def test_two_rounds_are_those_of_plain_pytorch(weigh):
    plain = Plain("fedproto", {"lambda": 3.0, "weigh": weigh})
    models, C = plain.networks(), {}
    for number in (1, 2):
        old = C
        for i, model in enumerate(models):
            steps = plain.sgd(model.parameters())
            for x, y in plain.batches(i, number):
                z = model[:-1](x)
                loss = cross_entropy(model[-1](z), y) + (3.0 * pull(z, y, C) if C else 0)
                step(steps, loss)
        means = [plain.means(model[:-1], i) for i, model in enumerate(models)]
        C = plain.pooled(means) if weigh == "samples" else pooled_alike(means, plain.K)
    result = plain.run()
    for i, model in enumerate(models):
        assert_same(result.models[i], model)
        with torch.no_grad():
            z = model[:-1](plain.x[plain.tests[i]])
        distances = torch.stack(
            [(z - old[k]).norm(dim=1) if k in old else z[:, 0] + 1e9 for k in range(plain.K)], 1
        )
        right = (distances.argmin(1) == plain.y[plain.tests[i]]).float().mean()
        assert result.curve("prototypes", "trained")[-1].value[i] == pytest.approx(float(right))


def test_without_the_pull_it_is_training_alone_to_the_bit():
    runs = [
        pomona.run(tiny(name, settings))
        for name, settings in (("fedproto", {"lambda": 0.0}), ("separate", {}))
    ]
    curves = [[e.loss for e in run.curve("personal", "trained")] for run in runs]
    assert curves[0] == curves[1]
    assert runs[0].models.keys() == runs[1].models.keys()
    problem = class_points(4, 2, 5)
    proto, separate = (
        Federation(settings.method(), problem)
        for settings in (FedProto(**{"lambda": 0.0}), Separate())
    )
    for number in (1, 2, 3):
        proto.round(a_round(number, **PASSES))
        separate.round(a_round(number, **PASSES))
    assert all(torch.equal(proto.state(i), separate.state(i)) for i in range(3))


def test_the_first_round_has_no_means_and_pulls_nothing():
    problem = class_points(4, 6)
    runs = [Federation(s.method(), problem) for s in (FedProto(**{"lambda": 9.0}), Separate())]
    for run in runs:
        run.round(a_round(1, **PASSES))
    assert all(torch.equal(runs[0].state(i), runs[1].state(i)) for i in (0, 1))
    for run in runs:
        run.round(a_round(2, **PASSES))
    assert not torch.equal(runs[0].state(0), runs[1].state(0))


def test_a_stronger_pull_brings_features_nearer_to_the_means():
    problem = class_points(6, 6)
    distances = []
    for weight in (0.0, 2.0, 5.0, 10.0):
        run = Federation(FedProto(**{"lambda": weight}).method(), problem)
        for number in range(1, 15):
            previous = run.server
            run.round(a_round(number, epochs=5, lr=0.02))
        z, y = problem.features(run.state(0)[0], 0, "train"), problem.y[problem.rows[0]]
        distances.append(float((z - previous.means[y]).square().mean()))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.8 * distances[0]


def test_the_head_of_the_prototypes_answers_by_the_nearest_mean():
    problem = class_points(9)
    draw = torch.Generator().manual_seed(3)
    W = torch.randn(1, problem.size, generator=draw, dtype=torch.float64)
    means = torch.randn(1, 3, 4, generator=draw, dtype=torch.float64)
    available = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    row = by_prototypes(W, means, available, problem.head)[0]
    z = problem.features(W[0], 0, "train")
    assert torch.equal(problem.features(row, 0, "train"), z)
    outputs, _ = problem.outputs(row, 0, "train")
    squares = (z.unsqueeze(1) - means[0, :2]).square().sum(2)
    assert_close(outputs[:, :2], z.square().sum(1, keepdim=True) - squares)
    assert torch.equal(outputs.argmax(1), squares.argmin(1))
