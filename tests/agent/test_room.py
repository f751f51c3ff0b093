"""Room for a few at once, which accounts share."""

import asyncio

from hs_agent.room import Room, Turn

MOST = 4


class Asked:
    """Turns that accounts have asked for, in this order."""

    def __init__(self, *accounts: int) -> None:
        self.room = Room(MOST)
        self.turns: list[tuple[int, Turn]] = []
        for account in accounts:
            self.ask(account)

    def ask(self, account: int) -> None:
        self.turns.append((account, self.room.enter(account)))

    def leave(self, number: int) -> None:
        account, turn = self.turns.pop(number)
        self.room.leave(account, turn)

    @property
    def going(self) -> list[int]:
        return sorted(account for account, turn in self.turns if turn.done())


def test_one_account_alone_has_all_of_it_and_no_more() -> None:
    async def asked() -> None:
        one = Asked(*[1] * 6)
        assert one.going == [1] * MOST
        one.leave(0)
        assert one.going == [1] * MOST
        one.leave(-1)  # gives up waiting
        one.leave(0)
        assert one.going == [1] * 3

    asyncio.run(asked())


def test_another_one_need_not_wait_for_it_and_has_its_part_as_those_end() -> None:
    async def asked() -> None:
        both = Asked(*[1] * 8, *[2] * 8)
        assert both.going == [1, 1, 1, 1, 2]
        both.leave(0)
        assert both.going == [1, 1, 1, 2]
        both.leave(0)
        assert both.going == [1, 1, 2, 2]
        for _ in range(3):
            both.leave(0)
            assert both.going == [1, 1, 2, 2]

    asyncio.run(asked())


def test_of_several_that_have_as_many_it_is_each_ones_turn() -> None:
    async def asked() -> None:
        many = Asked(1, 2, 3, 1, *[3, 3, 2, 2, 1, 1])
        assert many.going == [1, 1, 2, 3]
        many.leave(0)
        assert many.going == [1, 2, 3, 3]
        many.leave(1)
        assert many.going == [1, 2, 2, 3]
        many.leave(0)
        assert many.going == [1, 1, 2, 3]

    asyncio.run(asked())


def test_a_turn_that_came_as_its_asker_gave_up_is_given_on() -> None:
    async def asked() -> None:
        one = Asked(*[1] * (MOST + 2))
        one.leave(0)
        account, turn = one.turns.pop(MOST - 1)
        assert turn.done()
        one.room.leave(account, turn)
        assert one.going == [1] * MOST

    asyncio.run(asked())
