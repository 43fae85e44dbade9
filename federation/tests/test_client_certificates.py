"""Mutual TLS: which clients are served at the server's port, with real connections and a real
SuperLink.
"""

import re
import ssl
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from agreement_file import agreement
from pomona.core.errors import ConfigError
from pomona_federation import certificates, keys
from pomona_federation.agreement import Federation
from pomona_federation.certificates import ClientCertificate, client_context
from pomona_federation.messages.study_bodies import MEMBERSHIP
from pomona_federation.provision.provision import add, provision
from pomona_federation.rehearsal.run import free_ports
from pomona_federation.server import superlink
from pomona_federation.server.gate import Gate
from pomona_federation.server.registry_admin import admit, dismiss
from pomona_federation.server.superlink import RequestAuth, http_protocol
from pomona_federation.silo.http_client import ServerRoute, client
from pomona_federation.silo.server_requests import ask_membership
from pomona_federation.silo.settings import SiloFile
from test_gate import OTHER_PATH, SuperLink, signed

pytestmark = pytest.mark.long


@pytest.fixture
def kits(tmp_path):
    """Kits of a federation with mutual TLS: south brought its own key."""
    (tmp_path / "south.key").write_bytes((pair := keys.silo()).private)
    (tmp_path / "south.pub").write_bytes(pair.public)
    text = agreement(*free_ports(1)).replace('name = "south"', 'name = "south", key = "south.pub"')
    (tmp_path / "federation.toml").write_text("mutual_tls = true\n" + text)
    provision(tmp_path / "federation.toml", tmp_path / "kits")
    keys.write(tmp_path / "kits" / "south" / "keys" / "silo.key", pair.private)
    return tmp_path / "kits"


def route(kit):
    silo = SiloFile.model_validate({"name": kit.name, "data": {}})
    return ServerRoute.of_kit(kit, silo, Federation.read(kit / "federation.toml"))


@pytest.fixture
def port_of_strangers(kits, monkeypatch):
    """The server's port with the gate, as seen by other machines; counts what passes it."""
    monkeypatch.setattr(superlink, "local", lambda *_: False)
    requested_paths = []

    async def behind(scope, receive, send):
        requested_paths.append(scope["path"])
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
        )
        await send({"type": "http.response.body", "body": b""})

    auth, head = RequestAuth(kits / "server"), superlink.verified_head
    gate = Gate(
        behind,
        lambda scope: auth(head(scope)),
        lambda: 0,
        membership=lambda scope: auth.membership(head(scope)),
    )
    received_data = []

    class Counted(http_protocol()):
        def data_received(self, data):
            received_data.append(data)
            super().data_received(data)

    certs = kits / "server" / "certs"
    config = uvicorn.Config(
        gate,
        host="127.0.0.1",
        port=route(kits / "north").server.port,
        http=superlink.with_client_key(Counted),
        ws="none",
        lifespan="off",
        log_level="critical",
        ssl_keyfile=str(certs / "server.key"),
        ssl_certfile=str(certs / "server.crt"),
        **superlink.client_certificate_settings(certs / "ca.crt"),
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield SimpleNamespace(heard=requested_paths, data=received_data)
    server.should_exit = True
    thread.join()


def status(route, kit, path=OTHER_PATH, headers=None):
    """The status of a request from a kit's silo over a route; the name of the fault if there is no
    answer.
    """
    fields = (
        {name.decode(): value.decode() for name, value in signed(kit)}
        if headers is None
        else headers
    )
    try:
        with client(route, 10.0) as line:
            return line.post(route.url + path, headers=fields).status_code
    except httpx.TransportError as fault:
        return type(fault).__name__


def test_a_silos_certificate_is_of_its_key_for_tls_clients_alone(kits):
    for name in ("north", "south"):
        folder = kits / name
        cert = x509.load_pem_x509_certificate((folder / "certs" / "silo.crt").read_bytes())
        cert.verify_directly_issued_by(
            x509.load_pem_x509_certificate((folder / "certs" / "ca.crt").read_bytes())
        )
        assert cert.public_key() == load_ssh_public_key((folder / "keys" / "silo.pub").read_bytes())
        assert f"CN={name}," in cert.subject.rfc4514_string() + ","
        purposes = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(purposes) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
        ca = certificates.expires(folder / "certs" / "ca.crt")
        assert cert.not_valid_after_utc == ca


def test_silos_are_heard_with_the_certificate_of_the_key_that_signs(kits, port_of_strangers):
    north, south = kits / "north", kits / "south"
    assert [status(route(kit), kit) for kit in (north, south)] == [200, 200]
    assert port_of_strangers.heard == [OTHER_PATH] * 2
    assert status(route(south), north) == 401, "south's connection, north's signature"
    assert status(route(north), north, headers={}) == 401, "no signature"
    assert ask_membership(route(north), north / "keys" / "silo.key") == "member"
    assert status(route(north), north, "/v1/control/list-runs") == 200, (
        "in this test the gate takes loopback for local"
    )
    assert port_of_strangers.heard == [OTHER_PATH] * 2 + ["/v1/control/list-runs"]


def test_a_newcomer_that_brings_its_key_is_heard_once_it_is_added(
    kits, port_of_strangers, tmp_path
):
    (tmp_path / "west.pub").write_bytes((pair := keys.silo()).public)
    add(kits, "west", tmp_path / "west.pub")
    keys.write(kits / "west" / "keys" / "silo.key", pair.private)
    assert status(route(kits / "west"), kits / "west") == 401
    admit(kits / "server", "west", kits / "server" / "keys" / "west.pub")
    assert status(route(kits / "west"), kits / "west") == 200


def test_a_revoked_silo_gets_one_word_and_nothing_behind_the_gate(kits, port_of_strangers):
    dismiss(kits / "server", "south")
    assert status(route(kits / "south"), kits / "south") == 401
    assert ask_membership(route(kits / "south"), kits / "south" / "keys" / "silo.key") == "revoked"
    assert port_of_strangers.heard == []


def test_without_a_certificate_not_a_byte_is_read(kits, port_of_strangers):
    """Not for health, not for a standing that a member's key has signed."""
    bare = replace(route(kits / "north"), certificate=None)
    for path in (OTHER_PATH, MEMBERSHIP, "/health"):
        assert status(bare, kits / "north", path) in (
            "RemoteProtocolError",
            "ReadError",
            "WriteError",
        )
    assert ask_membership(bare, kits / "north" / "keys" / "silo.key") == "unsaid"
    assert port_of_strangers.data == []


def test_certificates_of_others_end_the_connection(kits, port_of_strangers, tmp_path):
    """Of another authority; of the right one, but a server's."""
    issuer, north = certificates.authority("try"), kits / "north"
    foreign = certificates.client(issuer, "north", (north / "keys" / "silo.pub").read_bytes())
    (tmp_path / "foreign.crt").write_bytes(foreign)
    link = replace(
        route(north),
        certificate=ClientCertificate(tmp_path / "foreign.crt", north / "keys" / "silo.key"),
    )
    assert status(link, north) in ("ReadError", "WriteError", "ConnectError", "RemoteProtocolError")
    certs = kits / "server" / "certs"
    context = ssl.create_default_context(cafile=str(certs / "ca.crt"))
    context.load_cert_chain(certs / "server.crt", certs / "server.key")
    with pytest.raises(httpx.TransportError), httpx.Client(verify=context, trust_env=False) as line:
        line.get(route(north).url + "/health")
    assert port_of_strangers.data == []


def test_files_that_do_not_fit_are_named(kits):
    north, south = route(kits / "north"), route(kits / "south")
    with pytest.raises(ConfigError, match=r"silo\.crt is not a certificate of .*silo\.key"):
        client_context(
            north.ca, ClientCertificate(south.certificate.certificate, north.certificate.key)
        )
    with pytest.raises(ConfigError, match="missing"):
        client_context(north.ca, ClientCertificate(kits / "none.crt", north.certificate.key))
    with pytest.raises(ConfigError, match="not an unencrypted private key"):
        client_context(
            north.ca,
            ClientCertificate(north.certificate.certificate, kits / "north" / "keys" / "silo.pub"),
        )
    with pytest.raises(ConfigError, match="is not a certificate"):
        client_context(north.certificate.key, None)


def test_a_real_superlink_asks_for_certificates_and_answers_its_own_machine(kits):
    """The gate's own answer to its machine is what SuperLink's processes live on, which have no
    certificate.
    """
    superlink_process = SuperLink(kits)
    try:
        north, south = kits / "north", kits / "south"
        bare = replace(route(north), certificate=None)
        assert ask_membership(route(north), north / "keys" / "silo.key") == "member"
        assert ask_membership(bare, north / "keys" / "silo.key") == "unsaid"
        assert status(bare, north) == 401
        assert status(route(south), north) == 401
        assert status(route(north), north) not in (401, 403)
        assert (
            httpx.get(
                bare.url + "/docs", verify=client_context(bare.ca, None), trust_env=False
            ).status_code
            == 200
        )
    finally:
        superlink_process.end()


def test_the_guides_command_makes_a_key_that_tls_clients_read(kits):
    """OpenSSL, and so curl and browsers, cannot read the kit's key as it is."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "federation.md").read_text()
    [line] = re.findall(r"`(cp keys/silo\.key [^`]+)`", guide)
    kit, context = kits / "north", ssl.create_default_context()
    with pytest.raises(ssl.SSLError):
        context.load_cert_chain(kit / "certs/silo.crt", kit / "keys/silo.key")
    subprocess.run(line, shell=True, cwd=kit, check=True, capture_output=True)
    context.load_cert_chain(kit / "certs/silo.crt", kit / "page.pem")
    assert (kit / "page.pem").stat().st_mode & 0o077 == 0
