"""Interrupted runs continue after their last committed round, and end like undisturbed ones."""

import errno
import json
from pathlib import Path

import pytest

import pomona
from pomona.core.errors import CheckpointError, ConfigError, LockedError, PrivacyError, StorageError
from pomona.federation.callbacks import StopAfter
from pomona.methods import METHODS
from pomona.storage.run_status import read_status
from problems import Notes, digest_of_models, tiny
from representatives import KINDS_OF_METHOD, representatives

pytestmark = pytest.mark.long

PRIVATE = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "seed": 1}
ACKNOWLEDGED = ["metrics", "sample-counts", "training-loss", "feature-moments", "unlimited-epsilon"]


def run(name, folder, resume=False, callback=None, **settings):
    return pomona.run(tiny(name, **settings), folder, callback, resume)


def interrupt(name, folder, number, resume=False, **settings):
    """Run until round ``number``, and lose it before its commit."""
    with pytest.raises(KeyboardInterrupt):
        run(name, folder, resume, StopAfter(number, committed=False), **settings)


@pytest.mark.parametrize(
    ("name", "number"),
    representatives(
        [(name, number) for name in METHODS for number in (1, 3)],
        [(name, (1, 3)[k % 2]) for k, name in enumerate(KINDS_OF_METHOD)],
    ),
)
def test_every_method_goes_on_to_the_same_end(name, number, tmp_path):
    partial = {"participation": 0.5} if number == 3 else {}
    uninterrupted = run(name, tmp_path / "whole", **partial)
    interrupt(name, tmp_path / "parts", number, **partial)
    assert read_status(tmp_path / "parts").round == number - 1
    resumed = run(name, tmp_path / "parts", resume=True, **partial)
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")
    assert resumed.evaluations == uninterrupted.evaluations
    assert [r.loss for r in resumed.rounds] == [r.loss for r in uninterrupted.rounds]
    assert pomona.load(tmp_path / "parts").evaluations == uninterrupted.evaluations
    assert read_status(tmp_path / "parts").state == "finished"


def test_comers_and_goers_go_on(tmp_path):
    settings = {
        "clients": 5,
        "rounds": 4,
        "partition": {"name": "iid"},
        "membership": {"joins": {"3": 2}, "leaves": {"0": 2}, "unseen": [1], "adapt_rounds": 2},
        "workers": 2,
    }
    uninterrupted = run("apple", tmp_path / "whole", **settings)
    for number in (2, 3):
        interrupt("apple", tmp_path / "parts", number, resume=True, **settings)
    resumed = run("apple", tmp_path / "parts", resume=True, **settings)
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")
    assert resumed.unseen == uninterrupted.unseen


def test_a_private_run_goes_on_and_pays_once(tmp_path):
    settings = {"privacy": {**PRIVATE, "acknowledge": ACKNOWLEDGED}}
    uninterrupted = run("apple", tmp_path / "whole", **settings)
    interrupt("apple", tmp_path / "parts", 2, **settings)
    resumed = run("apple", tmp_path / "parts", resume=True, **settings)
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")
    assert resumed.summary["privacy"] == uninterrupted.summary["privacy"]
    assert resumed.summary["privacy"]["epsilon"] > 0
    assert "test seed" in resumed.summary["privacy"]["void"]


def test_a_ledger_that_is_gone_stops_a_private_run(tmp_path):
    settings = {"privacy": {**PRIVATE, "acknowledge": ACKNOWLEDGED}}
    interrupt("fedavg", tmp_path / "parts", 3, **settings)
    ledger = next((tmp_path / "parts/private/dp").rglob("*.jsonl"))
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises((PrivacyError, StorageError), match="ledger"):
        run("fedavg", tmp_path / "parts", resume=True, **settings)


def test_a_budget_that_is_spent_stops_the_run(tmp_path):
    names = [a for a in ACKNOWLEDGED if a != "unlimited-epsilon"]
    settings = {"privacy": {**PRIVATE, "acknowledge": names, "epsilon_budget": 5.0}, "rounds": 30}
    with pytest.raises(PrivacyError, match="client"):
        run("fedavg", tmp_path / "run", **settings)
    status = read_status(tmp_path / "run")
    assert (status.state, status.code) == ("failed", 9)


def test_a_finished_run_is_left_alone(tmp_path):
    first = run("fedavg", tmp_path / "run")
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    resumed = run("fedavg", tmp_path / "run", resume=True)
    assert resumed.evaluations == first.evaluations
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")} == times


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"lr": 0.2}, "config.lr"),
        ({"data": {"name": "breast-cancer"}}, "data"),
        ({"seed": 3}, "config.seed"),
    ],
)
def test_another_run_is_not_gone_on_with(settings, key, tmp_path):
    interrupt("fedavg", tmp_path / "run", 2)
    with pytest.raises(CheckpointError, match=key):
        run("fedavg", tmp_path / "run", resume=True, **settings)
    run("fedavg", tmp_path / "run", resume=True, workers=2)


def files(folder):
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("apple", {}, "config.method.name"),
        ("fedavg", {"lr": 0.2}, "config.lr"),
        ("fedavg", {"rounds": 2}, "rounds = 3, not 2"),
        ("fedavg", {"seed": 3}, "partition"),
        ("fedavg", {"data": {"name": "breast-cancer"}}, "config.data.name"),
    ],
)
def test_a_finished_run_is_not_shown_for_another(name, settings, message, tmp_path):
    run("fedavg", tmp_path / "run")
    content = files(tmp_path / "run")
    with pytest.raises(CheckpointError, match=message):
        run(name, tmp_path / "run", resume=True, **settings)
    assert files(tmp_path / "run") == content


def timeless(value):
    if isinstance(value, dict):
        return {
            k: timeless(v) for k, v in value.items() if k not in ("time", "seconds", "busy_share")
        }
    return [timeless(v) for v in value] if isinstance(value, list) else value


def events(folder):
    return [
        timeless(json.loads(line)) for line in (folder / "events.jsonl").read_text().splitlines()
    ]


EXTENDED = [name for name in METHODS if not METHODS[name]().method().card.needs.total_rounds]


@pytest.mark.parametrize("name", representatives(EXTENDED, KINDS_OF_METHOD))
def test_a_finished_run_can_be_given_more_rounds(name, tmp_path):
    """It ends with the models and events of a run that asked for them from the start."""
    settings = {"participation": 0.5} if name in ("fedavg", "ditto") else {}
    run(name, tmp_path / "long", rounds=4, **settings)
    run(name, tmp_path / "short", rounds=2, **settings)
    longer = run(name, tmp_path / "short", resume=True, rounds=4, **settings)
    assert digest_of_models(tmp_path / "short") == digest_of_models(tmp_path / "long")
    assert events(tmp_path / "short") == events(tmp_path / "long")
    assert longer.summary["rounds"] == 4
    assert (tmp_path / "short/config.toml").read_text() == (
        tmp_path / "long/config.toml"
    ).read_text()
    assert read_status(tmp_path / "short").state == "finished"
    assert pomona.load(tmp_path / "short").evaluations == longer.evaluations


def test_an_unfinished_run_can_be_given_more_rounds_and_no_fewer(tmp_path):
    run("fedavg", tmp_path / "long", rounds=4)
    interrupt("fedavg", tmp_path / "run", 2, rounds=3)
    with pytest.raises(CheckpointError, match="more rounds, not fewer"):
        run("fedavg", tmp_path / "run", resume=True, rounds=2)
    run("fedavg", tmp_path / "run", resume=True, rounds=4)
    assert digest_of_models(tmp_path / "run") == digest_of_models(tmp_path / "long")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedphp", {}),
        ("apple", {"mu": 0.1}),
        ("fedamp", {"alpha_schedule": "sqrt"}),
        ("fedphp+ala", {}),
    ],
)
def test_a_schedule_over_all_rounds_cannot_be_given_more(name, settings, tmp_path):
    pomona.run(tiny(name, settings, rounds=1), tmp_path / "run")
    content = files(tmp_path / "run")
    with pytest.raises(
        CheckpointError, match="schedules its steps over all rounds; resume with rounds = 1"
    ):
        pomona.run(tiny(name, settings, rounds=2), tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == content


def test_an_extension_that_is_killed_is_an_unfinished_run(tmp_path):
    run("fedavg", tmp_path / "long", rounds=4)
    run("fedavg", tmp_path / "run", rounds=2)
    interrupt("fedavg", tmp_path / "run", 4, resume=True, rounds=4)
    assert read_status(tmp_path / "run").sha256 == {}
    assert len(pomona.load(tmp_path / "run").rounds) == 4
    run("fedavg", tmp_path / "run", resume=True, rounds=4)
    assert digest_of_models(tmp_path / "run") == digest_of_models(tmp_path / "long")


def test_other_rounds_for_unseen_clients_are_trained_anew(tmp_path):
    settings = {"clients": 5, "partition": {"name": "iid"}}
    one_round, three_rounds = ({"membership": {"unseen": [1], "adapt_rounds": n}} for n in (1, 3))
    run("mr-mtl", tmp_path / "run", **settings, **one_round)
    resumed = run("mr-mtl", tmp_path / "run", resume=True, **settings, **three_rounds)
    assert resumed.unseen == run("mr-mtl", tmp_path / "whole", **settings, **three_rounds).unseen


def change(folder, name, old, new):
    path = next(folder.glob(name))
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


CHANGES = [
    ("events.jsonl", b'"accuracy": [0.', b'"accuracy": [1.'),
    ("events.jsonl", b'"event"', b'"event'),
    ("events.jsonl", b'"round"', b"\0round\0"),
    ("events.jsonl", b'{"event": "round"', b'["event", "round"'),
    ("config.toml", b"lr = 0.1", b"lr = 0.7"),
    ("config.toml", b"lr = 0.1", b"lr = = 1"),
    ("partition.json", b'"train":[', b'"train":[0,'),
]


@pytest.mark.parametrize(("name", "old", "new"), CHANGES)
def test_what_an_unfinished_run_has_on_file_is_not_taken_on_trust(name, old, new, tmp_path):
    interrupt("fedavg", tmp_path / "run", 3)
    change(tmp_path / "run", name, old, new)
    content = {
        p: c for p, c in files(tmp_path / "run").items() if p.name not in ("status.json", ".lock")
    }
    with pytest.raises(CheckpointError, match=name) as caught:
        run("fedavg", tmp_path / "run", resume=True)
    assert "restore" in str(caught.value)
    assert {
        p: c for p, c in files(tmp_path / "run").items() if p.name not in ("status.json", ".lock")
    } == content


@pytest.mark.parametrize(
    "name",
    ["events.jsonl", "config.toml", "partition.json", "predictions.npz", "models/*-00.safetensors"],
)
def test_what_a_finished_run_left_is_compared_with_what_is_there(name, tmp_path):
    run("fedavg", tmp_path / "run")
    path = next((tmp_path / "run").glob(name))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=path.name):
        run("fedavg", tmp_path / "run", resume=True)
    if path.name in ("events.jsonl", "config.toml"):
        with pytest.raises(StorageError, match=path.name):
            pomona.load(tmp_path / "run")


def test_events_that_are_gone_or_cut_short_are_named(tmp_path):
    interrupt("fedavg", tmp_path / "run", 3)
    path = tmp_path / "run/events.jsonl"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"events\.jsonl"):
        run("fedavg", tmp_path / "run", resume=True)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"events\.jsonl"):
        run("fedavg", tmp_path / "run", resume=True)


def test_files_that_are_views_may_go(tmp_path):
    uninterrupted = run("fedavg", tmp_path / "whole")
    interrupt("fedavg", tmp_path / "run", 3)
    for name in ("config.toml", "partition.json"):
        (tmp_path / "run" / name).unlink()
    assert run("fedavg", tmp_path / "run", resume=True).evaluations == uninterrupted.evaluations
    for name in ("config.toml", "partition.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path):
    undamaged = run("apple", tmp_path / "whole")
    interrupt("apple", tmp_path / "parts", 3)
    newest = max((tmp_path / "parts/checkpoints").glob("round-*"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    notes = Notes()
    pomona.run(tiny("apple"), tmp_path / "parts", notes, resume=True)
    assert any(newest.name in note and "round 1" in note for note in notes.said)
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")
    assert undamaged.summary["rounds"] == 3


def test_when_all_checkpoints_are_damaged_nothing_is_touched(tmp_path):
    interrupt("fedavg", tmp_path / "run", 3)
    for path in (tmp_path / "run/checkpoints").glob("round-*"):
        path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match="all 2 checkpoints"):
        run("fedavg", tmp_path / "run", resume=True)
    assert len(list((tmp_path / "run/checkpoints").glob("round-*.safetensors"))) == 2


def test_a_run_without_resume_does_not_overwrite_one(tmp_path):
    run("fedavg", tmp_path / "run")
    with pytest.raises(LockedError, match="--resume"):
        run("fedavg", tmp_path / "run")
    assert read_status(tmp_path / "run").state == "finished"


def test_resume_in_an_empty_folder_is_a_fresh_run(tmp_path):
    assert run("fedavg", tmp_path / "run", resume=True).summary["rounds"] == 3


def test_a_rate_that_was_searched_for_is_taken_from_the_record(tmp_path):
    """Killed, then finished, then given a round more: one search, and the end of a run without a
    break.
    """
    auto = {"lr": "auto", "rounds": 2}
    run("fedavg", tmp_path / "whole", **{**auto, "rounds": 3})
    interrupt("fedavg", tmp_path / "parts", 2, **auto)
    notes = Notes()
    for settings in (auto, auto, {**auto, "rounds": 3}):
        pomona.run(tiny("fedavg", **settings), tmp_path / "parts", notes, resume=True)
    lr = pomona.load(tmp_path / "whole").config["lr"]
    lr_notes = [note for note in notes.said if note.startswith("lr = ")]
    assert lr_notes == [f"lr = {lr:g}, as {tmp_path / 'parts'} was begun with"] * 3
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")


def test_a_run_that_was_killed_before_its_first_commit_searches_anew(tmp_path):
    interrupt("fedavg", tmp_path / "parts", 1, lr="auto")
    run("fedavg", tmp_path / "parts", resume=True, lr="auto")
    run("fedavg", tmp_path / "whole", lr="auto")
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")


def test_checkpoints_as_often_as_asked(tmp_path):
    run("fedavg", tmp_path / "run", rounds=5, checkpoint_every=2)
    numbers = sorted(int(p.name[6:12]) for p in (tmp_path / "run/checkpoints").iterdir())
    assert numbers == [4, 5]


def test_a_lost_worker_is_made_up_for_once(tmp_path, monkeypatch):
    """A worker dies in round 2: the run goes on from round 1 with new processes, to the same
    end.
    """
    import os
    import signal

    from pomona.federation.workers import Workers

    undisturbed = run("apple", tmp_path / "whole")
    visit, killed = Workers.visit, []

    def kills(self, request, downlink):
        if request.round.number == 2 and not killed:
            killed.append(self._workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)
        return visit(self, request, downlink)

    monkeypatch.setattr(Workers, "visit", kills)
    recovered = run("apple", tmp_path / "parts", workers=2)
    assert killed
    assert digest_of_models(tmp_path / "parts") == digest_of_models(tmp_path / "whole")
    assert recovered.evaluations == undisturbed.evaluations


def test_all_clients_diverging_stops_the_run_with_the_last_round_intact(tmp_path, monkeypatch):
    interrupt("fedavg", tmp_path / "run", 3)
    from pomona.core.errors import DivergedError
    from pomona.objective.pytorch import TorchObjective

    def breaks(self, W, indices, criterion=None, above=0, views=None, cache=None):
        raise DivergedError(
            f"client {views[0].client}, round {views[0].round}, step {views[0].step}: the loss is "
            "nan"
        )

    with monkeypatch.context() as patch:
        patch.setattr(TorchObjective, "gradient", breaks)
        with pytest.raises(
            DivergedError, match="all clients of round 3 diverged: client 0, round 3, step 0"
        ):
            run("fedavg", tmp_path / "run", resume=True)
    assert read_status(tmp_path / "run").round == 2
    run("fedavg", tmp_path / "run", resume=True)


def test_a_client_that_diverges_once_keeps_its_state_and_its_peers_never_see_it(
    tmp_path, monkeypatch
):
    from pomona.core.errors import DivergedError
    from pomona.objective.pytorch import TorchObjective

    gradient = TorchObjective.gradient
    fault = "client 2, round 2, step 1: the loss is nan; lower lr"

    def breaks(self, W, indices, criterion=None, above=0, views=None, cache=None):
        if any((view.client, view.round, view.step) == (2, 2, 1) for view in views):
            raise DivergedError(fault)
        return gradient(self, W, indices, criterion, above, views, cache)

    monkeypatch.setattr(TorchObjective, "gradient", breaks)
    result = run("apple", tmp_path / "run")
    assert result.rounds[1].cohort == (0, 1, 3)
    assert result.rounds[1].refused == (f"{fault}; method.dr_lr may be too high, too",)
    assert result.rounds[2].cohort == (0, 1, 2, 3)
    events = [
        json.loads(line) for line in (Path(result.folder) / "events.jsonl").read_text().splitlines()
    ]
    assert not any("NaN" in json.dumps(e) for e in events)


def test_a_poisoned_uplink_never_reaches_a_peer_and_three_put_it_in_quarantine(
    tmp_path, monkeypatch
):
    import torch

    from pomona.federation.client import ClientRuntime

    serve = ClientRuntime._serve

    def poisons(self, visit, client, received):
        replies = serve(self, visit, client, received)
        for reply in replies:
            if reply.client == 1 and visit.trains:
                reply.uplink["core"][0] = torch.nan
        return replies

    monkeypatch.setattr(ClientRuntime, "_serve", poisons)
    result = run("apple", tmp_path / "run", rounds=5)
    assert [r.cohort for r in result.rounds] == [(0, 2, 3)] * 5
    assert [len(r.refused) for r in result.rounds] == [1, 1, 1, 0, 0]
    assert "core" in result.rounds[0].refused[0]


def test_resume_needs_a_folder():
    from pomona.cli import run as cli_run

    with pytest.raises(ConfigError, match="--out"):
        cli_run.run("fedavg", resume=True)


@pytest.mark.parametrize(
    "name", ["events.jsonl", "summary.json", ".lock", "models/client-00.safetensors", "checkpoints"]
)
@pytest.mark.parametrize("finished", [True, False])
def test_links_in_a_run_folder_are_not_followed(name, finished, tmp_path):
    if finished:
        run("fedavg", tmp_path / "run")
    else:
        interrupt("fedavg", tmp_path / "run", 3)
    path, outside = tmp_path / "run" / name, tmp_path / "outside"
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(outside)
    elif name == "checkpoints":
        outside.mkdir()
    else:
        outside.write_text("mine")
    path.symlink_to(outside)
    content = files(tmp_path)
    with pytest.raises(StorageError, match="symbolic link"):
        run("fedavg", tmp_path / "run", resume=True, rounds=4)
    assert files(tmp_path) == content


def test_a_folder_may_be_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "there")
    run("fedavg", tmp_path / "run")
    assert (tmp_path / "there/events.jsonl").exists()


def test_a_disk_that_fills_up_while_models_are_written_is_named_and_room_is_all_it_needs(
    tmp_path, monkeypatch
):
    from pomona import personal

    def disk_full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(personal, "save", disk_full)
        with pytest.raises(StorageError, match=r"No space left.*free some space"):
            run("fedavg", tmp_path / "run")
    assert (read_status(tmp_path / "run").state, read_status(tmp_path / "run").code) == (
        "failed",
        6,
    )
    run("fedavg", tmp_path / "run", resume=True)
    run("fedavg", tmp_path / "whole")
    assert digest_of_models(tmp_path / "run") == digest_of_models(tmp_path / "whole")
