"""A silo's privacy budget over all studies: reserved once per run, summed by data, and never
free.
"""

import json
import math
import shutil
from dataclasses import replace
from functools import partial

import pytest

from federation_in_process import audited
from pomona.core.errors import PrivacyError, StorageError
from pomona.data import data_settings
from pomona.data.settings import ClientFiles
from pomona.privacy.settings import in_sums
from pomona.scenario.description import epsilons
from pomona_federation import audit_log, status
from pomona_federation.cli.silo import cost_line
from pomona_federation.cli.studies import studies
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.silo.privacy_budget import (
    MAX_RESERVATIONS,
    BudgetFile,
    Claim,
    Cost,
    PrivacyBudget,
    TotalLimit,
    overview,
)
from pomona_federation.silo.settings import hashed, shared, sources
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.study_decisions import StudyDecisions
from test_hostile_server import ROUNDS, Server, edited, noise
from test_in_process import PRIVATE
from test_studies import decided, own_models, proposals, study_file

pytestmark = pytest.mark.long

NOISY = {**PRIVATE, "seed": None}


def claim(study="one", epsilon=1.0, run="ab"):
    """A claim with the hash of its name as agreement."""
    return Claim(study, study.encode().hex().rjust(64, "0")[:64], run, lambda: Cost(epsilon, 1e-5))


def clinic(folder, *names):
    """Settings of data in files of a folder; a new file contains its own name."""
    folder.mkdir(exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            (folder / name).write_text(name)
    train, *test = (folder / name for name in names)
    return data_settings(
        clients=(ClientFiles(name="own", train=train, test=next(iter(test), None)),)
    )


@pytest.fixture
def budget(tmp_path):
    """The budget of a new kit."""
    return PrivacyBudget(tmp_path / "kit")


def test_what_runs_on_the_same_data_adds_up_and_on_other_data_does_not(budget, tmp_path):
    one, other = clinic(tmp_path, "a.csv"), clinic(tmp_path, "b.csv")
    budget.reserve(claim("one", 1.0), one, TotalLimit(3.0))
    budget.reserve(claim("two", 2.0), one, TotalLimit(3.0))
    assert budget.total(one) == Cost(3.0, 2e-5)
    with pytest.raises(PrivacyError, match=r"may cost epsilon 3\.5 .* accept_epsilon_total is 3"):
        budget.reserve(claim("three", 0.5), one, TotalLimit(3.0))
    budget.reserve(claim("three", 0.5), other, TotalLimit(3.0))
    assert budget.total(other).epsilon == 0.5
    assert len(budget.reservations) == 3


def test_the_same_run_is_reserved_once_and_a_new_one_again(budget, tmp_path):
    data = clinic(tmp_path, "a.csv")
    for _ in range(3):
        budget.reserve(claim(), data, TotalLimit(1.5))
    assert budget.total(data).epsilon == 1.0
    with pytest.raises(PrivacyError, match="accept_epsilon_total"):
        budget.reserve(claim(run="cd"), data, TotalLimit(1.5))
    budget.reserve(claim(run="cd"), data, TotalLimit(2.0))
    assert budget.total(data).epsilon == 2.0
    assert [
        line["event"] for line in audit_log.complete_lines(budget.kit / "state/audit.jsonl")
    ] == ["reserved"] * 2
    assert audit_log.verify(budget.kit / "state/audit.jsonl") is None


def test_what_a_ledger_has_beyond_the_reservation_counts_too(budget, tmp_path):
    """As after a round that an administrator let be repeated; a ledger is of all runs of its
    study.
    """
    data, known = clinic(tmp_path, "a.csv"), claim()
    budget.reserve(known, data, TotalLimit())
    for spent, total in ((0.5, 1.0), (1.4, 1.4)):
        budget.note_spent(known.agreement, "ab", spent)
        assert budget.total(data).epsilon == total
    budget.reserve(claim("two"), data, TotalLimit())
    budget.reserve(claim(run="cd"), data, TotalLimit())
    budget.note_spent(known.agreement, "cd", 1.8)
    assert budget.total(data).epsilon == 1.0 + max(1.0 + 1.0, 1.8)


def test_a_run_whose_data_were_changed_for_others_is_reserved_on_those_too(budget, tmp_path):
    one, other = clinic(tmp_path, "a.csv"), clinic(tmp_path, "b.csv")
    budget.reserve(claim(), one, TotalLimit())
    budget.reserve(claim(), other, TotalLimit())
    assert (budget.total(one).epsilon, budget.total(other).epsilon) == (1.0, 1.0)


def test_what_has_no_noise_has_no_bound_and_none_is_left_beside_it(budget, tmp_path):
    data = clinic(tmp_path, "a.csv")
    with pytest.raises(PrivacyError, match="without bound"):
        budget.reserve(claim("bare", math.inf), data, TotalLimit(100.0))
    budget.reserve(claim("bare", math.inf), data, TotalLimit())
    with pytest.raises(PrivacyError, match="without bound"):
        budget.reserve(claim("one", 0.1), data, TotalLimit(100.0))
    assert budget.reservations[0].epsilon is None


def test_a_bound_that_counts_noise_of_others_says_against_whom(budget, tmp_path, capsys):
    whom = in_sums(2, 3)
    budget.reserve(
        replace(claim(epsilon=2.0), against=whom), clinic(tmp_path, "a.csv"), TotalLimit()
    )
    (row,) = overview(budget.kit)
    assert whom in cost_line(row)
    studies(folder=budget.kit)
    assert whom in " ".join(capsys.readouterr().out.split())


def test_less_accepted_later_holds_for_what_is_reserved_already(budget, tmp_path):
    data = clinic(tmp_path, "a.csv")
    budget.reserve(claim(epsilon=2.0), data, TotalLimit(2.0))
    with pytest.raises(PrivacyError):
        budget.require(claim(epsilon=2.0), data, TotalLimit(1.0))


def test_the_cost_is_computed_only_where_it_is_not_known(budget, tmp_path):
    data = clinic(tmp_path, "a.csv")
    budget.reserve(claim(), data, TotalLimit(5.0))
    known = claim()
    budget.reserve(
        Claim(known.study, known.agreement, known.run, lambda: pytest.fail("computed")),
        data,
        TotalLimit(5.0),
    )


def test_a_file_that_is_gone_is_not_begun_anew(budget, tmp_path):
    data = clinic(tmp_path, "a.csv")
    budget.reserve(claim(), data, TotalLimit())
    path = budget.kit / "state/private/budget.json"
    assert path.stat().st_mode & 0o077 == 0
    path.unlink()
    for what in (
        lambda: budget.reserve(claim("two"), data, TotalLimit()),
        lambda: budget.total(data),
    ):
        with pytest.raises(PrivacyError, match="is missing, but the audit log"):
            what()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"reservations": [{"epsilon": -1}]}', '{"reservations": 3}', "[" * 10_000]
)
def test_a_damaged_file_is_refused(budget, tmp_path, text):
    path = budget.kit / "state/private/budget.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(StorageError, match="cannot be read"):
        budget.reserve(claim(), clinic(tmp_path, "a.csv"), TotalLimit())


def test_a_lock_file_that_is_a_link_is_not_followed(budget, tmp_path):
    """A state that somebody sent may hold one to a file elsewhere, which would be made."""
    lock = budget.kit / "state/private/.budget.lock"
    lock.parent.mkdir(parents=True)
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot write"):
        budget.reserve(claim(), clinic(tmp_path, "a.csv"), TotalLimit())
    assert not (tmp_path / "elsewhere").exists()


def test_a_kill_between_audit_and_file_does_not_lock_the_silo_out(budget, tmp_path, monkeypatch):
    data = clinic(tmp_path, "a.csv")
    write, done = PrivacyBudget._write, []

    def killed(self, reservations):
        if done:
            raise KeyboardInterrupt
        done.append(write(self, reservations))

    monkeypatch.setattr(PrivacyBudget, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        budget.reserve(claim(), data, TotalLimit())
    monkeypatch.undo()
    budget.reserve(claim(), data, TotalLimit())
    assert budget.total(data).epsilon == 1.0


def test_reservations_have_a_limit(budget, tmp_path, monkeypatch):
    data = clinic(tmp_path, "a.csv")
    budget.reserve(claim(), data, TotalLimit())
    full = BudgetFile(reservations=budget.reservations * MAX_RESERVATIONS)
    monkeypatch.setattr("pomona_federation.silo.privacy_budget.read_sealed", lambda *_: full)
    with pytest.raises(PrivacyError, match="the most it can hold"):
        budget.reserve(claim("two"), data, TotalLimit())


@pytest.mark.parametrize("most", [TotalLimit(None, 2.5e-5), TotalLimit(100.0, 2.5e-5)])
def test_deltas_add_up_to_a_limit_too(budget, tmp_path, most):
    """Each claim here has delta 1e-5; without a limit on epsilon that of delta holds, too."""
    data = clinic(tmp_path, "a.csv")
    for study in ("one", "two"):
        budget.reserve(claim(study), data, most)
    with pytest.raises(
        PrivacyError, match=r"at delta 3e-05 together; accept_delta_total is 2\.5e-05"
    ):
        budget.reserve(claim("three"), data, most)
    assert budget.total(data) == Cost(2.0, 2e-5)


# What counts as the same data


def test_a_file_is_known_by_its_path_by_a_link_and_by_its_content(tmp_path):
    data = clinic(tmp_path, "a.csv", "test.csv")
    (tmp_path / "link.csv").symlink_to("a.csv")
    (tmp_path / "copy.csv").write_bytes((tmp_path / "a.csv").read_bytes())
    noted = hashed(sources(data))
    for name in ("a.csv", "link.csv", "copy.csv", "test.csv"):
        assert shared(noted, hashed(sources(clinic(tmp_path, name)))), name
    assert not shared(noted, hashed(sources(clinic(tmp_path, "b.csv"))))
    (tmp_path / "a.csv").write_text("one patient more")
    assert shared(noted, hashed(sources(clinic(tmp_path, "a.csv"))))


def test_a_file_that_moved_is_known_by_its_new_path_after_it_has_grown(budget, tmp_path):
    old = clinic(tmp_path / "old", "a.csv", "test.csv")
    budget.reserve(claim("one", 1.0), old, TotalLimit())
    (tmp_path / "old").rename(tmp_path / "moved")
    moved = clinic(tmp_path / "moved", "a.csv", "test.csv")
    other = clinic(tmp_path / "moved", "b.csv", "test.csv")
    (tmp_path / "moved" / "test.csv").write_text("another")
    budget.reserve(claim("two", 2.0), moved, TotalLimit())
    (tmp_path / "moved" / "a.csv").write_text("a.csv and more")
    assert budget.total(moved).epsilon == 3.0
    assert budget.total(clinic(tmp_path / "moved", "a.csv")).epsilon == 3.0
    assert budget.total(other).epsilon == 2.0, (
        "only the file of the same content is the first study's"
    )


def test_a_folder_holds_what_lies_in_it_and_a_reader_is_known_by_its_name(tmp_path):
    inner = clinic(tmp_path / "images", "a.csv")
    assert shared(sources(data_settings(name="images", path=tmp_path / "images")), sources(inner))
    assert not shared(
        sources(data_settings(name="images", path=tmp_path / "image")), sources(inner)
    )
    assert shared(
        sources(data_settings(name="clinic:rows")),
        sources(data_settings(name="clinic:rows", path=tmp_path)),
    )
    assert not shared(
        sources(data_settings(name="clinic:rows")), sources(data_settings(name="clinic:others"))
    )
    assert shared(sources(data_settings(name="digits")), sources(data_settings(name="digits")))


def test_two_lists_of_images_share_what_lies_in_their_folder(tmp_path):
    lungs, hearts, others = (
        sources(data_settings(name="images", path=tmp_path / path))
        for path in ("lungs.csv", "hearts.csv", "away/lungs.csv")
    )
    assert shared(lungs, hearts)
    assert not shared(others, sources(data_settings(name="images", path=tmp_path / "near")))
    assert shared(lungs, sources(data_settings(name="images", path=tmp_path / "near")))


# In a federation


@pytest.fixture
def private(world):
    """A server of a federation with noise, and an attacker in its place."""
    pytest.importorskip("opacus")
    return Server(world.federation("fedavg", run={"rounds": ROUNDS, "privacy": NOISY}, places=7))


def test_a_new_run_of_the_same_agreement_is_paid_for_again(private):
    kit = private.kit()
    (worst,) = epsilons(Silo(kit).local)
    edited(kit / "silo.toml", accept_epsilon_total=worst * 1.5)
    for number in (1, 2):
        private.ask(*private.task(number, noise(number)))
    [made] = PrivacyBudget(kit).reservations
    assert made.epsilon == worst
    assert 0 < made.spent < worst
    (kit / "state/agreement.json").unlink()
    private.run = "ef"
    with pytest.raises(PrivacyError, match="accept_epsilon_total"):
        private.ask(*private.task(1, noise(9)))
    with pytest.raises(PrivacyError, match="accept_epsilon_total"):
        private.greeted("silo-1")
    assert PrivacyBudget(kit).reservations == (made,)


def test_a_state_that_was_rolled_back_with_its_ledger_is_refused(private, tmp_path):
    kit, state = private.kit(), private.kit() / "state"
    earlier = tmp_path / "earlier"
    for number in (1, 2):
        private.ask(*private.task(number, noise(number)))
        if number == 1:
            shutil.copytree(state, earlier)
    shutil.copy(state / "private/budget.json", earlier / "private")
    shutil.rmtree(state)
    earlier.rename(state)
    with pytest.raises(PrivacyError, match=r"ledger has epsilon .* was replaced or rolled back"):
        private.ask(*private.task(2, noise(9)))
    assert len(PrivacyBudget(kit).reservations) == 1


def test_where_epsilon_is_bounded_the_deltas_stay_below_one_in_the_number_of_records(private):
    """At delta = 1 / n a study may tell one of n records outright, and keep what it says of
    epsilon.
    """
    kit = private.kit()
    silo = Silo(kit)
    n, delta = len(silo.local.partition.clients[0].train), NOISY["delta"]
    before = claim("before", 0.0)
    for others, fits in ((1 / n - 1.001 * delta, True), (1 / n - 0.999 * delta, False)):
        (kit / "state/private/budget.json").unlink(missing_ok=True)
        (kit / "state/audit.jsonl").unlink(missing_ok=True)
        made = Claim(before.study, before.agreement, before.run, partial(Cost, 0.0, others))
        PrivacyBudget(kit).reserve(made, silo.file.data, TotalLimit())
        edited(kit / "silo.toml", accept_epsilon_total=1e6)
        if fits:
            Silo(kit).require_affordable()
            continue
        with pytest.raises(PrivacyError, match="accept_delta_total"):
            Silo(kit).require_affordable()
        edited(kit / "silo.toml", accept_delta_total=0.5)
        Silo(kit).require_affordable()


def test_studies_share_one_budget_and_the_last_that_does_not_fit_is_refused(world, caplog):
    pytest.importorskip("opacus")
    federation = world.federation("fedavg", run={"privacy": NOISY}, wait=0.5, quorum=2)
    kits = [federation.kits / name for name in federation.names]
    (worst,) = epsilons(Silo(kits[1]).local)
    edited(kits[1] / "silo.toml", accept_epsilon_total=worst * 2.5)
    queue = StudyQueue(federation.server)
    for name in ("second", "third"):
        queue.submit(study_file(federation, name, wait=0.5, quorum=2))
        for silo in federation.names:
            proposals(federation, silo)
            decided(federation, silo, name)
    for name in ("kit", "second", "third"):
        federation.run(name)
    assert set(own_models(federation, "second")) == set(federation.names)
    assert set(own_models(federation, "third")) == {"silo-0", "silo-2"}
    shown = status.silo(kits[1])["privacy"]
    assert [row["study"] for row in shown] == ["kit", "second"]
    assert {row["all_on_its_data"] for row in shown} == {2 * worst}
    assert all(row["spent"] == pytest.approx(worst) for row in shown)
    stores = [home / "private/dp" for home in (kits[0] / "state/studies").iterdir()] + [
        kits[0] / "state/private/dp"
    ]
    keys = {path.read_text() for store in stores for path in store.glob("*/key")}
    assert len(keys) == 3  # a noise key of its own for each study
    assert len(PrivacyBudget(kits[0]).reservations) == 3
    refused = [r["reason"] for r in audited(kits[1] / "state", "refused")]
    assert any(reason.startswith("PRIVACY") for reason in refused)
    # a number of the silo's, and so in its log alone
    assert "accept_epsilon_total is" in caplog.text


def test_nothing_without_noise_runs_where_a_total_is_set(world, caplog):
    federation = world.federation("fedavg", wait=0.5, quorum=2)
    edited(federation.kits / "silo-1" / "silo.toml", accept_epsilon_total=8.0)
    federation.run()
    refused = [r["reason"] for r in audited(federation.kits / "silo-1/state", "refused")]
    assert any(reason.startswith("PRIVACY") for reason in refused)
    assert "without bound" in caplog.text
    reserved = audited(federation.kits / "silo-0/state", "reserved")
    assert [r["epsilon"] for r in reserved] == [None]
    assert json.dumps(status.silo(federation.kits / "silo-0")["privacy"])


def test_a_server_does_not_fill_a_silo_with_studies(world):
    federation = world.federation()
    known = StudyDecisions(federation.kits / "silo-0")
    queue = StudyQueue(federation.server)
    queue.submit(study_file(federation, "second"))
    proposals(federation, "silo-0")
    [offered] = known.all
    for number in range(99):
        about = {
            "agreement": f"{number:064x}",
            "study": offered.study.model_copy(update={"name": f"s{number}"}),
        }
        known.propose(offered.model_copy(update=about))
    queue.submit(study_file(federation, "third"))
    assert "100 studies" in proposals(federation, "silo-0")[0]
    assert len(known.all) == 100


def test_a_cost_of_delta_alone_is_no_missing_bound(budget):
    budget.enter_unknown("ab12", Cost(0.0, 1e-5))
    (row,) = overview(budget.kit)
    assert "epsilon 0 spent of 0, delta 1e-05" in cost_line(row)
