"""Who asks over HTTP: by a token in `authorization: Bearer …`, or in the cookie that signing in has set."""

from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from hs_controller import permissions
from hs_controller.callers import NOT_KNOWN, SAY_WHO, StrangerError, TokenHolder
from hs_controller.permissions import Caller, Role
from hs_controller.refusals import PAGE, Refusals, Why, token_id
from hs_core.errors import RefusedError

COOKIE = "hs_token"


class Session:
    """`find`: whose token it is. `secure`: the port speaks TLS, and the cookie is sent over nothing else."""

    def __init__(self, find: Callable[[str], Caller | None], refusals: Refusals, *, secure: bool) -> None:
        self._find = find
        self._refusals = refusals
        self._secure = secure

    def caller(self, request: Request, what: str = PAGE) -> Caller | None:
        """None: it says nothing of who it is. Raises StrangerError where what it shows is not good."""
        shown = [("authorization", value) for value in request.headers.getlist("authorization")]
        if not shown and (token := request.cookies.get(COOKIE)):
            shown = [("authorization", f"Bearer {token}")]
        try:
            found = TokenHolder(self._find).caller(shown)
        except StrangerError as error:
            self._refusals.tell(what, Why.TOKEN, str(error), token=error.token, address=_address(request))
            raise
        return None if Role.ANONYMOUS in found.roles else found

    def check(self, request: Request, what: str) -> Caller:
        """Who asks, and may: `what` as the table of permissions names it. Raises HTTPException."""
        asks = {"www-authenticate": "Bearer"}
        try:
            caller = self.caller(request, what)
        except StrangerError as error:
            raise HTTPException(401, str(error), asks) from None
        if caller is None:
            self._refusals.tell(what, Why.NOBODY, SAY_WHO, address=_address(request))
            raise HTTPException(401, SAY_WHO, asks)
        try:
            permissions.check(caller, what)
        except RefusedError as error:
            self._refusals.tell(what, Why.RIGHTS, str(error), who=caller.name, address=_address(request))
            raise HTTPException(403, str(error)) from None
        return caller

    def sign_in(self, request: Request, token: str, response: Response) -> Caller:
        """Sets the cookie, which scripts cannot read and other sites' pages do not send. Raises HTTPException."""
        caller = self._find(token.strip()) if token.isascii() else None
        if caller is None:
            self._refusals.tell(
                PAGE, Why.TOKEN, NOT_KNOWN, token=token_id(token.strip()), address=_address(request)
            )
            raise HTTPException(401, NOT_KNOWN)
        response.set_cookie(
            COOKIE, token.strip(), httponly=True, samesite="strict", secure=self._secure, path="/"
        )
        return caller

    def sign_out(self, response: Response) -> None:
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self._secure, path="/")


def _address(request: Request) -> str:
    """Of the machine that asks."""
    return "" if request.client is None else request.client.host
