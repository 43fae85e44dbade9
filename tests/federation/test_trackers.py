"""Trackers get the record's values, no matter to the run; each real one where it is installed."""

import json
import sqlite3
import sys
from importlib.util import find_spec

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pomona
from pomona.cli import main
from pomona.config import TRACKERS as NAMES
from pomona.config import Config, resolve
from pomona.core.errors import ConfigError
from pomona.experiments import run as bench
from pomona.federation import trackers
from pomona.federation.callbacks import CallbackList, StopAfter
from pomona.federation.trackers import (
    TRACKERS,
    Board,
    TrackedRun,
    TrackerCallback,
    bare,
    scalars,
    summary,
    tracking,
)
from pomona.record.rows import Evaluation, RoundRow
from pomona.scenario import Scenario
from pomona.simulation import simulate
from problems import Notes

pytestmark = pytest.mark.long

SMALL = {
    "method": "fedavg",
    "data": {"train_limit": 240, "test_limit": 60},
    "model": {"hidden": [8]},
    "clients": 3,
    "rounds": 3,
    "batch_size": 16,
    "lr": 0.1,
    "workers": 1,
    "engine": "torch",
}
MEAN = "test_accuracy_mean_over_clients/global.received"
SECRET = "hunter2"


def small(track, **settings):
    return resolve(SMALL, {"track": track, **settings})


def row(number, **fields):
    plain = {
        "seconds": 0.5,
        "cohort": (0, 1),
        "loss": (1.0, 3.0),
        "bytes_down": (10, 20),
        "bytes_up": (3, 4),
    }
    return RoundRow(round=number, **{**plain, **fields})


class Recorder:
    """Stands in for a tracker: keeps what it gets, and fails on demand."""

    def __init__(self, fails=""):
        self.runs, self.figures, self.ends, self.fails = [], {}, [], fails

    def open(self, address, run):
        self._maybe("open")
        self.runs.append((address, run))
        return Board(self.log, self.end)

    def log(self, number, figures):
        self._maybe("log")
        for name, value in figures.items():
            self.figures.setdefault(name, {})[number] = value

    def end(self, finished):
        self._maybe("end")
        self.ends.append(finished)

    def _maybe(self, method):
        sys.stdout.write("noise on standard output")
        if self.fails == method:
            raise OSError(f"no answer from http://me:{SECRET}@host:5000/api?token={SECRET}")


@pytest.fixture
def stand_in(monkeypatch):
    """A function that makes the tracker wandb a recorder."""

    def install(fails=""):
        recorder = Recorder(fails)
        monkeypatch.setitem(TRACKERS, "wandb", recorder.open)
        monkeypatch.setattr(trackers, "find_spec", lambda name: name)
        return recorder

    return install


def test_a_tracker_gets_settings_each_round_and_the_summary(tmp_path, stand_in, capsys):
    board = stand_in()
    result = pomona.run(small("wandb:lab/study"), tmp_path / "run")
    ((address, run),) = board.runs
    assert address == "lab/study"
    assert run.name.startswith("fedavg-digits-")
    assert run.settings["folder"] == str(tmp_path / "run")
    assert (run.settings["rounds"], run.settings["data.train_limit"], run.resume_round) == (
        3,
        240,
        0,
    )
    curve = {e.round: e.mean for e in result.curve("global", "received")}
    assert list(curve) == [0, 1, 2, 3]  # the last is evaluated when the rounds are over
    assert board.figures[MEAN] == curve
    by_round = {e.round: e.value[2] for e in result.curve("local", "trained", "validation")}
    assert board.figures["validation_accuracy_client_02/local.trained"] == by_round
    assert board.figures["bytes/up"] == {r.round: sum(r.bytes_up) for r in result.rounds}
    assert board.figures["summary/models.global received.last.test"] == {3: curve[3]}
    assert board.ends == [True]
    assert capsys.readouterr().out == ""


def test_a_run_is_the_same_whatever_tracks_it(tmp_path, stand_in):
    """Also its files: no address is in any of them."""
    board = stand_in()
    address = f"wandb:https://me:{SECRET}@host"
    config = small(address)
    assert config.tree() == small(None).tree()
    assert SECRET not in repr(config) + config.toml() + str(config.chosen)
    with pytest.raises(KeyboardInterrupt):
        pomona.run(config, tmp_path / "run", callback=StopAfter(2))
    assert board.ends == [False]
    stopped = pomona.run(small(None, rounds=2), tmp_path / "half")
    result = pomona.run(config, tmp_path / "run", resume=True)
    assert pomona.run(small("mlflow"), tmp_path / "run", resume=True).summary == result.summary
    pomona.run(small(None), tmp_path / "half", resume=True)
    (_, first), (_, second) = board.runs
    assert (first.id, first.name) == (second.id, second.name)
    assert (first.resume_round, second.resume_round) == (0, 2)
    plain = pomona.run(small(None), tmp_path / "plain")
    assert [e.value for e in result.evaluations] == [e.value for e in plain.evaluations]
    assert len(stopped.rounds) == 2
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.parametrize("method", ["open", "log", "end"])
def test_a_tracker_that_fails_is_one_note(stand_in, method):
    board, notes = stand_in(method), Notes()
    result = pomona.run(small("wandb"), callback=notes)
    assert len(result.rounds) == 3
    failures = [text for text in notes.said if "wandb" in text]
    assert failures == [
        "wandb failed, and is left out from here on (OSError: no answer from http://host:5000/api)"
    ]
    assert board.ends == []


def test_a_tracker_that_fails_where_nobody_watches_is_said_on_standard_error(stand_in, capsys):
    stand_in("log")
    assert len(simulate(Scenario.prepare(small("wandb", rounds=1))).rounds) == 1
    assert capsys.readouterr().err == (
        "note: wandb failed, and is left out from here on (OSError: no answer from http://host:5000/api)\n"
    )


def test_a_tracker_of_a_run_that_stops_is_closed(stand_in):
    board = stand_in()
    with pytest.raises(KeyboardInterrupt):
        pomona.run(small("wandb"), callback=StopAfter(2, committed=False))
    assert board.ends == [False]
    assert list(board.figures["seconds"]) == [1]


def test_the_seed_of_private_noise_is_not_told(stand_in):
    board = stand_in()
    private = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-5, "seed": 7}
    private["acknowledge"] = ["sample-counts", "metrics", "unlimited-epsilon"]
    pomona.run(small("wandb", privacy=private, rounds=1))
    ((_, run),) = board.runs
    assert run.settings["privacy.delta"] == 1e-5
    assert "privacy.seed" not in run.settings


def test_all_cells_of_a_bench_are_tracked(tmp_path, monkeypatch):
    """Cells run in other processes, so that what is looked at are files."""
    monkeypatch.chdir(tmp_path)
    settings = {"track": f"tensorboard:{tmp_path / 'boards'}", "rounds": 1}
    suite = {
        "title": "two",
        "base": {**{k: v for k, v in SMALL.items() if k not in ("method", "workers")}, **settings},
        "scenario": {"iid": {}},
        "method": {"fedavg": {}, "separate": {}},
        "size": {"smoke": {"seeds": [0]}},
    }
    bench(suite, tmp_path / "bench")
    names = {path.name.rpartition("-")[0] for path in (tmp_path / "boards").iterdir()}
    assert names == {"fedavg-digits", "separate-digits"}


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
        ("test_accuracy_client_00/personal.trained", 1): 0.25,
    }
    silent = Evaluation(1, "global", "received", "test", (0,), (0,), (None,), (None,))
    assert not [
        name
        for name, _ in scalars(row(1, loss=()), [silent])
        if "loss" in name or "accuracy" in name
    ]
    assert summary({"a": {"b, c": 1, "on": True}, "name": "x", "n": 0.5}, 4) == {
        ("summary/a.b c", 4): 1.0,
        ("summary/n", 4): 0.5,
    }


def test_single_clients_have_curves_only_where_there_are_few():
    clients = tuple(range(trackers.MAX_CURVES + 1))
    column = (0.5,) * len(clients)
    evaluation = Evaluation(
        1, "personal", "trained", "test", clients, (1,) * len(clients), column, column
    )
    assert not [name for name, _ in scalars(row(1), [evaluation]) if "client_" in name]


def test_callbacks_are_called_in_order():
    calls = []

    class Noted:
        def __init__(self, name):
            self.name = name

        def __getattr__(self, method):
            return lambda *values: calls.append((self.name, method, *values))

    callbacks = CallbackList(Noted("a"), Noted("b"))
    callbacks.on_run_begin()
    callbacks.on_round_end(row(1), [])
    callbacks.on_note("hello")
    expected = [("on_run_begin",), ("on_round_end", row(1), []), ("on_note", "hello")]
    assert calls == [(name, *call) for call in expected for name in "ab"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("at https://me:pw@host:1/a?token=x&y=z (why)", "at https://host:1/a (why)"),
        ("postgresql://u:p%40w@db/x", "postgresql://db/x"),
        ("me@host, file:///tmp/x", "me@host, file:///tmp/x"),
    ],
)
def test_addresses_in_notes_are_bare(text, left):
    assert bare(text) == left


@pytest.mark.parametrize("track", [f"mlfow:http://me:{SECRET}@host", "", ":", "wandbx"])
def test_an_unknown_tracker_is_said_without_its_address(track):
    with pytest.raises(
        ConfigError, match="use one of mlflow, tensorboard, trackio, wandb"
    ) as fault:
        small(track)
    assert SECRET not in str(fault.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tracker_is_said_before_anything_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    options = ["clients=3", "rounds=1", f"track={name}:x"]
    with pytest.raises(SystemExit) as stop:
        main(["run", "fedavg", *options, "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert f"track = {name} needs {name}; install Pomona with its extra" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_settings_and_the_trackers_have_the_same_names():
    assert tuple(TRACKERS) == NAMES


def test_nothing_is_tracked_unless_it_is_asked_for(tmp_path):
    with tracking(Config(), tmp_path, {}, 0, print) as callbacks:
        assert callbacks == ()


# each tracker as it is


def read(folder):
    """Name -> {step: value} of a folder's scalars."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def test_a_run_that_goes_on_withdraws_the_rounds_it_repeats(tmp_path):
    for first_round, seconds in ((1, 1.0), (3, 2.0)):
        run = TrackedRun("x", "x", {}, first_round - 1)
        board = TrackerCallback(f"tensorboard:{tmp_path}", run, print)
        board.on_run_begin()
        for number in range(first_round, 5):
            board.on_round_end(row(number, seconds=seconds), [])
        board.close()
    assert read(tmp_path / "x")["seconds"] == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}


def in_tensorboard(run_folder):
    (folder,) = (run_folder / "boards").iterdir()
    return read(folder)[MEAN]


def in_mlflow(folder):
    client = sys.modules["mlflow"].MlflowClient(f"sqlite:///{folder}/ml.db")
    (run,) = client.search_runs([client.get_experiment_by_name("pomona").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["rounds"] == "3"
    return {m.step: m.value for m in client.get_metric_history(run.info.run_id, MEAN)}


def in_trackio(folder):
    with sqlite3.connect(folder / "pomona.db") as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
    assert len({name for name, *_ in rows}) == 1
    points = [(step, json.loads(figures)) for _, step, figures in rows]
    return {step: figures[MEAN] for step, figures in points if MEAN in figures}


def in_wandb(folder):
    """Its parts are sent as one run. Files are LevelDB logs: records in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    curve, ids = {}, set()
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        ids.add(path.stem)
        data, offset, content = path.read_bytes(), 7, b""
        while offset < len(data):
            if 2**15 - offset % 2**15 < 7:
                offset += 2**15 - offset % 2**15
                continue
            size, piece = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
            content += data[offset + 7 : offset + 7 + size]
            offset += 7 + size
            if piece in (1, 4):  # whole, or the last part
                record, content = Record.FromString(content), b""
                items = {".".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
                if MEAN in items:
                    curve[record.history.step.num] = float(items[MEAN])
    assert len(ids) == 1
    return curve


REAL = {
    "tensorboard": ("tensorboard:boards", in_tensorboard),
    "mlflow": ("mlflow:sqlite:///ml.db", in_mlflow),
    "trackio": ("trackio", in_trackio),
    "wandb": ("wandb", in_wandb),
}


@pytest.mark.filterwarnings("default")  # theirs
@pytest.mark.parametrize("name", NAMES)
def test_a_run_and_its_second_part_are_one_in_the_tracker(name, tmp_path, monkeypatch):
    if not find_spec(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    track, read_curve = REAL[name]
    notes = Notes()
    with pytest.raises(KeyboardInterrupt):
        pomona.run(small(track), tmp_path / "run", CallbackList(notes, StopAfter(2)))
    result = pomona.run(small(track), tmp_path / "run", notes, resume=True)
    assert [text for text in notes.said if name in text] == []
    curve = {e.round: e.mean for e in result.curve("global", "received")}
    assert read_curve(tmp_path) == pytest.approx(curve)
