"""The check of private tensors detects methods that send one, or do not declare which are
private.
"""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from pomona.methods import METHODS, base
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.shared_parts.fedrep import FedRep
from pomona.testing.round_checks import (
    a_model_that_the_card_calls_private_never_goes_up,
    a_server_that_needs_sums_only_gets_by_with_the_mean,
    private_tensors_never_go_up,
)


class Faulty(FedRep):
    """FedRep with one fault."""

    fault: Literal["none", "silent", "sends its head", "sends all"] = "none"

    def method(self):
        method = super().method()
        client, fault = method.client, self.fault

        def train(state, received, training, round_):
            state_after, uplink, info = client.train(state, received, training, round_)
            uplinks = {
                "sends its head": [state_after.kept],
                "sends all": [uplink["model"], state_after.kept],
            }
            return state_after, {"model": torch.cat(uplinks.get(fault, [uplink["model"]]), 1)}, info

        faulty = replace(client, train=train, private=() if fault == "silent" else client.private)
        return replace(
            method, client=faulty, server=replace(method.server, aggregate=lambda w, *_: w)
        )


def test_a_method_that_keeps_its_head_passes():
    private_tensors_never_go_up(Faulty())


@pytest.mark.parametrize("fault", ["sends its head", "sends all"])
def test_a_head_that_is_sent_is_found_alone_and_within_a_model(fault):
    with pytest.raises(AssertionError, match="'model' of client 0 holds its private 'kept'"):
        private_tensors_never_go_up(Faulty(fault=fault))


def test_a_card_that_keeps_a_head_without_a_name_for_it_fails():
    with pytest.raises(
        AssertionError,
        match=r"the card keeps the head private, Client\.private names no tensor of it",
    ):
        private_tensors_never_go_up(Faulty(fault="silent"))


class Leaking(FedAvg):
    """FedAvg beside a model of its own, which is sent in place of FedAvg's."""

    name: Literal["leaking"] = "leaking"
    declared: bool = False

    def method(self):
        method = super().method()

        def train(V, received, training, round_):
            _, _, info = method.client.train(None, received, training, round_)
            base.sgd(training, V, round_)
            return V, {"model": V.clone()}, info

        client = base.Client(base.model_state, train, private=("state",) if self.declared else ())
        exchange = replace(method.card.exchange, private="its own model")
        return replace(method, client=client, card=replace(method.card, exchange=exchange))


def test_a_model_that_a_card_keeps_and_nobody_names_is_found_though_it_is_no_headline():
    with pytest.raises(
        AssertionError, match=r"keeps its own model private, Client\.private names no"
    ):
        a_model_that_the_card_calls_private_never_goes_up(Leaking())
    a_model_that_the_card_calls_private_never_goes_up(Leaking(declared=True))
    with pytest.raises(AssertionError, match="'model' of client 0 holds its private 'state'"):
        private_tensors_never_go_up(Leaking(declared=True))


@pytest.mark.parametrize("name", ["fedrep", "fedper", "lg-fedavg", "fedbn", "fed-rod", "mocha"])
def test_what_a_card_keeps_of_the_network_has_a_name(name):
    assert METHODS[name]().method().client.private


class Trimmed(FedAvg):
    """FedAvg by a mean without the largest and the smallest share of something, which claims to
    need sums only.
    """

    share: float
    dim: Literal[0, 1]

    def method(self):
        method = super().method()

        def aggregate(w, uplink, *_):
            W = uplink["model"]
            n = W.shape[self.dim]
            k = int(self.share * n)
            ordered = W.sort(self.dim).values.narrow(self.dim, k, n - 2 * k)
            return ordered.mean(0) if self.dim == 0 else W.mean(0) + ordered.mean()

        return replace(method, server=replace(method.server, aggregate=aggregate))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_server_that_drops_a_small_share_does_not_get_by_with_sums(dim):
    with pytest.raises(AssertionError):
        a_server_that_needs_sums_only_gets_by_with_the_mean(Trimmed(share=0.05, dim=dim))
