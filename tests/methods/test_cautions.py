"""What methods warn of before a run whose settings keep them from working."""

import pytest

import pomona
from pomona.federation.callbacks import NullCallback
from pomona.methods import METHODS
from problems import a_round, tiny


@pytest.mark.parametrize(
    ("name", "settings", "lr", "said"),
    [
        ("ditto", {"lambda": 1.0}, 1.0, "lr x lambda = 1"),
        ("ditto", {"lambda": 10.0}, 0.3, "lr x lambda = 3"),
        ("ditto+ala", {"lambda": 10.0}, 0.3, "lr x lambda = 3"),
        ("ditto", {"lambda": 1.0}, 0.99, None),
        ("pfedme", {"personal_lr": 0.09}, 0.3, "personal_lr x lambda = 1.35"),
        ("pfedme", {}, 0.3, None),
        ("fedavg", {}, 10.0, None),
    ],
)
def test_a_step_that_forgets_is_warned_of(name, settings, lr, said):
    caution = METHODS[name](**settings).method().caution(a_round(lr=lr))
    assert said in caution if said else caution is None


def test_a_run_says_it():
    said = []

    class Notes(NullCallback):
        def note(self, text):
            said.append(text)

    pomona.run(tiny("ditto", {"lambda": 10.0}, lr=0.1, rounds=1), watcher=Notes())
    assert ["forgets the personal model" in text for text in said] == [True]
