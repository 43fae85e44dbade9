"""TensorBoard files from --track contain the record's values."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pomona
from pomona.cli import main
from pomona.core.errors import ConfigError
from pomona.federation.callbacks import CallbackList, TensorBoardCallback, scalars, tracking
from pomona.record.rows import Evaluation, RoundRow

RUN = [
    "data.train_limit=240",
    "data.test_limit=60",
    "clients=3",
    "batch_size=16",
    "workers=1",
    "model.hidden=[8]",
]


def read(folder):
    """Name -> {step: value} of a folder's scalars."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def row(number, **over):
    plain = {
        "seconds": 0.5,
        "cohort": (0, 1),
        "loss": (1.0, 3.0),
        "bytes_down": (10, 20),
        "bytes_up": (3, 4),
    }
    return RoundRow(round=number, **{**plain, **over})


def test_a_run_is_told_to_tensorboard(tmp_path, capsys):
    out, folder = tmp_path / "run", tmp_path / "tb"
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "run",
                "fedavg",
                *RUN,
                "rounds=3",
                "--out",
                str(out),
                "--track",
                str(folder),
                "--no-report",
            ]
        )
    assert stop.value.code == 0
    result, seen = pomona.load(out), read(folder)
    curve = {e.round: e.mean for e in result.curve("global", "received")}
    assert list(curve) == [0, 1, 2, 3]  # the last is evaluated when the rounds are over
    assert seen["test_accuracy_mean_over_clients/global.received"] == pytest.approx(curve)
    assert seen["bytes/up"] == {r.round: sum(r.bytes_up) for r in result.rounds}
    assert seen["train_loss_mean_over_clients"] == pytest.approx(
        {r.round: sum(r.loss) / 3 for r in result.rounds}
    )
    assert "fedavg on digits" in capsys.readouterr().out


def test_figures_by_hand_and_what_is_not_known_is_left_out():
    evaluation = Evaluation(
        1, "personal", "trained", "test", (0, 1), (5, 0), (0.7, None), (0.25, None)
    )
    assert scalars(row(2, loss=(1.0, None), refused=("client 9: late",)), [evaluation]) == {
        ("train_loss_mean_over_clients", 2): 1.0,
        ("bytes/down", 2): 30.0,
        ("bytes/up", 2): 7.0,
        ("seconds", 2): 0.5,
        ("clients/taking_part", 2): 2.0,
        ("clients/refused", 2): 1.0,
        ("test_accuracy_mean_over_clients/personal.trained", 1): 0.25,
        ("test_accuracy_worst_client/personal.trained", 1): 0.25,
        ("test_loss_mean_over_clients/personal.trained", 1): 0.7,
    }
    silent = Evaluation(1, "global", "received", "test", (0,), (0,), (None,), (None,))
    assert not [
        name
        for name, _ in scalars(row(1, loss=()), [silent])
        if "loss" in name or "accuracy" in name
    ]


def test_a_run_that_goes_on_withdraws_the_rounds_it_repeats(tmp_path):
    for start, seconds in ((1, 1.0), (3, 2.0)):
        with tracking(tmp_path) as watchers:
            for number in range(start, 5):
                watchers[0].round(row(number, seconds=seconds), [])
    assert read(tmp_path)["seconds"] == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}


def test_watchers_are_told_in_order():
    told = []

    class Noted:
        def __init__(self, name):
            self.name = name

        def __getattr__(self, what):
            return lambda *values: told.append((self.name, what, *values))

    both = CallbackList(Noted("a"), Noted("b"))
    both.begin()
    both.round(row(1), [])
    both.note("hello")
    expected = [("begin",), ("round", row(1), []), ("note", "hello")]
    assert told == [(name, *each) for each in expected for name in "ab"]


def test_nothing_is_written_without_a_folder_or_a_round(tmp_path):
    with tracking(None) as watchers:
        assert watchers == ()
    watcher = TensorBoardCallback(tmp_path / "tb")
    watcher.begin()
    watcher.note("hello")
    watcher.close()
    assert not (tmp_path / "tb").exists()


def test_a_missing_tensorboard_is_said_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pomona.federation.callbacks.find_spec", lambda name: None)
    with (
        pytest.raises(ConfigError, match="install Pomona with its extra track"),
        tracking(tmp_path),
    ):
        pass
    with pytest.raises(SystemExit) as stop:
        main(
            [
                "run",
                "fedavg",
                *RUN,
                "rounds=1",
                "--out",
                str(tmp_path / "run"),
                "--track",
                str(tmp_path / "tb"),
            ]
        )
    assert stop.value.code == 2
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text(json.dumps({}))
    with pytest.raises(pomona.StorageError, match="file"):
        TensorBoardCallback(tmp_path / "file").round(row(1), [])
