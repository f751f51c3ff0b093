"""What other tickets would entitle everybody to, before anybody sets them."""

from typing import Any

from starlette.exceptions import HTTPException

from hs_controller.loop import Loop
from hs_controller.web.bridge import CODES
from hs_core.errors import RefusedError
from hs_core.names import UserName


async def previewed(loop: Loop, said: Any) -> list[dict[str, Any]]:
    """`said`: {"tickets": {user: tickets}}, those of others as they are. GPUs now and then, by user and model. Raises HTTPException."""
    tickets = _tickets(said)
    try:
        then = await loop.would_entitle(tickets)
    except RefusedError as refused:
        raise HTTPException(CODES[refused.kind], str(refused)) from None
    now = loop.mind.machine.entitled()
    return [
        {
            "user": user,
            "gpu_model": model,
            "now": now.get((user, model), 0.0),
            "then": then.get((user, model), 0.0),
        }
        for user, model in sorted({*now, *then})
    ]


def _tickets(said: Any) -> dict[UserName, float]:
    tickets = said.get("tickets") if isinstance(said, dict) else None
    if not isinstance(tickets, dict) or not all(map(_is_number, tickets.values())):
        raise HTTPException(400, 'tickets: {"tickets": {"ann": 200, …}} was expected')
    try:
        return {UserName(user): float(count) for user, count in tickets.items()}
    except OverflowError:
        raise HTTPException(400, "tickets: a number of hundreds of digits; fewer were expected") from None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
