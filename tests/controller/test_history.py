"""What the page's curves are of: who was entitled to what and received it, moment after moment."""

import asyncio
from types import SimpleNamespace

from hs_controller.web.history import MOST, POINTS, History
from hs_core.names import UserName


def mind(entitled: dict, received: dict, *, gpus: int = 4, looks_on: bool = False) -> SimpleNamespace:
    totals = {account: SimpleNamespace(gpu_s=gpu_s) for account, gpu_s in received.items()}
    host = SimpleNamespace(gpus=[SimpleNamespace(model="V100")] * gpus)
    machine = SimpleNamespace(entitled=lambda: entitled, hosts=lambda: [host], looks_on=looks_on)
    return SimpleNamespace(machine=machine, ledger=SimpleNamespace(totals=totals))


def test_history_tells_what_was_entitled_to_and_received_between_two_looks() -> None:
    history, ann = History(60.0), ("ann", "V100")
    history.look(mind({ann: 2.0}, {ann: 100.0}), 1000.0)
    history.look(mind({ann: 3.0}, {ann: 150.0}), 1020.0)
    history.look(mind({}, {ann: 150.0, ("bob", "K80"): 0.0}), 1040.0)
    assert asyncio.run(history.told()) == {
        "every_s": 20.0,
        "at": [1000.0, 1020.0, 1040.0],
        "series": [
            {"user": "ann", "gpu_model": "V100", "entitled": [2.0, 3.0, 0.0], "received": [0.0, 2.5, 0.0]}
        ],
    }


def test_history_has_no_moments_while_the_journal_cannot_be_written() -> None:
    history, ann = History(60.0), ("ann", "V100")
    history.look(mind({ann: 2.0}, {ann: 100.0}), 1000.0)
    history.look(mind({}, {ann: 100.0}, looks_on=True), 1020.0)
    history.look(mind({ann: 2.0}, {ann: 180.0}), 1040.0)
    told = asyncio.run(history.told())
    assert told["at"] == [1000.0, 1040.0]
    assert told["series"][0]["entitled"] == [2.0, 2.0]
    assert told["series"][0]["received"] == [0.0, 2.0]


def test_history_shows_nobody_with_more_gpus_than_there_are_when_a_server_comes_back() -> None:
    history, ann = History(60.0), ("ann", "V100")
    for at_s, gpu_s in ((1000.0, 0.0), (1020.0, 1200.0), (1040.0, 1290.0)):  # 60 GPUs, then 4.5 of 4
        history.look(mind({ann: 2.0}, {ann: gpu_s}), at_s)
    (told,) = asyncio.run(history.told())["series"]
    assert told["received"] == [0.0, 4.0, 4.5]


def test_history_keeps_so_much_and_no_more() -> None:
    history = History(0.5)
    for at in range(POINTS + 50):
        history.look(mind({("ann", "V100"): 1.0}, {}), 2.0 * at)
    told = asyncio.run(history.told())
    assert len(told["at"]) == len(told["series"][0]["entitled"]) == POINTS
    assert (told["every_s"], told["at"][-1]) == (2.0, 2.0 * (POINTS + 49))


def test_history_tells_of_those_who_have_most_or_are_asked_for_and_lets_go_of_who_is_gone() -> None:
    history = History(60.0)
    users = {(f"user{at:03}", model): float(at) for at in range(100) for model in ("K80", "V100")}
    history.look(mind(users, {}), 0.0)
    history.look(mind(users, {}), 20.0)

    def told(*names: str) -> set[str]:
        return {one["user"] for one in asyncio.run(history.told(map(UserName, names)))["series"]}

    assert told() == {f"user{at:03}" for at in range(100 - MOST, 100)}
    assert told("user007", "nobody") == {"user007"}
    assert told("") == set()
    newcomers = {("zoe", "V100"): 2.0}
    for at in range(2 * POINTS):
        history.look(mind(newcomers, {("zoe", "V100"): 40.0 * at}), 40.0 + 20.0 * at)
    (zoe,) = asyncio.run(history.told())["series"]
    assert (set(zoe["entitled"]), set(zoe["received"][1:])) == ({2.0}, {2.0})
    assert told("user007") == set()
    rows = len(history._entitled)
    history.look(mind({(f"new{at}", "V100"): 1.0 for at in range(200)}, {}), 1e6)
    assert len(history._entitled) == rows
