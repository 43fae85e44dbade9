"""Findings of `pomona silo check`, `status` and `report`, on kits made for the test."""

import json
import re
import ssl
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
import torch

from agreement_file import agreement
from command_line import command
from pomona.core.errors import ConfigError, DataError, ProtocolError, StorageError
from pomona.data.dataset import Dataset
from pomona.data.tokenizer import Tokenizer
from pomona.scenario.description import epsilons
from pomona_federation import certificates, json_store, keys, status
from pomona_federation.address import Address
from pomona_federation.agreement import Federation
from pomona_federation.certificates import certificate, private, valid
from pomona_federation.flower_apps import handled
from pomona_federation.messages.message_bus import Message
from pomona_federation.server import registry_admin
from pomona_federation.silo import kept_data, preflight, silo_report, silo_scenario
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.node_supervisor import run_node
from pomona_federation.silo.server_requests import ask_health
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_in_study import PinnedAgreement
from pomona_federation.task_settings import TaskSettings, of_files
from test_notices import serving

SILO = """
name = "north"
[data]
label_column = "y"
classes = ["a", "b"]
[[data.clients]]
name = "north"
train = "train.csv"
test = "test.csv"
"""


def rows(n, seed):
    x = np.random.Generator(np.random.PCG64(seed)).normal(size=(n, 4))
    y = np.where(x[:, 0] > 0, "a", "b")
    return "p,q,r,s,y\n" + "".join(
        f"{','.join(map(str, r))},{label}\n" for r, label in zip(x, y, strict=True)
    )


def kit(tmp_path, port=9, **run):
    folder = tmp_path / "north"
    for name in ("certs", "keys/peers"):
        (folder / name).mkdir(parents=True)
    ca = certificates.authority("try")
    (tmp_path / "ca.key").write_bytes(ca.private)
    pair, peer = keys.silo(), keys.silo()
    (folder / "certs" / "ca.crt").write_bytes(ca.public)
    keys.write(folder / "keys" / "silo.key", pair.private)
    for file in ("silo.pub", "peers/north.pub"):
        (folder / "keys" / file).write_bytes(pair.public)
    (folder / "keys" / "peers" / "south.pub").write_bytes(peer.public)
    (folder / "app.sha256").write_text("a" * 64 + "\n")
    (folder / "federation.toml").write_text(agreement(port, **run))
    (folder / "silo.toml").write_text(SILO)
    (folder / "train.csv").write_text(rows(60, 1))
    (folder / "test.csv").write_text(rows(40, 2))
    return folder, ca


def route(folder):
    return ServerRoute.of_kit(
        folder, SiloFile.load(folder / "silo.toml"), Federation.load(folder / "federation.toml")
    )


def checks(folder):
    lines, leaves, code = preflight.run(folder)
    return {line.check: line for line in lines}, leaves, code


@pytest.fixture
def served(tmp_path, request):
    """A kit whose server's clock is ``late`` seconds off, with a certificate of some age in
    days.
    """
    late, age = [], timedelta(days=getattr(request, "param", 0))

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def date_time_string(self, timestamp=None):
            return super().date_time_string(datetime.now(UTC).timestamp() + sum(late))

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    folder, ca = kit(tmp_path, server.server_port)
    pair = certificates.server(ca, ["127.0.0.1"], datetime.now(UTC) - age)
    for name, content in (("server.key", pair.private), ("server.crt", pair.public)):
        keys.write(tmp_path / name, content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield folder, late


def test_a_silo_that_is_ready_says_what_would_leave_it(served):
    folder, _ = served
    lines, leaves, code = checks(folder)
    assert lines.pop("versions").result == "warning", "what answers here is no gate"
    assert {line.result for line in lines.values()} == {"ok"}, lines
    assert code == 0
    numbers = 4 * 8 + 8 + 8 * 2 + 2
    validation = round(60 * 0.15)
    assert f"{60 - validation} training, {validation} validation, 40 test" in lines["data"].text
    assert f"{numbers} numbers" in lines["data"].text
    assert leaves["bytes_per_model"] == 4 * numbers
    assert leaves["models_up"] == "1"
    assert str(60 - validation) in leaves["samples"]
    assert "accuracy" in leaves["scores"]
    assert "however few" in leaves["scores"]
    assert "keys of 1 others" in lines["key"].text
    assert "epsilon" not in leaves
    assert "training loss" in leaves["loss"]
    assert leaves["tells"] is None, "FedAvg sends a model and no more"
    agreement = Federation.load(folder / "federation.toml").agreement
    assert agreement[:16] in lines["compare"].text.replace(" ", "")
    assert "telephone" in lines["compare"].text


def test_the_models_that_a_silo_asks_for_are_counted(tmp_path):
    folder, _ = kit(tmp_path, method={"name": "apple", "budget": 2})
    _, leaves, _ = checks(folder)
    size = 4 * (4 * 8 + 8 + 8 * 2 + 2)
    assert leaves["tells"] == "whose cores it wants next, at most 2"
    assert leaves["models_down"].endswith(f": here at most 2, {2 * size / 1e6:.3g} MB")
    (folder / "federation.toml").write_text(agreement(9, method="apple"))
    _, leaves, _ = checks(folder)
    assert leaves["tells"].endswith("everybody's"), "all are handed out"
    assert "at most 3," in leaves["models_down"], "four places"
    (folder / "federation.toml").write_text(
        agreement(9, method={"name": "pgfed", "mixing": "client", "budget": 2})
    )
    assert ": here at most 3," in checks(folder)[1]["models_down"], (
        "the mean model, and two gradients"
    )
    (folder / "federation.toml").write_text(agreement(9, method="pgfed"))
    assert checks(folder)[1]["models_down"] == "3", "the server mixes"


def test_what_a_method_tells_the_server_beside_models_is_said(tmp_path, capsys):
    folder, _ = kit(tmp_path, method="fedfomo")
    assert checks(folder)[1]["tells"] == "in which order it prefers the others' models"
    command("silo", "check", "--folder", str(folder))
    assert (
        "tells of itself          in which order it prefers the others' models"
        in capsys.readouterr().out
    )
    among_all = {"name": "fedfomo", "candidates": "everybody", "budget": 2}
    (folder / "federation.toml").write_text(agreement(9, method=among_all))
    assert checks(folder)[1]["tells"] == "whose models it wants next, at most 2"


@pytest.mark.parametrize("late", [60, -60])
def test_a_wrong_clock_is_a_warning(served, late):
    folder, offsets = served
    offsets.append(late)
    lines, _, code = checks(folder)
    assert lines["server"].result == "warning"
    assert ("behind" if late > 0 else "ahead of") in lines["server"].text
    assert code == 0


@pytest.mark.parametrize(
    ("served", "result"), [(794.5, "ok"), (795.5, "warning")], indirect=["served"]
)
def test_a_certificate_that_ends_soon_is_a_warning(served, result):
    lines, _, code = checks(served[0])
    assert (lines["server"].result, code) == (result, 0)
    assert ("its certificate ends in 29 days" in lines["server"].text) == (result == "warning")


def test_an_authority_that_ends_soon_is_a_warning_everywhere(tmp_path, capsys):
    folder, _ = kit(tmp_path)
    assert checks(folder)[0]["certificate"].result == "ok"
    assert status.silo(folder)["warning"] == ""
    old = certificates.authority("try", datetime.now(UTC) - timedelta(days=3640))
    (folder / "certs" / "ca.crt").write_bytes(old.public)
    line = checks(folder)[0]["certificate"]
    assert line.result == "warning"
    assert "ends in 11 days" in line.text
    assert "ask the lead for a new federation" in line.text
    assert command("silo", "status", "--folder", str(folder)) == 0
    assert "warning: the authority's certificate ends in 11 days" in capsys.readouterr().out


def test_the_server_says_when_its_certificate_ends(tmp_path, capsys):
    folder, ca = server_kit(tmp_path)
    assert status.server(folder)["warning"] == ""
    for age, text in ((800, "ends in 24 days"), (826, "ended on")):
        pair = certificates.server(ca, ["127.0.0.1"], datetime.now(UTC) - timedelta(days=age))
        (folder / "certs" / "server.crt").write_bytes(pair.public)
        assert command("server", "status", "--folder", str(folder)) == 0
        output = capsys.readouterr().out
        assert f"warning: the server's certificate {text}" in output
        assert "`pomona deploy renew`" in output
    (folder / "certs" / "server.crt").write_bytes(b"none")
    assert "is not a certificate" in status.server(folder)["warning"]


def test_a_function_in_the_kits_folder_reads_the_data_wherever_the_command_is_called(
    tmp_path, monkeypatch
):
    folder, _ = kit(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = (
        "import numpy as np\ndef samples(settings):\n    return np.ones((60, 4), np.float32), "
        "np.arange(60) % 2\n"
    )
    (folder / "only_in_this_kit.py").write_text(code)
    settings = 'name = "north"\n[data]\nname = "only_in_this_kit:samples"\nclasses = ["a", "b"]\n'
    (folder / "silo.toml").write_text(settings)
    try:
        assert checks(folder)[0]["data"].result == "ok", checks(folder)[0]["data"]
    finally:
        sys.modules.pop("only_in_this_kit", None)


def test_a_strangers_certificate_is_refused(served, tmp_path):
    folder, _ = served
    with pytest.raises(ProtocolError, match="for another address"):
        ask_health(replace(route(folder), server=route(folder).server._replace(host="localhost")))
    (folder / "certs" / "ca.crt").write_bytes(certificates.authority("other").public)
    with pytest.raises(ProtocolError, match=r"refuses .* of another federation"):
        ask_health(route(folder))


def test_a_server_that_is_not_there_is_named_with_its_proxy(tmp_path):
    folder, _ = kit(tmp_path)
    lines, leaves, code = checks(folder)
    assert lines["server"].result == "failed"
    assert code == ProtocolError.code
    assert leaves, "the rest is found out all the same"
    with pytest.raises(ProtocolError, match=r"through http://127\.0\.0\.1:9"):
        ask_health(replace(route(folder), proxy="http://127.0.0.1:9"))


def test_keys_must_be_private_and_fit(tmp_path):
    folder, _ = kit(tmp_path)
    key = folder / "keys" / "silo.key"
    key.chmod(0o644)
    assert "chmod 600" in checks(folder)[0]["key"].text
    key.chmod(0o600)
    (folder / "keys" / "peers" / "north.pub").write_bytes(keys.silo().public)
    assert "the key of silo north in this kit, but no silo's" in checks(folder)[0]["key"].text
    (folder / "keys" / "peers" / "south.pub").write_bytes((folder / "keys/silo.pub").read_bytes())
    assert "but south's: correct name" in checks(folder)[0]["key"].text
    with pytest.raises(ConfigError, match="but south's: correct name"):
        run_node(folder, pytest.fail)
    key.write_bytes(b"no key")
    assert "not an unencrypted private key" in checks(folder)[0]["key"].text
    with pytest.raises(ConfigError, match="not an unencrypted private key"):
        run_node(folder, pytest.fail)
    assert not (folder / "state" / "origin.json").exists(), (
        "it is refused before anything is started"
    )
    key.unlink()
    lines, _, code = checks(folder)
    assert lines["key"].result == "failed"
    assert code >= ConfigError.code
    with pytest.raises(ConfigError, match="cannot be read"):
        private(key)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("p,q,r,y\n1,2,3,a\n4,5,6,b\n", "the agreement says"),
        ("p,q,r,s,y\n1,2,3,4,a\n1,2,3,4,c\n", "c"),
        ("p,q,r,s,y\n1,2,3,nan,a\n", "nan|finite"),
    ],
)
def test_data_that_is_not_what_was_agreed(tmp_path, text, reason):
    folder, _ = kit(tmp_path)
    for name in ("train.csv", "test.csv"):
        (folder / name).write_text(text)
    lines, leaves, _ = checks(folder)
    assert (lines["data"].result, lines["data"].code) == ("failed", DataError.code), lines["data"]
    assert re.search(reason, lines["data"].text)
    assert not leaves


def test_what_is_odd_about_the_data_is_said_as_a_run_says_it(tmp_path, capsys):
    """All rows are of one class: a warning, no failure."""
    folder, _ = kit(tmp_path)
    assert "remark" not in checks(folder)[0]
    for split, n in (("train", 60), ("test", 40)):
        counting = "".join(f"{i},{i / 7},{i / 3},0.5,a\n" for i in range(n))
        (folder / f"{split}.csv").write_text("p,q,r,s,y\n" + counting)
    lines, _, code = preflight.run(folder)
    remarks = [line.text for line in lines if line.check == "remark"]
    terms = Federation.load(folder / "federation.toml").kit_terms
    assert (
        remarks == silo_scenario.own_scenario(SiloFile.load(folder / "silo.toml"), terms, 0).remarks
    )
    assert any("all rows are of class a" in text for text in remarks)
    assert {line.result for line in lines if line.check == "remark"} == {"warning"}
    assert next(line for line in lines if line.check == "data").result == "ok"
    # no server is there
    assert command("silo", "check", "--folder", str(folder)) == code == ProtocolError.code
    assert "warning  remark       all rows are of class a" in " ".join(
        capsys.readouterr().out.split("\n")
    )


@pytest.mark.parametrize(
    ("method", "phrase"),
    [
        ({"name": "ditto", "lambda": 20.0}, "lr x lambda = 2;"),  # lr 0.1
        ({"name": "pfedme", "lambda": 15.0, "personal_lr": 0.1}, "personal_lr x lambda = 1.5;"),
        ("fedbn", "no normalisation layer of mlp is trained"),
    ],
)
def test_what_a_simulation_says_first_a_silo_hears_too(tmp_path, method, phrase):
    folder, _ = kit(tmp_path, method=method)
    lines, _, _ = checks(folder)
    assert lines["remark"].result == "warning"
    assert phrase in lines["remark"].text
    assert lines["data"].result == "ok"


def test_words_get_the_agreed_numbers():
    task = Federation.from_tree(
        {
            "name": "t",
            "server": "127.0.0.1:1",
            "silo": [{"name": "a"}],
            "task": {
                "kind": "text",
                "input_shape": [3],
                "classes": ["x", "y"],
                "vocabulary": 5,
                "words": ["u", "v", "w"],
            },
        }
    ).study.task
    x = np.array([[2, 3, 0], [4, 1, 2]], np.int32)
    texts = Dataset(
        "t", "text", x, np.array([0, 1]), ("x", "y"), 2, vocabulary=5, words=("w", "new", "u")
    )
    # w is 4 by agreement, "new" is unknown (1), u is 2.
    assert kept_data.conformed(texts, task).x.tolist() == [[4, 1, 0], [2, 1, 4]]
    assert kept_data.conformed(texts, task).words == ("u", "v", "w")
    numbered = Dataset("t", "text", x + 3, np.array([0, 1]), ("x", "y"), 2, vocabulary=9)
    with pytest.raises(DataError, match="token 7"):
        kept_data.conformed(numbered, task)


def test_tokens_are_those_of_the_agreed_tokenizer():
    tokenizer = Tokenizer(file="{}", padding=0)
    keys = {
        "kind": "text",
        "input_shape": [3],
        "classes": ["x", "y"],
        "outputs": 2,
        "vocabulary": 9,
    }
    x, y = np.array([[7, 3, 0], [8, 1, 2]], np.int32), np.array([0, 1])
    texts = Dataset("t", "text", x, y, ("x", "y"), 2, vocabulary=9, tokenizer=tokenizer)
    task_of = of_files(texts)
    assert (task_of["tokenizer"], task_of["words"]) == (tokenizer.sha256, [])
    settings = TaskSettings.model_validate({**keys, "tokenizer": tokenizer.sha256})
    data_ = kept_data.conformed(texts, settings)
    assert (data_.x.tolist(), data_.tokenizer) == (x.tolist(), tokenizer)
    for task, data in (
        (settings, replace(texts, tokenizer=None)),
        (settings, replace(texts, tokenizer=Tokenizer(file="[]", padding=0))),
        (TaskSettings.model_validate(keys), texts),
    ):
        with pytest.raises(DataError, match=r"the tokenizer is .*set data\.tokenizer"):
            kept_data.conformed(data, task)


def test_an_agreement_that_was_changed_is_refused(tmp_path):
    folder, _ = kit(tmp_path)
    (folder / "state").mkdir()
    pin = folder / "state" / "agreement.json"
    agreement = Federation.load(folder / "federation.toml").agreement
    json_store.write_sealed(pin, PinnedAgreement(agreement=agreement))
    assert checks(folder)[0]["agreement"].result == "ok"
    json_store.write_sealed(pin, PinnedAgreement(agreement="0" * 64))
    lines, _, code = checks(folder)
    assert (lines["agreement"].result, code) == ("failed", ProtocolError.code)


def test_privacy_is_projected_and_held_against_what_the_silo_accepts(tmp_path):
    pytest.importorskip("opacus")
    acknowledged = ["sample-counts", "metrics", "feature-moments", "unlimited-epsilon"]
    privacy = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "delta": 1e-5,
        "acknowledge": acknowledged,
    }
    folder, _ = kit(tmp_path, privacy=privacy)
    lines, leaves, _ = checks(folder)
    assert lines["data"].result == "ok", lines["data"]
    terms = Federation.load(folder / "federation.toml").kit_terms
    scenario = silo_scenario.own_scenario(SiloFile.load(folder / "silo.toml"), terms, 0)
    assert f"{epsilons(scenario)[0]:.3g}" in leaves["epsilon"]
    (folder / "silo.toml").write_text("accept_epsilon = 0.001\n" + SILO)
    lines, _, _ = checks(folder)
    assert (lines["data"].result, lines["data"].code) == ("failed", 9)


def test_a_budget_that_ends_the_silos_rounds_early_is_a_remark(tmp_path):
    pytest.importorskip("opacus")
    acknowledged = ["sample-counts", "metrics", "feature-moments"]
    noise = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-5}
    privacy = {**noise, "acknowledge": acknowledged, "epsilon_budget": 0.5}
    folder, _ = kit(tmp_path, privacy=privacy)
    lines, _, _ = preflight.run(folder)
    remarks = [line.text for line in lines if "epsilon_budget is 0.5" in line.text]
    terms = Federation.load(folder / "federation.toml").kit_terms
    scenario = silo_scenario.own_scenario(SiloFile.load(folder / "silo.toml"), terms, 0)
    (remark,) = remarks
    assert f"epsilon {max(epsilons(scenario)):.3g}," in remark
    assert "absent" in remark


def test_certificates_must_be_valid_fit_and_be_the_authoritys(tmp_path):
    ca, twin = certificates.authority("a"), certificates.authority("a")
    pair = certificates.server(ca, ["localhost"])
    stranger = certificates.server(twin, ["localhost"])
    files = {
        "ca": ca.public,
        "crt": pair.public,
        "key": pair.private,
        "bad": stranger.public,
        "lock": stranger.private,
    }
    paths = {name: tmp_path / name for name in files}
    for name, content in files.items():
        paths[name].write_bytes(content)
    assert certificate(paths["crt"], paths["key"], paths["ca"]) > datetime.now(UTC)
    with pytest.raises(ConfigError, match="was not signed by"):
        certificate(paths["bad"], paths["lock"], paths["ca"])
    with pytest.raises(ConfigError, match="does not belong"):
        certificate(paths["crt"], paths["lock"], paths["ca"])
    with pytest.raises(ConfigError, match="cannot be used"):
        certificate(paths["key"], paths["key"], paths["ca"])
    assert valid(paths["ca"]) > datetime.now(UTC)
    for years in (-20, 20):
        issued = datetime.now(UTC) + years * timedelta(days=365)
        paths["ca"].write_bytes(certificates.authority("a", issued).public)
        with pytest.raises(ConfigError, match="is valid from"):
            valid(paths["ca"])


def visit(number, accuracy, info=None, split="test"):
    figures = {"samples": 40, "loss": 0.5, "accuracy": accuracy, "value": accuracy}
    score = {"model": "personal", "when": "trained", "split": split, **figures}
    progress = {"round": number, "trained": True, "settled": number - 1}
    counts = {"loss": 0.1, "bytes_down": 5, "bytes_up": 7}
    return {**progress, **counts, "scores": [score], "info": info or {}}


def visited(folder, *lines):
    (folder / "state").mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    # a kill cut the last one short
    (folder / "state" / "rounds.jsonl").write_text(text + '{"round": 9, "sco')


def test_the_report_names_who_helped_and_what_training_alone_reaches(tmp_path, capsys):
    folder, _ = kit(tmp_path, method="apple")
    visited(
        folder,
        visit(1, 0.5),
        visit(2, 0.75, {"dr": [0.25, 0.75, 0.0, 0.5], "alpha": 0.5}),
        visit(3, 0.99, split="validation"),
    )
    assert command("silo", "report", "--folder", str(folder), "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["own"]["round"], data["own"]["value"], data["metric"]) == (2, 0.75, "accuracy")
    assert data["alone"]["round"] == 2
    ((title, table),) = data["peers"]
    assert title == "Who listens to whom"
    assert [(row["silo"], row["value"]) for row in table] == [
        ("south", 0.75),
        ("place 3", 0.5),
        ("north (this silo)", 0.25),
    ]
    assert data["numbers"] == [["“alpha”", [0.5]]]  # not among the quantities that APPLE presents
    page = (folder / "state" / "report.md").read_text()
    assert "| south | 0.75 |" in page
    assert "75.00 %" in page
    assert str(tmp_path) not in page
    scores = folder / "state" / "node" / silo_report.LOCAL_SCORES
    scores.write_text(
        scores.read_text().replace(f'"value": {data["alone"]["value"]}', '"value": 0.125')
    )
    assert silo_report.report(folder)[0].alone["value"] == 0.125  # not computed again


def test_training_alone_is_the_method_separate_on_the_own_data(tmp_path):
    from pomona.methods.personal_regularisation.separate import Separate
    from pomona.simulation import simulate

    folder, _ = kit(tmp_path)
    visited(folder, visit(3, 0.5))
    scenario = silo_scenario.own_scenario(
        SiloFile.load(folder / "silo.toml"),
        Federation.load(folder / "federation.toml").kit_terms,
        0,
        Separate(),
    )
    assert scenario.config.rounds == 3
    last = simulate(scenario).curve("personal", "trained")[-1]
    baseline = silo_report.report(folder)[0].alone
    assert (baseline["loss"], baseline["accuracy"]) == (last.loss[0], last.accuracy[0])


def test_training_alone_is_not_set_beside_a_study_on_other_rows(tmp_path):
    """After rows have been added to the data of a study that is over."""
    folder, _ = kit(tmp_path)
    visited(folder, visit(3, 0.5))
    assert silo_report.report(folder)[0].alone  # stored, and not to be taken for the others'
    agreement = Federation.load(folder / "federation.toml").agreement
    pinned = PinnedAgreement(agreement=agreement, rows="0" * 64)
    json_store.write_sealed(folder / "state" / "agreement.json", pinned)
    report = silo_report.report(folder)[0]
    assert report.alone is None
    assert silo_report.OTHER_ROWS in report.markdown()
    assert silo_report.NO_GAIN not in report.markdown()


def test_training_alone_needs_no_sum_over_other_silos(tmp_path):
    sums = {"max_norm": 10.0, "minimum": 2}
    folder, _ = kit(tmp_path, method="fedavg", secure_aggregation=sums)
    visited(folder, visit(3, 0.5))
    assert silo_report.report(folder)[0].alone["round"] == 3


def test_the_closing_visit_is_no_further_round(tmp_path):
    """Of 3 rounds; the visit that evaluates after the last of them has the number 4."""
    folder, _ = kit(tmp_path)
    visited(folder, visit(3, 0.5), visit(4, 0.75))
    report = silo_report.report(folder)[0]
    assert (report.own["value"], report.own["round"], report.alone["round"]) == (0.75, 3, 3)


def test_a_report_states_no_gain_without_an_interval(tmp_path, capsys):
    """30 test rows: a gain of one patient is not told from none."""
    folder, _ = kit(tmp_path)
    visited(folder, visit(2, 0.25))
    assert command("silo", "report", "--folder", str(folder)) == 0
    assert "no gain is stated" in capsys.readouterr().out
    assert f"- {silo_report.NO_GAIN}" in (folder / "state" / "report.md").read_text()
    assert command("silo", "report", "--folder", str(folder), "--json") == 0
    assert "gain" not in json.loads(capsys.readouterr().out)


def test_the_report_speaks_of_the_metric_that_was_agreed_on(tmp_path, capsys):
    folder, _ = kit(tmp_path)
    terms = folder / "federation.toml"
    terms.write_text(terms.read_text().replace("lr = 0.1", 'lr = 0.1\nmetric = "brier"'))
    visited(folder, visit(2, 0.25))
    assert command("silo", "report", "--folder", str(folder)) == 0
    output = capsys.readouterr().out
    assert "- Brier score 0.25" in output


def test_a_metric_that_does_not_fit_the_task_is_no_agreement(tmp_path):
    folder, _ = kit(tmp_path)
    terms = folder / "federation.toml"
    terms.write_text(terms.read_text().replace("lr = 0.1", 'lr = 0.1\nmetric = "r2"'))
    with pytest.raises(
        ConfigError, match="section run: metric = 'r2', but the targets are classes"
    ):
        Federation.load(terms)


def test_without_a_visit_there_is_nothing_to_report(tmp_path):
    folder, _ = kit(tmp_path)
    with pytest.raises(DataError, match="no model has been evaluated"):
        silo_report.report(folder)[0]
    visited(folder)
    (folder / "state" / "rounds.jsonl").write_text("nonsense\n")
    with pytest.raises(DataError, match="no model has been evaluated"):
        silo_report.report(folder)[0]


def test_a_silo_knows_how_it_stands(tmp_path, capsys):
    folder, _ = kit(tmp_path)
    assert status.silo(folder)["state"] == "never started"
    visited(folder, visit(1, 0.5), visit(2, 0.5))
    (folder / "state" / "node").mkdir()
    (folder / "state" / "node" / "node.json").write_text(
        '{"state": "connected", "since": "x", "restarts": 2}'
    )
    s = status.silo(folder)
    assert (s["state"], s["restarts"], s["round"], s["bytes_down"], s["bytes_up"]) == (
        "killed",
        2,
        2,
        10,
        14,
    )
    assert command("silo", "status", "--folder", str(folder)) == 0
    assert "round     2 of 3" in capsys.readouterr().out
    assert command("silo", "stop", "--folder", str(folder)) == StorageError.code


def server_kit(tmp_path):
    north, ca = kit(tmp_path)
    folder = tmp_path / "server"
    for name in ("certs", "keys"):
        (folder / name).mkdir(parents=True)
    (folder / "certs" / "ca.crt").write_bytes(ca.public)
    (folder / "certs" / "server.crt").write_bytes(certificates.server(ca, ["127.0.0.1"]).public)
    for name in ("north", "south"):
        (folder / "keys" / f"{name}.pub").write_bytes(
            (north / "keys" / "peers" / f"{name}.pub").read_bytes()
        )
    (folder / "federation.toml").write_bytes((north / "federation.toml").read_bytes())
    return folder, ca


def test_a_server_knows_how_its_silos_stand(tmp_path, capsys):
    folder, _ = server_kit(tmp_path)
    s = status.server(folder)
    assert (s["state"], s["round"], [row["state"] for row in s["silos"]]) == (
        "never started",
        0,
        ["not seen yet"] * 2,
    )
    assert not (folder / "run").exists(), "looking changes nothing"
    (folder / "run").mkdir()
    live = {"round": 2, "present": ["north"], "seconds": 1.5}
    south = {"silo": "south", "round": 2, "reason": "values", "detail": "non-finite"}
    live["unused"] = {"south": south}
    (folder / "run" / "live.json").write_text(
        json.dumps({**live, "bytes_down": 10, "bytes_up": 20})
    )
    (folder / "run" / "status.json").write_text('{"state": "running", "round": 2, "time": 1}')
    s = status.server(folder)
    assert s["state"].startswith("killed")
    assert [(row["state"], row["unused"] and row["unused"]["reason"]) for row in s["silos"]] == [
        ("present", None),
        ("rejected", "values"),
    ]
    assert command("server", "status", "--folder", str(folder)) == 0
    output = capsys.readouterr().out
    assert "round 2 of 3" in output
    assert "non-finite" in output


def test_silos_are_added_with_the_authoritys_word_and_revoked(tmp_path, capsys):
    folder, ca = server_kit(tmp_path)
    assert sorted(registry_admin.members(folder)) == ["north", "south"]
    new, file = keys.silo(), tmp_path / "east.pub"
    file.write_bytes(new.public)
    arguments = ["server", "add", "east", "--key", str(file), "--folder", str(folder)]
    assert command(*arguments) == ConfigError.code
    assert "east.cert" in capsys.readouterr().err
    certificate_file = tmp_path / "east.cert"
    certificate_file.write_bytes(keys.certify(ca, "try", "west", new.public))
    with pytest.raises(ProtocolError, match="not certified"):
        registry_admin.admit(folder, "east", file)
    certificate_file.write_bytes(keys.certify(ca, "try", "east", new.public))
    assert command(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"silo": "east", "place": 2, "reopened": []}
    assert sorted(registry_admin.members(folder)) == ["east", "north", "south"]
    assert command("server", "revoke", "south", "--folder", str(folder)) == 0
    assert "cannot be undone" in capsys.readouterr().out
    assert sorted(registry_admin.members(folder)) == ["east", "north"]
    assert [row["state"] for row in status.server(folder)["silos"]] == [
        "not seen yet",
        "revoked",
        "not seen yet",
    ]
    for name in ("south", "nobody"):
        with pytest.raises(ConfigError):
            registry_admin.dismiss(folder, name)
    with pytest.raises(ConfigError, match="give the public key"):
        registry_admin.admit(folder, "west", None)


def test_a_book_of_an_older_version_is_refused_in_one_line(tmp_path):
    folder, _ = server_kit(tmp_path)
    (folder / "run").mkdir()
    entry = {"name": "east", "key": keys.silo().public.decode().strip(), "certificate": "3066" * 25}
    (folder / "run" / "roster.json").write_text(json.dumps({"settled": 0, "silos": [entry]}))
    with pytest.raises(
        StorageError, match=r"roster\.json cannot be read .*provision .* again"
    ) as refused:
        registry_admin.entries(folder)
    assert "\n" not in str(refused.value)


def test_the_audit_command_verifies(tmp_path, capsys):
    from pomona_federation.audit_log import Audit

    folder, _ = server_kit(tmp_path)
    (folder / "run").mkdir()
    path = folder / "run" / "audit.jsonl"
    with Audit(path) as audit:
        audit.write("registered", silo="north")
    arguments = ["server", "audit", "--folder", str(folder)]
    assert command(*arguments) == 0
    assert "silo=north" in capsys.readouterr().out
    assert command(*arguments, "--verify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["whole"] is True
    path.write_bytes(path.read_bytes().replace(b"north", b"south"))
    assert command(*arguments, "--verify") == ConfigError.code


def test_check_prints_a_line_each_and_ends_with_the_worst_code(tmp_path, capsys):
    folder, _ = kit(tmp_path)
    assert command("silo", "check", "--folder", str(folder)) == 10
    output = capsys.readouterr().out
    assert output.count("\nok ") + output.startswith("ok ") == 12
    assert "What would leave this silo" in output
    assert command("silo", "check", "--folder", str(folder), "--json") == 10
    assert json.loads(capsys.readouterr().out)["code"] == 10


def test_a_silos_status_refuses_a_servers_kit(tmp_path, capsys):
    folder, _ = server_kit(tmp_path)
    (folder / "run").mkdir()
    assert command("silo", "status", "--folder", str(folder)) == 2
    assert "kit of a server" in capsys.readouterr().err


def test_an_address_with_a_scheme_is_refused_by_that():
    with pytest.raises(ValueError, match="without https://"):
        Address.parse("https://fl.example.org:8443")


def test_a_silos_threads_are_those_that_it_says(tmp_path):
    folder, _ = kit(tmp_path)
    thread_count = torch.get_num_threads()
    try:
        for line, threads in (("threads = 2\n", 2), ("", 1)):
            (folder / "silo.toml").write_text(line + SILO)
            handled(folder, Message("none", "{}", ""))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(thread_count)
    (folder / "silo.toml").write_text("threads = 0\n" + SILO)
    assert checks(folder)[0]["settings"].result == "failed"
