"""Files of a run and of a bench, settings, and ledgers, read by the commands that use them."""

import hashlib
import json
import shutil
from functools import partial

import tomli_w
from edits import JSON, LINES, TOML, Valid, inputs
from hypothesis import strategies as st
from targets import TARGETS, Target, command, file, target
from worlds import PRIVATE, SMALL, SUITE

import pomona
from pomona import load
from pomona.cli.arguments import config_of
from pomona.experiments import load as load_bench
from pomona.experiments.suite import read_suite
from pomona.partition.partition import Partition
from pomona.privacy.ledger import Ledger
from pomona.privacy.noise import KeyStore
from pomona.privacy.settings import Privacy
from pomona.results.figures.plot import listed
from pomona.results.run_numbers import runs
from pomona.results.web.comparison_page import write
from pomona.results.web.report_page import page as report
from pomona.storage.checkpoint import newest
from pomona.storage.safetensors_stream import digest

# A run.

RUN = {
    "events.jsonl": LINES, "config.toml": TOML, "partition.json": JSON, "status.json": JSON, "summary.json": JSON,
    "predictions.npz": None,
}  # fmt: skip


def paged(folder):
    """The whole page, except pictures, which are drawn from the same numbers."""
    report(runs([load(folder)]))


def of_run(path, format_, acts, world):
    """A run without recorded file hashes, as while it is running."""
    plain = world.folder / f"run-{acts.__name__}-{path}"
    shutil.copytree(world.run, plain, ignore=shutil.ignore_patterns("models", "checkpoints"))
    if path != "status.json":
        (plain / "status.json").unlink()
    return file(world, plain, f"{acts.__name__}-{path}", path, format_, acts)


def compared(folder):
    command("compare", folder, folder.with_name("run"))


def reported(folder):
    """A report with pictures, next to an intact run."""
    command("report", folder, folder.with_name("run"), "--out", folder / "page")


TARGETS += [
    Target(f"{path} of a run, on a page", 10, partial(of_run, path, format_, paged))
    for path, format_ in RUN.items()
]
TARGETS += [
    Target(f"{path} of a run, compared", 20, partial(of_run, path, RUN[path], compared))
    for path in ("events.jsonl", "config.toml", "status.json")
]
TARGETS += [
    Target("events.jsonl of a run, drawn", 2, partial(of_run, "events.jsonl", LINES, reported))
]

INTERRUPTED = {
    "events.jsonl": LINES, "config.toml": TOML, "partition.json": JSON, "status.json": JSON, "checkpoints/*1-*": None,
    ".lock": JSON,
}  # fmt: skip


def of_interrupted(path, format_, world):
    """An interrupted run, resumed: refused, or it ends like an undisturbed run."""
    right = {p.name: p.read_bytes() for p in (world.run / "models").iterdir()}

    def act(folder):
        pomona.run(pomona.config.resolve(SMALL), folder, resume=True)
        assert {p.name: p.read_bytes() for p in (folder / "models").iterdir()} == right

    return file(
        world, world.interrupted, f"cut-{path.replace('/', '-').strip('*')}", path, format_, act
    )


TARGETS += [
    Target(f"{path} of a run, gone on with", 4, partial(of_interrupted, path, format_))
    for path, format_ in INTERRUPTED.items()
]


def of_finished(path, world):
    """A finished run with one changed byte and recorded hashes: refused, or nothing changes."""
    return file(world, world.run, f"finished-{path.replace('/', '-').strip('*')}", path, None, load)


TARGETS += [
    Target(f"{path} of a finished run, damaged", 20, partial(of_finished, path))
    for path in ("events.jsonl", "config.toml", "status.json")
]


@target("checkpoint, sealed under its own hash", 8)
def checkpoint(world):
    """A checkpoint under its correct name, which any writer of one can compute."""
    folder = world.folder / "sealed"
    (path,) = (world.interrupted / "checkpoints").glob("*1-*")

    def act(data):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / f"round-000001-{hashlib.sha256(data).hexdigest()}.safetensors").write_bytes(data)
        checkpoint_, _ = newest(folder)
        digest(dict(checkpoint_.tensors))

    return inputs(Valid(path.read_bytes())), act


@target("partition.json, taken for a run", 7)
def partition(world):
    return file(
        world,
        world.run,
        "partition",
        "partition.json",
        JSON,
        lambda f: Partition.load(f / "partition.json") and None,
    )


# Settings.


def settings_of(tree, read_it, world, name):
    """An attack on a handwritten TOML file."""
    path = world.folder / f"{name}.toml"

    def act(data):
        path.write_bytes(data)
        read_it(path)

    return inputs(Valid(tomli_w.dumps(tree).encode(), TOML)), act


@target("settings of a run", 17)
def run_settings(world):
    tree = {**SMALL, "method": {"name": "apple", "mu": 0.1}, "privacy": PRIVATE}
    return settings_of(tree, lambda path: config_of([str(path)]) and None, world, "settings")


@target("words of a command line", 12)
def command_line(world):
    keys = st.sampled_from(
        [
            "lr",
            "method",
            "method.mu",
            "data.path",
            "partition",
            "model.hidden",
            "rounds",
            "x",
            "privacy",
        ]
    )
    setting = st.builds(lambda k, v: f"{k}={v}", keys, st.text(max_size=20))
    return setting.map(
        lambda w: w.encode(errors="replace")
    ), lambda data: config_of([data.decode(errors="replace")]) and None


@target("suite of a bench", 12)
def suite(world):
    def act(path):
        suite_ = read_suite(path)
        for scenario, method in suite_.pairs("full"):
            suite_.space("full", method)
            suite_.config("full", scenario, method, {}, 0)

    return settings_of(SUITE, act, world, "suite")


# A bench.


def tabled(folder):
    bench = load_bench(folder)
    assert bench.counts is not None
    assert bench.failures is not None
    assert bench.rows is not None


def of_bench(path, act, world):
    return file(world, world.bench, f"{act.__name__}-{path}", path, JSON, act)


def bench_page(folder):
    write(load_bench(folder), folder / "page")


TARGETS += [
    Target(f"{path} of a bench, tabled", 13, partial(of_bench, path, tabled))
    for path in ("results.json", "timing.json")
]
TARGETS += [
    Target("results.json of a bench, on a page", 2, partial(of_bench, "results.json", bench_page))
]


# What is spent.


@target("ledger.jsonl of a client", 7)
def ledger(world):
    def act(folder):
        Ledger.open(folder / "dp" / "client-00" / "ledger.jsonl").position()

    path = "dp/client-00/ledger.jsonl"
    return file(world, world.private / "private", "ledger", path, LINES, act)


@target("key of a client's noise", 5)
def key(world):
    def act(folder):
        (folder / "dp" / "client-00" / "key").chmod(0o600)
        KeyStore.open(folder / "dp", 0, Privacy(**PRIVATE))

    return file(world, world.private / "private", "noise", "dp/client-00/key", None, act)


@target("figures/index.json of a page", 5)
def index(world):
    def act(data):
        folder = world.folder / "figures"
        folder.mkdir(exist_ok=True)
        (folder / "index.json").write_bytes(data)
        assert all("/" not in name for name in listed(folder))
        json.loads(data)

    return inputs(Valid(b'{"curves.svg": "Curves"}', JSON)), lambda data: _refusing(act, data)


def _refusing(act, data):
    """A reader that accepts only JSON."""
    try:
        return act(data)
    except (ValueError, RecursionError):
        return "absent"
