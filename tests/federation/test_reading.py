"""Records are read through bounded types: whoever wrote them, the outcome is a Result or one
line.
"""

import json
import shutil
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pomona
from pomona.cli import main
from pomona.core.errors import StorageError
from pomona.data import Dataset
from pomona.record import events
from pomona.record.rows import Evaluation, RoundRow
from problems import tiny

TERM = {"column": "age", "change": "number", "step": "1", "reference": "", "outcome": "yes"}
COEFFICIENTS = {
    "event": "coefficients",
    "model": "personal",
    "when": "trained",
    "client": 3,
    "measure": "odds ratio",
    "rows": 10,
    "distance": 0.0,
    "freedom": None,
    "reason": "",
    "terms": [TERM | {"estimate": 0.5, "error": 0.1}],
}


@pytest.fixture(scope="module")
def unfinished_run(tmp_path_factory):
    """A run that looks unfinished: no hash covers its events."""
    folder = tmp_path_factory.mktemp("made") / "run"
    pomona.run(tiny("apple", rounds=2), folder)
    (folder / "status.json").unlink()
    *events, end_event = lines(folder)
    write(folder, [*events, COEFFICIENTS, end_event])
    return folder


@pytest.fixture
def run(unfinished_run, tmp_path):
    shutil.copytree(unfinished_run, tmp_path / "run")
    return tmp_path / "run"


def lines(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def write(folder, entries):
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in entries))


def entry_of(entries, name):
    return next(event for event in entries if event["event"] == name)


CRAFTED_OUTCOME = {"outcome": 1, "samples": 2, "positives": 1, "threshold": 0.5, "chosen": False}
CRAFTED = [
    ("evaluation", "clients", ["a", "b", "c", "d"]),
    ("evaluation", "clients", [0, 1, 2, 10**9]),
    ("evaluation", "clients", [0, 1, 2, 9999]),
    ("evaluation", "clients", [0, 1, 2, -1]),
    ("evaluation", "accuracy", ["high", 0.5, 0.5, 0.5]),
    *(
        ("evaluation", key, values)
        for key in ("samples", "loss", "accuracy", "value")
        for values in ([], [1], [1] * 5)
    ),
    ("evaluation", "interval", [[0.1, 0.9]]),
    ("evaluation", "interval", [[0.1]] * 4),
    ("evaluation", "samples", [10**400] * 4),
    ("evaluation", "loss", {"0": 1.0}),
    # Their squares, of which means and spreads are made, overflow.
    *(("evaluation", key, [1e101, 1, 1, -1e101]) for key in ("loss", "accuracy", "value")),
    ("round", "loss", [1e308] * 4),
    ("round", "info", {"dr": [[1.0], [-1e308], [1.0], [1.0]]}),
    ("final", "mse", 1e101),
    ("evaluation", "round", 10**30),
    ("evaluation", "model", ["personal"]),
    ("evaluation", "split", "\x1b[31m"),
    ("round", "cohort", "0123"),
    ("round", "cohort", [0, 1, 2, 10**9]),
    ("round", "info", {"dr": [[1.0], [1.0, 2.0], [1.0], [1.0]]}),
    ("round", "info", {"dr": [["a"], ["b"], ["c"], ["d"]]}),
    ("round", "info", {"dr": 1.0}),
    ("round", "info", []),
    ("round", "bytes_up", [10**400] * 4),
    ("round", "seconds", "long"),
    ("start", "clients", 4),
    ("start", "clients", []),
    ("start", "clients", ["x"] * 20_000),
    ("start", "classes", {"0": "a"}),
    ("start", "sizes", [1, 2]),
    ("start", "label_counts", [["many"]]),
    ("start", "label_counts", [[1, 2], [1], [1, 2], [1, 2]]),
    ("start", "headline", "personal"),
    ("start", "groups", ["a"]),
    ("start", "constant", {"all": {"loss": 3}}),
    ("final", "client", 10**9),
    ("final", "client", "0"),
    ("final", "auroc", "good"),
    ("final", "confusion", [["a"]]),
    ("final", "confusion", [[1, 2], [3]]),
    ("final", "intervals", {"accuracy": [0.5]}),
    ("final", "samples", 10**400),
    ("final", "outcomes", [{"outcome": 1}]),
    ("final", "outcomes", [CRAFTED_OUTCOME | {"outcome": 10**9}]),
    ("final", "outcomes", [CRAFTED_OUTCOME | {"ppv": "high"}]),
    ("final", "outcomes", [CRAFTED_OUTCOME | {"calibration": [[0.5, 1]]}]),
    ("final", "outcomes", [CRAFTED_OUTCOME] * 20_000),
    ("coefficients", "client", 4),
    ("coefficients", "client", -1),
    ("coefficients", "client", "site 4"),
    ("coefficients", "measure", "\x1b[31m"),
    ("coefficients", "distance", "far"),
    ("coefficients", "terms", {}),
    ("coefficients", "terms", [TERM]),
    ("coefficients", "terms", [TERM | {"estimate": "high", "error": None}]),
    ("coefficients", "terms", [TERM | {"estimate": 1e308, "error": 0.1}]),
    ("end", "summary", []),
    ("end", "summary", {"seconds": "long"}),
    ("end", "summary", {"models": {"personal, trained": {"last": {"value": "a", "round": 1}}}}),
    ("end", "summary", {"privacy": {"epsilon": "small"}}),
]


@pytest.mark.parametrize(("name", "key", "value"), CRAFTED)
def test_a_crafted_event_is_one_line_wherever_it_is_read(name, key, value, run, capsys):
    entries = lines(run)
    entry_of(entries, name)[key] = value
    write(run, entries)
    harmless = (name, key, value) == ("final", "client", "0")  # a number in quotes is that number
    if harmless:
        assert pomona.load(run).final[0]["client"] == 0
        return
    with pytest.raises(StorageError) as caught:
        pomona.load(run)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    for command in ("report", "compare", "coefficients"):
        with pytest.raises(SystemExit) as exit_info:
            main([command, str(run)])
        message = capsys.readouterr().err
        assert exit_info.value.code == 6, message
        assert message.count("\n") == 1
        assert "error[STORAGE]" in message


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\x00\n",
        b"[1]\n",
        b'"start"\n',
        b"1\n",
        b'{"event": 3}\n',
        b"[" * 100_000 + b"\n",
        b"\xff\xfe\n",
        b'{"event": "start"\n',
        b'{"event": "round", "x": ' + b"9" * 5000 + b"}\n",
        b'{"event": "round"}\n',
        b"NaN\n",
    ],
)
def test_what_is_no_event_is_named_by_its_line(content, run):
    path = run / "events.jsonl"
    path.write_bytes(path.read_bytes() + content)
    number = len(path.read_bytes().splitlines())
    with pytest.raises(StorageError, match=rf"events\.jsonl, line {number}"):
        pomona.load(run)


@pytest.mark.parametrize(
    "text",
    [
        "lr = = 1",
        "a = " + "[" * 5000 + "]" * 5000,
        "",
        "method = 3",
        'method = {name = 4}\nrounds = "a"',
    ],
)
def test_settings_that_cannot_be_read_are_one_line(text, run):
    (run / "config.toml").write_text(text)
    with pytest.raises(StorageError, match=r"config\.toml"):
        pomona.load(run)


def test_a_folder_or_a_pipe_for_a_file_is_one_line(run):
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").mkdir()
    with pytest.raises(StorageError, match="a folder"):
        pomona.load(run)


def test_a_last_line_that_a_kill_cut_short_does_not_count(run):
    path = run / "events.jsonl"
    undamaged = pomona.load(run)
    path.write_bytes(path.read_bytes() + b'{"event": "round", "ro')
    assert pomona.load(run).rounds[-1].round == undamaged.rounds[-1].round


def test_names_are_read_as_harmless_lines(run):
    entries = lines(run)
    entry_of(entries, "start")["clients"] = ["\x1b]0;owned\x07a", "b\nc", "<script>", "=1"]
    write(run, entries)
    assert pomona.load(run).about["clients"] == ["]0;owned a", "b c", "<script>", "=1"]


def test_kinds_of_later_versions_are_passed_over(run):
    original = pomona.load(run)
    write(run, [*lines(run), {"event": "novelty", "x": [1, {"deep": "text"}]}])
    assert pomona.load(run).evaluations == original.evaluations


CONFIGS = {
    "private": {
        "privacy": {
            "noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-3, "seed": 1,
            "acknowledge": ["metrics", "sample-counts", "training-loss", "class-names", "unlimited-epsilon"],
        }
    },
    "unseen": {
        "clients": 5,
        "partition": {"name": "iid"},
        "membership": {"unseen": [1], "adapt_rounds": 1},
    },
    "regression": {"data": {"name": "test_reading:numbers"}, "partition": {"name": "iid"}},
    "flags": {
        "data": {"name": "test_reading:flags", "targets": "multilabel"},
        "partition": {"name": "iid"},
    },
}  # fmt: skip
X = np.random.Generator(np.random.Philox(3)).normal(size=(100, 4)).astype(np.float32)


def numbers(settings):
    """A regression."""
    return Dataset("own", "table", X, X[:, :1] + 0.1, (), 100, shift=(0.0,), scale=(1.0,))


def flags(settings):
    """Two flags per sample."""
    return X, (X[:, :2] > 0).astype(np.float32)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_written_is_read_back_the_same(name, tmp_path):
    result = pomona.run(tiny("fedavg", rounds=1, **CONFIGS[name]), tmp_path / "run")
    read = pomona.load(tmp_path / "run")
    for field in ("config", "about", "evaluations", "final", "summary", "unseen"):
        assert getattr(read, field) == getattr(result, field), field


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([10**400, -1, 1e308]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_place_is_read_or_named(unfinished_run, data):
    """One event with one value exchanged, at the top or one below, is an event or a ValueError."""
    event = data.draw(st.sampled_from(lines(unfinished_run)))
    key = data.draw(st.sampled_from(sorted(event)))
    inner = event[key]
    value = data.draw(json_values)
    if isinstance(inner, dict) and inner and data.draw(st.booleans()):
        value = {**inner, data.draw(st.sampled_from(sorted(inner))): value}
    with suppress(ValueError):
        event_name, content = events.read(json.dumps({**event, key: value}))
        assert isinstance(event_name, str)
        assert isinstance(content, (RoundRow, Evaluation, dict))


def test_a_run_that_does_not_exist_is_one_line(tmp_path):
    with pytest.raises(StorageError, match=r"nowhere does not exist; name the folder of a run$"):
        pomona.load(tmp_path / "nowhere")
