"""Coming in over TLS: login, what is stored and checked, certificates, tokens."""

import datetime as dt
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import client_fakes as fakes
import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hs_client import lookup, tls
from hs_proto.v1 import controller_pb2 as wire

NAMED = (x509.DNSName("controller.heteroshare"),)
DAY, NONE = dt.timedelta(days=1), dt.timedelta()


@dataclass(frozen=True)
class Ca:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def sha256(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    def credentials(
        self,
        uri: str,
        names: list[x509.GeneralName],
        ahead: dt.timedelta = NONE,
        *,
        names_issuer: bool = True,
    ) -> grpc.ServerCredentials:
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri), *names])
        leaf = builder("controller", self.certificate.subject, key.public_key(), ahead).add_extension(
            alternatives, critical=False
        )
        if names_issuer:
            mine = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
            leaf = leaf.add_extension(mine, critical=False)
        made = leaf.sign(self.key, hashes.SHA256())
        chain = made.public_bytes(serialization.Encoding.PEM) + self.pem.encode()
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return grpc.ssl_server_credentials([(secret, chain)])


def builder(name, issuer, key, ahead=NONE) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC) + ahead
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer or subject).public_key(key)
    return (
        made.serial_number(x509.random_serial_number()).not_valid_before(now - DAY).not_valid_after(now + DAY)
    )


def new_ca() -> Ca:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "encipher_only", "decipher_only"), False
    )  # fmt: skip
    made = (
        builder("HeteroShare CA", None, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Ca(key, made.sign(key, hashes.SHA256()))


@pytest.fixture(scope="module")
def ca() -> Ca:
    return new_ca()


@pytest.fixture
def listening(ca, short):
    """A scripted controller behind TLS on loopback."""
    made = []

    def listen(uri="spiffe://heteroshare/controller", names=NAMED, ahead=NONE, *, names_issuer=True):
        credentials = ca.credentials(uri, list(names), ahead, names_issuer=names_issuer)
        serving = fakes.Serving(fakes.FakeController(), short / "t.sock", credentials)
        serving.start()
        made.append(serving)
        return serving

    yield listen
    for serving in made:
        serving.stop()


def stored(tmp_path: Path) -> Path:
    return tmp_path / "config/heteroshare/login.json"


def test_a_login_is_kept_for_its_owner_alone_and_used_from_then_on(call, listening, ca, tmp_path):
    serving = listening()
    target = f"127.0.0.1:{serving.port}"
    ran = call("login", target, "--ca-sha256", ca.sha256, stdin="hs_secret\n")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"logged in to {target} as ann")
    assert stat.S_IMODE(stored(tmp_path).stat().st_mode) == 0o600
    assert call("info").code == 0
    assert serving.fake.metadata["Info"]["authorization"] == "Bearer hs_secret"
    assert "hs_secret" not in ran.out + ran.err
    assert call("login", "--forget").code == 0
    assert not stored(tmp_path).exists()


def test_a_ca_with_another_hash_is_refused_and_nothing_is_kept(call, listening, tmp_path):
    serving = listening()
    ran = call("login", f"127.0.0.1:{serving.port}", "--ca-sha256", "ab" * 32, stdin="hs_secret")
    assert ran.code == 5
    assert "somebody else may be answering" in ran.err
    assert not stored(tmp_path).exists()
    assert not serving.fake.requests, "the token was told to nobody"


def test_a_certificate_that_does_not_name_its_issuers_key_is_refused_by_every_python(call, listening, ca):
    serving = listening(names_issuer=False)
    ran = call("login", f"127.0.0.1:{serving.port}", "--ca-sha256", ca.sha256, stdin="hs_secret")
    assert ran.code == 5
    assert "is not of that CA: Missing Authority Key Identifier" in ran.err


def test_without_a_hash_and_without_a_terminal_nothing_is_trusted(call, listening, ca):
    serving = listening()
    ran = call("login", f"127.0.0.1:{serving.port}", stdin="hs_secret")
    assert ran.code == 2
    assert ca.sha256 in ran.err


def test_a_token_that_is_refused_is_not_kept(call, listening, ca, tmp_path):
    serving = listening()
    target = f"127.0.0.1:{serving.port}"
    assert call("login", target, "--ca-sha256", ca.sha256, stdin="good").code == 0
    serving.fake.refusals["Info"] = ("not-allowed", "no such token")
    assert call("login", target, "--ca-sha256", ca.sha256, stdin="bad").code == 5
    assert json.loads(stored(tmp_path).read_text())["token"] == "good"


def test_an_agents_certificate_is_no_controllers(call, listening, ca):
    serving = listening("spiffe://heteroshare/agent/n1", [x509.DNSName("n1.agent.heteroshare")])
    ran = call("login", f"127.0.0.1:{serving.port}", "--ca-sha256", ca.sha256, stdin="t")
    assert ran.code == 2
    assert "no controller" in ran.err


def test_an_address_without_a_known_ca_is_refused_before_anything_is_sent(call, listening, ca, tmp_path):
    serving = listening()
    target = f"127.0.0.1:{serving.port}"
    ran = call("--controller", target, "info")
    assert ran.code == 2
    assert f"hsctl login {target}" in ran.err
    (tmp_path / "ca.pem").write_text(ca.pem)
    (tmp_path / "token").write_text("mine\n")
    (tmp_path / "token").chmod(0o600)
    words = ("--controller", target, "--ca", tmp_path / "ca.pem", "--token-file", tmp_path / "token", "info")
    quiet = call(*words)
    assert (quiet.code, quiet.err) == (0, "")
    assert serving.fake.metadata["Info"]["authorization"] == "Bearer mine"
    (tmp_path / "other.pem").write_text(new_ca().pem)
    started = call("--controller", target, "--ca", tmp_path / "other.pem", "info")
    assert started.code == 6, "a certificate of another CA is not talked to"


def by_itself(*words: object, before: tuple[object, ...] = ()) -> subprocess.CompletedProcess[str]:
    """As people run it: gRPC reads what it goes by once, when it is loaded."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("GRPC_")}
    argv = [*map(str, before), sys.executable, "-m", "hs_client", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=own)


def test_of_a_certificate_that_is_refused_hsctl_says_one_line_and_grpc_none(listening, tmp_path):
    (tmp_path / "other.pem").write_text(new_ca().pem)
    ran = by_itself("--controller", f"127.0.0.1:{listening().port}", "--ca", tmp_path / "other.pem", "info")
    assert (ran.returncode, ran.stdout) == (6, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("hsctl: no controller answers at ")


def test_a_name_is_looked_up_as_every_other_program_does_it(listening, ca, tmp_path):
    """gRPC's own resolver takes the first line of /etc/hosts with a name, and no other."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.0.2 gpu-head\n127.0.0.1 gpu-head\n")
    bind = ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts]
    if shutil.which("unshare") is None or subprocess.run([*alone, *bind, "true"], check=False).returncode:
        pytest.skip("no namespace of its own for another /etc/hosts")
    (tmp_path / "ca.pem").write_text(ca.pem)
    (tmp_path / "token").write_text("mine\n")
    (tmp_path / "token").chmod(0o600)
    target = f"gpu-head:{listening().port}"
    words = ("--controller", target, "--ca", tmp_path / "ca.pem", "--token-file", tmp_path / "token", "info")
    ran = by_itself(*words, before=(*alone, *bind))
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "words",
    [("queue",), ("exec", "1", "--", "true"), ("cert",), ("login", "gpu-head:7443", "--ca-sha256", "0" * 64)],
)
def test_a_name_server_that_does_not_answer_is_said_soon_and_with_the_hosts_name(
    call, ca, monkeypatch, tmp_path, words
):
    asked, over = list[str](), threading.Event()

    def dead(host, *_args, **_more):
        asked.append(host)
        over.wait(60)

    monkeypatch.setattr(lookup, "LOOKUP_S", 0.1)
    monkeypatch.setattr(lookup.socket, "getaddrinfo", dead)
    (tmp_path / "ca.pem").write_text(ca.pem)
    try:
        ran = call("--controller", "gpu-head:7443", "--ca", tmp_path / "ca.pem", *words, stdin="token\n")
    finally:
        over.set()
    assert (ran.code, asked) == (6, ["gpu-head"]), ran.err
    assert "the address of gpu-head cannot be looked up: no name server has answered within 0.1 s" in ran.err


def test_a_name_that_nobody_knows_is_said_at_once(call, monkeypatch):
    def unknown(*_args, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(lookup.socket, "getaddrinfo", unknown)
    ran = call("--controller", "http://localhost:1", "info")
    assert ran.code == 6
    assert "the address of localhost cannot be looked up: Name or service not known" in ran.err


def test_plaintext_is_for_loopback_only_and_says_so_in_the_address(call):
    assert call("--controller", "http://127.0.0.1:1", "info").code == 6
    ran = call("--controller", "http://gpu-head:7443", "info")
    assert ran.code == 2
    assert "loopback only" in ran.err


def test_a_token_file_that_everybody_can_read_is_warned_of_and_used(call, listening, ca, tmp_path):
    serving = listening()
    target = f"127.0.0.1:{serving.port}"
    file, ca_file = tmp_path / "token", tmp_path / "ca.pem"
    file.write_text("mine\n")
    file.chmod(0o644)
    ca_file.write_text(ca.pem)
    said = f"hsctl: token file {str(file)!r} can be read by everybody on this machine: chmod 600 {file}\n"
    ran = call("--controller", target, "--ca", ca_file, "--token-file", file, "info")
    assert (ran.code, ran.err) == (0, said)
    ran = call("login", target, "--ca", ca_file, "--token-file", file)
    assert (ran.code, ran.err) == (0, said)
    file.chmod(0o640)
    assert call("--controller", target, "--ca", ca_file, "--token-file", file, "info").err == ""


def test_a_login_that_others_can_read_is_refused(call, listening, ca, tmp_path):
    serving = listening()
    assert call("login", f"127.0.0.1:{serving.port}", "--ca-sha256", ca.sha256, stdin="t").code == 0
    stored(tmp_path).chmod(0o644)
    ran = call("info")
    assert ran.code == 2
    assert "chmod 600" in ran.err
    stored(tmp_path).chmod(0o600)
    stored(tmp_path).write_text("{")
    assert "hsctl login" in call("info").err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["login"], "address"),
        (["login", "gpu-head"], "HOST:PORT"),
        (["login", "unix:/run/x.sock"], "HOST:PORT"),
        (["login", "127.0.0.1:99999"], "HOST:PORT"),
        (["login", "gpu..head:7443", "--ca-sha256", "ab" * 32], "HOST:PORT"),
        (["login", "--forget", "a:1"], "nothing else"),
        (["cert", "unix:/x"], "no certificate"),
        (["cert"], "address"),
    ],
)
def test_bad_words_of_login_and_cert_are_bad_usage(call, words, named):
    ran = call(*words)
    assert ran.code == 2
    assert named in ran.err


def test_nobody_at_the_address_is_unreachable(call):
    assert call("login", "127.0.0.1:1", "--ca-sha256", "ab" * 32, stdin="t").code == 6
    ran = call("login", "127.0.0.1:1", "--ca-sha256", "zz", stdin="t")
    assert (ran.code, "'zz': expected 64 hexadecimal digits" in ran.err) == (2, True), "that is said first"


def test_cert_shows_what_is_presented_and_whether_it_is_ours(call, listening, ca):
    serving = listening()
    target = f"127.0.0.1:{serving.port}"
    row = json.loads(call("cert", target, "--json").out)
    assert (row["ca_sha256"], row["is_controller"], row["trusted"]) == (ca.sha256, True, None)
    assert row["names"] == ["controller.heteroshare"]
    assert row["tls"] == "TLSv1.3"
    call("login", target, "--ca-sha256", ca.sha256, stdin="t")
    assert "the same CA" in call("cert").out
    login = json.loads(call("cert", "--json").out)
    assert login["trusted"] is True


def test_cert_compares_with_the_ca_that_is_named_before_the_logins(
    call, listening, ca, tmp_path, monkeypatch
):
    target = f"127.0.0.1:{listening().port}"
    call("login", target, "--ca-sha256", ca.sha256, stdin="t")
    ours, foreign = tmp_path / "ours.pem", tmp_path / "foreign.pem"
    ours.write_text(ca.pem)
    foreign.write_text(new_ca().pem)
    ran = call("--ca", foreign, "cert", target)
    assert (ran.code, "--ca:         ANOTHER CA" in ran.out) == (1, True)
    monkeypatch.setenv("HS_CA", str(foreign))
    ran = call("cert", target, "--json")
    assert (ran.code, json.loads(ran.out)["trusted"]) == (1, False)
    assert call("--ca", ours, "cert", target).code == 0
    assert call("--ca", tmp_path / "none.pem", "cert", target).code == 2


@pytest.mark.parametrize(("days", "said"), [(3, "not yet valid"), (-3, "has expired")])
def test_a_certificate_of_another_day_makes_it_look_at_the_clock(call, listening, days, said):
    serving = listening(ahead=days * DAY)
    ran = call("cert", f"127.0.0.1:{serving.port}")
    assert ran.code == 5
    assert said in ran.err
    assert "by the clock of this machine" in ran.err
    assert "not of that CA" not in ran.err


def test_a_chain_without_the_ca_asks_for_it(listening, ca, monkeypatch):
    serving = listening()
    monkeypatch.setattr(Ca, "pem", "")
    serving.stop()
    serving.credentials = ca.credentials("spiffe://heteroshare/controller", list(NAMED))
    serving.start()
    from hs_client.errors import InvalidError

    with pytest.raises(InvalidError, match="--ca FILE"):
        tls.look(f"127.0.0.1:{serving.port}")


def test_tokens_are_shown_once_listed_and_revoked(hsctl, fake):
    ran = hsctl("token", "create", "--label", "laptop", "--valid", "30d")
    assert ran.out == "hs_secret\n"
    asked = fake.last("CreateToken")
    assert (asked.user, asked.label, asked.valid_s, bool(asked.key)) == ("", "laptop", 30 * 86400, True)
    made = json.loads(hsctl("token", "create", "--for", "bob", "--json").out)
    assert (made["token"], made["user"]) == ("hs_secret", "bob")
    fake.tokens = [
        wire.TokenView(id="t1", user="ann", not_after=2e9),
        wire.TokenView(id="t2", user="bob", revoked=True),
    ]
    lines = hsctl("token", "list").out.splitlines()
    assert lines[1].split()[:4] == ["t1", "ann", "-", "valid"]
    assert "revoked" in lines[2]
    assert [row["id"] for row in json.loads(hsctl("token", "list", "--me", "--json").out)] == ["t1"]
    assert len(hsctl("token", "list", "--jsonl").out.splitlines()) == 2
    assert hsctl("token", "revoke", "t1").out == "token t1 of ann revoked\n"
    assert hsctl("token", "create", "--valid", "soon").code == 2


def test_an_invitation_is_listed_and_taken_back_as_the_nodes_that_it_is_for(hsctl, fake):
    fake.tokens = [wire.TokenView(id="i1", user="root", node="v1", created_at=1.0, not_after=2e9)]
    (line,) = hsctl("token", "list").out.splitlines()[1:]
    assert ("invitation of v1" in line, "valid" in line) == (True, True)
    (row,) = json.loads(hsctl("token", "list", "--json").out)
    assert (row["node"], row["user"], row["not_after"]) == ("v1", "root", 2e9)
    assert hsctl("token", "revoke", "i1").out == "the invitation i1 of v1 revoked\n"


@pytest.mark.parametrize(
    ("flag", "text"), [("--token-file", "you are known by your account"), ("--ca", "is not TLS")]
)
def test_what_would_say_nothing_on_a_socket_is_refused(hsctl, tmp_path, flag, text):
    """Else whoever names a token there would act as somebody else than its owner."""
    (tmp_path / "file").write_text("x")
    ran = hsctl(flag, tmp_path / "file", "queue")
    assert ran.code == 2
    assert ran.err.startswith(f"hsctl: {flag}: expected with HOST:PORT only; ")
    assert text in ran.err
