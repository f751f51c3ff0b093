"""What the operator wrote, as frozen values: TOML is parsed here, once, and every mistake names file, key and value."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from hs_core import fencing
from hs_core.digits import whole
from hs_daemon import config_file, host_name
from hs_daemon.addresses import host_in, is_loopback

DEFAULT_FILE = Path("/etc/heteroshare/controller.toml")
SOCKET_PATH_BYTES = 107  # sun_path, less its final zero

USER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}")


class ConfigError(Exception):
    """The configuration cannot be used; nothing was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigUser:
    tickets: float | None = None
    run_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every queue, message and log has one."""

    connections: int = 4096
    connections_per_uid: int = 128  # of one account, node, or address
    watchers: int = 256  # open WatchJob, Events, Logs and Exec streams
    queued_requests: int = 4096  # waiting for the next commit
    request_bytes: int = 64 << 20  # of all that are being answered; one of those who ask has a quarter
    live_jobs: int = 20_000
    spec_bytes_per_user: int = 64 << 20  # of live jobs
    log_buffer_bytes: int = 1 << 20  # of a job's log, sent by its agent and not taken yet by who reads it
    message_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    file: Path
    state_dir: Path = Path("/var/lib/heteroshare/controller")
    socket: Path = Path("/run/heteroshare/controller.sock")
    agent_socket: Path | None = None  # a second one that serves agents only, mode 0600
    embedded: bool = False  # one person's cluster: the socket is theirs alone (0600)
    listen: tuple[str, int] | None = None  # TLS; with `dev` plaintext, on loopback only
    web_listen: tuple[str, int] | None = None  # as `listen`: HTTP for browsers and Prometheus
    dev: bool = False
    policy: str = "gandiva-fair"
    quantum_s: float = 60.0
    heartbeat_s: float = 1.0  # agents report so often
    lease_s: float = 20.0  # an agent that says nothing for so long is away
    fence_after_s: float = (
        60.0  # without a word from here for so long, agents end the jobs that ask for it; 0: never
    )
    dataset_cache_gib: float = 0.0  # of data sets that stay on a server; 0: not limited
    migrations_per_hour: float = 240.0  # of started jobs, over the whole cluster
    profile_batches: int | None = (
        None  # of a run that measures a class on a GPU model; 0: no such runs; None: as the policy
    )
    profile_share: float = 0.1  # of all GPU-time that these may take
    move_deadline_s: float = 120.0  # a migration that has not left by then is taken back
    checkpoint_interval_s: float = (
        0.0  # of jobs that say none; 0: these save only when they are suspended to disk
    )
    seed: int = 0
    default_tickets: float = 100.0
    users: Mapping[str, ConfigUser] = field(default_factory=dict)
    admins: tuple[str, ...] = ()
    users_from_os: bool = True
    event_limit: int = 200_000  # newest that are kept
    deed_limit: int = 100_000  # newest of older ones that are administrators' deeds
    ended_limit: int = 100_000  # ended jobs that are kept
    usage_days: int = 400
    limits: Limits = field(default_factory=Limits)

    def reached_at(self) -> str:
        """Where other hosts reach it, as far as it knows; empty: nowhere."""
        if self.listen is None:
            return ""
        host, port = self.listen
        if host in {"0.0.0.0", "::"}:  # noqa: S104 — only compared
            host = host_name()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def heard_s(self) -> float:
        """Agents hear something from the controller at least so often."""
        return min(self.lease_s, self.fence_after_s or self.lease_s, 20.0) / 4


def load(file: Path) -> Config:
    try:
        table = config_file.table(file)
    except config_file.ConfigFileError as error:
        raise ConfigError(f"{file}: {error}") from None
    return parse(table, file)


def parse(table: Mapping[str, Any], file: Path) -> Config:
    values = _table(table, _KEYS, _Where(file))
    config = Config(file=file, **values)
    for key in ("socket", "agent_socket"):
        path = getattr(config, key)
        # The longest name behind it is `<socket>.d/<uid>.sock`.
        if path is not None and len(os.fsencode(path)) + len(".d/4294967295.sock") > SOCKET_PATH_BYTES:
            _Where(file, key).wrong(
                str(path), "a path of at most 89 bytes: the system has a limit for sockets"
            )
    if config.heartbeat_s > config.lease_s / 2:  # one report that is late would be taken for a lost server
        _Where(file, "heartbeat_s").wrong(
            config.heartbeat_s, f"at most half of `lease_s`, which is {config.lease_s:g}"
        )
    if config.fence_after_s and config.lease_s < fencing.LEAST_LEASE_S:
        _Where(file, "lease_s").wrong(
            config.lease_s,
            f"{fencing.LEAST_LEASE_S:g} s at least, for agents to end what said `fence` within it (or `fence_after_s = 0`: nothing is fenced)",
        )
    for key in ("listen", "web_listen"):
        address = getattr(config, key)
        if config.dev and address is not None and not is_loopback(address[0]):
            _Where(file, key).wrong(
                address[0],
                "a loopback address: with `dev` the port is plaintext, which never leaves this machine",
            )
    if config.socket == config.agent_socket:
        config = _without_agent_socket(config)
    return config


def _without_agent_socket(config: Config) -> Config:
    values = {f.name: getattr(config, f.name) for f in fields(config)} | {"agent_socket": None}
    return Config(**values)


@dataclass(frozen=True, slots=True)
class _Where:
    """A place in the file, for messages."""

    file: Path
    key: str = ""

    def at(self, key: str) -> "_Where":
        return _Where(self.file, f"{self.key}.{key}" if self.key else key)

    def wrong(self, value: object, expected: str) -> NoReturn:
        raise ConfigError(f"{self.file}: {self.key} = {_shown(value)}: expected {expected}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}…"


_Reader = Callable[[Any, _Where], Any]


def _table(table: Any, readers: Mapping[str, _Reader], where: _Where) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        where.wrong(table, "a table")
    unknown = sorted(set(table) - set(readers))
    if unknown:
        key, value = unknown[0], table[unknown[0]]
        raise ConfigError(
            f"{where.file}: {where.at(key).key} = {_shown(value)}: unknown key; {_hint(key, value, readers, where)}"
        )
    return {key: readers[key](value, where.at(key)) for key, value in table.items()}


def _hint(key: str, value: Any, readers: Mapping[str, _Reader], where: _Where) -> str:
    if near := config_file.near(key, readers):
        return f"did you mean {near!r}?"
    if where.key and key in _KEYS:
        return f"expected above every [section], not below [{where.key}]"
    below = [name for name in value if name in readers] if isinstance(value, Mapping) else []
    if below and not where.key:
        return f"there is no such section: expected {below[0]!r} above every [section]"
    return f"known keys: {', '.join(sorted(readers))}"


def _text(value: Any, where: _Where) -> str:
    if not isinstance(value, str) or not value:
        where.wrong(value, "a text that is not empty")
    return value


def _flag(value: Any, where: _Where) -> bool:
    if not isinstance(value, bool):
        where.wrong(value, "true or false")
    return value


def _number(low: float, high: float, unit: str = "") -> _Reader:
    expected = f"a number{' of ' + unit if unit else ''} from {low:g} to {high:g}"

    def read(value: Any, where: _Where) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            where.wrong(value, expected)
        return float(value)

    return read


def _whole(low: int, high: int) -> _Reader:
    def read(value: Any, where: _Where) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            where.wrong(value, f"a whole number from {low} to {high}")
        return value

    return read


def _batches(value: Any, where: _Where) -> int:
    """Of a profiling run: one mini-batch alone says nothing."""
    if isinstance(value, bool) or not isinstance(value, int) or not (value == 0 or 2 <= value <= 1_000_000):
        where.wrong(value, "a whole number from 2 to 1000000, or 0 for no profiling runs")
    return value


def _interval(value: Any, where: _Where) -> float:
    """Of checkpoints: a shorter one would have servers do little else."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (value == 0 or 60 <= value <= 30 * 86400)
    ):
        where.wrong(
            value, "60 to 2592000 seconds, or 0 for none but those of jobs that are suspended to disk"
        )
    return float(value)


def _path(value: Any, where: _Where) -> Path:
    if not isinstance(value, str) or not Path(value).is_absolute() or "\0" in value:
        where.wrong(value, "an absolute path")
    return Path(value)


def _listen(value: Any, where: _Where) -> tuple[str, int] | None:
    """`host:port`; "" is off."""
    if value == "":
        return None
    if not isinstance(value, str) or ":" not in value:
        where.wrong(value, '"host:port", e.g. "127.0.0.1:7443", or "" for none')
    written, _, port = value.rpartition(":")
    number = whole(port, 65535)
    if number is None:
        where.wrong(value, "a port from 0 to 65535 (0: any free one)")
    if not written:
        where.wrong(value, '"host:port"; all addresses are "0.0.0.0:7443"')
    host = host_in(written)
    if host is None:
        where.wrong(
            value, '"host:port" with a name or an address of this host, e.g. "0.0.0.0:7443" or "[::]:7443"'
        )
    return ("127.0.0.1" if host == "localhost" else host), number


def _name(value: Any, where: _Where) -> str:
    if not isinstance(value, str) or not USER_NAME.fullmatch(value):
        where.wrong(value, "a user name (a letter, then letters, digits, . _ @ -, at most 64)")
    return value


def _names(value: Any, where: _Where) -> tuple[str, ...]:
    if not isinstance(value, list):
        where.wrong(value, "a list of user names")
    return tuple(_name(one, where) for one in value)


_TICKETS = _number(1e-3, 1e9)

_USER_KEYS: Mapping[str, _Reader] = {"tickets": _TICKETS, "run_as": _name}


def _users(value: Any, where: _Where) -> dict[str, ConfigUser]:
    if not isinstance(value, Mapping):
        where.wrong(value, "tables [users.NAME]")
    return {
        _name(name, where.at(name)): ConfigUser(**_table(row, _USER_KEYS, where.at(name)))
        for name, row in value.items()
    }


_LIMIT_KEYS: Mapping[str, _Reader] = {
    "connections": _whole(1, 100_000),
    "connections_per_uid": _whole(1, 100_000),
    "watchers": _whole(1, 100_000),
    "queued_requests": _whole(1, 1_000_000),
    "request_bytes": _whole(1 << 20, 1 << 40),
    "live_jobs": _whole(1, 10_000_000),
    "spec_bytes_per_user": _whole(256 << 10, 1 << 40),
    "log_buffer_bytes": _whole(128 << 10, 1 << 30),
    "message_bytes": _whole(1 << 20, 64 << 20),  # agents say up to 768 KiB at once, hsctl all of these
}


def _limits(value: Any, where: _Where) -> Limits:
    return Limits(**_table(value, _LIMIT_KEYS, where))


_KEYS: Mapping[str, _Reader] = {
    "state_dir": _path,
    "socket": _path,
    "agent_socket": _path,
    "embedded": _flag,
    "listen": _listen,
    "web_listen": _listen,
    "dev": _flag,
    "policy": _text,
    "quantum_s": _number(0.1, 86400, "seconds"),
    "heartbeat_s": _number(0.05, 60, "seconds"),
    "lease_s": _number(0.2, 86400, "seconds"),
    "fence_after_s": _number(0, 86400 * 30, "seconds"),
    "migrations_per_hour": _number(0, 1e6),
    "dataset_cache_gib": _number(0, 1e9, "GiB"),
    "profile_batches": _batches,
    "profile_share": _number(0.001, 1),
    "move_deadline_s": _number(1, 86400, "seconds"),
    "checkpoint_interval_s": _interval,
    "seed": _whole(0, 2**63 - 1),
    "default_tickets": _TICKETS,
    "users": _users,
    "admins": _names,
    "users_from_os": _flag,
    "event_limit": _whole(100, 100_000_000),
    "deed_limit": _whole(100, 100_000_000),
    "ended_limit": _whole(10, 100_000_000),
    "usage_days": _whole(1, 36_500),
    "limits": _limits,
}
