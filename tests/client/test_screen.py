"""What people see on terminals of any width."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from hs_client import Client, page, tables
from hs_client.fitting import GAP, LEAST, Fitting, fit
from hs_client.screen import Table, live, on_terminal, plain_lines
from hs_proto.v1 import controller_pb2 as wire

NAMES = ("id", "name", "state", "moves", "why")
SPARE, LONG = ("moves", "state"), {"name": 16, "why": 20}


def total(widths) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def fitted(natural, width):
    found = fit(NAMES, natural, width, spare=SPARE, long=LONG)
    return dict(zip([NAMES[at] for at in found.shown], found.widths, strict=True))


def test_what_has_room_is_shown_whole() -> None:
    assert fitted((3, 40, 9, 5, 60), 125) == {"id": 3, "name": 40, "state": 9, "moves": 5, "why": 60}


def test_long_texts_are_cut_before_a_column_is_given_up() -> None:
    assert fitted((3, 40, 9, 5, 60), 61) == {"id": 3, "name": 16, "state": 9, "moves": 5, "why": 20}


def test_spare_columns_go_in_their_order_and_what_is_left_has_their_room() -> None:
    assert fitted((3, 40, 9, 5, 60), 60) == {"id": 3, "name": 21, "state": 9, "why": 21}
    assert fitted((3, 40, 9, 5, 60), 50) == {"id": 3, "name": 21, "why": 22}


def test_without_spare_columns_long_texts_are_cut_further_and_only_then_the_others() -> None:
    assert fitted((3, 40, 9, 5, 60), 25) == {"id": 3, "name": LEAST + 1, "why": LEAST + 1}
    assert fitted((3, 40, 9, 5, 60), 10) == {"id": 2, "name": 2, "why": 2}


@given(st.lists(st.integers(1, 120), min_size=5, max_size=5), st.integers(11, 300))
def test_nothing_is_wider_than_the_terminal_nor_than_it_need_be(natural, width) -> None:
    found = fit(NAMES, natural, width, spare=SPARE, long=LONG)
    assert total(found.widths) <= width
    assert all(1 <= got <= natural[at] for at, got in zip(found.shown, found.widths, strict=True))
    assert {"id", "name", "why"} <= {NAMES[at] for at in found.shown}
    if total(natural) <= width:
        assert [*found.widths] == natural


def drawn(what, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(what)
    return console.file.getvalue().splitlines()


@pytest.fixture
def crowd(fake):
    fake.add(
        id=12,
        name="a-name-that-goes-on-and-on-" * 4,
        user="ann",
        state="suspended",
        host="n1",
        reason="waiting-for-turn",
    )
    fake.add(id=13, name="日本語の長い名前です", user="bob", state="running", host="n1")
    return fake


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("width", [40, 80, 132, 250])
def test_the_queue_shows_every_jobs_number_and_state_on_any_terminal(serving, width) -> None:
    with Client(f"unix:{serving.socket}") as client:
        table = tables.queue(client.jobs())
    lines = drawn(on_terminal(table, True, tell=True), width)
    assert lines[0].split()[0] == "id"
    first = [line.split()[0] for line in lines[2:4]]
    assert sorted(first) == ["12", "13"]
    assert any("run" in line for line in lines[2:4])
    assert any("sus" in line for line in lines[2:4])
    told = [line for line in lines if "too narrow for" in line]
    assert bool(told) == (width < 132)
    if width == 80:
        assert told == ["too narrow for step, gpu time, switches, moves; --json has all"]


def test_top_shows_jobs_with_number_state_and_why_on_eighty_columns(crowd, serving) -> None:
    crowd.jobs[12].reason_text = "it waits for its turn on n1: its share is 0.5 of 4 GPUs"
    with Client(f"unix:{serving.socket}") as client:
        seen = page.look(client)
    lines = drawn(page.page(seen), 80)
    head = next(at for at, line in enumerate(lines) if line.startswith("job"))
    rows = {line.split()[0]: line for line in lines[head + 2 : head + 4]}
    assert rows.keys() == {"12", "13"}
    assert "suspended" in rows["12"]
    assert "it waits for its turn on" in rows["12"]
    assert "running" in rows["13"]


def test_top_counts_all_jobs_and_what_they_lost_not_only_those_that_it_is_told_of(crowd, serving) -> None:
    crowd.jobs[12].lost_gpu_s = 3.0

    def shown() -> str:
        with Client(f"unix:{serving.socket}") as client:
            return "\n".join(drawn(page.page(page.look(client), height=1), 120))

    text = shown()  # of a controller that does not count them
    assert "lost work 3 GPU-seconds" in text
    assert "more (hsctl queue)" not in text
    crowd.totals = wire.JobTotals(jobs=5000, queued=4000, lost_gpu_s=77.0)
    text = shown()
    assert "lost work 77 GPU-seconds" in text
    assert "… and 4998 more (hsctl queue)" in text


def test_top_shows_nobody_as_entitled_to_nothing_while_the_journal_cannot_be_written(fake, serving) -> None:
    fake.shares = wire.SharesReply(
        read_only=True, shares=[wire.ShareView(user="ann", gpu_model="V100", tickets=1)]
    )
    with Client(f"unix:{serving.socket}") as client:
        lines = drawn(page.page(page.look(client)), 120)
    [ann] = [line.split() for line in lines if line.startswith("ann")]
    assert ann[:6] == ["ann", "1", "V100", "-", "-", "0.00"]


@pytest.mark.parametrize("height", [24, 30, 50])
def test_top_keeps_to_the_lines_that_there_are(crowd, serving, height) -> None:
    for number in range(20, 60):
        crowd.add(id=number, state="queued")
    crowd.events = [wire.Event(seq=n, kind="placed", text="it lives on n1") for n in range(1, 9)]
    with Client(f"unix:{serving.socket}") as client:
        seen = page.look(client)
    assert len(drawn(page.page(seen, height=height), 120)) <= height


def test_columns_of_a_pipe_stand_below_one_another_whatever_letters_names_are_of() -> None:
    names = ["a-name", "日本語の名前", "größe", "gro\N{COMBINING DIAERESIS}ße", "名"]
    lines = plain_lines(
        Table(columns=["name", "n"], rows=[[name, "7"] for name in names], numeric=frozenset({"n"}))
    )
    assert {cell_len(line) for line in lines} == {len("日本語の名前") * 2 + 3}


def test_a_table_that_is_watched_has_what_stands_above_and_below_it(capsys) -> None:
    table = Table(columns=["user"], rows=[["ann"]], title="it cannot be written", footer=["n1: is drained"])
    with live() as show:
        show(table, True)
        show(table, True)
        show(table, False)
    said = capsys.readouterr()
    first, second = said.out.strip().split("\n\n")
    assert first.split("\n") == ["it cannot be written", "user", "ann"]
    assert second.split("\n") == ["ann"]
    assert said.err == "n1: is drained\n" * 2, "as of a list that is printed once"


def test_that_a_list_which_is_watched_is_empty_is_said_beside_it(capsys) -> None:
    with live() as show:
        show(Table(columns=["id"], rows=[["1"]], empty="no jobs"), True)
        show(Table(columns=["id"], rows=[], empty="no jobs"), True)
    said = capsys.readouterr()
    assert (said.out.split(), said.err) == (["id", "1"], "no jobs\n")


def test_without_a_header_columns_stand_as_far_apart() -> None:
    assert drawn(Fitting(("a", "b"), [("1", "2")], header=False), 20) == ["1  2"]
    assert drawn(Fitting(("a", "b"), [("1", "2")]), 20)[0].rstrip() == "a  b"
