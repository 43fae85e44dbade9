"""``contents``: which files of a kit are kept, secret, the kit's or the owner's; links; the
documented way to end.
"""

import json
import os
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from pomona.cli import main
from pomona.core.errors import ConfigError, StorageError
from pomona_federation.installation.contents import RULES, contents, require_kit, rule

RECORDS = {
    "federation.toml",
    "state/audit.jsonl",
    "state/models/personal.card.md",
    "state/models/personal.safetensors",
    "state/private/dp/client-00/ledger.jsonl",
    "state/report.md",
    "state/disclosed/0123456789abcdef.json",
}
SECRET = {
    "keys/silo.key",
    "silo.toml",
    "state/cache/00ff",
    "state/checkpoints/round-000001-aa.safetensors",
    "state/logs/app.log",
    "state/private/dp/client-00/key",
    "state/rounds.jsonl",
}
PLAIN = {
    ".dockerignore",
    "Dockerfile",
    "README.md",
    "app.sha256",
    "certs/ca.crt",
    "compose.yaml",
    "keys/peers/north.pub",
    "keys/silo.pub",
    "pomona-silo-try.service",
    "start.sh",
    "wheels/README.txt",
}
FOREIGN = {"clinic.py", "data/train.csv", "notes/of a person.txt"}


@pytest.fixture
def kit(tmp_path):
    """A silo's kit with a file of each kind; each contains its own path."""
    folder = tmp_path / "north"
    for name in RECORDS | SECRET | PLAIN | FOREIGN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def paths_by_kind(folder, role="silo"):
    paths = {}
    for item in contents(folder):
        paths.setdefault(item.rule.kind, set()).add(str(item.path))
    return paths


def printed(capsys, *arguments):
    with pytest.raises(SystemExit, match="0"):
        main(list(map(str, arguments)))
    return capsys.readouterr().out


def test_each_file_has_its_kind(kit):
    assert paths_by_kind(kit) == {"keep": RECORDS, "secret": SECRET, "kit": PLAIN, "own": FOREIGN}


def test_the_command_shows_what_to_keep_and_what_is_secret(kit, capsys):
    (kit / "state/report.md").unlink()
    table = printed(capsys, "silo", "contents", "--folder", kit)
    assert "privacy ledger" in table
    assert "there is no report yet" in table
    listing = json.loads(printed(capsys, "silo", "contents", "--folder", kit, "--json"))
    assert {row["kind"] for row in listing["contents"]} == {"keep", "secret", "kit", "own"}
    assert printed(capsys, "silo", "contents", "--folder", kit, "--paths", "secret").split("\n")[
        :-1
    ] == sorted(SECRET)


def test_a_kit_ends_as_its_readme_says(kit, capsys, tmp_path):
    """The lines of the kit's own README: what is kept is archived, secrets are overwritten and
    removed.
    """
    readme = Path(__file__).parents[1] / "src/pomona_federation/provision/templates/silo.md.jinja"
    for line in (line for line in readme.read_text().splitlines() if " --paths " in line):
        command, _, shell_command = line.strip().partition(" | ")
        paths = printed(capsys, *command.replace("--folder .", f"--folder {kit}").split()[1:])
        subprocess.run(shell_command, shell=True, cwd=kit, input=paths, text=True, check=True)
    left = {str(path.relative_to(kit)) for path in kit.rglob("*") if path.is_file()}
    assert left == RECORDS | PLAIN | FOREIGN
    archived = subprocess.run(
        ["tar", "tf", tmp_path / "kept.tar"], capture_output=True, text=True, check=True
    )
    assert set(archived.stdout.split()) == RECORDS


def test_links_and_second_names_are_no_paths_to_overwrite(kit, tmp_path, capsys):
    (tmp_path / "outside").write_text("another's")
    (kit / "state/link").symlink_to(tmp_path / "outside")
    (kit / "keys/silo.key").unlink()
    os.link(tmp_path / "outside", kit / "keys/silo.key")
    listing = printed(capsys, "silo", "contents", "--folder", kit, "--json")
    assert any("keys/silo.key" in line for line in json.loads(listing)["notes"])
    paths = set(printed(capsys, "silo", "contents", "--folder", kit, "--paths", "secret").split())
    assert paths == SECRET - {"keys/silo.key"}


def test_a_file_that_goes_while_the_kit_is_listed_is_left_out(kit, monkeypatch):
    real_stat, removed_file = os.stat, kit / "state/cache/00ff"

    def removing(path, **options):
        if path == removed_file.name:
            removed_file.unlink()
        return real_stat(path, **options)

    monkeypatch.setattr(os, "stat", removing)
    assert paths_by_kind(kit)["secret"] == SECRET - {"state/cache/00ff"}


@pytest.mark.parametrize("name", ["state", "keys"])
def test_a_kits_folder_that_is_a_link_is_refused(kit, tmp_path, name):
    (kit / name).rename(tmp_path / "outside")
    (kit / name).symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="symbolic link"):
        contents(kit)


def test_a_folder_that_is_no_kit_is_refused(kit, tmp_path):
    (tmp_path / "state").mkdir()
    with pytest.raises(ConfigError, match="is not a kit"):
        require_kit(tmp_path, "silo")
    with pytest.raises(ConfigError, match="kit of a silo"):
        require_kit(kit, "server")


@pytest.mark.parametrize(
    "name", ["survey.html", "survey.json", "task.toml", "evaluation.csv", "search.md", "STUDY.toml"]
)
def test_a_server_keeps_what_studies_without_a_model_have_found(name):
    path = PurePosixPath("run/studies/look", name)
    assert rule(path, RULES["server"]).kind == "keep"
    assert (
        rule(
            path.parent / "trials/000/checkpoints/round-000001-aa.safetensors", RULES["server"]
        ).kind
        == "secret"
    )


@pytest.mark.parametrize("name", ["cache", "logs", "checkpoints", "report", "study", "trials"])
def test_what_a_study_keeps_has_its_kind_whatever_the_study_is_called(name):
    for folder in ("run", f"run/studies/{name}", f"run/studies/{name}/trials/000"):
        for file, kind in (
            ("study.json", "keep"),
            ("report.html", "keep"),
            ("checkpoints/round-000001-aa.safetensors", "secret"),
            ("logs/server.log", "secret"),
            ("flwr/config.toml", "secret"),
            ("asked", "secret"),
        ):
            assert rule(PurePosixPath(folder, file), RULES["server"]).kind == kind, (folder, file)


@pytest.mark.long
def test_real_kits_keep_records_and_models_while_keys_and_rows_are_secret(world):
    federation = world.federation()
    federation.run()
    require_kit(federation.server, "server")
    names = (
        "audit.jsonl",
        "clients.csv",
        "config.toml",
        "events.jsonl",
        "roster.json",
        "rounds.csv",
        "summary.json",
    )
    record = {f"run/{name}" for name in names} | {"federation.toml"}
    server = paths_by_kind(federation.server, "server")
    assert server["keep"] == record | {
        f"keys/silo-{i}.{suffix}" for i in range(3) for suffix in ("pub", "cert")
    }
    assert any(name.startswith("run/checkpoints/") for name in server["secret"])
    silo = paths_by_kind(federation.kits / "silo-0")
    names = (
        "audit.jsonl",
        "private/budget.json",
        "models/personal.card.md",
        "models/personal.safetensors",
    )
    assert silo["keep"] == {"federation.toml"} | {f"state/{name}" for name in names}
    assert {"keys/silo.key", "silo.toml"} <= silo["secret"]
    assert silo["own"] == {f"data/{name}.npz" for name in ("train", "test")}
