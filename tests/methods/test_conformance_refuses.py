"""Mistakes of a method's author, and the words in which the public checks refuse each."""

import re
from dataclasses import dataclass, replace

import pytest
import torch

from pomona.core.errors import ConfigError
from pomona.methods import METHODS, base
from pomona.methods.one_model import fedavg
from pomona.methods.prototypes import class_means
from pomona.testing import conformance

FEDAVG = METHODS["fedavg"]().method()


@dataclass(frozen=True)
class Settings:
    """Settings of a method that is given."""

    chosen: base.Method

    def method(self):
        return self.chosen


def fails(name, method, error=AssertionError):
    check = next(check for check in conformance(Settings(method)) if str(check) == name)
    with pytest.raises(error) as failure:
        check()
    return failure.value


def server(**halves):
    return replace(FEDAVG, server=replace(fedavg.server(), **halves))


def aggregating(change):
    mean = fedavg.server().aggregate
    return server(aggregate=lambda *arguments: change(mean(*arguments)))


def observing(model):
    train = FEDAVG.client.train

    def trains(state, received, training, round_):
        training.observe(model, received["model"], "received")
        return train(state, received, training, round_)

    return replace(FEDAVG, client=replace(FEDAVG.client, train=trains))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.float(), r"round 1 changed the form of a state: server from .*64.* to .*32"),
        (lambda w: w.clone().requires_grad_(), "server require gradients; keep them detached"),
    ],
)
def test_a_state_of_another_form(change, message):
    assert re.match(message, str(fails("shapes_and_dtypes_are_kept", aggregating(change))))


def test_a_global_generator_on_the_server():
    method = aggregating(lambda w: w + torch.randn(w.shape, dtype=w.dtype))
    message = str(fails("another_seed_gives_other_batches", method))
    assert message.startswith("server differ between runs of one seed: draw from the seed")


@pytest.mark.parametrize("entry", [3.0, base.Rows(torch.zeros(1, 2, 3), torch.zeros(1).long())])
def test_a_downlink_that_is_no_rows(entry):
    downlink = fedavg.server().downlink
    method = server(downlink=lambda *arguments: {**downlink(*arguments), "extra": entry})
    assert "'extra' of a downlink is not Rows" in str(fails("a_downlink_keeps_its_form", method))


def test_a_model_that_the_card_does_not_name():
    message = str(fails("one_client_alone_works", observing("prototypes")))
    assert message == "clients observe ['prototypes']: name them in the card's models"


def test_a_headline_that_nobody_observes():
    method = replace(FEDAVG, card=replace(FEDAVG.card, headline=("persnal", "trained")))
    assert "headline is ('persnal', 'trained'), clients" in str(
        fails("one_client_alone_works", method)
    )


def test_features_without_tasks_of_the_card():
    method = server(start=lambda initial, *_: class_means.start(initial).means)
    refusal = fails("shapes_and_dtypes_are_kept", method, ConfigError)
    assert 'unless the card has tasks, such as ("classes",)' in refusal.__notes__[0]


def test_a_client_that_reads_what_its_index_does_not_name():
    apple = METHODS["apple"]().method()

    def downlink(state, ids, roster, round_):
        (rows,) = apple.server.downlink(state, ids, roster, round_).values()
        index = rows.index.clone()
        index[:, 0] = torch.tensor(ids)  # whose core came first is not sent
        return {"cores": base.Rows(rows.bank, index)}

    faulty = replace(apple, server=replace(apple.server, downlink=downlink))
    assert re.match(
        "round 1: core, dr.* of client 0 depend on rows that its downlink does not name",
        str(fails("a_client_reads_only_rows_that_it_was_sent", faulty)),
    )


def sending(extra):
    """FedAvg whose clients send more than its server expects, or take more gradients."""
    client = FEDAVG.client

    def train(state, received, training, round_):
        state, uplink, info = client.train(state, received, training, round_)
        if extra == "gradients":
            for batch, w in training.steps(round_.passes, uplink["model"].clone()):
                training.gradient(w, batch)
            return state, uplink, info
        return state, {**uplink, extra: torch.zeros(len(uplink["model"]), 1)}, info

    return replace(FEDAVG, client=replace(client, train=train))


def test_an_uplink_that_the_card_does_not_tell_of():
    fault = fails("the_card_says_what_an_uplink_tells_beside_models", sending("size"))
    assert str(fault) == "an uplink has ['size'] besides models, the card declares []"


def test_gradients_that_the_card_does_not_count():
    message = str(fails("the_card_says_how_many_gradients_a_round_takes", sending("gradients")))
    assert message.endswith("in privacy.gradients, such as base.Gradients(per_batch=2)")
