"""Keys and certificates: verified by the library, by TLS on loopback, and by OpenSSL's and
OpenSSH's own programs.
"""

import shutil
import socket
import ssl
import stat
import subprocess
import threading
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given, settings
from hypothesis import strategies as st

from pomona.core.errors import ConfigError, StorageError
from pomona_federation import certificates, keys
from pomona_federation.server import superlink_client
from pomona_federation.silo.server_requests import signed

NOW = datetime.now(UTC).replace(microsecond=0)
SECOND = timedelta(seconds=1)
AUTHORITY = certificates.authority("hospitals", NOW)
OTHER_AUTHORITY = certificates.authority("hospitals", NOW)
SILO = keys.silo()


def certificate(pair):
    return x509.load_pem_x509_certificate(pair.public)


def verified(issuer, certified_key, host, moment):
    """The chain from a server's certificate to an authority, by the library's path validation."""
    try:
        subject = x509.IPAddress(ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    policy = (
        PolicyBuilder()
        .store(Store([certificate(issuer)]))
        .time(moment)
        .build_server_verifier(subject)
    )
    return policy.verify(certificate(certified_key), [])


@pytest.mark.parametrize("host", ["fl.example.org", "192.0.2.7", "2001:db8::1", "localhost"])
def test_a_servers_certificate_leads_to_its_authority_for_its_host_alone(host):
    server = certificates.server(AUTHORITY, [host], NOW)
    chain = verified(AUTHORITY, server, host, NOW)
    assert chain == [certificate(server), certificate(AUTHORITY)]
    for authority, name in (
        (OTHER_AUTHORITY, host),
        (AUTHORITY, "other.example.org"),
        (AUTHORITY, "192.0.2.8"),
    ):
        with pytest.raises(VerificationError):
            verified(authority, server, name, NOW)


def test_certificates_hold_for_as_long_as_said():
    server = certificates.server(AUTHORITY, ["fl.example.org"], NOW)
    last = NOW + timedelta(days=825)
    verified(AUTHORITY, server, "fl.example.org", last)
    verified(AUTHORITY, server, "fl.example.org", NOW - timedelta(minutes=59))
    for moment in (last + timedelta(seconds=1), NOW - timedelta(minutes=61)):
        with pytest.raises(VerificationError):
            verified(AUTHORITY, server, "fl.example.org", moment)
    assert (
        timedelta(days=3650)
        < certificate(AUTHORITY).not_valid_after_utc - NOW
        < timedelta(days=3654)
    )


def test_a_renewed_certificate_is_the_same_but_for_its_time():
    names = ["fl.example.org", "192.0.2.7", "2001:db8::1"]
    server = certificates.server(AUTHORITY, names, NOW)
    later = NOW + timedelta(days=800)
    renewed = certificates.renewed(AUTHORITY, server.public, later)
    old, new = certificate(server), x509.load_pem_x509_certificate(renewed)
    for name in names:
        chain = verified(
            AUTHORITY, keys.Pair(server.private, renewed), name, later + timedelta(days=825)
        )
        assert chain == [new, certificate(AUTHORITY)]
        with pytest.raises(VerificationError):
            verified(AUTHORITY, server, name, later + timedelta(days=825))
    assert new.public_key() == old.public_key()
    assert new.subject == old.subject
    assert new.serial_number != old.serial_number
    assert {e.oid: e.value for e in new.extensions} == {e.oid: e.value for e in old.extensions}
    for stranger in (OTHER_AUTHORITY, certificates.authority("clinics", NOW)):
        with pytest.raises(ValueError, match="was not signed by this authority"):
            certificates.renewed(stranger, server.public, later)


def test_a_certificate_ends_with_its_authority_at_the_latest():
    expiry = certificate(AUTHORITY).not_valid_after_utc
    server = certificates.server(AUTHORITY, ["localhost"], expiry - timedelta(days=10))
    assert certificate(server).not_valid_after_utc == expiry
    assert certificates.validity(
        certificates.renewed(AUTHORITY, server.public, expiry - timedelta(days=826))
    ) == expiry - timedelta(days=1)


@pytest.mark.parametrize(
    ("days", "message"),
    [
        (30, ""),
        (29.5, "ends in 29 days, on 2026-03-02"),
        (0.5, "ends in 0 days"),
        (-0.5, "ended on 2026-01-31"),
    ],
)
def test_people_are_told_in_the_last_month(days, message):
    today = datetime(2026, 2, 1, tzinfo=UTC)
    assert certificates.warning(today + timedelta(days=days), today).startswith(message)
    assert bool(certificates.warning(today + timedelta(days=days), today)) == bool(message)


def test_a_file_is_replaced_in_one_step_for_its_owner_alone(tmp_path, monkeypatch):
    path = tmp_path / "server.crt"
    path.write_bytes(b"old")
    (tmp_path / ".server.crt.new").write_bytes(b"of a kill")
    keys.replace(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def no_space(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys.os, "fsync", no_space)
    with pytest.raises(StorageError, match="No space left"):
        keys.replace(path, b"newer")
    assert [p.name for p in tmp_path.iterdir()] == ["server.crt"]
    assert path.read_bytes() == b"new"


def test_a_server_cannot_issue_certificates():
    server = certificates.server(AUTHORITY, ["fl.example.org"], NOW)
    forged = certificates.server(server, ["fl.example.org"], NOW)
    policy = PolicyBuilder().store(Store([certificate(AUTHORITY)])).time(NOW)
    with pytest.raises(VerificationError):
        policy.build_server_verifier(x509.DNSName("fl.example.org")).verify(
            certificate(forged), [certificate(server)]
        )


def test_an_expiry_is_read_from_the_file(tmp_path):
    path = tmp_path / "server.crt"
    path.write_bytes(certificates.server(AUTHORITY, ["localhost"], NOW).public)
    assert certificates.expires(path) == NOW + timedelta(days=825)
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"server\.crt is not a certificate"):
        certificates.expires(path)
    with pytest.raises(ConfigError, match=r"absent\.crt.*cannot be read"):
        certificates.expires(tmp_path / "absent.crt")


def handshake(tmp_path, trusted):
    """A TLS connection on loopback, with the files as written: the text that the client reads, or
    its error.
    """
    pair = certificates.server(AUTHORITY, ["localhost", "127.0.0.1"])
    for name, content in (("crt", pair.public), ("key", pair.private), ("ca", trusted.public)):
        (tmp_path / name).write_bytes(content)
    inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inside.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    outside = ssl.create_default_context(cafile=tmp_path / "ca")
    outside.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on

    def serve(listener):
        connection, _ = listener.accept()
        connection.settimeout(10)
        try:
            with inside.wrap_socket(connection, server_side=True) as stream:
                stream.sendall(b"hello")
        except OSError:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as plain,
                outside.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
            ):
                return stream.recv(5)
        finally:
            server.join()


def test_tls_connects_with_the_made_files(tmp_path):
    assert handshake(tmp_path, AUTHORITY) == b"hello"


def test_tls_refuses_another_authority(tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, OTHER_AUTHORITY)


def test_a_silos_keys_are_a_pair_on_p384_in_opensshs_format():
    private = load_ssh_private_key(SILO.private, password=None)
    assert isinstance(private.curve, ec.SECP384R1)
    line = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    assert SILO.public == line + b"\n"
    assert keys.silo().public != SILO.public


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_openssh_reads_our_keys_and_we_read_its(tmp_path):
    keys.write(tmp_path / "ours", SILO.private)
    output = subprocess.run(
        ["ssh-keygen", "-y", "-f", tmp_path / "ours"], capture_output=True, check=True
    ).stdout
    assert output.split() == SILO.public.split()
    options = ["-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "me@here"]
    command = ["ssh-keygen", *options, "-f", tmp_path / "theirs"]
    subprocess.run(command, check=True)
    line = keys.public(tmp_path / "theirs.pub")
    assert line.split() == (tmp_path / "theirs.pub").read_bytes().split()[:2]  # without the comment
    with pytest.raises(ConfigError, match=r"private key, which stays"):
        keys.public(tmp_path / "theirs")


def test_keys_of_another_kind_are_refused_with_how_to_make_one(tmp_path):
    path = tmp_path / "silo.pub"
    for key in (ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()):
        path.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
        with pytest.raises(ConfigError, match=r"silo\.pub.*P-384.*ssh-keygen -t ecdsa -b 384"):
            keys.public(path)
    point = load_ssh_public_key(SILO.public).public_bytes(
        Encoding.X962, PublicFormat.CompressedPoint
    )
    fields = (b"ecdsa-sha2-nistp384", b"nistp384", point)
    encoded = b64encode(b"".join(len(field).to_bytes(4, "big") + field for field in fields))
    for content in (b"ssh-rsa nonsense", b"ecdsa-sha2-nistp384 " + encoded):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"silo\.pub.*OpenSSH"):
            keys.public(path)
        with pytest.raises(ConfigError, match="OpenSSH"):
            superlink_client.pem(content.decode())
        assert not keys.signed(content.decode(), "row", {}, "00")
    with pytest.raises(ConfigError, match=r"absent.*cannot be read"):
        keys.public(tmp_path / "absent")


OTHER_KEYS = {
    "P-256": (ec.generate_private_key(ec.SECP256R1()), PrivateFormat.OpenSSH),
    "Ed25519": (ed25519.Ed25519PrivateKey.generate(), PrivateFormat.OpenSSH),
    "PEM": (load_ssh_private_key(SILO.private, None), PrivateFormat.PKCS8),
}
LOCKED = pytest.param(
    "passphrase", marks=pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs it")
)


@pytest.mark.parametrize("case", [*OTHER_KEYS, LOCKED, "absent"])
def test_a_private_key_of_another_kind_is_refused_by_all_who_use_it(case, tmp_path):
    path = tmp_path / "silo.key"
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.public)
    uses = (
        keys.private_key,
        lambda path: keys.Signer(path).sign("row", {}),
        signed,
        lambda path: certificates.client_context(
            tmp_path / "ca.crt", certificates.ClientCertificate(tmp_path / "silo.crt", path)
        ),
    )
    keys.write(path, SILO.private)
    assert keys.line(keys.private_key(path).public_key()) == SILO.public
    if case in OTHER_KEYS:
        key, key_format = OTHER_KEYS[case]
        path.write_bytes(key.private_bytes(Encoding.PEM, key_format, NoEncryption()))
    elif case == "passphrase":
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", path], check=True)
    else:
        path.unlink()
    for use in uses:
        with pytest.raises(ConfigError, match=r"silo\.key.*(unencrypted|cannot be read)"):
            use(path)


# The authority's certificate of a silo's key


def certify(name="north", federation="hospitals", authority=AUTHORITY):
    return keys.certify(authority, federation, name, SILO.public)


def valid(
    line, name="north", public=SILO.public, federation="hospitals", authority=AUTHORITY, day=NOW
):
    return keys.certified(authority.public, federation, name, public, line, day)


NAMES = st.text(max_size=12)


@settings(max_examples=30)
@given(NAMES, NAMES)
def test_a_silos_certificate_holds_for_that_name_alone(name, other_name):
    assert valid(certify(name), name)
    assert valid(certify(name), other_name) == (other_name == name)


def test_it_holds_for_that_key_federation_and_authority_alone():
    line = certify()
    assert valid(line, public=SILO.public.strip() + b" a comment\n")
    assert not valid(line, public=keys.silo().public)
    assert not valid(line, public=b"no key")
    assert not valid(line, federation="clinics")
    assert not valid(line, authority=OTHER_AUTHORITY)
    assert not valid(SILO.public), "a key is not a certificate"


def test_it_holds_as_long_as_the_authority():
    line, issuer = certify(), certificate(AUTHORITY)
    first, last = issuer.not_valid_before_utc, issuer.not_valid_after_utc
    moments = (first - SECOND, first, last - SECOND, last)
    assert [valid(line, day=moment) for moment in moments] == [False, True, True, False]


FOREIGN = {
    "of a host": lambda cert: cert.type(SSHCertificateType.HOST).valid_principals([b"north"]),
    "of two silos": lambda cert: cert.type(SSHCertificateType.USER).valid_principals(
        [b"north", b"south"]
    ),
    "of everybody": lambda cert: cert.type(SSHCertificateType.USER).valid_for_all_principals(),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_another_kind_of_certificate_of_the_same_authority_does_not_hold(case):
    cert = (
        SSHCertificateBuilder()
        .public_key(load_ssh_public_key(SILO.public))
        .valid_after(0)
        .valid_before(2**33)
    )
    cert = cert.add_critical_option(keys.FEDERATION, b"hospitals")
    assert not valid(FOREIGN[case](cert).sign(keys.signer(AUTHORITY.private)).public_bytes())
    right = cert.type(SSHCertificateType.USER).valid_principals([b"north"])
    assert valid(right.sign(keys.signer(AUTHORITY.private)).public_bytes())
    for extra in (
        right.add_extension(b"permit-pty", b""),
        right.add_critical_option(b"force-command", b"true"),
    ):
        assert not valid(extra.sign(keys.signer(AUTHORITY.private)).public_bytes())


@pytest.mark.long
def test_a_certificate_with_any_bit_turned_does_not_hold():
    line = certify()
    kind, body = line.split()
    raw = b64decode(body)
    for bit in range(8 * len(raw)):
        turned = bytearray(raw)
        turned[bit // 8] ^= 1 << bit % 8
        assert not valid(kind + b" " + b64encode(bytes(turned))), bit
    for bit in range(8 * len(line.strip())):
        turned = bytearray(line)
        turned[bit // 8] ^= 1 << bit % 8
        assert not valid(bytes(turned)), bit
    assert not valid(line.strip()[:-1])
    assert not valid(b"")


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="needs ssh-keygen")
def test_openssh_shows_a_certificate(tmp_path):
    (tmp_path / "north.cert").write_bytes(certify())
    output = subprocess.run(
        ["ssh-keygen", "-L", "-f", tmp_path / "north.cert"],
        capture_output=True,
        check=True,
        text=True,
        env={"TZ": "UTC"},
    ).stdout
    issuer = certificate(AUTHORITY)
    span = (
        f"from {issuer.not_valid_before_utc:%Y-%m-%dT%H:%M:%S} to "
        f"{issuer.not_valid_after_utc:%Y-%m-%dT%H:%M:%S}"
    )
    for entry in (
        "user certificate",
        'Key ID: "north"',
        "Principals: \n                north",
        span,
        "federation@pomona",
    ):
        assert entry in output


# Files


@pytest.mark.parametrize("mode", [0o600, 0o700])
def test_a_file_is_its_owners_alone_from_the_first_moment(tmp_path, mode, monkeypatch):
    modes = []
    opened = keys.os.open

    def watched(path, flags, mode):
        handle = opened(path, flags, mode)
        modes.append(stat.S_IMODE(keys.os.fstat(handle).st_mode))
        return handle

    monkeypatch.setattr(keys.os, "open", watched)
    old = keys.os.umask(0)
    try:
        keys.write(tmp_path / "key", b"secret", mode)
    finally:
        keys.os.umask(old)
    assert modes == [mode] == [stat.S_IMODE((tmp_path / "key").stat().st_mode)]
    assert (tmp_path / "key").read_bytes() == b"secret"


def test_a_key_is_never_overwritten(tmp_path):
    keys.write(tmp_path / "key", b"first")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("key", "link"):
        with pytest.raises(StorageError, match=rf"{name}.*not overwritten"):
            keys.write(tmp_path / name, b"second")
    assert (tmp_path / "key").read_bytes() == b"first"
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(StorageError, match="cannot be written"):
        keys.write(tmp_path / "absent" / "key", b"")


def test_half_a_key_is_none(tmp_path, monkeypatch):
    def no_space(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys.os, "fsync", no_space)
    with pytest.raises(StorageError, match="No space left"):
        keys.write(tmp_path / "key", b"secret")
    assert not (tmp_path / "key").exists()
