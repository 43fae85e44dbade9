"""``uninstall``: what is kept, erased, removed and left alone; links, kills, second calls, running processes."""

import os
import stat
from pathlib import Path, PurePosixPath

import pytest

from pomona.cli import main
from pomona.core.errors import ConfigError, LockedError, StorageError
from pomona.storage.lock import locked
from pomona_federation.installation import uninstall as module
from pomona_federation.installation.contents import RULES, contents, require_kit, rule
from pomona_federation.installation.uninstall import BLOCK, uninstall

KEPT = {
    "federation.toml",
    "state/audit.jsonl",
    "state/models/personal.card.md",
    "state/models/personal.safetensors",
    "state/private/dp/client-00/ledger.jsonl",
    "state/report.md",
    "state/told/0123456789abcdef.json",
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
OWN = {"clinic.py", "data/train.csv", "notes/of a person.txt"}


@pytest.fixture
def kit(tmp_path):
    """A silo's kit with a file of each sort; each holds its own path."""
    folder = tmp_path / "north"
    for name in KEPT | SECRET | PLAIN | OWN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def files(folder):
    """Files of a folder by path, with what they hold; links as where they point to."""
    return {
        str(p.relative_to(folder)): str(p.readlink()) if p.is_symlink() else p.read_text(errors="replace")
        for p in folder.rglob("*")
        if p.is_symlink() or p.is_file()
    }


LEFT = {name: name for name in OWN} | {f"kept/{name}": name for name in KEPT}


def test_each_file_meets_its_fate(kit):
    fates = {str(item.path): item.rule.fate for item in contents(kit, "silo")}
    expected = ((KEPT, "keep"), (SECRET, "erase"), (PLAIN, "remove"), (OWN, "stays"))
    assert fates == {name: fate for names, fate in expected for name in names}
    uninstall(kit, "silo")
    assert files(kit) == LEFT
    assert sorted(p.name for p in kit.iterdir()) == ["clinic.py", "data", "kept", "notes"]
    assert stat.S_IMODE((kit / "kept" / "state").stat().st_mode) == 0o700


def test_a_second_call_changes_nothing(kit):
    uninstall(kit, "silo")
    require_kit(kit, "silo")
    assert {item.rule.fate for item in uninstall(kit, "silo")} == {"stays"}
    assert files(kit) == LEFT


def test_without_do_nothing_changes(kit, capsys):
    before = files(kit)
    with pytest.raises(SystemExit, match="0"):
        main(["silo", "uninstall", "--folder", str(kit)])
    assert files(kit) == before
    said = capsys.readouterr().out
    assert "`--do` does it" in said
    assert "privacy ledger" in said


def test_the_command_does_it(kit, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["silo", "uninstall", "--do", "--folder", str(kit)])
    assert files(kit) == LEFT
    assert "SSD" in capsys.readouterr().out


def test_secrets_are_overwritten_before_they_are_removed(kit, monkeypatch):
    large = bytes(BLOCK + 7)
    (kit / "state" / "cache" / "00ff").write_bytes(large)
    seen = {}
    unlink = os.unlink

    def watched(name, *, dir_fd):
        handle = os.open(name, os.O_RDONLY, dir_fd=dir_fd)
        seen[name] = os.read(handle, 2 * len(large))
        os.close(handle)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(module.os, "unlink", watched)
    uninstall(kit, "silo")
    for path in map(Path, SECRET):
        before = large if path.name == "00ff" else str(path).encode()
        assert len(seen[path.name]) == len(before)
        assert seen[path.name] != before
    assert seen["00ff"].count(0) < len(large) / 16  # random bytes: one in 256
    assert seen["ca.crt"] == b"certs/ca.crt"  # what is no secret is not written to


def test_links_and_second_names_are_removed_and_what_they_name_stays(kit, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("file", "twice", "ledger"):
        (outside / name).write_text(name)
    (kit / "state" / "link").symlink_to(outside / "file")
    (kit / "state" / "folder").symlink_to(outside)
    (kit / "keys" / "silo.key").unlink()
    os.link(outside / "twice", kit / "keys" / "silo.key")
    os.mkfifo(kit / "state" / "pipe")
    assert any("keys/silo.key" in line for line in module.notes(contents(kit, "silo")))
    uninstall(kit, "silo")
    assert files(kit) == LEFT
    assert files(outside) == {name: name for name in ("file", "twice", "ledger")}


@pytest.mark.parametrize("name", ["state", "keys", "kept"])
def test_a_kits_folder_that_is_a_link_is_refused(kit, tmp_path, name):
    outside = tmp_path / "outside"
    if (kit / name).is_dir():
        (kit / name).rename(outside)
    else:
        outside.mkdir()
    (kit / name).symlink_to(outside)
    before = files(outside)
    with pytest.raises(StorageError, match="symbolic link"):
        uninstall(kit, "silo")
    assert files(outside) == before


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(kit, tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "00ff").write_text("another's")
    keep = module._keep

    def swapped(root, folder, items):
        keep(root, folder, items)
        (kit / "state" / "cache").rename(tmp_path / "moved")
        (kit / "state" / "cache").symlink_to(outside)

    monkeypatch.setattr(module, "_keep", swapped)
    with pytest.raises(StorageError):
        uninstall(kit, "silo")
    assert files(outside) == {"00ff": "another's"}


def test_a_running_silo_is_refused(kit):
    with locked(kit / "state"), pytest.raises(LockedError):
        uninstall(kit, "silo")
    assert files(kit).keys() >= KEPT | SECRET | PLAIN | OWN


def killed_at(number, monkeypatch):
    """Let the kernel's calls that change names or content work so often, and then no more."""
    left = [number]

    def until(call):
        def called(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return call(*args, **kwargs)

        return called

    for name in ("rename", "unlink", "write"):
        monkeypatch.setattr(module.os, name, until(getattr(os, name)))


def test_a_kill_at_any_moment_is_made_good_by_the_next_call(kit, monkeypatch):
    steps = 0
    while True:
        with monkeypatch.context() as patch:
            killed_at(steps, patch)
            try:
                uninstall(kit, "silo")
                break
            except KeyboardInterrupt:
                steps += 1
        lying = files(kit)
        assert all(name in (lying.get(name), lying.get(f"kept/{name}")) for name in KEPT | OWN)
    assert steps > 0
    assert files(kit) == LEFT


def test_nothing_that_was_kept_before_is_replaced(kit):
    (kit / "kept" / "state").mkdir(parents=True)
    (kit / "kept" / "state" / "audit.jsonl").write_text("of a life before")
    with pytest.raises(StorageError, match="kept before"):
        uninstall(kit, "silo")
    assert files(kit)["kept/state/audit.jsonl"] == "of a life before"
    assert files(kit).keys() >= KEPT | SECRET


def test_a_folder_that_is_no_kit_is_refused(kit, tmp_path):
    (tmp_path / "state").mkdir()
    with pytest.raises(ConfigError, match="is not a kit"):
        require_kit(tmp_path, "silo")
    with pytest.raises(ConfigError, match="kit of a silo"):
        require_kit(kit, "server")


def test_a_server_keeps_its_record_and_erases_silos_models(world):
    federation = world.federation()
    federation.run()
    require_kit(federation.server, "server")
    uninstall(federation.server, "server")
    left = {str(p.relative_to(federation.server)) for p in federation.server.rglob("*") if p.is_file()}
    assert left == {f"kept/keys/silo-{i}.{kind}" for i in range(3) for kind in ("pub", "cert")} | {
        f"kept/run/{name}"
        for name in (
            "audit.jsonl",
            "clients.csv",
            "config.toml",
            "events.jsonl",
            "roster.json",
            "rounds.csv",
            "summary.json",
        )
    } | {"kept/federation.toml"}
    uninstall(federation.server, "server")


@pytest.mark.parametrize(
    "name", ["survey.html", "survey.json", "task.toml", "evaluation.csv", "search.md", "STUDY.toml"]
)
def test_a_server_keeps_what_studies_without_a_model_have_found(name):
    path = PurePosixPath("run/studies/look", name)
    assert rule(path, RULES["server"]).fate == "keep"
    assert rule(path.parent / "trials/000/checkpoints/round-000001-aa.safetensors", RULES["server"]).fate == "erase"


def test_a_silo_of_a_real_kit_keeps_its_model_and_loses_its_key(world):
    federation = world.federation()
    federation.run()
    kit = federation.kits / "silo-0"
    uninstall(kit, "silo")
    left = {str(p.relative_to(kit)) for p in kit.rglob("*") if p.is_file()}
    kept = ("federation.toml", "state/audit.jsonl", "state/private/budget.json", "state/models/personal.card.md")
    assert left == {f"kept/{name}" for name in (*kept, "state/models/personal.safetensors")} | {
        f"data/{name}.npz" for name in ("train", "validation", "test")
    }
