"""The check of private tensors detects methods that send one, or do not declare which are
private.
"""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from pomona.methods import METHODS
from pomona.methods.fedrep import FedRep
from pomona.testing.round_checks import private_tensors_never_go_up


class Wrong(FedRep):
    """FedRep with one fault."""

    fault: Literal["none", "silent", "sends its head", "sends all"] = "none"

    def method(self):
        method = super().method()
        client, sent = method.client, self.fault

        def train(state, received, training, round_):
            after, uplink, info = client.train(state, received, training, round_)
            parts = {"sends its head": [after.kept], "sends all": [uplink["model"], after.kept]}
            return after, {"model": torch.cat(parts.get(sent, [uplink["model"]]), 1)}, info

        half = replace(client, train=train, private=() if sent == "silent" else client.private)
        return replace(
            method, client=half, server=replace(method.server, aggregate=lambda w, *_: w)
        )


def test_a_method_that_keeps_its_head_passes():
    private_tensors_never_go_up(Wrong())


@pytest.mark.parametrize("fault", ["sends its head", "sends all"])
def test_a_head_that_is_sent_is_found_alone_and_within_a_model(fault):
    with pytest.raises(
        AssertionError, match="'model' of client 0 holds its 'kept', which is private"
    ):
        private_tensors_never_go_up(Wrong(fault=fault))


def test_a_card_that_keeps_a_head_without_a_name_for_it_fails():
    with pytest.raises(
        AssertionError, match=r"the card keeps the head, Client\.private names no tensor of it"
    ):
        private_tensors_never_go_up(Wrong(fault="silent"))


@pytest.mark.parametrize("name", ["fedrep", "fedper", "lg-fedavg", "fedbn", "fed-rod", "mocha"])
def test_what_a_card_keeps_of_the_network_has_a_name(name):
    assert METHODS[name]().method().client.private
