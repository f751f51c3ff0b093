"""What `hsctl login` keeps: one file, its owner's alone."""

import json
import os
import ssl
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from hs_client import whole_file
from hs_client.errors import InvalidError

MAX_TOKEN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    controller: str  # host:port
    ca: str  # PEM
    token: str


def file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "heteroshare" / "login.json"


def read() -> Login | None:
    """None: nobody has logged in here."""
    path = file()
    fix = "run `hsctl login` again, or remove it"
    try:
        with path.open(encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            text = opened.read(1 << 20)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}: {fix}"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidError(f"{path} can be read by others: expected mode 0600: chmod 600 {path}")
    try:
        data = json.loads(text)
        known = {field.name for field in fields(Login)}
        return Login(**{name: str(value) for name, value in data.items() if name in known})
    except (ValueError, TypeError, AttributeError):
        raise InvalidError(f"{path}: expected what `hsctl login` writes: {fix}") from None


def write(made: Login) -> Path:
    path = file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidError(f"{path} cannot be written: {error.strerror}") from None
    with whole_file.written(path, replace=True) as out:
        out.write(f"{json.dumps(asdict(made), indent=2)}\n".encode())
    return path


def remove() -> bool:
    try:
        file().unlink()
    except FileNotFoundError:
        return False
    return True


def token_in(name: str) -> str:
    return check_token(_text(name, "token file"), f"token file {name!r}")


def seen_by_all(name: str) -> str:
    """What to tell people of a token's file that everybody on this machine can read; empty: nobody can but its owner and group."""
    try:
        found = Path(name).expanduser().stat()
    except OSError:
        return ""
    if not stat.S_ISREG(found.st_mode) or not found.st_mode & stat.S_IROTH:
        return ""
    return f"token file {name!r} can be read by everybody on this machine: chmod 600 {name}"


def ca_in(name: str) -> str:
    return check_ca(_text(name, "CA file"), f"CA file {name!r}")


def _text(name: str, what: str) -> str:
    try:
        with Path(name).expanduser().open(encoding="ascii") as opened:
            return opened.read(1 << 20)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(
            f"{what} {name!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def check_token(text: str, where: str) -> str:
    token = text.strip()
    if not token or len(token) > MAX_TOKEN or not token.isascii() or any(c.isspace() for c in token):
        raise InvalidError(f"{where}: expected one token and nothing else")
    return token


def check_ca(text: str, where: str) -> str:
    try:
        ssl.PEM_cert_to_DER_cert(text.strip())
    except ValueError:
        raise InvalidError(f"{where}: expected a certificate (-----BEGIN CERTIFICATE-----)") from None
    return text
