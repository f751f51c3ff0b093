"""What the controller and an agent believe lies in files that nobody else can change."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hs_agent import credentials, identity
from hs_controller import backup
from hs_controller.callers import secret
from hs_controller.journal import Journal
from hs_controller.pki import Authority, init

OTHERS = 4242


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    init(state)
    secret(state / "token.secret")
    Journal.open(state).close()
    _join(state)
    return state


def _join(state: Path) -> None:
    """A node's identity beside it."""
    authority = Authority.load(state)
    assert authority is not None
    key = ec.generate_private_key(ec.SECP256R1())
    issued = authority.issue("v1", credentials.csr("v1", key), time.time())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    folder = state.with_name("identity")
    folder.mkdir(mode=0o700)
    for name, data in (("key.pem", pem), ("cert.pem", issued.chain_pem), ("ca.pem", authority.pem)):
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)


def _used(state: Path) -> dict[str, Callable[[], object]]:
    """What makes use of each."""
    return {
        "state/token.secret": lambda: secret(state / "token.secret"),
        "state/journal.db": lambda: Journal.open(state).close(),
        **{
            f"state/{name}": lambda: Authority.load(state)
            for name in ("pki", "pki/ca.key", "pki/ca.pem", "pki/server.key", "pki/server.pem")
        },
        **{
            name: lambda: identity.load_identity(state.with_name("identity"))
            for name in ("identity", "identity/key.pem", "identity/cert.pem", "identity/ca.pem")
        },
    }


@pytest.mark.parametrize("name", _used(Path("/state")))
def test_what_others_can_change_is_not_believed(state: Path, name: str) -> None:
    path, use = state.parent / name, _used(state)[name]
    use()
    path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(Exception, match=rf"{path}: others can change what is in it .*: chmod go-w it"):
        use()
    path.chmod(path.stat().st_mode & ~0o020)
    use()
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chown(path, OTHERS, -1)
    with pytest.raises(Exception, match=rf"{path}: belongs to uid {OTHERS}, who can change"):
        use()


@pytest.mark.parametrize("name", ["ca.key", "server.key"])
def test_a_key_that_others_can_read_is_not_used(state: Path, name: str) -> None:
    (state / "pki" / name).chmod(0o640)
    with pytest.raises(Exception, match=f"{name}: can be read by others; chmod 600 it"):
        Authority.load(state)


def test_neither_a_ca_nor_a_backup_is_put_where_others_can_change_it(state: Path, tmp_path: Path) -> None:
    """The controller would not start there, and what is in them is not for others."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with backup.take(state) as copy:
        (tmp_path / "copy.db").write_bytes(b"".join(chunk.data for chunk in copy.chunks()))
    for put in (
        lambda: init(open_to_all),
        lambda: backup.restore(open_to_all, tmp_path / "copy.db", force=False),
    ):
        with pytest.raises(Exception, match=rf"{open_to_all}: others can change what is in it"):
            put()
        assert not list(open_to_all.iterdir())
    open_to_all.chmod(0o700)
    init(open_to_all)
    assert backup.restore(open_to_all, tmp_path / "copy.db", force=False) == (0, None)
