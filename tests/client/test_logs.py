"""`logs`, and the times and time zones in which people say since when."""

import contextlib
import time
from datetime import UTC, datetime

import pytest

from hs_client import quantities, screen, zone


def test_logs_are_bytes_as_they_were_written(hsctl, fake):
    fake.add(state="running")
    fake.logs[1] = [b"one\n", b"two\n", b"three"]
    assert hsctl("logs", "1").out == "one\ntwo\nthree"
    assert hsctl("logs", "--tail", "2", "1").out == "two\nthree"
    assert fake.last("Logs").tail_lines == 2


@contextlib.contextmanager
def zoned(monkeypatch, name):
    with monkeypatch.context() as here:
        here.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def utc(monkeypatch):
    """Where this test is."""
    with zoned(monkeypatch, "UTC"):
        yield


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("text", "ago_s"),
    [
        ("90s", 90),
        ("2h", 7200),
        ("1d12h", 36 * 3600),
        ("11:59", 60),
        ("11:58:30", 90),
        ("12:01", 86_340),  # yesterday
        ("2026-05-01T11:00", 3600),
        ("2026-05-01", 12 * 3600),
        ("2026-05-01T11:00:00Z", 3600),
        ("2026-05-01T11:00:00+01:00", 7200),
    ],
)
def test_since_is_how_long_ago_or_when(text, ago_s):
    assert quantities.since(text, lambda: datetime(2026, 5, 1, 12, tzinfo=UTC)) == ago_s


@pytest.fixture
def nowhere(monkeypatch):
    """A time zone that nobody knows."""
    with zoned(monkeypatch, "Europe/Berln"):
        yield


@pytest.mark.usefixtures("nowhere")
def test_a_time_of_day_in_a_time_zone_that_nobody_knows_is_refused(hsctl, fake):
    fake.add(state="running")
    for text in ("14:30", "2026-05-01T11:00"):
        refused = hsctl("logs", "--since", text, "1")
        assert refused.code == 2
        assert "TZ = 'Europe/Berln': expected a time zone of this machine, e.g. Europe/Berlin" in refused.err
    assert hsctl("logs", "--since", "90m", "1").code == 0
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert quantities.since("2026-05-01T11:00:00Z", lambda: now) == 3600


@pytest.mark.usefixtures("nowhere")
def test_times_in_a_time_zone_that_nobody_knows_are_said_to_be_utc():
    assert screen.clock(1_777_633_200.0).endswith("11:00:00Z")


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("named", ["UTC", ":UTC", "CET-1CEST,M3.5.0,M10.5.0/3", "<+03>-3", ""])
def test_time_zones_that_are_none_of_a_file_are_known_too(monkeypatch, named):
    monkeypatch.setenv("TZ", named)
    assert not zone.unknown()


def test_logs_ask_for_what_was_written_since_and_refuse_what_is_no_time(hsctl, fake):
    fake.add(state="running")
    hsctl("logs", "1")
    assert fake.last("Logs").since_s == 0
    hsctl("logs", "--since", "90s", "--tail", "5", "1")
    assert (fake.last("Logs").since_s, fake.last("Logs").tail_lines) == (90, 5)
    for text in ("90", "", "yesterday", "25:00", "2999-01-01", "0s", "-5m", "2026-02-30"):
        refused = hsctl("logs", "--since", text, "1")
        assert refused.code == 2
        assert "e.g. 30s, 90m, 2h or 7d, or when" in refused.err


@pytest.mark.usefixtures("utc")
def test_a_time_is_one_of_the_controllers_clock(hsctl, fake):
    """As those that `hsctl events` shows."""
    fake.add(state="running")
    fake.info.now = datetime(2040, 5, 1, 12, tzinfo=UTC).timestamp()
    for text in ("11:30", "2040-05-01T11:30"):
        hsctl("logs", "--since", text, "1")
        assert fake.last("Logs").since_s == 1800


def test_of_a_job_over_several_servers_it_is_said_whose_output_it_is_and_how_to_see_the_others(hsctl, fake):
    fake.add(state="running", host="n1", hosts=["n1", "n2", "n3"], nodes=3)
    fake.logs[1] = [b"one\n"]
    first = hsctl("logs", "1")
    assert (first.out, fake.last("Logs").rank) == ("one\n", 0)
    assert "on 3 servers, and this is the first: --rank 1 to 2 for another" in first.err
    assert hsctl("logs", "--rank", "2", "1").err == ""
    assert fake.last("Logs").rank == 2
