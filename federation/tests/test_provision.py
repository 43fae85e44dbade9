"""Kits: contents, omissions, permissions, and that nothing is ever overwritten."""

import hashlib
import json
import os
import re
import shutil
import ssl
import stat
import subprocess
import sys
import tomllib
import zipfile
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import pytest
import tomli_w
import yaml
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
)

import command_line
from agreement_file import agreement
from pomona.core.errors import ConfigError, StorageError
from pomona.data.table_settings import TextColumns
from pomona.methods import METHODS
from pomona_federation import certificates, flower_internals, keys
from pomona_federation.agreement import Federation
from pomona_federation.provision import kit_files
from pomona_federation.provision.kit_files import locked, own_wheels
from pomona_federation.provision.provision import add, provision, renew
from pomona_federation.silo import preflight
from pomona_federation.silo.settings import SiloFile

TASK = {"kind": "image", "input_shape": [8, 8, 1], "classes": ['a "b"', "é😀"], "scale": [16.0]}
SETTINGS = {
    "name": "hospitals",
    "server": "fl.example.org:8443",
    "run": {"method": "apple", "lr": 0.1},
    "task": TASK,
}
SHARED = {
    "README.md",
    "start.sh",
    "compose.yaml",
    "Dockerfile",
    ".dockerignore",
    "wheels/README.txt",
    "wheels/requirements.lock",
    "federation.toml",
}
APP = {f"app/{name}" for name in ("pyproject.toml", "LICENSE")} | {
    f"app/pomona_app/{name}.py" for name in ("__init__", "server_app", "client_app")
}


def written(folder, *silos, **changes):
    path = folder / "federation.toml"
    path.write_text("# as agreed\n" + tomli_w.dumps(SETTINGS | {"silo": list(silos)} | changes))
    return path


def files(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """Kits for north, south, and west, which supplied its own key; under a umask that forbids
    nothing.
    """
    base = tmp_path_factory.mktemp("provision")
    own_pair = keys.silo()
    (base / "west.pub").write_bytes(own_pair.public)
    path = written(base, {"name": "north"}, {"name": "south"}, {"name": "west", "key": "west.pub"})
    umask = os.umask(0)
    try:
        provision(path, base / "kits")
    finally:
        os.umask(umask)
    return base / "kits"


@pytest.fixture
def copy(kit, tmp_path):
    return shutil.copytree(kit, tmp_path / "kits")


def peers(*names):
    return {f"{name}.{suffix}" for name in names for suffix in ("pub", "cert")}


def test_every_kit_holds_what_it_needs_and_no_more(kit):
    silos = ("north", "south", "west")
    assert {p.name for p in kit.iterdir()} == {"authority", "server", *silos}
    assert files(kit / "authority") == {"ca.key", "ca.crt"}
    assert files(kit / "server") == SHARED | APP | {
        "pomona-server-hospitals.service",
        "app.sha256",
    } | {f"certs/{name}" for name in ("ca.crt", "server.crt", "server.key")} | {
        f"keys/{name}" for name in peers(*silos)
    }
    for name in silos:
        own_keys = {"keys/silo.pub"} if name == "west" else {"keys/silo.pub", "keys/silo.key"}
        assert files(kit / name) == SHARED | own_keys | {
            f"pomona-silo-hospitals-{name}.service",
            "silo.toml",
            "app.sha256",
            "certs/ca.crt",
            "certs/silo.crt",
        } | {f"keys/peers/{peer}" for peer in peers(*silos)}
    assert not [p for p in kit.parent.iterdir() if p.name.startswith(".")]


def test_everything_is_its_owners_alone_whatever_the_umask(kit):
    for path in (kit, *kit.rglob("*")):
        mode = 0o700 if path.is_dir() or path.name == "start.sh" else 0o600
        assert stat.S_IMODE(path.lstat().st_mode) == mode, path


def test_private_keys_are_in_their_own_kit_alone(kit):
    secrets = {
        p.read_bytes() for p in kit.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()
    }
    paths = [p for p in kit.rglob("*") if p.is_file() and p.read_bytes() in secrets]
    assert {str(p.relative_to(kit)) for p in paths} == {
        "authority/ca.key",
        "server/certs/server.key",
        "north/keys/silo.key",
        "south/keys/silo.key",
    }
    assert len(secrets) == 4


def test_every_public_key_is_certified_for_its_name_and_belongs_to_the_private_one(kit):
    ca = (kit / "authority/ca.crt").read_bytes()
    for name in ("north", "south", "west"):
        public = (kit / name / "keys/silo.pub").read_bytes()
        for folder in ("server/keys", "north/keys/peers", "south/keys/peers", "west/keys/peers"):
            assert (kit / folder / f"{name}.pub").read_bytes() == public
            assert keys.certified(
                ca, "hospitals", name, public, (kit / folder / f"{name}.cert").read_bytes()
            )
        assert (
            (kit / name / "certs/ca.crt").read_bytes()
            == ca
            == (kit / "server/certs/ca.crt").read_bytes()
        )
        if name != "west":
            key = load_ssh_private_key(
                (kit / name / "keys/silo.key").read_bytes(), None
            ).public_key()
            assert key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n" == public


def test_the_server_and_the_silos_read_their_own_files(kit):
    texts = {
        (folder / "federation.toml").read_bytes()
        for folder in kit.iterdir()
        if folder.name != "authority"
    }
    assert texts == {(kit.parent / "federation.toml").read_bytes()}
    assert Federation.load(kit / "north/federation.toml").kit_terms.config.method.name == "apple"
    silo = SiloFile.load(kit / "north/silo.toml")
    assert silo.name == "north"
    assert silo.data.classes == tuple(TASK["classes"])
    assert silo.data.clients[0].train == kit / "north/data/train.npz"


@pytest.mark.parametrize(
    "task",
    [
        {"kind": "table", "input_shape": [4], "outputs": 1, "targets": "regression"},
        {"kind": "text", "input_shape": [9], "vocabulary": 7, "classes": ["a", "b"]},
    ],
)
def test_a_silos_file_fits_other_kinds_of_data_and_privacy(tmp_path, task):
    privacy = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "delta": 1e-5, "epsilon_budget": 3.0}
    privacy["acknowledge"] = ["sample-counts", "metrics", "feature-moments"]
    model = {"name": "fasttext" if task["kind"] == "text" else "mlp"}
    run = {"method": "fedavg", "lr": 0.1, "privacy": privacy, "model": model}
    provision(written(tmp_path, {"name": "north"}, task=task, run=run), tmp_path / "kits")
    kit = tmp_path / "kits/north"
    data = SiloFile.load(kit / "silo.toml").data
    assert (data.targets, data.classes) == (
        task.get("targets", "classes"),
        tuple(task.get("classes", ())),
    )
    assert data.clients[0].train.suffix == ".csv"
    assert isinstance(data, TextColumns) == (task["kind"] == "text")
    assert (data.label_column, data.label_columns) == (
        ("label", ()) if task.get("classes") else (None, ("target-1",))
    )
    (kit / "silo.toml").write_text((kit / "silo.toml").read_text().replace("# accept", "accept"))
    assert SiloFile.load(kit / "silo.toml").accept_epsilon == 3.0
    assert "\nopacus==" in (kit / "wheels/requirements.lock").read_text()


SENDING_LOSSES = {"q-fedavg", "pgfed", "pgfedmo", "ifca"}


@pytest.mark.parametrize("method", sorted(SENDING_LOSSES))
def test_a_method_that_sends_losses_needs_silos_that_share_them(tmp_path, method):
    run = {"method": method, "lr": 0.1}
    assert Federation.load(written(tmp_path, {"name": "north"}, run=run)).agreement
    with pytest.raises(ConfigError, match=f"{method}' sends training losses.*share_scores = true"):
        _ = Federation.load(
            written(tmp_path, {"name": "north"}, run=run, share_scores=False)
        ).agreement


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"fedavg-data"} - SENDING_LOSSES))
def test_the_readme_says_what_leaves_the_silo(tmp_path, method):
    card = METHODS[method]().method().card
    path = written(
        tmp_path, {"name": "north"}, run={"method": method, "lr": 0.1}, share_scores=False
    )
    text = kit_files.silo(
        Federation.load(path),
        "north",
        "0" * 64,
        locked("cpu"),
        own_key=False,
        digits=Federation.load(path).kit_terms.digits,
    )["README.md"].decode()
    assert f"signed with your key: {card.exchange.up}. " in text
    assert f"private with `{method}`: {card.exchange.private}." in text
    assert "mean training loss" not in text
    assert "kind of the error" in text
    assert "systemctl disable --now pomona-silo-hospitals-north" in text
    digits = " ".join(
        map("".join, zip(*[iter(Federation.load(path).agreement[:16])] * 4, strict=True))
    )
    assert f"\n    {digits}\n" in text
    assert "Accuracy" not in text


def test_the_readme_says_whom_a_sum_and_its_noise_protect_from(tmp_path):
    privacy = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "delta": 1e-5,
        "honest": 3,
        "acknowledge": ["sample-counts", "metrics", "unlimited-epsilon", "noise-of-others"],
    }
    run = {
        "method": "fedavg",
        "lr": 0.1,
        "local_steps": 1,
        "largest_share": 1.0,
        "privacy": privacy,
        "secure_aggregation": {"max_norm": 10.0, "minimum": 4},
    }
    path = written(tmp_path, {"name": "north"}, run=run)
    provision(path, tmp_path / "kits")
    text = (tmp_path / "kits/north/README.md").read_text()
    assert "only sums over 4 silos or more" in text
    assert "mean training loss" in text
    assert "The server sees all this" not in text
    assert "the larger one against those who see more than sums" in text
    assert "{" not in text


# The app


@pytest.mark.long
@pytest.mark.long
def test_the_app_is_pinned_as_flower_bundles_it(kit, tmp_path):
    pinned = {
        (kit / name / "app.sha256").read_text().strip()
        for name in ("server", "north", "south", "west")
    }
    subprocess.run(
        [sys.executable, "-m", "flwr.cli.app", "build", "--app", kit / "server/app"],
        cwd=tmp_path,
        check=True,
    )
    [bundle] = tmp_path.glob("local.pomona-app.*.fab")
    assert pinned == {hashlib.sha256(bundle.read_bytes()).hexdigest()}
    with zipfile.ZipFile(BytesIO(bundle.read_bytes())) as archive:
        names = set(archive.namelist()) - {".info/CONTENT"}
        assert names == {name.removeprefix("app/") for name in APP}
        settings = tomllib.loads(archive.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
        assert settings["config"] == {"study": ""}
        for component in ("serverapp", "clientapp"):
            module, name = settings["components"][component].split(":")
            code = archive.read(f"{module.replace('.', '/')}.py").decode()
            assert f"from pomona_federation.flower_apps import {module[-10:]} as {name}" in code


def test_the_apps_bytes_do_not_depend_on_the_federation_or_on_what_python_leaves_there(
    kit, tmp_path
):
    provision(
        written(tmp_path, {"name": "other"}, name="clinics", run={"method": "fedavg", "lr": 0.1}),
        tmp_path / "kits",
    )
    assert (tmp_path / "kits/server/app.sha256").read_bytes() == (
        kit / "north/app.sha256"
    ).read_bytes()
    cache = tmp_path / "kits/server/app/pomona_app/__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"x")
    assert (
        flower_internals.bundle_sha256(tmp_path / "kits/server/app")
        == (kit / "north/app.sha256").read_text().strip()
    )


# Newcomers


def test_a_newcomer_gets_a_kit_and_everybody_its_public_key(copy):
    files_before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    added = add(copy, "east")
    assert (added.silos, added.brought) == (("east",), frozenset())
    assert files(copy / "east") - {"keys/silo.key"} == {
        str(name).replace("west", "east") for name in files(copy / "west")
    } | {f"keys/peers/{peer}" for peer in peers("west")}
    public = (copy / "east/keys/silo.pub").read_bytes()
    ca = (copy / "authority/ca.crt").read_bytes()
    new = set(copy.rglob("east.pub"))
    assert {str(p.parent.relative_to(copy)) for p in new} == {"server/keys"} | {
        f"{name}/keys/peers" for name in ("north", "south", "west", "east")
    }
    for path in new:
        assert path.read_bytes() == public
        assert keys.certified(
            ca, "hospitals", "east", public, path.with_suffix(".cert").read_bytes()
        )
    assert {p: p.read_bytes() for p in files_before} == files_before


class Killed(BaseException):
    """As by a signal: nothing that follows runs."""


def test_an_add_that_was_cut_short_anywhere_is_completed_by_the_same_command(copy, monkeypatch):
    """Before the rename of each key or certificate, whose temporary file a kill leaves behind."""
    left, replace = [0], Path.replace

    def killed_replace(path, target):
        if Path(target).name in {"east.pub", "east.cert"}:
            if not left[0]:
                raise Killed
            left[0] -= 1
        return replace(path, target)

    folders = ("north", "south", "west", "east")
    targets = [f"{name}/keys/peers" for name in folders] + ["server/keys"]
    for writes in range(2 * len(targets)):  # a key and its certificate in each
        shutil.rmtree(copy / "east", ignore_errors=True)
        for path in copy.rglob("east.*"):
            path.unlink()
        left[0] = writes
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed_replace)
            patch.setattr(Path, "unlink", lambda *_, **__: None)
            with pytest.raises(Killed):
                add(copy, "east")
        private = (copy / "east/keys/silo.key").read_bytes()
        assert add(copy, "east").silos == ("east",)
        assert (copy / "east/keys/silo.key").read_bytes() == private
        public = (copy / "east/keys/silo.pub").read_bytes()
        assert {str(p.parent.relative_to(copy)) for p in copy.rglob("east.pub")} == set(targets)
        assert {p.read_bytes() for p in copy.rglob("east.pub")} == {public}
        assert len(list(copy.rglob("east.cert"))) == len(targets)
        with pytest.raises(ConfigError, match="choose a new name"):
            add(copy, "east")


def test_kits_without_certificates_are_to_be_made_again(copy):
    """Those of an older Pomona had signatures in a form of their own."""
    for path in copy.rglob("*.cert"):
        path.rename(path.with_suffix(".pub.sig"))
    with pytest.raises(
        ConfigError, match=r"north\.cert cannot be read .* provision again, in a new folder"
    ):
        add(copy, "east")
    assert not (copy / "east").exists()


def test_a_newcomer_may_bring_its_key_but_not_anothers(copy, tmp_path):
    (tmp_path / "own.pub").write_bytes(keys.silo().public)
    assert add(copy, "east", tmp_path / "own.pub").brought == {"east"}
    assert not (copy / "east/keys/silo.key").exists()
    assert "copy the private one to `keys/silo.key`" in (copy / "east/README.md").read_text()
    with pytest.raises(ConfigError, match=r"'east' and 'thief' have the same key"):
        add(copy, "thief", tmp_path / "own.pub")
    with pytest.raises(ConfigError, match=r"private key, which stays"):
        add(copy, "thief", copy / "north/keys/silo.key")
    assert not (copy / "thief").exists()


@pytest.mark.parametrize("name", ["north", "server", "authority", "../x", "-x", "Ä", ""])
def test_a_newcomers_name_is_new_and_is_one(copy, name):
    files_before = files(copy)
    with pytest.raises(ConfigError, match="name"):
        add(copy, name)
    assert files(copy) == files_before


def test_a_newcomer_is_added_where_the_authority_is(copy, tmp_path):
    shutil.rmtree(copy / "authority")
    with pytest.raises(ConfigError, match=r"authority.*go where"):
        add(copy, "east")
    with pytest.raises(ConfigError, match="has no kits"):
        add(tmp_path / "absent", "east")
    assert not (copy / "east").exists()


# Renewal


def aged(folder, days):
    """The kits' server certificate as if they had been made this many days ago."""
    pair = keys.Pair(
        (folder / "authority/ca.key").read_bytes(), (folder / "authority/ca.crt").read_bytes()
    )
    path = folder / "server/certs/server.crt"
    path.write_bytes(
        certificates.renewed(pair, path.read_bytes(), datetime.now(UTC) - timedelta(days=days))
    )
    return path


def test_the_servers_certificate_is_renewed_and_nothing_else_changes(copy, capsys):
    path = aged(copy, 820)
    old = {p: (p.read_bytes(), p.stat().st_mode) for p in copy.rglob("*") if p.is_file()}
    assert deploy(capsys, "--out", copy, "--json", action="renew")[0] == 0
    new = {p: (p.read_bytes(), p.stat().st_mode) for p in copy.rglob("*") if p.is_file()}
    assert {p for p in new if new[p] != old.get(p)} == {path}
    assert old.keys() == new.keys()
    assert new[path][1] == old[path][1]
    expiry = certificates.certificate(
        path, copy / "server/certs/server.key", copy / "north/certs/ca.crt"
    )
    assert timedelta(days=824) < expiry - datetime.now(UTC) <= timedelta(days=825)
    context = ssl.create_default_context(cafile=copy / "north/certs/ca.crt")
    assert context.get_ca_certs()[0]["notAfter"], "silos keep theirs"
    code, output, _ = deploy(capsys, "--out", copy, action="renew")
    assert code == 0
    assert f"valid until {expiry:%Y-%m-%d}" in output
    assert "pomona server stop" in output


def test_what_cannot_be_renewed_is_said(copy, tmp_path, capsys):
    ca = copy / "authority/ca.crt"
    original = ca.read_bytes()
    ca.write_bytes(certificates.authority("other").public)
    code, _, error = deploy(capsys, "--out", copy, action="renew")
    assert (code, error.count("\n")) == (2, 1)
    assert "not signed by this authority" in error
    ca.write_bytes(original)
    aged(copy, -3600)  # as if there were 52 days left of the authority's ten years
    with pytest.raises(ConfigError, match=r"as long as its authority.*new federation"):
        renew(copy)
    shutil.rmtree(copy / "authority")
    with pytest.raises(ConfigError, match=r"go where the authority's key is"):
        renew(copy)
    path = written(tmp_path, {"name": "north"}, server="127.0.0.1:9000", insecure=True)
    provision(path, tmp_path / "open")
    with pytest.raises(ConfigError, match="no certificate"):
        renew(tmp_path / "open")
    with pytest.raises(ConfigError, match="has no kits"):
        renew(tmp_path / "absent")


# Refusals and failures


def test_kits_are_never_written_over(kit, tmp_path):
    files_before = {p: p.read_bytes() for p in kit.rglob("*") if p.is_file()}
    with pytest.raises(StorageError, match=r"kits exists already.*--add"):
        provision(kit.parent / "federation.toml", kit)
    assert {p: p.read_bytes() for p in kit.rglob("*") if p.is_file()} == files_before
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="exists already"):
        provision(kit.parent / "federation.toml", tmp_path / "dangling")


def test_what_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    path = written(tmp_path, {"name": "north"}, {"name": "south"})

    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kit_files, "silo", broken)
    with pytest.raises(StorageError, match=r"kits.*No space left"):
        provision(path, tmp_path / "kits")
    assert [p.name for p in tmp_path.iterdir()] == ["federation.toml"]


def test_two_silos_with_one_key_are_refused(tmp_path):
    (tmp_path / "k.pub").write_bytes(keys.silo().public)
    path = written(tmp_path, {"name": "north", "key": "k.pub"}, {"name": "south", "key": "k.pub"})
    with pytest.raises(ConfigError, match=r"'north' and 'south' have the same key"):
        provision(path, tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


def test_insecure_kits_hold_no_keys_and_are_for_loopback(tmp_path):
    path = written(tmp_path, {"name": "north"}, server="127.0.0.1:9000", insecure=True)
    provisioned = provision(path, tmp_path / "kits")
    assert provisioned.expiry is None
    add(tmp_path / "kits", "east")
    assert not [
        name
        for name in files(tmp_path / "kits")
        if name.split("/")[1] in ("certs", "keys", "ca.key")
    ]
    assert "**Insecure**" in (tmp_path / "kits/east/README.md").read_text()
    with pytest.raises(ConfigError, match="insecure = true, but server"):
        provision(written(tmp_path, {"name": "north"}, insecure=True), tmp_path / "more")
    (tmp_path / "k.pub").write_bytes(keys.silo().public)
    with pytest.raises(ConfigError, match="uses no keys"):
        add(tmp_path / "kits", "west", tmp_path / "k.pub")
    path = written(tmp_path, {"name": "a", "key": "k.pub"}, server="127.0.0.1:9000", insecure=True)
    with pytest.raises(ConfigError, match="uses no keys"):
        provision(path, tmp_path / "more")


def test_the_certificate_names_the_server_as_silos_and_as_its_own_processes_reach_it(kit, tmp_path):
    def names(folder):
        certificate = certificates.x509.load_pem_x509_certificate(
            (folder / "server/certs/server.crt").read_bytes()
        )
        extension = certificate.extensions.get_extension_for_class(
            certificates.x509.SubjectAlternativeName
        ).value
        return {str(name.value) for name in extension}

    def provisioned_for(name, **at):
        return names(provision(written(tmp_path, {"name": "north"}, **at), tmp_path / name).folder)

    assert names(kit) == {"fl.example.org", "127.0.0.1"}
    assert provisioned_for("6", server="[2001:db8::1]:9000") == {"2001:db8::1", "::1"}
    bound = provisioned_for("bound", server="fl.example.org:9000", bind="192.0.2.4:9000")
    assert bound == {"fl.example.org", "192.0.2.4"}
    local = provisioned_for("local", server="127.0.0.1:9000")
    assert local == {"127.0.0.1", "localhost", "::1"}


# Wheels


def test_kits_install_pomonas_file_and_libraries_by_hash(tmp_path, capsys):
    folder = tmp_path / "wheels"
    folder.mkdir()
    lock = b"# libraries of our own\nother-one==2.0 --hash=sha256:00\n"
    for name, content in {
        **dict.fromkeys(own_wheels(), b"ours"),
        "requirements.lock": lock,
        "x.whl": b"x",
    }.items():
        (folder / name).write_bytes(content)
    path, kits = written(tmp_path, {"name": "north"}), tmp_path / "kits"
    assert deploy(capsys, path, "--out", kits, "--wheels", folder)[0] == 0
    add(kits, "east")
    for member in ("server", "north", "east"):
        assert files(kits / member / "wheels") == {
            "README.txt",
            *own_wheels(),
            "SHA256SUMS",
            "requirements.lock",
        }
        assert (kits / member / "wheels/requirements.lock").read_bytes() == lock
        subprocess.run(
            ["sha256sum", "--check", "--quiet", "SHA256SUMS"],
            cwd=kits / member / "wheels",
            check=True,
        )
        for name in ("README.md", "Dockerfile"):
            text = (kits / member / name).read_text()
            assert "--require-hashes" in text
            assert "--no-deps" in text
            assert "pomona[" not in text


@pytest.mark.parametrize(("options", "kind"), [((), "cpu"), (("--libraries", "cuda"), "cuda")])
def test_kits_install_the_releases_libraries_by_hash_unless_asked_otherwise(
    options, kind, tmp_path, capsys
):
    kits = tmp_path / "kits"
    output = deploy(capsys, written(tmp_path, {"name": "north"}), "--out", kits, *options)[1]
    add(kits, "east")
    lock = locked(kind)["requirements.lock"]
    title = {
        "cpu": "PyTorch for CPU: Python 3.11",
        "cuda": "PyTorch for CUDA: Python 3.11 to 3.14",
    }[kind]
    assert f"libraries  by hash: {title}" in output
    for member in ("server", "north", "east"):
        assert (kits / member / "wheels/requirements.lock").read_bytes() == lock
        assert f"**{title}" in (kits / member / "README.md").read_text()
        for name in ("README.md", "Dockerfile"):
            text = (kits / member / name).read_text()
            assert "--require-hashes" in text
            assert "pomona[" not in text
            assert "SHA256SUMS" not in text, "there is no wheel of Pomona's yet to compare"
            assert ("--extra-index-url https://download.pytorch.org" in text) == (kind == "cpu")
    assert b"index-url" not in lock  # behind a mirror pip would ask there for each library


def test_a_kit_without_a_study_is_compared_by_agreement_and_authority(tmp_path, capsys):
    """Two federations of one file differ by their authorities: a swapped kit has other digits."""
    path = tmp_path / "standing.toml"
    path.write_text(
        'name = "hospitals"\nserver = "127.0.0.1:8443"\n[[silo]]\nname = "north"\n[[silo]]\nname '
        '= "south"\n'
    )
    fingerprints = set()
    for kits in (tmp_path / "one", tmp_path / "other"):
        output = deploy(capsys, path, "--out", kits)[1]
        digits = hashlib.sha256(
            Federation.load(path).agreement.encode() + (kits / "north/certs/ca.crt").read_bytes()
        ).hexdigest()[:16]
        fours = " ".join(digits[i : i + 4] for i in (0, 4, 8, 12))
        assert f"{fours}: by telephone" in output
        assert f"\n    {fours}\n" in (kits / "north" / "README.md").read_text()
        lines, _, _ = preflight.run(kits / "north")
        assert [line.text[:19] for line in lines if line.check == "compare"] == [fours]
        fingerprints.add(fours)
    assert len(fingerprints) == 2


def test_a_folder_of_wheels_needs_pomonas(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"has no pomona-.*build it: pip wheel .* \.$"):
        provision(written(tmp_path, {"name": "north"}), tmp_path / "kits", tmp_path / "none")
    core, federation = own_wheels()
    (tmp_path / "none" / core).write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"has no pomona_federation-.* \./federation$"):
        provision(written(tmp_path, {"name": "north"}), tmp_path / "kits", tmp_path / "none")
    (tmp_path / "none" / federation).write_bytes(b"x")
    (tmp_path / "none" / "requirements.lock").write_bytes(b"torch==2.9\n")
    with pytest.raises(ConfigError, match="has no hashes"):
        provision(written(tmp_path, {"name": "north"}), tmp_path / "kits", tmp_path / "none")
    (tmp_path / "none" / "requirements.lock").write_bytes(b"torch==2.9 --hash=sha256:00\n")
    with pytest.raises(ConfigError, match=r"has a requirements\.lock"):
        provision(
            written(tmp_path, {"name": "north"}), tmp_path / "kits", tmp_path / "none", "cuda"
        )
    assert not (tmp_path / "kits").exists()


# Units, containers, start commands


def test_no_two_kits_share_a_name_on_one_machine(kit, tmp_path):
    """Two silos of one federation, silos of two, and their servers."""
    provision(written(tmp_path, {"name": "north"}, name="other"), tmp_path / "kits")
    kits = [
        kit / "server",
        kit / "north",
        kit / "south",
        tmp_path / "kits" / "server",
        tmp_path / "kits" / "north",
    ]
    units, names = set(), set()
    for folder in kits:
        (unit,) = folder.glob("*.service")
        units.add(unit.name)
        compose = yaml.safe_load((folder / "compose.yaml").read_text())
        (service,) = compose["services"].values()
        names |= {compose["name"], service["image"], service["container_name"]}
    assert units == {f"pomona-server-{name}.service" for name in ("hospitals", "other")} | {
        f"pomona-silo-{name}.service"
        for name in ("hospitals-north", "hospitals-south", "other-north")
    }
    assert len(names) == 2 * len(kits), (
        "project and container have one name, the image the version too"
    )


def test_a_kit_is_installed_as_the_guide_says(kit):
    """One environment and no root; the machine's service is the other way, and named so."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "federation.md").read_text()
    for name in ("north", "server"):
        text = (kit / name / "README.md").read_text()
        first, service = text.split("## Instead: as a service of the machine")
        assert "\n    python3 -m venv pomona-env\n" in first
        wheels = " ".join(f"{name}/wheels/{wheel}" for wheel in own_wheels())
        assert f"    pomona-env/bin/pip install --no-index --no-deps {wheels}\n" in first
        assert "/opt/pomona" not in first
        assert "useradd" in service
    assert "\npython3 -m venv pomona-env\npomona-env/bin/pip install " in guide
    assert "/opt/pomona" not in guide.partition("## As a service")[0]


@pytest.mark.parametrize("name", ["server", "north"])
def test_start_is_one_command_of_posix_sh(kit, name, tmp_path):
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "pomona").write_text('#!/bin/sh\necho "$@"\n')
    (bin_ / "pomona").chmod(0o700)
    copied = shutil.copytree(kit / name, tmp_path / "a kit")
    process = subprocess.run(
        [copied / "start.sh"],
        env={"PATH": f"{bin_}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    role = "server" if name == "server" else "silo"
    assert process.stdout == f"{role} start --folder {copied}\n"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("low", [False, True])
def test_systemd_accepts_the_units(kit, tmp_path, low):
    kits = kit
    if low:
        provision(
            written(tmp_path, {"name": "north"}, server="fl.example.org:443"), tmp_path / "kits"
        )
        kits = tmp_path / "kits"
    for unit in (
        kits / "server/pomona-server-hospitals.service",
        kits / "north/pomona-silo-hospitals-north.service",
    ):
        process = subprocess.run(
            ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=True
        )
        assert process.stdout + process.stderr == ""
        lines = unit.read_text().splitlines()
        assert ("CapabilityBoundingSet=CAP_NET_BIND_SERVICE" in lines) == (
            low and "server" in unit.name
        )


def test_compose_files_say_what_they_should(kit, tmp_path):
    provision(written(tmp_path, {"name": "north"}, server="127.0.0.1:9000"), tmp_path / "kits")
    for folder, host in ((kit, {"server"}), (tmp_path / "kits", {"server", "north"})):
        for name in ("server", "north"):
            compose = yaml.safe_load((folder / name / "compose.yaml").read_text())
            role, state = ("server", "run") if name == "server" else ("silo", "state")
            service = compose["services"][role]
            assert compose.keys() == {"name", "services"}
            assert service.keys() - {"network_mode"} == COMPOSE.keys()
            for key, type_ in COMPOSE.items():
                assert isinstance(service[key], type_), key
            assert (service.get("network_mode") == "host") == (name in host)
            assert "ports" not in service
            # the mark of its state is keyed by it
            machine = ["/etc/machine-id:/etc/machine-id:ro"] if role == "silo" else []
            assert service["volumes"] == [".:/kit:ro", f"./{state}:/kit/{state}", *machine]
            assert (folder / name / state).is_dir()
            assert service["read_only"] is True
            assert service["restart"] == "on-failure"


@pytest.mark.parametrize("name", ["server", "north"])
def test_a_container_is_restarted_on_the_codes_on_which_the_unit_is(kit, name, tmp_path):
    """Docker knows no list of codes: the command ends as 0 where the unit would not start again."""
    (unit,) = (kit / name).glob("*.service")
    (listed,) = re.findall(r"^RestartPreventExitStatus=(.+)$", unit.read_text(), re.M)
    ((service),) = yaml.safe_load((kit / name / "compose.yaml").read_text())["services"].values()
    shell, option, script = service["command"]
    script = script.replace("$$", "$").replace("/kit/", f"{tmp_path}/")
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 130, 143):
        (tmp_path / "start.sh").write_text(f"exit {code}\n")
        run = subprocess.run([shell, option, script], capture_output=True, check=False)
        assert run.returncode == (0 if str(code) in listed.split() else code)


def test_a_containers_stop_reaches_pomona_and_waits_for_it(kit, tmp_path):
    ((service),) = yaml.safe_load((kit / "north" / "compose.yaml").read_text())["services"].values()
    shell, option, script = service["command"]
    (tmp_path / "start.sh").write_text(
        f"trap 'echo left > {tmp_path}/left; exit 143' TERM\necho up\nwhile :; do sleep 0.05; "
        "done\n"
    )
    script = script.replace("$$", "$").replace("/kit/", f"{tmp_path}/")
    with subprocess.Popen(
        [shell, option, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert (tmp_path / "left").exists()


def test_a_stop_before_the_container_knows_its_process_reaches_it(kit, tmp_path):
    """The shell gets the signal as the child starts, before it has noted the child's number."""
    ((service),) = yaml.safe_load((kit / "north" / "compose.yaml").read_text())["services"].values()
    shell, option, script = service["command"]
    (tmp_path / "start.sh").write_text("trap 'exit 143' TERM\nwhile :; do sleep 0.05; done\n")
    script = script.replace("$$", "$").replace("/kit/", f"{tmp_path}/")
    early = script.replace("& child=$!", "& number=$!; sleep 0.2; kill -TERM $$; child=$number", 1)
    assert early != script
    run = subprocess.run([shell, option, early], capture_output=True, check=False, timeout=60)
    assert run.returncode == 0


COMPOSE = {  # keys of a service, with their types, from the Compose specification
    "build": str,
    "image": str,
    "container_name": str,
    "command": list,
    "user": str,
    "working_dir": str,
    "environment": dict,
    "volumes": list,
    "read_only": bool,
    "tmpfs": list,
    "cap_drop": list,
    "security_opt": list,
    "init": bool,
    "restart": str,
    "stop_signal": str,
    "stop_grace_period": str,
}


def test_keys_do_not_enter_the_image(kit):
    for name in ("server", "north"):
        assert (kit / name / ".dockerignore").read_text().split() == ["*", "!wheels"]
        copied = [
            line
            for line in (kit / name / "Dockerfile").read_text().splitlines()
            if line.startswith("COPY")
        ]
        assert copied == ["COPY wheels /wheels"]


# The command


def deploy(capsys, *arguments, action="provision"):
    """Run a command in this process: exit code, standard output, standard error."""
    return command_line.call(capsys, "deploy", action, *arguments)


def test_the_command_says_what_goes_where_and_what_is_secret(tmp_path, capsys):
    path, kits = written(tmp_path, {"name": "north"}, {"name": "south"}), tmp_path / "kits"
    code, output, _ = deploy(capsys, path, "--out", kits)
    assert code == 0
    for phrase in (
        "north",
        "south",
        "server",
        "ca.key",
        "in person or encrypted",
        Federation.load(path).agreement,
    ):
        assert phrase in output
    code, output, _ = deploy(capsys, "--out", kits, "--add", "east")
    assert code == 0
    assert "east.cert" in output
    assert "pomona server add east --key east.pub" in output
    code, output, _ = deploy(capsys, "--out", kits, "--add", "upper", "--json")
    assert json.loads(output)["silos"] == [
        {"name": "upper", "kit": str(kits / "upper"), "own_key": False}
    ]
    for arguments in ([], [path, "--add", "x"], [path, "--key", "k.pub"]):
        code, _, output = deploy(capsys, *arguments)
        assert (code, output.count("\n")) == (2, 1)
        assert "error[CONFIG]: give either a federation.toml, or --add NAME" in output
    code, _, output = deploy(capsys, path, "--out", kits)
    assert code == 6
    assert "never overwritten" in output


def test_help_loads_neither_flower_nor_torch():
    code = (
        "import sys\nfrom pomona.cli import main\ntry: main(['deploy', '--help'])\nexcept "
        "SystemExit: pass\n"
    )
    code += "assert not {'torch', 'flwr', 'cryptography'} & set(sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "provision" in run.stdout


def test_a_federation_without_a_study_has_kits_that_speak_of_none(tmp_path):
    path = tmp_path / "federation.toml"
    tree = {k: v for k, v in tomllib.loads(agreement(28443)).items() if k not in {"run", "task"}}
    path.write_text(tomli_w.dumps(tree))
    provision(path, tmp_path / "kits")
    for name in ("server", "north"):
        readme = (tmp_path / "kits" / name / "README.md").read_text()
        assert "Method" not in readme
        assert "study" in readme
        assert "None" not in readme
    settings = tomllib.loads((tmp_path / "kits/north/silo.toml").read_text())
    assert settings["data"]["label_column"] == "label"


def test_a_run_without_a_task_is_no_study(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(
        tomli_w.dumps({k: v for k, v in tomllib.loads(agreement(28443)).items() if k != "task"})
    )
    with pytest.raises(ConfigError, match=r"no section \[task\]"):
        provision(path, tmp_path / "kits")
