"""Setting ``engine``: messages, records, and results that must not depend on it."""

import platform
import sys
from importlib.metadata import EntryPoints
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import pomona
from distributions import installed as installed_as
from pomona.cli.run import DEMO
from pomona.config import resolve
from pomona.core.errors import CheckpointError, ConfigError
from pomona.federation import run_checks
from pomona.lifecycle import versions
from pomona.methods import METHODS
from pomona.objective import engine as engines
from pomona.objective.engine import INSTALL, INTERFACE, load_engine
from pomona.scenario import Scenario
from problems import Notes, tiny
from representatives import representatives

pytestmark = pytest.mark.long

installed = pytest.mark.skipif(
    find_spec("pomona_native") is None, reason="pomona-native is not installed (make native)"
)
# of a loss, over some rounds: engines differ in rounding alone, which training makes larger
CURVE = 5e-3
NATIVE = [name for name in sorted(METHODS) if name != "gpfl"]  # whose valve is PyTorch's


def run(name="fedavg", folder=None, resume=False, method=None, **settings):
    notes = Notes()
    return pomona.run(tiny(name, method, **settings), folder, notes, resume), notes.said


def computed(result):
    rounds = [
        (r.round, r.cohort, r.loss, {k: v.tolist() for k, v in r.info.items()})
        for r in result.rounds
    ]
    return rounds, result.evaluations, result.final


@pytest.fixture
def missing(monkeypatch):
    """Simulate a missing package."""
    monkeypatch.setattr(engines, "entry_points", lambda **_: EntryPoints())


def test_without_the_package_auto_is_pytorch_and_says_why(missing):
    by_torch, silent = run(engine="torch")
    by_auto, notes = run(engine="auto")
    assert silent == []
    assert notes == [f"engine = torch: the package pomona-native is not installed; {INSTALL}"]
    assert computed(by_auto) == computed(by_torch)
    assert by_auto.config["engine"] == "torch"
    assert "pomona-native" not in versions()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install another pomona-native, which is found before an installed one."""

    def written(text):
        points = {"pomona.engines": {"native": "other_native:Engine"}}
        installed_as(monkeypatch, tmp_path, points, name="pomona-native", other_native=text)

    yield written
    sys.modules.pop("other_native", None)


UNUSABLE = [
    (
        "raise ImportError('no symbol\\nnor file')",
        "cannot be imported (ImportError: no symbol); pip install --upgrade pomona-native",
    ),
    ("import other_native._processor", "cannot be imported (ModuleNotFoundError: "),
    ("", "cannot be imported (AttributeError: "),
    (
        "class Engine: interface = 0",
        f"has interface 0, this Pomona calls {INTERFACE}; pip install --upgrade pomona-native",
    ),
    (
        "from pomona.objective.engine import EngineError\n"
        "def Engine(): raise EngineError('this processor has neither AVX2 nor NEON')",
        "this processor has neither AVX2 nor NEON",
    ),
    (
        "def Engine(): raise OSError('z80')",
        "cannot be imported (OSError: z80); pip install --upgrade pomona-native",
    ),
]


@pytest.mark.parametrize(("text", "reason"), UNUSABLE)
def test_a_package_that_cannot_be_used_stops_no_run_and_is_a_stated_reason(package, text, reason):
    by_torch, _ = run(engine="torch")
    package(text)
    with_package, silent = run(engine="torch")
    by_auto, (note,) = run(engine="auto")
    assert silent == []
    assert note.startswith("engine = torch: ")
    assert reason in note
    assert computed(by_auto) == computed(with_package) == computed(by_torch)
    assert "pomona-native" not in versions()
    with pytest.raises(ConfigError, match="is not possible") as refused:
        Scenario.prepare(tiny("fedavg", engine="native"))
    assert reason in str(refused.value)


@installed
def test_batches_larger_than_a_call_takes_are_a_stated_reason(monkeypatch):
    from pomona_native.network import NativeNetwork

    largest = max(len(c.train) for c in Scenario.prepare(tiny("fedavg")).partition.clients)
    full_batches = {"batch_size": 10**6}  # no batch has more samples than its client
    monkeypatch.setattr(NativeNetwork, "max_batch", largest - 1)
    reason = (
        f"a batch has {largest} samples, a call of this network takes {largest - 1}; lower "
        "batch_size"
    )
    _, notes = run(engine="auto", **full_batches)
    assert notes == [f"engine = torch: {reason}"]
    with pytest.raises(ConfigError, match=reason):
        Scenario.prepare(tiny("fedavg", engine="native", **full_batches))
    monkeypatch.setattr(NativeNetwork, "max_batch", largest)
    assert Scenario.prepare(tiny("fedavg", engine="native", **full_batches)).why_torch() == ""


@pytest.mark.parametrize("exact", [True, False])
def test_whether_bf16_is_emulated_is_the_engines_to_say(monkeypatch, exact):
    """PyTorch knows instructions that the package does not use, and may not be able to say which
    there are.
    """
    scenario = Scenario.prepare(tiny("fedavg", precision="bf16")).with_settings(engine="native")
    engine = SimpleNamespace(emulates_bf16=not exact)
    monkeypatch.setattr(run_checks, "load_engine", lambda _: engine)
    monkeypatch.setattr(Scenario, "why_torch", lambda _: "")
    monkeypatch.setattr(run_checks, "bf16_instructions", lambda: [] if exact else ["bf16"])
    assert any("emulates bf16" in note.text for note in run_checks.cautions(scenario)) is not exact
    by_torch = run_checks.cautions(scenario.with_settings(engine="torch"))
    assert any("no bf16 arithmetic" in note.text for note in by_torch) is exact
    for reason, expected in (("", run_checks.cautions(scenario)), ("no", by_torch)):
        monkeypatch.setattr(Scenario, "why_torch", lambda _, text=reason: text)
        assert run_checks.cautions(scenario.with_settings(engine="auto")) == expected


def test_of_the_machine_a_record_names_system_and_architecture_alone():
    recorded = versions()["platform"]
    assert recorded == f"{platform.system()} {platform.machine()}"
    assert platform.release() not in recorded


def test_without_the_package_native_is_refused_before_anything_is_computed(missing):
    for refused in (
        lambda: Scenario.prepare(tiny("fedavg", engine="native")),
        Scenario.prepare(tiny("fedavg")).with_settings(engine="native").objective,
    ):
        with pytest.raises(
            ConfigError,
            match=r"is not possible: .* not installed; pip install .* in a clone; set engine=torch",
        ):
            refused()


@installed
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": {"name": "efficientnet-lite0"}}, "ZeroPad2d"),
        ({"model": {"name": "mlp", "label_smoothing": 0.1}}, "cross-entropy of classes"),
    ],
)
def test_what_the_package_does_not_know_is_pytorchs(settings, reason):
    config = tiny("fedavg", engine="auto", **settings)
    assert reason in Scenario.prepare(config).why_torch()
    with pytest.raises(ConfigError, match=reason):
        Scenario.prepare(config.model_copy(update={"engine": "native"}))


@installed
def test_a_run_says_and_records_its_engine(tmp_path):
    _, notes = run(folder=tmp_path / "run", engine="auto")
    release = load_engine("native").release
    assert notes == [f"engine = native: pomona-native {release}"]
    loaded = pomona.load(tmp_path / "run")
    assert loaded.config["engine"] == "native"
    assert loaded.about["engine"] == "native"
    assert loaded.about["versions"]["pomona-native"] == release


@installed
@pytest.mark.parametrize(
    "name",
    representatives(
        ["fedavg", "apple", "fedala", "ditto", "fedphp", "scaffold", "fedrep", "pfedme"], ["apple"]
    ),
)
def test_results_do_not_depend_on_the_number_of_workers(name):
    one_worker, _ = run(
        name, engine="native", model={"name": "small"}, momentum=0.5 if name == "fedavg" else 0.0
    )
    two_workers, _ = run(
        name,
        engine="native",
        model={"name": "small"},
        momentum=0.5 if name == "fedavg" else 0.0,
        workers=2,
    )
    assert computed(one_worker) == computed(two_workers)


@installed
@pytest.mark.parametrize("name", representatives(NATIVE, ["apple", "ditto", "fedavg"]))
def test_results_do_not_depend_on_who_is_in_a_call(name):
    """Clients of unlike size one by one; and in the calls that a run chooses itself."""
    settings = {"engine": "native", "clients": 5, "model": {"name": "small"}, "batch_size": 7}
    settings["partition"] = {"name": "dirichlet", "beta": 0.5, "min_size": 3}
    variants = {"rows_per_call": 1}, {"rows_per_call": 5}, {"workers": 1}, {"workers": 2}
    unbatched, *batched = (computed(run(name, **settings, **variant)[0]) for variant in variants)
    assert all(result == unbatched for result in batched)


@installed
@pytest.mark.parametrize("step", representatives(["paper", "local"], ["paper"]))
def test_apple_learns_the_same_in_calls_of_any_size(step):
    """As it chooses itself, a call a worker, the clients of unlike size; and all one by one."""
    method = {"name": "apple", "core_step": step, "mu": 0.1}
    skewed = {"name": "dirichlet", "beta": 0.5, "min_size": 2}
    settings = {"engine": "native", "clients": 9, "partition": skewed, "momentum": 0.5, "rounds": 3}
    unbatched, one_worker, two_workers = (
        run("apple", method=method, **settings, **variant)[0]
        for variant in ({"rows_per_call": 1}, {"workers": 1}, {"workers": 2})
    )
    assert computed(unbatched) == computed(one_worker) == computed(two_workers)


@installed
@pytest.mark.parametrize("engine", ["native", "auto"])
def test_a_run_goes_on_with_the_engine_it_was_begun_with(tmp_path, engine):
    uninterrupted, _ = run(rounds=4, engine="native")
    run(folder=tmp_path / "run", rounds=2, engine="native")
    with pytest.raises(CheckpointError, match="engine"):
        run(folder=tmp_path / "run", rounds=4, resume=True, engine="torch")
    resumed, notes = run(folder=tmp_path / "run", rounds=4, resume=True, engine=engine)
    assert computed(resumed) == computed(uninterrupted)
    engine_notes = [line for line in notes if "engine = " in line]
    assert engine_notes == (
        [] if engine == "native" else [f"engine = native, as {tmp_path / 'run'} was begun with"]
    )


@installed
def test_a_run_of_pytorch_goes_on_with_it(tmp_path):
    run(folder=tmp_path / "run", rounds=2)
    resumed, notes = run(folder=tmp_path / "run", rounds=4, resume=True, engine="auto")
    assert computed(resumed) == computed(run(rounds=4)[0])
    assert any(line.startswith("engine = torch, as ") for line in notes)


@installed
def test_a_native_run_cannot_go_on_without_the_package(tmp_path, monkeypatch):
    run(folder=tmp_path / "run", rounds=2, engine="native")
    monkeypatch.setattr(engines, "entry_points", lambda **_: EntryPoints())
    with pytest.raises(
        ConfigError, match=r"not installed.*; continue where it is available, or give another"
    ):
        run(folder=tmp_path / "run", rounds=4, resume=True, engine="auto")
    resumed, notes = run(folder=tmp_path / "run", rounds=2, resume=True, engine="auto")
    assert computed(resumed) == computed(pomona.load(tmp_path / "run"))
    assert notes[-1].endswith("is finished; nothing to do")


def require_pytorchs_losses(name, method=None, **settings):
    by_torch, by_native = (
        run(name, method=method, engine=engine, model={"name": "small"}, **settings)[0]
        for engine in ("torch", "native")
    )
    for a, b in zip(by_torch.rounds, by_native.rounds, strict=True):
        assert b.loss == pytest.approx(a.loss, abs=CURVE)


@installed
@pytest.mark.parametrize("seed", representatives([0, 1, 2], [0]))
@pytest.mark.parametrize("name", ["fedavg", "apple"])
def test_curves_are_pytorchs(name, seed):
    momentum = 0.5 if name == "fedavg" else 0.0
    require_pytorchs_losses(name, rounds=5, seed=seed, momentum=momentum)


@installed
@pytest.mark.parametrize(
    ("name", "method"),
    representatives(
        [
            ("apple", {"mu": 0.1, "dr_lr": 0.01}),
            ("apple", {"budget": 2, "dr_lr": 0.01}),
            ("apple", {"core_step": "local"}),
            ("ditto", {"lambda": 0.5}),
            ("fedala", {"layers": 2}),
            ("fedamp", {}),
            ("fedbabu", {"finetune": "head"}),
            ("feddyn", {}),
            ("fednova", {"mu": 0.1}),
            ("fedprox", {"mu": 0.5}),
            ("fedrep", {}),
            ("mr-mtl", {}),
            ("partialfed", {}),
            ("pfedme", {"lambda": 2.0}),
            ("pgfed", {}),
            ("scaffold", {}),
        ],
        [("apple", {"core_step": "local"}), ("ditto", {"lambda": 0.5}), ("scaffold", {})],
    ),
)
def test_methods_learn_what_they_learn_with_pytorch(name, method):
    """Those whose steps are more than plain SGD: their losses in three rounds."""
    require_pytorchs_losses(name, method, momentum=0.0 if name == "scaffold" else 0.5)


@installed
def test_fedprox_without_its_term_is_fedavg():
    assert computed(run("fedavg", engine="native")[0]) == computed(
        pomona.run(tiny("fedprox", {"mu": 0.0}, engine="native"))
    )


def test_the_demo_says_nothing_of_engines(missing):
    notes = Notes()
    method = {"name": "fedavg"}
    pomona.run(resolve(DEMO, {"method": method, "rounds": 1}), callback=notes)
    assert not any("engine" in line for line in notes.said)


@installed
@pytest.mark.parametrize("name", representatives(NATIVE, ["apple", "moon", "fedrep"]))
def test_every_method_learns_with_the_default_engine(name):
    by_default, _ = run(name, engine="auto")
    assert by_default.config["engine"] == "native"
    by_torch, _ = run(name)
    for a, b in zip(by_torch.rounds, by_default.rounds, strict=True):
        assert b.loss == pytest.approx(a.loss, abs=CURVE)


def test_the_setting_is_read():
    assert resolve({}).engine == "auto"
    assert resolve({"engine": "auto"}).engine == "auto"
    with pytest.raises(ConfigError, match="engine"):
        resolve({"engine": "an abacus"})
