"""The private objective's parts, each beside what it wraps or what its ledger says."""

import shutil
from dataclasses import replace

import pytest
import torch
from private_problem import privacy, problem
from torch import nn
from torch.testing import assert_close

from pomona.core.errors import ConfigError, PrivacyError
from pomona.objective import private
from pomona.objective.batches import View
from pomona.objective.private import PrivateObjective
from pomona.privacy.ledger import Draw

ALL_RELEASES = ("metrics", "validation-losses", "training-loss", "output-criterion")


def rebuilt(p, folder, module=None, **overrides):
    return PrivateObjective(p.inner, module or p.module, p.space, privacy(**overrides), folder)


def test_what_it_says_of_itself(tmp_path):
    p = problem(tmp_path, privacy())
    assert (p.objective.least_batch, p.objective.shows_trained) == (1, True)
    assert (p.objective.shows_losses, p.objective.layers) == (False, p.inner.layers)
    assert not rebuilt(p, tmp_path, honest=2).shows_trained
    assert rebuilt(p, tmp_path, acknowledge=("training-loss",)).shows_losses


@pytest.mark.parametrize(("rows", "chunk"), [(0.5, 1), (1, 1), (3.9, 3), (1000, 64)])
def test_a_chunk_holds_what_fits_into_memory(rows, chunk, tmp_path, monkeypatch):
    p = problem(tmp_path, privacy())
    monkeypatch.setattr(private, "CHUNK_NUMBERS", int(rows * p.space.trained))
    assert rebuilt(p, tmp_path)._chunk == chunk


def test_a_network_is_trained_in_training_mode_and_one_with_statistics_is_refused(tmp_path):
    p = problem(tmp_path, privacy())
    p.module.eval()
    assert rebuilt(p, tmp_path)
    assert all(layer.training for layer in p.module.modules())
    with pytest.raises(ConfigError, match=r"layer 1 \(BatchNorm1d\) stores or uses"):
        rebuilt(p, tmp_path, nn.Sequential(p.module, nn.BatchNorm1d(3, affine=False)))


@pytest.mark.parametrize(("n", "refused"), [(1, False), (2, True), (3, True)])
def test_samples_that_depend_on_others_are_refused_wherever_there_are_two(n, refused, tmp_path):
    p = problem(tmp_path, privacy(), (n,))
    original = p.module.forward
    p.module.forward, passes = (lambda x: passes.append(1) or original(x) * len(passes)), []
    if refused:
        with pytest.raises(ConfigError, match="depends on the other samples"):
            rebuilt(p, tmp_path)
    else:
        rebuilt(p, tmp_path)
    # Dropout gives two samples masks of their own, and a sample the same mask beside any other
    p.module.forward = lambda x: original(nn.functional.dropout(x))
    rebuilt(p, tmp_path)


def test_a_ledger_is_opened_once_and_continues_from_its_position_alone(tmp_path):
    p = problem(tmp_path / "first", privacy())
    assert p.objective.key_store(0) is p.objective.key_store(0)
    first_position = p.objective.position(0)
    p.objective.gradient(p.row.unsqueeze(0), [max(p.batch(), key=len)])
    second_position = p.objective.position(0)
    assert (first_position.entries, second_position.entries) == (0, 1)
    p.objective.require(0, second_position)
    with pytest.raises(PrivacyError):  # behind: as if the release had not been
        p.objective.require(0, (2, second_position.chain))
    copies = [shutil.copytree(tmp_path / "first", tmp_path / name) for name in "ab"]
    reopened = rebuilt(p, copies[0])
    reopened.require(0, second_position)
    assert reopened.position(0) == second_position
    with pytest.raises(PrivacyError):
        rebuilt(p, copies[1]).require(0, (2, second_position.chain))


@pytest.mark.long
def test_epsilons_are_those_of_the_ledger(tmp_path):
    p = problem(tmp_path, privacy(honest=3), groups=[0, 0, 0, 1, *range(2, 19)])
    for index in p.batch(epochs=2):
        p.objective.gradient(p.row.unsqueeze(0), [index])
    store, objective = p.objective.key_store(0), p.objective
    assert objective.epsilon(0) == store.epsilon()
    assert objective.epsilon_alone(0) == store.epsilon_alone()
    assert objective.epsilon_alone(0) > objective.epsilon(0) > 0
    assert objective.epsilon_by_groups(0) == store.epsilon(3)  # the patient with three rows
    assert store.epsilon(3) > store.epsilon(2) > store.epsilon(1) == store.epsilon()


def test_without_groups_or_with_groups_as_the_unit_there_is_one_epsilon(tmp_path):
    rows = problem(tmp_path / "rows", privacy())
    unit = problem(tmp_path / "unit", privacy(unit="group"), groups=[*[0] * 3, *range(1, 19)])
    for p in (rows, unit):
        p.objective.gradient(p.row.unsqueeze(0), [max(p.batch(), key=len)])
        assert p.objective.epsilon_by_groups(0) == p.objective.epsilon(0) > 0


def test_a_client_without_samples_has_no_group_of_several(tmp_path):
    p = problem(tmp_path, privacy(), (5, 0), groups=[0, 0, 0, 0, 1])
    assert p.objective.epsilon_by_groups(1) == p.objective.epsilon(1) == 0


def test_groups_as_the_unit_need_groups(tmp_path):
    p = problem(tmp_path, privacy(unit="group"))
    with pytest.raises(ConfigError, match="group"):
        p.objective.clipped_sum(p.row, torch.arange(3))


def test_the_methods_own_criterion_gets_the_wrapped_gradient_row_by_row(tmp_path):
    p = problem(tmp_path, privacy(acknowledge=ALL_RELEASES))
    W = torch.stack([p.row, 2 * p.row, 3 * p.row])
    first, second = sorted(p.batch(epochs=3), key=len)[-2:]
    empty = next(index for index in p.batch(size=1, epochs=4, round_=2) if not len(index))
    weights = (1.0, 5.0, 7.0)
    criteria = [lambda outputs, y, features, w=w: w * outputs.square().mean() for w in weights]
    losses, G = p.objective.gradient(W, [first, second, empty], criteria)
    for k, index in enumerate([first, second]):
        loss, expected = p.inner.gradient(W[k : k + 1], [index], [criteria[k]])
        assert_close((losses[k], G[k]), (loss[0], expected[0]))
        assert float(G[k].norm()) > 0
    assert (float(losses[2]), float(G[2].norm())) == (0.0, 0.0)
    assert p.objective.epsilon(0) == float("inf")
    refused = problem(tmp_path / "refused", privacy())
    with pytest.raises(ConfigError, match="output-criterion"):
        refused.objective.gradient(W[:1], [max(refused.batch(), key=len)], criteria[:1])


def test_what_is_acknowledged_is_the_wrapped_objectives(tmp_path):
    p = problem(tmp_path, privacy(acknowledge=ALL_RELEASES))
    for split in ("train", "validation"):
        assert_close(p.objective.losses(p.row, 0, split), p.inner.losses(p.row, 0, split))
    assert_close(p.objective.features(p.row, 0, "train"), p.inner.features(p.row, 0, "train"))
    for split in ("train", "test"):
        assert_close(p.objective.outputs(p.row, 0, split), p.inner.outputs(p.row, 0, split))
    assert p.objective.tensors(p.row, 0).keys() == p.inner.tensors(p.row, 0).keys()
    outputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert_close(p.objective.criterion(outputs, targets), p.inner.criterion(outputs, targets))
    with pytest.raises(ConfigError, match="Hessian"):
        p.objective.hessian(p.row.unsqueeze(0), [], p.row.unsqueeze(0))


def test_views_are_seeded_by_the_clients_secret(tmp_path):
    p = problem(tmp_path, privacy(seed=None))
    view, draw = View(0, 0, 1, "training", 0), Draw(1, "training", 0, 12, 4)
    secret = p.objective._secret_view(view, draw)
    assert secret.seed == p.objective.key_store(0).view_seed(draw) != view.seed
    assert replace(secret, seed=view.seed) == view
    assert p.objective._secret_view(None, draw) is None
