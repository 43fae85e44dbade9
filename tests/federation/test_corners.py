"""Edge cases of runs that once failed, or easily could."""

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pomona
from pomona.config import read_overrides, resolve
from pomona.core.errors import ConfigError, DivergedError, LockedError, QuorumError, StorageError
from pomona.data import validation
from pomona.federation import worker_process
from pomona.federation.run_checks import cautions
from pomona.federation.stale_models import StaleModels
from pomona.federation.worker_process import Processes
from pomona.federation.workers import Workers
from pomona.objective.pytorch import TorchObjective
from pomona.personal import PersonalModel
from pomona.record.run_folder import RunRecord
from pomona.scenario import Scenario
from problems import Notes, digest_of_models, tiny
from representatives import representatives

pytestmark = pytest.mark.long


def right(folder, scenario, client):
    """Share of a client's test rows that its saved model classifies correctly."""
    net = PersonalModel.load(folder / f"models/client-{client:02d}.safetensors")
    rows = scenario.partition.clients[client].test
    answers = net.predict(scenario.dataset.x[rows])
    return np.mean([answer["class"] for answer in answers] == scenario.dataset.y[rows].astype(str))


def test_whoever_trained_in_any_round_has_a_model_and_a_score(tmp_path):
    config = tiny("separate", clients=6, rounds=4, participation=0.5, eval_every=4)
    result = pomona.run(config, tmp_path / "r")
    trained = sorted({c for r in result.rounds for c in r.cohort})
    assert list(result.curve("personal", "trained")[-1].clients) == trained
    assert len(list((tmp_path / "r/models").glob("*.safetensors"))) == len(trained)


@pytest.mark.parametrize("buffers", representatives(["local", "average"], ["average"]))
def test_saved_models_with_batchnorm_answer_as_they_were_evaluated(tmp_path, buffers):
    data = {"name": "digits", "train_limit": 60, "test_limit": 40, "resize": 32}
    settings = {"data": data, "partition": {"name": "iid"}, "buffers": buffers}
    config = tiny("fedavg", model={"name": "resnet18"}, clients=2, rounds=1, **settings)
    result = pomona.run(config, tmp_path / "r")
    scenario = Scenario.prepare(config)
    last = result.curve("global", "received")[-1]
    assert [right(tmp_path / "r", scenario, c) for c in (0, 1)] == pytest.approx(last.accuracy)


def test_without_a_global_model_averaged_statistics_are_said_to_be_the_clients_own(monkeypatch):
    runs, notes = [], Notes()
    for buffers in ("average", "local"):
        config = tiny("apple", model={"name": "networks:normalised_first"}, buffers=buffers)
        runs.append(pomona.run(config, callback=notes))
    assert runs[0].evaluations == runs[1].evaluations
    assert [r.bytes_up for r in runs[0].rounds] == [r.bytes_up for r in runs[1].rounds]
    assert ["no global model" in text for text in notes.said] == [True]


def test_averaged_statistics_of_a_network_without_any_are_noted():
    (line,) = [n.text for n in cautions(Scenario.prepare(tiny("fedavg", buffers="average")))]
    assert line.startswith("buffers = average: no BatchNorm")


def test_a_method_that_assumes_plain_sgd_refuses_momentum_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="momentum=0"):
        pomona.run(tiny("scaffold", momentum=0.9), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_dropout_repeats_by_seed_whatever_the_workers():
    runs = [
        pomona.run(tiny("fedavg", model={"name": "networks:dropped"}, workers=w)) for w in (1, 1, 3)
    ]
    assert runs[0].evaluations == runs[1].evaluations == runs[2].evaluations
    other_seed = pomona.run(tiny("fedavg", model={"name": "networks:dropped"}, seed=1))
    assert other_seed.evaluations != runs[0].evaluations


def test_large_answers_of_many_clients_do_not_block():
    class Keeper:
        def commit(self):
            pass

    transport = Workers(
        Processes(lambda groups: Keeper()),
        tuple((i,) for i in range(60)),
        [1] * 60,
        2,
        StaleModels.in_memory({}, None),
    )
    try:
        answers = transport.collect(large, range(60))
    finally:
        transport.close()
    assert [int(a[0]) for a in answers] == list(range(60))


def large(keeper, client):
    """An answer larger than a pipe's buffer."""
    return np.full(200_000, client)


def test_more_clients_than_files_that_may_be_open(monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(list(Path("/dev/fd").iterdir())) + 60  # of which this process's pipes are four
    limited = SimpleNamespace(
        RLIMIT_NOFILE=resource.RLIMIT_NOFILE,
        getrlimit=lambda _: (limit - 30, limit),
        setrlimit=lambda limit_name, limits: resource.setrlimit(limit_name, (limits[0], hard)),
    )
    monkeypatch.setattr(worker_process, "resource", limited)
    transport = Workers(
        Processes(lambda groups: None),
        tuple((i,) for i in range(500)),
        [1] * 500,
        2,
        StaleModels.in_memory({}, None),
    )
    try:
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == limit  # all that the system allows
        assert [int(row) for row in transport.collect(number, range(20))] == list(range(20))
        with pytest.raises(ConfigError, match=f"open files.*\\({limit}\\).*workers = 1"):
            transport.collect(number, range(500))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        transport.close()


def number(keeper, client):
    """An answer in shared memory, which is a file."""
    return torch.tensor([client])


def test_sections_may_be_named_alone():
    config = resolve(
        read_overrides(
            ["data=breast-cancer", "data.train_limit=9", "partition=dirichlet", "partition.beta=2"]
        )
    )
    assert (config.data.name, config.data.train_limit, config.partition.beta) == (
        "breast-cancer",
        9,
        2.0,
    )


def test_a_partition_that_is_not_named_follows_from_the_data():
    config = resolve({"data": {"name": "table", "path": "x.csv", "client_column": "site"}})
    assert config.partition is None  # tests/partition/test_partition_groups.py: what becomes of it
    assert "clients" not in config.tree()
    assert (
        resolve(
            {"data": {"name": "table", "client_column": "a"}, "partition": {"name": "iid"}}
        ).partition.name
        == "iid"
    )


@pytest.mark.parametrize("left", ["models", "private", "config.toml", "events.jsonl"])
def test_a_folder_with_parts_of_a_run_is_refused_before_training(tmp_path, left):
    (tmp_path / left).mkdir()
    with pytest.raises(LockedError, match="already holds a run"):
        pomona.run(tiny("separate"), tmp_path)


@pytest.mark.parametrize("name", ["separate", "fedavg"])
def test_a_model_that_diverges_in_its_last_step_is_said(name):
    with pytest.raises(DivergedError, match="training samples is not finite after training; lower"):
        pomona.run(tiny(name, rounds=1, batch_size=1000, lr=1e30))


def outlying(value):
    """Three clients with a test row each of ones, the last client's of some other value."""
    draws = np.random.default_rng(0)
    train, test = {}, {}
    for k, name in enumerate("abc"):
        x = draws.normal(size=(30, 4)).astype(np.float32)
        train[name] = (x, (x[:, 0] > 0).astype(int))
        test[name] = (np.full((1, 4), value if k == 2 else 1.0, np.float32), np.array([1]))
    return pomona.data.from_clients(train, test=test)


@pytest.mark.parametrize("name", ["fedavg", "separate"])
def test_a_test_row_with_a_huge_value_decides_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setattr(validation, "LARGEST", math.inf)  # reading refuses such a value
    notes, runs = Notes(), []
    for value in (1.0, 3.4e38):
        config = pomona.Config(method=name, data=outlying(value), rounds=3, lr=0.1)
        runs.append(pomona.run(config, tmp_path / f"{value}", callback=notes))
    plain, huge = runs
    for a, b in zip(plain.rounds, huge.rounds, strict=True):
        assert b.cohort == (0, 1, 2)
        assert (b.loss, b.refused) == (a.loss, ())
    for a, b in zip(plain.evaluations, huge.evaluations, strict=True):
        assert b.value == (a.value if a.split != "test" else (*a.value[:2], None))
    assert digest_of_models(tmp_path / "1.0") == digest_of_models(tmp_path / "3.4e+38")
    assert set(huge.answers) == set(plain.answers) - {2}
    undefined = [note for note in notes.said if "is not finite" in note]
    names = plain.about["clients"]
    assert all(note.startswith(f"{names[2]}, round") for note in undefined)
    assert len(undefined) == len({e.key for e in huge.evaluations if e.split == "test"})


@pytest.mark.parametrize(
    ("method", "settings", "advice"),
    [
        ("apple", {"core_step": "paper"}, r"method\.dr_lr may be too high, too$"),
        ("apple", {"core_step": "local"}, "lower lr$"),
        ("scaffold", {}, r"lower lr; method\.server_lr may be too high, too$"),
        ("fedtgp", {}, r"method\.server_lr may be too high, too$"),
        ("pfedme+adam", {"personal_lr": 1.0}, r"method\.personal_lr and method\.server_lr may be"),
    ],
)
def test_who_diverges_is_told_of_every_rate_that_may_be_meant(method, settings, advice):
    with pytest.raises(DivergedError, match=advice):
        pomona.run(tiny(method, settings, rounds=1, lr=1e30))


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fedtgp", {}), ("pfedfda", {}), ("fedavg", {"rows_per_call": 4}), ("per-fedavg", {})],
)
def test_a_caller_without_gradients_trains_the_same(method, settings):
    config = tiny(method, rounds=1, workers=1, **settings)
    with torch.no_grad():
        result = pomona.run(config)
        assert not torch.is_grad_enabled()
    assert result.evaluations == pomona.run(config).evaluations


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_no_record_can_hold_is_one_line(value):
    record = RunRecord(None, {})
    with pytest.raises(ConfigError, match="cannot be recorded"):
        record.event("final", value=value)
    assert record.events == []


@pytest.mark.parametrize(
    "settings", [{}, {"absence": 0.9, "secure_aggregation": {"max_norm": 1.0}}]
)
def test_the_callers_number_of_threads_is_left_as_it_was(settings):
    thread_count = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(QuorumError) if settings else nullcontext():
            pomona.run(tiny("fedavg", **settings))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(thread_count)


def test_a_full_disk_is_one_line():
    record = RunRecord(None, {})

    class FullDisk:
        def write(self, text):
            raise OSError(28, "No space left on device")

    record.folder, record._file = Path("run"), FullDisk()
    with pytest.raises(StorageError, match="No space left"):
        record.event("any", number=1)


class Numbered(Exception):
    """An exception that cannot be read from its pickle."""

    def __init__(self, text, number):
        super().__init__(text)


class Bound(Exception):
    """An exception that cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.how = lambda: text


@pytest.mark.parametrize(
    ("fault", "error_type", "text"),
    [
        (ZeroDivisionError("own"), ZeroDivisionError, "own"),
        (Numbered("own", 3), RuntimeError, "Numbered: own"),
        (Bound("own"), RuntimeError, "Bound: own"),
    ],
)
def test_an_exception_of_own_code_in_a_worker_comes_with_its_traceback(
    fault, error_type, text, monkeypatch
):
    def breaks_here(*_, **__):
        raise fault

    monkeypatch.setattr(TorchObjective, "gradient", breaks_here)
    with pytest.raises(error_type) as raised:
        pomona.run(tiny("fedavg", workers=2))
    assert str(raised.value) == text
    assert ", in breaks_here" in raised.value.__notes__[0]


def started_run(tmp_path):
    """A long run of two workers in a separate process, after its first round."""
    arguments = [
        "separate",
        "rounds=100000",
        "clients=4",
        "workers=2",
        "model.hidden=[8]",
        "--out",
        str(tmp_path / "r"),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "pomona", "run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    events = tmp_path / "r/events.jsonl"
    for _ in range(600):
        if events.exists() and '"round"' in events.read_text():
            return process
        time.sleep(0.1)
    process.kill()
    raise AssertionError(process.communicate())


def children(pid):
    """The live processes that a process has started."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="needs a /proc file system to see child processes"
)
@pytest.mark.parametrize(
    "signum", representatives([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], [signal.SIGINT])
)
def test_no_worker_outlives_its_run(tmp_path, signum):
    process = started_run(tmp_path)
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(process.pid, signum)
    _, err = process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(alive(w) for w in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(w) for w in workers)
    lines = (tmp_path / "r/events.jsonl").read_text().splitlines(keepends=True)
    assert all(json.loads(line) for line in lines if line.endswith("\n"))
    if signum == signal.SIGINT:
        assert process.returncode == 130
        assert "error[INTERRUPTED]" in err
    partial_run = pomona.load(tmp_path / "r")
    assert partial_run.rounds
    assert partial_run.summary == {}


def test_what_a_method_shows_of_itself_that_is_not_finite_is_named():
    with pytest.raises(DivergedError, match=r"round 1: the method's .* are not finite"):
        pomona.run(tiny("partialfed", {"temperature": 5e-324}))
