"""Attacks on membership, beside loops over their definitions."""

import numpy as np
import pytest
import torch
from scipy import stats

from pomona.audit import membership, roc
from pomona.audit.roc import Pairs
from pomona.core.rng import stream


def runs(M=12, R=30, effect=0.0, seed=0):
    draw = stream(seed, "runs")
    member = draw.random((M, R)) < 0.6
    level = 3 * draw.standard_normal(R)  # some records are easier
    return level + draw.standard_normal((M, R)) + effect * member, member


def test_confidence_is_the_logit_of_the_probability():
    logits = torch.tensor([[2.0, 0.5, -1.0], [0.1, 0.0, 0.3]], dtype=torch.float64)
    p = logits.softmax(1)[:, 0].numpy()
    assert membership.confidence(-np.log(p)) == pytest.approx(np.log(p / (1 - p)))
    assert np.isfinite(membership.confidence(np.array([0.0, 1e9, -1.0]))).all()


def test_lira_is_the_ratio_of_normal_densities_of_the_other_runs():
    confidences, member = runs()
    ratios = membership.lira(confidences, member)
    spreads = []
    for chosen in (member, ~member):
        residuals = [confidences[chosen[:, x], x] for x in range(30) if chosen[:, x].any()]
        squares = sum(((v - v.mean()) ** 2).sum() for v in residuals)
        spreads.append((squares / sum(len(v) - 1 for v in residuals)) ** 0.5)
    for r in range(12):
        for x in range(30):
            other_runs = np.arange(12) != r
            ins, outs = (confidences[other_runs & chosen[:, x], x] for chosen in (member, ~member))
            if not len(ins) or not len(outs):
                assert np.isnan(ratios[r, x])
                continue
            densities = [
                stats.norm.logpdf(confidences[r, x], v.mean(), s)
                for v, s in zip((ins, outs), spreads, strict=True)
            ]
            assert ratios[r, x] == pytest.approx(densities[0] - densities[1])


def test_lira_sees_what_a_threshold_does_not():
    """Records differ more than membership moves them: only their own levels tell."""
    confidences, member = runs(64, 200, effect=1.5)
    ratio = roc.auc(Pairs.flatten(membership.lira(confidences, member), member))
    plain = roc.auc(Pairs.flatten(membership.threshold(confidences, member), member))
    assert ratio.low > 0.78  # two normals 1.5 apart: 0.856
    assert plain.high < 0.68


def test_without_an_effect_nothing_is_found():
    confidences, member = runs(64, 200)
    area = roc.auc(Pairs.flatten(membership.lira(confidences, member), member))
    assert area.low <= 0.5 <= area.high


def test_a_client_that_sent_nothing_is_left_out():
    scores, member = runs()
    scores[3] = np.nan
    ratios = membership.lira(scores, member)
    assert np.isnan(ratios[3]).all()
    senders = np.delete(np.arange(12), 3)
    of_senders = membership.lira(scores[senders], member[senders])
    assert ratios[senders] == pytest.approx(of_senders, nan_ok=True)


def test_differences_are_mean_products_with_other_runs():
    draw = stream(0, "messages")
    member = draw.random((10, 6)) < 0.5
    messages = draw.standard_normal((10, 4)) * [1, 10, 0, 3] + 5
    scores = membership.differences(messages, member)
    unit = (messages - messages.mean(0)) / np.array([s if s else 1 for s in messages.std(0)])
    for r in range(10):
        for x in range(6):
            other_runs = np.arange(10) != r
            ins, outs = (unit[other_runs & chosen[:, x]] for chosen in (member, ~member))
            expected = unit[r] @ (ins.mean(0) - outs.mean(0)) if len(ins) and len(outs) else np.nan
            assert scores[r, x] == pytest.approx(expected, nan_ok=True)


def test_differences_find_the_mean_of_a_clients_records():
    """What FedProto sends: a mean of ten of twenty vectors."""
    draw = stream(0, "means")
    records = draw.standard_normal((20, 50))
    member = draw.random((60, 20)) < 0.5
    means = (member @ records) / member.sum(1, keepdims=True)
    area = roc.auc(Pairs.flatten(membership.differences(means, member), member))
    assert area.low > 0.8
    noise = roc.auc(
        Pairs.flatten(membership.differences(draw.standard_normal((60, 50)), member), member)
    )
    assert noise.low <= 0.5 <= noise.high
