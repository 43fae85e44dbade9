"""The worst-case cost of a study: reported before it starts, infinite if something is not covered,
never exceeded.
"""

import re
from contextlib import suppress
from dataclasses import replace
from math import inf

import pytest

from command_line import command
from pomona.core.errors import BudgetError, ConfigError, PrivacyError
from pomona.core.training_settings import Passes
from pomona.methods.base import Gradients
from pomona.privacy.accounting import with_room
from pomona.privacy.settings import RELEASES, Privacy, Release
from pomona.scenario.description import epsilons
from pomona_federation.silo import preflight
from pomona_federation.silo.noise_stores import PrivateRun, Restored
from pomona_federation.silo.privacy_budget import PrivacyBudget
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.silo_scenario import worst_cost
from representatives import drawn
from test_hostile_server import ROUNDS, Server, edited, epsilon_spent, noise
from test_in_process import PRIVATE

pytestmark = pytest.mark.long

NOISY = {**PRIVATE, "seed": None}
PURPOSES = ("training", "stage", "finetuning")
EXACT = {"class-means", "training-loss", "output-criterion", "shared-samples"}


@pytest.fixture(autouse=True)
def _accountant():
    pytest.importorskip("opacus")


def private(world, method="fedavg", **privacy):
    return world.federation(
        method, run={"rounds": ROUNDS, "privacy": {**NOISY, **privacy}}, places=7
    )


def kit(federation):
    return federation.kits / "silo-1"


# What is not covered


def test_a_seed_that_others_know_is_refused_but_in_a_test(world):
    with pytest.raises(ConfigError, match=r"run\.privacy\.seed"):
        private(world, seed=7)


def test_where_a_test_has_a_seed_there_is_no_bound(world):
    federation = world.federation("fedavg", run={"privacy": PRIVATE}, insecure=True)
    assert worst_cost(Silo(kit(federation)).local).epsilon == inf
    # what the accountant says of the noise alone
    assert max(epsilons(Silo(kit(federation)).local)) < 1000
    edited(kit(federation) / "silo.toml", accept_epsilon=1e6)
    with pytest.raises(
        PrivacyError,
        match=r"would cost privacy without bound, .*accept_epsilon in silo\.toml is 1e\+06",
    ):
        Silo(kit(federation)).require_affordable("")
    lines, _, _ = preflight.run(kit(federation))
    [check] = [line for line in lines if line.check == "data"]
    assert (check.code, "would cost privacy without bound" in check.text) == (9, True)


def test_what_leaves_of_training_records_without_noise_has_no_bound(world):
    """Losses, gradients and samples as they are, by name; all else is of other records, or was
    settled before.
    """
    scenario = Silo(kit(private(world))).local
    assert scenario.config.privacy

    def cost(*acknowledge):
        privacy = scenario.config.privacy.model_copy(update={"acknowledge": acknowledge})
        return worst_cost(
            replace(scenario, config=scenario.config.model_copy(update={"privacy": privacy}))
        ).epsilon

    assert {name for name in RELEASES if cost("metrics", name) == inf} == EXACT
    assert Release("gossip", "of a method that says no more of it").exact


def test_a_silo_with_a_limit_takes_no_part_where_losses_leave_without_noise(world):
    silo = kit(private(world, acknowledge=[*NOISY["acknowledge"], "training-loss"]))
    Silo(silo).require_affordable("")
    for limit in ("accept_epsilon", "accept_epsilon_total"):
        text = (silo / "silo.toml").read_text()
        edited(silo / "silo.toml", **{limit: 1e6})
        with pytest.raises(PrivacyError, match=f"without bound.*{limit}"):
            Silo(silo).require_affordable("")
        (silo / "silo.toml").write_text(text)


def test_a_check_says_in_words_what_the_study_has_acknowledged(world, capsys):
    federation = private(world, acknowledge=[*NOISY["acknowledge"], "training-loss"])
    command("silo", "check", "--folder", kit(federation))
    text = " ".join(capsys.readouterr().out.split())
    assert "past the noise" in text
    assert RELEASES["metrics"].content in text
    assert (
        f"training-loss: {RELEASES['training-loss'].content}, so that epsilon has no bound" in text
    )
    assert "privacy loss epsilon without bound" in text


@pytest.mark.long
def test_check_report_and_card_state_one_epsilon_and_what_it_protects(world, capsys):
    federation = private(world)
    federation.run()
    folder = federation.kits / "silo-1"
    command("silo", "check", "--folder", kit(federation))
    projected = re.search(
        r"epsilon at most (\S+) at delta .* for one sample",
        " ".join(capsys.readouterr().out.split()),
    )
    command("silo", "report", "--folder", kit(federation))
    report = " ".join(capsys.readouterr().out.split())
    epsilon = re.search(r"epsilon \S+ at delta \S+, for one sample of this client", report)
    assert f"{float(epsilon[0].split()[1]):.3g}" == projected[1]
    assert "training alone, without noise" in report
    for page in ("models/personal.card.md", "report.md"):
        assert epsilon[0] in (folder / "state" / page).read_text()


# What a server can make a study cost


@pytest.mark.parametrize(
    "method", drawn([{"name": "fedala", "stage_epochs": 3}, "fedavg-ft", "fedavg"])
)
def test_no_server_gets_more_than_a_study_was_said_to_cost(method, world):
    """Each round begins at the same state, is evaluated with its training, and once more with
    another model.
    """
    server = Server(private(world, method))
    worst = worst_cost(Silo(server.kit()).local).epsilon
    answered = 0
    for number in range(1, ROUNDS + 2):
        for trains in (True, False) if number <= ROUNDS else (False,):
            task = server.task(number, noise(2 * number + trains), trains=trains, settled=0)
            with suppress(BudgetError):
                server.ask(*task)
                answered += 1
    assert PrivacyBudget(server.kit()).runs(server.agreement) == {server.run: worst}
    # which takes no gradients but those of its rounds
    assert (answered < 2 * ROUNDS + 1) == (method != "fedavg")
    assert 0.5 * worst < epsilon_spent(server.kit()) <= with_room(Privacy(**NOISY), worst)


@pytest.mark.parametrize(
    ("method", "accountant"),
    [
        pytest.param(
            {"name": "fedala", "stage_epochs": 3}, "rdp", id="fedala", marks=pytest.mark.slow
        ),
        pytest.param("fedavg-ft", "prv", id="fedavg-ft", marks=pytest.mark.slow),
        pytest.param("apfl", "rdp", id="apfl"),
    ],
)
def test_an_honest_run_fits_into_what_it_was_said_to_cost(method, accountant, world):
    federation = private(world, method, accountant=accountant)
    worst = {
        name: worst_cost(Silo(federation.kits / name).local).epsilon for name in federation.names
    }
    federation.run()
    for name in federation.names:
        assert (
            len((federation.kits / name / "state/rounds.jsonl").read_text().splitlines()) >= ROUNDS
        )
        assert (
            0
            < epsilon_spent(federation.kits / name)
            <= worst[name] * (1 + 1e-9) + (0.03 if accountant == "prv" else 0)
        )


def test_a_run_that_is_begun_anew_fits_into_both_reservations(world):
    """It draws the batches of the first again, which costs more than two runs that know nothing of
    each other.
    """
    server = Server(private(world))
    for run in ("ab", "ef"):
        server.run = run
        (server.kit() / "state/agreement.json").unlink(missing_ok=True)
        for number in range(1, ROUNDS + 1):
            server.ask(*server.task(number, noise(number + 100 * (run == "ef"))))
    reserved = PrivacyBudget(server.kit()).runs(server.agreement)
    assert list(reserved) == ["ab", "ef"]
    assert reserved["ab"] <= reserved["ef"]
    assert reserved["ab"] < epsilon_spent(server.kit()) <= sum(reserved.values()) * (1 + 1e-9)


SETTINGS = Privacy(noise_multiplier=1.0, max_grad_norm=1.0, delta=1e-5)


def test_what_a_backup_does_not_know_is_all_that_a_server_can_have_asked():
    """Of rounds 3 and 4 and the closing visit: a beginning in each round, evaluations with training
    and without.
    """
    gradients = (
        Gradients(),
        Gradients(per_batch=3, purpose="stage", epochs=1, once=True),
        Gradients(purpose="finetuning", epochs=1, evaluates=True),
    )
    n, size, epochs, rounds = 40, 10, 2, 4
    run = PrivateRun(SETTINGS, gradients, n, size, Passes(epochs), rounds)
    entries = list(run.lost(Restored(token="ab", after=2)))
    steps = n // size
    count = {
        (r, p): sum(e.draw.round == r and e.draw.purpose == p for e in entries)
        for r in (3, 4, 5)
        for p in PURPOSES
    }
    for number in (3, 4):
        assert count[number, "training"] == epochs * steps
        assert count[number, "stage"] == 3 * steps
        assert count[number, "finetuning"] == 2 * steps
    assert [count[5, p] for p in PURPOSES] == [0, 0, steps]
    assert len({e.release for e in entries}) == len(entries) == sum(count.values())
