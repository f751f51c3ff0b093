"""The operator's mistakes, each told with file, key, value and what was expected."""

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hs_agent import peers
from hs_controller import config
from hs_controller.__main__ import cli
from hs_controller.config import ConfigError
from hs_daemon import config_file


def load(tmp_path: Path, text: str) -> config.Config:
    file = tmp_path / "c.toml"
    file.write_text(text)
    return config.load(file)


def test_every_key_of_the_documentation_is_read(tmp_path: Path) -> None:
    read = load(
        tmp_path,
        """
        state_dir = "/srv/hs"
        socket = "/run/hs/c.sock"
        agent_socket = "/run/hs/a.sock"
        embedded = true
        listen = "[::1]:7443"
        policy = "fifo"
        quantum_s = 2
        heartbeat_s = 0.5
        seed = 7
        default_tickets = 50
        admins = ["ann"]
        users_from_os = false
        event_limit = 1000
        ended_limit = 10
        usage_days = 3
        [users.bob]
        tickets = 200
        run_as = "nobody"
        [users."C"]
        [limits]
        connections = 5
        """,
    )
    assert read.listen == ("::1", 7443)
    assert read.quantum_s == 2.0
    assert read.users == {"bob": config.ConfigUser(tickets=200.0, run_as="nobody"), "C": config.ConfigUser()}
    assert read.limits.connections == 5
    assert read.admins == ("ann",)


@pytest.mark.parametrize("called", ["localhost", "localhost.localdomain", "ip6-localhost"])
def test_a_host_whose_name_stands_beside_localhost_is_not_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str
) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: called)
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-head")
    assert load(tmp_path, 'listen = "0.0.0.0:7443"').reached_at() == "gpu-head:7443"
    assert peers._told("0.0.0.0") == "gpu-head"


def test_the_documentation_names_the_limits_that_there_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "controller.md"
    (row,) = [line for line in page.read_text().splitlines() if line.startswith("| `[limits]`")]
    assert set(re.findall(r"`(\w+)`", row)) == set(config.Limits.__dataclass_fields__)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("quantum = 60", ["quantum", "unknown key", "did you mean 'quantum_s'"]),
        ("QUANTUM_S = 60", ["QUANTUM_S", "unknown key", "did you mean 'quantum_s'"]),
        ("[controller]\nquantum_s = 60", ["unknown key", "expected 'quantum_s' above every [section]"]),
        ("[users.bob]\nquantum_s = 60", ["users.bob.quantum_s", "expected above every [section]"]),
        ("quantum_s = -1", ["quantum_s = -1", "a number of seconds from 0.1"]),
        ("quantum_s = nan", ["quantum_s", "a number of seconds"]),
        ("quantum_s = true", ["quantum_s = True", "a number"]),
        (
            "quantum_s = " + "9" * 400,
            ["quantum_s = 999", "…: expected a number of seconds from 0.1 to 86400"],
        ),
        ("quantum_s = " + "9" * 5000, ["is not TOML", "4300 digits"]),
        ("seconds = " + "9" * 400, ["seconds = 999", "…: unknown key"]),
        ('state_dir = "here"', ["state_dir = 'here'", "absolute path"]),
        ("users.bob.ticket = 3", ["users.bob.ticket", "did you mean 'tickets'"]),
        ("users.bob.tickets = 0", ["users.bob.tickets = 0", "0.001"]),
        ('users."../x".tickets = 1', ["../x", "a user name"]),
        ('admins = "root"', ["admins = 'root'", "a list"]),
        ("limits.connections = 0", ["limits.connections = 0", "whole number"]),
        ("checkpoint_interval_s = 59", ["checkpoint_interval_s = 59", "60 to 2592000 seconds, or 0"]),
        ("checkpoint_interval_s = true", ["checkpoint_interval_s = True", "60 to 2592000 seconds"]),
        ("profile_batches = 1", ["profile_batches = 1", "from 2 to 1000000, or 0"]),
        ("profile_batches = 2.5", ["profile_batches = 2.5", "whole number"]),
        ("profile_share = 0", ["profile_share = 0", "a number from 0.001 to 1"]),
        ("seed = 1.5", ["seed = 1.5", "whole number"]),
        ('listen = "7443"', ["listen = '7443'", "host:port"]),
        ('listen = "127.0.0.1:http"', ["listen", "a port"]),
        ('listen = "http://127.0.0.1:28443"', ["listen = 'http://127.0.0.1:28443'", "a name or an address"]),
        ('listen = "a b:1"', ["listen = 'a b:1'", "a name or an address"]),
        ('web_listen = "[::1:1"', ["web_listen = '[::1:1'", "a name or an address"]),
        ('listen = "[localhost]:1"', ["listen = '[localhost]:1'", "a name or an address"]),
        ('listen = "::1:7443"', ["listen = '::1:7443'", '"[::]:7443"']),
        ('listen = "gpu..head:7443"', ["listen = 'gpu..head:7443'", "a name or an address"]),
        ("web_listen = 7445", ["web_listen = 7445", "host:port"]),
        ('web_listen = "127.0.0.1:99999"', ["web_listen", "a port from 0 to 65535"]),
        ("quantum_s = = 3", ["not TOML", "line 1"]),
        ("quantum_s = 3\nquantum_s = 4\n", ["not TOML", "line 2", ": quantum_s = 4"]),
        (f"quantum_s = 3\nquantum_s = {'4' * 100}\n", ["not TOML", f": quantum_s = {'4' * 68}"]),
        ("admins = " + "[" * 20_000, ["not TOML", "without end"]),
        ("limits.spec_bytes_per_user = 1000", ["limits.spec_bytes_per_user = 1000", "from 262144"]),
        ("limits.message_bytes = 524288", ["limits.message_bytes = 524288", "from 1048576"]),
        ("deed_limit = 1", ["deed_limit = 1", "a whole number from 100"]),
        (f'socket = "/{"x" * 100}"', ["socket", "89 bytes"]),
        ("heartbeat_s = 15", ["heartbeat_s = 15.0", "at most half of `lease_s`, which is 20"]),
        ("lease_s = 1", ["heartbeat_s = 1.0", "at most half of `lease_s`, which is 1"]),
        ("lease_s = 2.5", ["lease_s = 2.5", "3 s at least", "fence_after_s = 0"]),
    ],
)
def test_a_mistake_names_file_key_value_and_what_was_expected(
    tmp_path: Path, text: str, told: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    assert str(error.value).startswith(str(tmp_path / "c.toml"))
    for part in told:
        assert part in str(error.value)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:7443", "192.168.1.4:7443", "[::]:7443", "gpu1.example.org:7443", "128.0.0.1:1"]
)
@pytest.mark.parametrize("key", ["listen", "web_listen"])
def test_plaintext_is_for_loopback_only(tmp_path: Path, key: str, address: str) -> None:
    assert getattr(load(tmp_path, f'{key} = "{address}"'), key) is not None, "with TLS, that is"
    with pytest.raises(ConfigError, match=rf"{key} = .*loopback.*never leaves this machine"):
        load(tmp_path, f'dev = true\n{key} = "{address}"')


def test_an_address_to_listen_at_names_its_host(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"listen = ':7443'.*0\.0\.0\.0:7443"):
        load(tmp_path, 'listen = ":7443"')


@pytest.mark.parametrize("address", ["127.0.0.1:7443", "127.8.9.1:0", "localhost:7443", "[::1]:7443"])
def test_loopback_may_be_plaintext(tmp_path: Path, address: str) -> None:
    assert load(tmp_path, f'dev = true\nlisten = "{address}"').dev


def test_what_is_no_plain_file_or_far_too_large_is_refused_and_nobody_waits_for_its_end(
    tmp_path: Path,
) -> None:
    pipe, large = tmp_path / "pipe.toml", tmp_path / "large.toml"
    os.mkfifo(pipe)
    large.write_bytes(b"#" * (config_file.MOST_BYTES + 1))
    for file in (Path("/dev/zero"), pipe):
        with pytest.raises(ConfigError, match="cannot be read: a plain file was expected"):
            config.load(file)
    with pytest.raises(ConfigError, match="cannot be read: at most 1 MiB were expected"):
        config.load(large)
    large.write_bytes(b"#" * config_file.MOST_BYTES)
    assert config.load(large).policy == "gandiva-fair"


def test_a_file_as_editors_of_other_systems_write_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(b"\xef\xbb\xbfquantum_s = 30\r\n\tlease_s\t= 15\r\n")
    found = config.load(file)
    assert (found.quantum_s, found.lease_s) == (30.0, 15.0)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read"):
        config.load(tmp_path / "none.toml")


@pytest.mark.parametrize("before", [True, False])
def test_the_configuration_is_named_before_or_after_the_command(tmp_path: Path, before: bool) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'state_dir = "{tmp_path}/state"\n')
    said = ["--config", str(file)]
    ran = CliRunner().invoke(cli, [*said, "init"] if before else ["init", *said])
    assert (ran.exit_code, ran.output[:12]) == (0, "CA SHA-256: ")
    assert (tmp_path / "state" / "pki").is_dir()


def test_the_help_names_the_configuration_and_a_mistyped_command_what_was_meant() -> None:
    assert "--config" in CliRunner().invoke(cli, ["--help"]).output
    ran = CliRunner().invoke(cli, ["inti"])
    assert (ran.exit_code, "did you mean `" in ran.output and "init`?" in ran.output) == (2, True)
