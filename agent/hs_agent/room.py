"""Room for a few at once, which accounts share: nobody waits until all that another has begun is through."""

import asyncio
from collections import Counter, deque

Turn = asyncio.Future[None]


class Room:
    """`most` at once, but of each account one in any case. Of those that wait it is whose account has fewest under way; of several such accounts it is each one's turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._going = Counter[int]()
        self._waiting: dict[int, deque[Turn]] = {}  # by account; the one that had a turn last comes last

    def enter(self, account: int) -> Turn:
        """Done as soon as there is room. Whatever becomes of it: `leave`."""
        turn: Turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account, deque()).append(turn)
        self._admit()
        return turn

    def leave(self, account: int, turn: Turn) -> None:
        if turn.done():
            self._going[account] -= 1
            if not self._going[account]:
                del self._going[account]
            self._admit()
        else:
            self._waiting[account].remove(turn)
            self._forget_if_empty(account)

    def _admit(self) -> None:
        while self._waiting:
            account = min(self._waiting, key=self._going.__getitem__)
            if self._going[account] and self._going.total() >= self._most:
                return
            waiting = self._waiting.pop(account)
            self._waiting[account] = waiting
            waiting.popleft().set_result(None)
            self._going[account] += 1
            self._forget_if_empty(account)

    def _forget_if_empty(self, account: int) -> None:
        if not self._waiting[account]:
            del self._waiting[account]
