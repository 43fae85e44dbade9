"""The card beside each personal model: it agrees with the record, is reproducible to the byte, and
may be edited.
"""

import hashlib
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml

import pomona
from command_line import command
from pomona import Config
from pomona.data.dataset import Dataset
from pomona.federation.callbacks import StopAfter
from pomona.personal.model_card import (
    MAX_NAMES,
    PEOPLE,
    Card,
    figures,
    harmless,
    outputs,
    relationships,
    sample_counts,
    write,
    write_of_export,
)
from pomona.record.presentation import Presentation, Quantity
from pomona.scenario import Scenario
from problems import Notes

pytestmark = pytest.mark.long


def config(**keys):
    return Config(**{"method": "apple", "clients": 3, "rounds": 2, "lr": 0.1, "workers": 1, **keys})


def card(folder, client=0):
    return (folder / "models" / f"client-{client:02d}.card.md").read_text()


def cards(folder):
    return {path.name: path.read_bytes() for path in folder.glob("models/*.card.md")}


def section(text, heading):
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]


def table(text):
    """Cells after the first of each row, by the first."""
    rows = [
        line.strip("| ").split(" | ")
        for line in text.splitlines()
        if line.startswith("| ") and " --- " not in line
    ]
    return {row[0]: row[1:] for row in rows if len(row) > 1}


def test_a_card_says_what_the_record_says(tmp_path):
    result = pomona.run(config(model={"name": "small", "train": "head"}), tmp_path / "run")
    for i in range(3):
        text = card(tmp_path / "run", i)
        samples = {
            split: int(cells[0])
            for split, cells in table(section(text, "Data")).items()
            if split != "part"
        }
        assert samples == {split: sizes[i] for split, sizes in result.about["sizes"].items()}
        (final,) = (
            f
            for f in result.final
            if (f["model"], f["when"], f["split"], f["client"])
            == ("personal", "trained", "test", i)
        )
        figures = table(section(text, "Metrics on test"))
        assert figures["accuracy in %"][0] == f"{100 * final['accuracy']:.2f}"
        bounds = final["intervals"]["macro_f1"]
        assert figures["macro F1 in %"][1:] == [
            " to ".join(f"{100 * bound:.2f}" for bound in bounds),
            "higher",
        ]
        assert figures["Brier score"][2] == "lower"
        assert "| training | 2 of 2 rounds, 1 epoch a round" in text
        assert (
            "(personal, after local training) on the client's own test samples, after round 2."
            in text
        )
        weights = table(section(text, "Whom it learnt from"))
        _, matrix = result.matrices("dr")[-1]
        assert {
            f"client {j}": [f"{w:.4g}"] for j, w in enumerate(matrix[i])
        }.items() <= weights.items()
        hashes = {
            file: cells[0].strip("`") for file, cells in table(section(text, "Hashes")).items()
        }
        path = tmp_path / "run" / "models" / f"client-{i:02d}.safetensors"
        assert hashes["this model's file"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert hashes["its frozen part, in a separate file"] == result.about["frozen"]["sha256"]
        assert hashes["the data"] == result.about["data"]["fingerprint"]
        assert hashes["who holds which rows"] == result.about["partition_sha256"]


def test_an_exports_card_names_the_exported_file_and_its_model(tmp_path):
    pomona.run(config(method="fedavg", rounds=1), tmp_path / "run")
    model = tmp_path / "run" / "models" / "client-00.safetensors"
    exported = tmp_path / "for_others.pt2"
    export = ["export", tmp_path / "run", "--client", "0", "--to", "pt2", "--out", exported]
    assert command(*export) == 0
    path = tmp_path / "for_others.pt2.card.md"
    text, of_model = path.read_text(), card(tmp_path / "run")
    rows, hashes = table(text), table(section(text, "Hashes"))
    assert rows["file"] == ["for\\_others.pt2"]
    assert rows["exported from"] == [model.name]
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (exported, model)]
    assert hashes["the exported file"] == [f"`{digests[0]}`"]
    assert hashes["the file that it was exported from"] == [f"`{digests[1]}`"]
    assert section(text, "Metrics on test") == section(of_model, "Metrics on test")
    path.write_text(text.replace("To be filled in", "For screening"))
    assert command(*export) == 0
    assert "For screening" in path.read_text()


def test_the_card_of_an_earlier_round_is_not_an_exports(tmp_path):
    model, exported = tmp_path / "personal.safetensors", tmp_path / "personal.onnx"
    for path in (model, exported):
        path.write_bytes(b"a later round")
    assert write_of_export(model, exported) is None
    (tmp_path / "personal.card.md").write_text("| this model's file | `0` |")
    assert write_of_export(model, exported) is None


@pytest.mark.parametrize(
    ("rows", "remark", "has_intervals"),
    [(1, "", True), (3, "samples of a group", True), (40, "No intervals", False)],
)
def test_a_card_says_what_intervals_of_rows_of_one_patient_are(
    tmp_path, rows, remark, has_intervals
):
    table = tmp_path / "rows.csv"
    lines = [f"{k % 7 / 7},{k % 2},p{k // rows},{k // 3 % 2}" for k in range(120)]
    table.write_text("\n".join(["x,y,patient,site", *lines]))
    data = {"name": "table", "path": table, "label_column": "y", "client_column": "site"}
    data |= {"group_column": "patient", "test_share": 0.5}
    pomona.run(
        config(method="fedavg", rounds=1, clients=2, data=data, partition="natural"),
        tmp_path / "run",
    )
    text = section(card(tmp_path / "run"), "Metrics on test")
    assert remark in text
    assert (" to " in text) == has_intervals


def test_a_card_begins_with_what_the_hugging_face_hub_reads(tmp_path):
    pomona.run(config(method="fedavg", rounds=1), tmp_path / "run")
    empty, header, body = card(tmp_path / "run").split("---\n", 2)
    assert empty == ""
    assert yaml.safe_load(header) == {
        "library_name": "pomona",
        "tags": ["federated-learning", "personalized-federated-learning"],
    }
    assert body.startswith("\n# Model card: client 0\n")


def test_the_round_is_that_of_the_evaluation(tmp_path):
    """FedAvg is judged by what was received, whose last round is the run's."""
    result = pomona.run(config(method="fedavg", eval_every=2, rounds=3), tmp_path / "run")
    assert result.about["headline"] == ["global", "received"]
    assert (
        "(global, as received, before local training) on the client's own test samples, after "
        "round 3."
    ) in card(tmp_path / "run")


def test_whom_it_learnt_from_in_words(tmp_path):
    pomona.run(config(method="fedavg", rounds=1), tmp_path / "averaged")
    pomona.run(config(method="separate", rounds=1), tmp_path / "alone")
    averaged, separate = (
        section(card(tmp_path / name), "Whom it learnt from") for name in ("averaged", "alone")
    )
    assert "Models of these took part: client 0, client 1, client 2." in averaged
    assert separate.strip() == "None: no model was sent to any client."


def test_a_client_without_test_samples_has_no_figures(tmp_path):
    np.savez(
        tmp_path / "own.npz",
        x=np.random.default_rng(0).random((40, 3), np.float32),
        y=np.arange(40) % 2,
    )
    common = {
        "data": {"name": "arrays", "path": tmp_path / "own.npz"},
        "lr": 0.1,
        "workers": 1,
        "rounds": 1,
    }
    partition = Scenario.prepare(Config(clients=2, **common)).partition
    untested = replace(partition.clients[0], test=partition.clients[0].test[:0])
    partition = replace(partition, clients=(untested, partition.clients[1]))
    (tmp_path / "cut.json").write_text(partition.text())
    pomona.run(
        Config(method="ditto", partition={"name": "file", "path": tmp_path / "cut.json"}, **common),
        tmp_path / "run",
    )
    metrics = section(card(tmp_path / "run"), "Metrics on test")
    assert metrics.strip() == "Not measured: this client has no test samples."
    assert "accuracy in %" in table(section(card(tmp_path / "run", 1), "Metrics on test"))


def test_a_resumed_run_and_workers_write_the_same_bytes(tmp_path):
    pomona.run(config(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        pomona.run(config(), tmp_path / "parts", StopAfter(2, committed=False))
    pomona.run(config(), tmp_path / "parts", resume=True)
    pomona.run(config(workers=2), tmp_path / "workers")
    assert len(cards(tmp_path / "whole")) == 3
    assert cards(tmp_path / "parts") == cards(tmp_path / "whole") == cards(tmp_path / "workers")


def test_what_people_write_stays_and_is_no_change_of_the_run(tmp_path):
    folder = tmp_path / "run"
    pomona.run(config(), folder)
    path = folder / "models" / "client-00.card.md"
    text = path.read_text()
    path.write_text(
        text.partition("## Intended use")[0] + "## Intended use\n\nTriage, beside a doctor.\n"
    )
    pomona.run(config(), folder, callback=(notes := Notes()), resume=True)
    assert any("is finished; nothing to do" in note for note in notes.said)
    pomona.run(config(rounds=3), folder, resume=True)
    assert "after round 3" in card(folder)
    assert card(folder).endswith("## Intended use\n\nTriage, beside a doctor.\n")
    assert card(folder, 1).endswith("|\n\n" + PEOPLE)  # a heading after an empty line


@pytest.mark.parametrize(
    "written",
    [
        "## Intended use\n\nFür Zürich.\n".encode("cp1252"),
        b"## Intended use \r\n\r\nTriage.\r\n",
        b"## Intended use\n" + b"x" * 2**20,
    ],
    ids=["cp1252", "trailing blank", "long"],
)
def test_what_people_write_stays_byte_for_byte(written, tmp_path):
    path = tmp_path / "client-00.card.md"
    path.write_bytes(b"# Model card: of before\n\n" + written)
    write(Card("of now", [], [], "", [], "", "", [], []), path.with_name("client-00.safetensors"))
    header, tail = path.read_bytes()[: -len(written)], path.read_bytes()[-len(written) :]
    assert tail == written
    assert b"# Model card: of now\n" in header
    assert b"of before" not in header
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_card_without_the_heading_is_kept_beside_the_new_one(tmp_path):
    path = tmp_path / "client-00.card.md"
    for k, old in enumerate(["no heading", "none again"], start=1):
        path.write_text(old)
        write(
            Card("of now", [], [], "", [], "", "", [], []), path.with_name("client-00.safetensors")
        )
        assert path.read_text().endswith(PEOPLE)
        assert (tmp_path / f"client-00.card.md.{k}").read_text() == old
    os.mkfifo(pipe := tmp_path / "other.card.md")
    write(Card("of now", [], [], "", [], "", "", [], []), tmp_path / "other.safetensors")
    assert pipe.read_text().endswith(PEOPLE)


def test_epsilon_is_that_of_the_summary(tmp_path):
    pytest.importorskip("opacus")
    privacy = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "delta": 1e-3,
        "acknowledge": ["metrics", "sample-counts", "feature-moments", "unlimited-epsilon"],
    }
    result = pomona.run(config(method="fedavg", rounds=1, privacy=privacy), tmp_path / "private")
    pomona.run(config(method="fedavg", rounds=1), tmp_path / "open")
    for i, epsilon in enumerate(result.summary["privacy"]["clients"]):
        text = section(card(tmp_path / "private", i), "Privacy").strip()
        assert text == f"epsilon {epsilon:.4g} at delta 0.001, for one sample of this client."
    assert (
        section(card(tmp_path / "open"), "Privacy").strip()
        == "None: what this client sent had no noise."
    )


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("Bergen", "Bergen"),
        ("a | b", r"a \| b"),
        ("x\n## Limits\nnone", r"x \#\# Limits none"),
        ("<script>", r"\<script\>"),
        ("[here](http://x)", r"\[here\](http://x)"),
        ("\x1b[31m`rm`", r"\[31m\`rm\`"),
        ("é" * 900, "é" * 497 + "..."),
    ],
)
def test_names_of_others_are_one_line_in_which_no_markdown_counts(name, escaped):
    assert harmless(name) == escaped


def test_only_quantities_with_a_weight_for_each_client_are_relationships():
    quantities = (
        Quantity("dr", "matrix", "Who listens", "p", "m"),
        Quantity("epochs", "epochs", "Learning", "e", "m"),
    )
    presentation = Presentation("M", quantities=quantities)
    names = ["a", "b", "c"]
    info = {"dr": [0.5, 0.2, 0.3], "epochs": [1.0, 2.0, 3.0], "norm": [4.0]}
    assert relationships(info, names, presentation) == {
        "Who listens": [("a", 0.5), ("b", 0.2), ("c", 0.3)]
    }


def test_the_largest_weights_are_shown_of_many_clients(tmp_path):
    pomona.run(config(clients=MAX_NAMES + 2, rounds=1), tmp_path / "run")
    names = [
        name
        for name in table(section(card(tmp_path / "run", 21), "Whom it learnt from"))
        if "client" in name
    ]
    assert len(names) == MAX_NAMES
    # its own weight is the largest: half, and the others share the rest
    assert "client 21" in names


def test_a_card_of_a_model_of_an_earlier_round_says_what_was_measured(tmp_path):
    for policy, subject in (("best", "this model"), ("own_best", "the last round's model")):
        pomona.run(config(keep=policy), tmp_path / policy)
        metrics = section(card(tmp_path / policy), "Metrics on test")
        assert metrics.strip().startswith(f"Of {subject} (personal, after local training)")
        assert (r"keep = own\_best." in metrics or "keep = own_best." in metrics) == (
            policy == "own_best"
        ), metrics


def table_of(y, **fields):
    x, classes = np.zeros((len(y), 1)), fields.pop("classes", ())
    return Dataset("own", "table", x, np.array(y), classes, len(y), **fields)


@pytest.mark.parametrize(
    ("targets", "data", "described", "counts"),
    [
        (
            "classes",
            table_of([0, 1, 1, 1], classes=("no", "yes")),
            "no, yes; the outcome is yes: AUPRC is of it",
            "no 1, yes 2",
        ),
        (
            "multilabel",
            table_of([[0, 1], [1, 1], [0, 1], [1, 0]], labels=("a", "b")),
            "a, b",
            "a 1, b 3",
        ),
        (
            "survival",
            table_of([[2.0, 1.0], [3.0, 0.0], [5.0, 1.0], [6.0, 1.0]], edges=(2.5, 6.0)),
            "intervals of time that end at 2.5, 6, in the unit of the data",
            "events 2",
        ),
        ("regression", table_of([[0.5], [1.5], [2.5], [3.5]], labels=("dose",)), "dose", ""),
    ],
)
def test_what_the_samples_are(targets, data, described, counts):
    rows = np.array([0, 1, 2])
    assert outputs(data, targets) == described
    assert sample_counts(data, targets, rows) == ("3", counts)


def test_a_figure_that_is_no_metric_keeps_its_name_and_one_without_interval_has_none():
    measured = {
        "events": 1234,
        "auroc": None,
        "ece": 0.125,
        "intervals": {"auroc": None},
        "confusion": [[1]],
        "client": 3,
    }
    assert figures(measured) == [
        ("events", "1,234", "", ""),
        ("AUROC", "not defined", "", "higher"),
        ("calibration error in %", "12.50", "", "lower"),
    ]


def test_a_run_that_stopped_early_says_how_many_rounds_it_had(tmp_path):
    result = pomona.run(config(rounds=6, stop={"patience": 1, "min_gain": 1.0}), tmp_path / "run")
    assert len(result.rounds) < 6
    assert f"| training | {len(result.rounds)} of 6 rounds," in card(tmp_path / "run")
