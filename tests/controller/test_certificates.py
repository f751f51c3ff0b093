"""What becomes of certificates: they end, are renewed and replaced, and clocks are wrong."""

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509

from hs_agent import credentials, joining
from hs_agent.renewal import Keeper
from hs_controller import own_certificate, pki
from hs_controller.config import Config
from hs_controller.own_certificate import OwnCertificate
from hs_controller.pki import Authority, PkiError
from hs_core.errors import Kind, RefusedError
from tests.controller.kit import started, until
from tests.controller.secured import CONNECTED, Cluster, Host, free_port, run_init


def test_an_agent_that_runs_takes_up_the_certificate_with_which_its_host_joined_anew(
    cluster: Cluster,
) -> None:
    """With the one before it would be refused: nothing but the new one lets it in again."""
    host = Host(cluster, "v18")
    old = host.join()
    with host.running():
        host.says(CONNECTED)
        new = host.join(replace=True)
        host.says(CONNECTED, 2)
    assert host.said(CONNECTED) == 2
    assert old.chain_pem != new.chain_pem == (host.identity / "cert.pem").read_bytes()


def test_the_port_of_an_agent_that_runs_agrees_on_tls_1_3_and_on_nothing_before_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the program itself, as gRPC reads its list of cipher suites once, when it is first loaded."""
    monkeypatch.delenv("GRPC_SSL_CIPHER_SUITES", raising=False)  # this process' own, which it would inherit
    host = Host(cluster, "v17")
    host.join()
    port = free_port()
    with host.config.open("a") as file:
        file.write(f'peer_listen = "127.0.0.1:{port}"\n')

    def agreed(version: ssl.TLSVersion) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.load_cert_chain(host.identity / "cert.pem", host.identity / "key.pem")
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", port), 5) as plain, context.wrap_socket(plain) as secure:
            return secure.version()

    with host.running():
        host.says(CONNECTED)
        assert agreed(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises(ssl.SSLError):
            agreed(ssl.TLSVersion.TLSv1_2)


def test_a_host_whose_certificate_has_ended_is_told_so_by_its_agent_and_by_doctor(cluster: Cluster) -> None:
    host = Host(cluster, "v19")
    none = host.doctor()
    assert none.returncode == 1
    assert "fail  certificate" in none.stdout
    assert "this host has no certificate: `hsctl node enroll v19`" in none.stdout
    mine = host.join()
    assert "ok    certificate     good until" in host.doctor().stdout
    host.issued(mine, time.time() - pki.LEAF_S - 60)
    ended = host.doctor()
    assert ended.returncode == 1
    assert "fail  certificate     this host's certificate ended on" in ended.stdout
    assert "`hsctl node enroll v19`" in ended.stdout
    with host.running():
        host.says("this host's certificate ended on")
        host.join(replace=True)
        host.says(CONNECTED)


def test_a_host_whose_clock_is_behind_is_told_so_by_its_agent_and_by_doctor(cluster: Cluster) -> None:
    host = Host(cluster, "v20")
    mine = host.join()
    host.issued(mine, time.time() + 3600)
    looked = host.doctor()
    assert looked.returncode == 1
    assert "fail  certificate     the clock of this host says" in looked.stdout
    assert "set the clock" in looked.stdout
    with host.running():
        host.says("set the clock")


def test_a_host_whose_clock_is_wrong_is_told_so_when_it_joins(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = cluster.enroll("v21").token
    now_s = time.time()
    for wrong_s in (now_s - 30 * 86_400.0, now_s + 30 * 86_400.0):
        with monkeypatch.context() as clock:
            clock.setattr(joining.time, "time", lambda wrong_s=wrong_s: wrong_s)
            with pytest.raises(RefusedError, match="but the clock of this host says") as refused:
                cluster.join(token, "v21")
        assert refused.value.kind is Kind.UNAVAILABLE
        assert "set the clock" in str(refused.value)
    assert cluster.join(token, "v21").node == "v21", "the token was not used up"


def test_the_controllers_own_certificate_is_renewed_when_due_and_when_it_is_torn(tmp_path: Path) -> None:
    pki.init(tmp_path)
    authority = Authority.load(tmp_path)
    assert authority is not None
    due_s = authority.own_due_s(time.time())
    assert 0.6 * pki.LEAF_S < due_s - time.time() < 0.7 * pki.LEAF_S
    (tmp_path / "pki" / "server.key").write_bytes((tmp_path / "pki" / "ca.key").read_bytes())
    assert authority.own_due_s(time.time()) == 0.0, "a crash between the two files is seen"
    authority.renew_own(time.time() + 3600)
    assert authority.own_due_s(time.time()) == 0.0, (
        "nobody believes it yet: the clock was wrong when it was made"
    )
    authority.renew_own(time.time())
    authority.server_context()
    assert authority.own_due_s(time.time()) > time.time()


def test_a_controller_that_is_on_another_host_than_before_shows_that_ones_name(
    lasting: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki.init(lasting.state_dir)
    authority = Authority.load(lasting.state_dir)
    assert authority is not None

    def names() -> list[str]:
        own = x509.load_pem_x509_certificate((lasting.state_dir / "pki" / "server.pem").read_bytes())
        named = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return named.get_values_for_type(x509.DNSName)

    assert names() == ["controller.heteroshare", socket.gethostname(), "localhost"]
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-head-2")
    assert 0.0 < authority.own_due_s(time.time()) < time.time(), "it is due, and good for nodes and hsctl"

    async def story() -> None:
        async with started(replace(lasting, listen=("127.0.0.1", 0))) as here:
            assert here.controller.address

    asyncio.run(story())
    assert names() == ["controller.heteroshare", "gpu-head-2", "localhost"]
    assert authority.own_due_s(time.time()) > time.time()


@pytest.mark.parametrize("written", [0, 1])
def test_a_renewal_for_which_the_disk_has_no_room_leaves_the_certificate_that_is_there_good(
    written: int, lasting: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki.init(lasting.state_dir)
    authority = Authority.load(lasting.state_dir)
    assert authority is not None
    authority.renew_own(time.time() - 6 * 86_400.0)
    good, rooms, write = certificate_of(lasting), iter([True] * written), pki.write_new

    def full(file: Path, data: bytes) -> None:
        if not next(rooms, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, data)

    async def story() -> None:
        async with started(replace(lasting, listen=("127.0.0.1", 0))) as here:
            assert here.controller.address

    monkeypatch.setattr(pki, "write_new", full)
    asyncio.run(story())
    assert certificate_of(lasting) == good
    assert 0.0 < authority.own_due_s(time.time()) < time.time(), "it is due, and good for another day"
    with pytest.raises(PkiError, match="No space left"):
        authority.renew_own(time.time())
    assert authority.own_due_s(time.time() + 2 * 86_400.0) == 0.0


def test_a_certificate_that_has_ended_while_its_controller_slept_is_renewed_within_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own_certificate.LOOKED_AT_S <= 60.0
    monkeypatch.setattr(own_certificate, "LOOKED_AT_S", 0.01)
    pki.init(tmp_path)
    authority = Authority.load(tmp_path)
    assert authority is not None
    write, fails = pki.write_new, [3]
    told: list[str] = []

    def note(event: str, **_more: str) -> None:
        told.append(event)

    def full_at_first(file: Path, data: bytes) -> None:
        if fails[0]:
            fails[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, data)

    async def story() -> None:
        own = OwnCertificate(authority)
        await own.context("h2")
        authority.renew_own(time.time() - pki.LEAF_S - 60.0)
        assert authority.own_due_s(time.time()) == 0.0
        monkeypatch.setattr(pki, "write_new", full_at_first)
        monkeypatch.setattr(own_certificate, "log", SimpleNamespace(error=note, info=note))
        await until(lambda: "own-certificate-renewed" in told)
        await own.stop()

    asyncio.run(story())
    assert authority.own_due_s(time.time()) > time.time()
    assert told == ["own-certificate-not-renewed", "own-certificate-renewed"]


def certificate_of(config: Config) -> list[bytes]:
    return [(config.state_dir / "pki" / f"server.{end}").read_bytes() for end in ("key", "pem")]


def test_a_clock_that_was_wrong_once_keeps_nobody_out_when_it_is_right_again(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    host = Host(cluster.start(), "v30")
    mine = host.join()
    assert cluster.end() == 0
    ahead_s = time.time() + 365 * 86_400.0
    authority = Authority.load(tmp_path / "state")
    assert authority is not None
    authority.renew_own(ahead_s)
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "journal.db", isolation_level=None)) as db:
        db.execute("UPDATE events SET at_s = ?", (ahead_s,))
    cluster.start()
    try:
        with host.running():
            host.says(CONNECTED)
        assert '"clock-behind-journal"' in cluster.log.read_text()
        again = asyncio.run(Keeper(mine, cluster.address).renew())
        assert again.not_before_s < time.time() < again.not_after_s
        assert cluster.joined("v31").not_before_s < time.time()
    finally:
        assert cluster.end() == 0


def test_where_the_clusters_ca_was_made_anew_its_hosts_are_told_what_to_do(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    host = Host(cluster.start(), "v32")
    host.join()
    assert cluster.end() == 0
    shutil.rmtree(tmp_path / "state" / "pki")
    cluster.ca_sha256 = run_init(cluster.file).stdout.split()[-1]
    cluster.start()
    try:
        with host.running():
            host.says("shows a certificate of another CA than this host's")
            host.says(
                "`hsctl node enroll v32` where an administrator is, then `hs-agent join --replace` here"
            )
            looked = host.doctor()
            assert looked.returncode == 1
            assert (
                f"fail  controller      {cluster.address} shows a certificate of another CA" in looked.stdout
            )
            host.join(replace=True)
            host.says(CONNECTED)
    finally:
        assert cluster.end() == 0


def test_a_ca_that_has_ended_is_named_and_nothing_is_signed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    authority = ended_ca(tmp_path, monkeypatch, left_s=60.0)
    authority.renew_own(now_s)
    assert authority.until_s == pytest.approx(now_s + 60.0, abs=2.0)
    assert authority.own_due_s(now_s) < now_s + 60.0, "nothing outlives it"
    with pytest.raises(PkiError, match=r"pki: the cluster's CA ended on .*docs/security\.md"):
        authority.renew_own(now_s + 120.0)
    key = joining.ec.generate_private_key(joining.ec.SECP256R1())
    with pytest.raises(RefusedError, match="the cluster's CA ended on") as refused:
        authority.issue("v1", credentials.csr("v1", key), now_s + 120.0)
    assert refused.value.kind is Kind.CONFLICT


def test_a_controller_whose_ca_has_ended_says_so_and_is_not_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    shutil.rmtree(tmp_path / "state" / "pki")
    with monkeypatch.context() as then:
        ended_ca(tmp_path / "state", then, left_s=-60.0)
    argv = [sys.executable, "-m", "hs_controller", "--config", str(cluster.file)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1, ran.stderr
    assert "the cluster's CA ended on" in ran.stderr
    assert "Traceback" not in ran.stderr


def ended_ca(state: Path, monkeypatch: pytest.MonkeyPatch, *, left_s: float) -> Authority:
    real = time.time
    with monkeypatch.context() as then:
        then.setattr(pki.time, "time", lambda: real() - pki.CA_S + left_s)
        pki.init(state)
    authority = Authority.load(state)
    assert authority is not None
    return authority
