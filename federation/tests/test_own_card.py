"""The card beside a silo's personal model: simulator's figures, agreement's hash, and the weights
it gave others.
"""

import hashlib
import tomllib

import pytest
from safetensors.torch import load_file

from command_line import command
from federation_in_process import APPLE
from pomona.record.run_folder import load
from pomona_federation.agreement import Federation
from pomona_federation.provision.provision import provision


def card(federation, name):
    return (federation.kits / name / "state" / "models" / "personal.card.md").read_text()


def body(text, first, last):
    return text.partition(f"## {first}\n")[2].partition(f"## {last}\n")[0]


@pytest.mark.long
def test_a_silos_card_has_the_figures_and_weights_of_the_simulation(world, capsys):
    federation = world.federation(APPLE)
    federation.run()
    world.simulated(federation)
    simulation = world.folder / "simulation"
    agreement = Federation.load(federation.toml).agreement
    title = load(simulation).presentation.quantities[0].title
    for i, name in enumerate(federation.names):
        ours = card(federation, name)
        page = (simulation / "models" / f"client-{i:02d}.card.md").read_text()
        assert body(ours, "Metrics on test", "Privacy") == body(page, "Metrics on test", "Privacy")
        assert "." in body(ours, "Metrics on test", "Privacy").partition("| accuracy in % |")[2]
        weights = [text.partition(title)[2].partition("## Hashes")[0] for text in (ours, page)]
        assert name in weights[0]
        # The simulation ends with its clients; free places of the federation have weight 0.
        for line in weights[1].splitlines():
            assert line.replace(f"client {i} ", f"{name} ") in weights[0] or not line.startswith(
                "| client"
            ), line
        model = federation.kits / name / "state" / "models" / "personal.safetensors"
        assert f"`{hashlib.sha256(model.read_bytes()).hexdigest()}`" in ours
        assert f"| the agreement of the federation | `{agreement}` |" in ours
    kit = federation.kits / federation.names[0]
    assert command("silo", "export", "--to", "safetensors", "--folder", kit) == 0
    exports = kit / "state" / "models" / "exports"
    assert command("export", simulation, "--client", "0", "--to", "safetensors") == 0
    ours = load_file(exports / "personal.safetensors")
    theirs = load_file(simulation / "exports" / "client-00.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)
    text = (exports / "personal.safetensors.card.md").read_text()
    digest = hashlib.sha256((exports / "personal.safetensors").read_bytes()).hexdigest()
    assert f"| the exported file | `{digest}` |" in text
    measured = body(text, "Metrics on test", "Hashes")
    assert measured == body(card(federation, federation.names[0]), "Metrics on test", "Hashes")
    (kit / "data" / "train.npz").unlink()
    assert command("silo", "export", "--to", "safetensors", "--folder", kit) == 0, "needs no rows"
    capsys.readouterr()
    assert command("silo", "report", "--folder", kit) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_without_a_model_there_is_nothing_to_export(tmp_path, capsys):
    path = tmp_path / "federation.toml"
    path.write_text('name = "one"\nserver = "127.0.0.1:8443"\n[[silo]]\nname = "north"\n')
    provision(path, tmp_path / "kits")
    kit = tmp_path / "kits" / "north"
    assert command("silo", "export", "--to", "onnx", "--folder", kit) == 2
    assert "first round of the study" in capsys.readouterr().err


@pytest.mark.long
def test_between_rounds_a_card_has_the_scores_of_its_round(world):
    """The last of the training visits wrote it, if no closing visit came."""
    federation = world.federation(APPLE)
    silo = federation.kits / "silo-0"
    cards = []
    answer = federation.grid.push_messages

    def pushed(messages):
        tickets = answer(messages)
        path = silo / "state" / "models" / "personal.card.md"
        cards.append(path.read_text() if path.exists() else "")
        return tickets

    federation.grid.push_messages = pushed
    federation.run()
    rounds = tomllib.loads(federation.toml.read_text())["run"]["rounds"]
    final = [text for text in cards if "| Brier score |" in text]
    scores = [text for text in cards if text and "| Brier score |" not in text]
    assert final
    assert scores
    for text in scores:
        figures = body(text, "Metrics on test", "Privacy")
        assert "| accuracy in % |" in figures
        assert "Intervals come with the last round." in figures
        assert " to " not in figures
    assert f"after round {rounds}." in cards[-1]
