"""Who may be somebody: users' tokens, nodes' invitations and which certificates count. In memory; the journal has the same."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from hs_controller.permissions import Caller
from hs_controller.pki import LEAF_S
from hs_controller.rows import Credential, JoinToken, Kept, NodeIdentity, UserToken
from hs_core.errors import Kind, RefusedError
from hs_core.names import HostName, UserName
from hs_proto import certified

TOKENS_PER_USER = 100  # that can still be used, and of others the newest so many
SERIALS_PER_NODE = 16  # the newest: one that renews has two or three, and one that never stops must not fill the controller with them
KEPT_S = 30 * 86_400.0  # what can no longer be used is shown for so long
USED_EVERY_S = 60.0  # `last_used_s` is no finer


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Registry:
    def __init__(self, rows: Iterable[Credential] = ()) -> None:
        self._tokens: dict[str, UserToken] = {}  # by digest
        self._invitations: dict[str, JoinToken] = {}  # by digest
        self._nodes: dict[HostName, NodeIdentity] = {}
        self._used: dict[str, UserToken] = {}  # rows of which only last_used_s is newer than the journal's
        for row in rows:
            self._put(row)

    def keep(self, kept: Kept) -> None:
        for row in kept.gone:
            if isinstance(row, UserToken):
                self._tokens.pop(row.digest, None)
                self._used.pop(row.id, None)
            elif isinstance(row, JoinToken):
                self._invitations.pop(row.digest, None)
            else:
                self._nodes.pop(row.node, None)
        for row in kept.rows:
            self._put(row)

    def _put(self, row: Credential) -> None:
        if isinstance(row, UserToken):
            self._tokens[row.digest] = row
            self._used.pop(row.id, None)
        elif isinstance(row, JoinToken):
            self._invitations[row.digest] = row
        else:
            self._nodes[row.node] = row

    # --- users' tokens ----------------------------------------------------------------------------------------------

    def user_of(self, token: str, now_s: float) -> UserName | None:
        row = self._tokens.get(digest_of(token))
        if row is None or row.revoked or now_s >= row.not_after_s:
            return None
        if now_s - row.last_used_s >= USED_EVERY_S:
            row = self._tokens[row.digest] = self._used[row.id] = replace(row, last_used_s=now_s)
        return row.user

    @property
    def used(self) -> bool:
        return bool(self._used)

    def take_used(self) -> tuple[UserToken, ...]:
        """Rows to be written when something is written anyway."""
        used = tuple(self._used.values())
        self._used.clear()
        return used

    def usable(self, now_s: float, user: str = "") -> list[UserToken]:
        return [row for row in self.tokens(user) if not row.revoked and now_s < row.not_after_s]

    def tokens(self, user: str = "") -> list[UserToken]:
        found = [row for row in self._tokens.values() if user in {"", row.user}]
        return sorted(found, key=lambda row: (row.created_s, row.id))

    def token(self, token_id: str) -> UserToken | None:
        return next((row for row in self._tokens.values() if row.id == token_id), None)

    def add_token(self, row: UserToken) -> tuple[UserToken, ...]:
        """Raises RefusedError where one more is too many; else those that are forgotten: who makes and revokes tokens all day must not fill the controller with them."""
        if row.digest in self._tokens:
            raise RefusedError("key: was used before for a token; use another one", Kind.CONFLICT)
        now_s, live = row.created_s, self.usable(row.created_s, row.user)
        if len(live) >= TOKENS_PER_USER:
            raise RefusedError(
                f"{row.user} has {len(live)} tokens; revoke some first: hsctl token revoke", Kind.CONFLICT
            )
        dead = [one for one in self.tokens(row.user) if one.revoked or now_s >= one.not_after_s]
        return tuple(
            one
            for newer, one in enumerate(reversed(dead))
            if newer >= TOKENS_PER_USER or max(one.last_used_s, min(one.not_after_s, now_s)) + KEPT_S < now_s
        )

    # --- nodes ------------------------------------------------------------------------------------------------------

    def invite(self, row: JoinToken) -> tuple[JoinToken, ...]:
        """Those that the new one replaces: a node has one invitation at a time."""
        if row.digest in self._invitations:
            raise RefusedError("key: was used before to enroll; use another one", Kind.CONFLICT)
        twin = next((n for n in self._nodes if n != row.node and n.lower() == row.node.lower()), None)
        if twin is not None:
            raise RefusedError(
                f"node: {row.node!r} differs from {twin!r} in capitals only; certificates do not tell them apart"
            )
        return self.invitations(row.node)

    def invitations(self, node: str) -> tuple[JoinToken, ...]:
        return tuple(one for one in self._invitations.values() if one.node == node)

    def open_invitations(self, now_s: float) -> list[JoinToken]:
        """Those that can still be used."""
        found = [one for one in self._invitations.values() if not one.used_s and now_s < one.not_after_s]
        return sorted(found, key=lambda row: (row.created_s, row.id))

    def invitation(self, node: str, token: str, now_s: float) -> JoinToken:
        """Raises RefusedError; what it says does not help to guess."""
        row = self._invitations.get(digest_of(token))
        if row is None or row.node != node:
            raise RefusedError(
                f"the token is not one for {node!r}; an administrator makes one: hsctl node enroll {node}",
                Kind.NOT_ALLOWED,
            )
        if row.used_s:
            raise RefusedError(
                f"the token for {node} was used already; make another: hsctl node enroll {node}",
                Kind.NOT_ALLOWED,
            )
        if now_s >= row.not_after_s:
            raise RefusedError(
                f"the token for {node} has expired; make another: hsctl node enroll {node}", Kind.NOT_ALLOWED
            )
        return row

    def node(self, node: str) -> NodeIdentity | None:
        return self._nodes.get(HostName(node))

    def joined(self, node: HostName, serial: str, until_s: float, now_s: float) -> NodeIdentity:
        """Whoever joins anew has a new key: what it had before no longer counts."""
        return NodeIdentity(node=node, serials={serial: until_s}, refused_before_s=self._cut(node, now_s))

    def _cut(self, node: HostName, now_s: float) -> float:
        """After all that the node ever had, also where the wall clock was set back since."""
        old = self._nodes.get(node, NodeIdentity(node=node))
        given_out = (until_s - LEAF_S for until_s in old.serials.values())
        return max(now_s, old.refused_before_s, *given_out)

    def renewed(self, node: HostName, serial: str, until_s: float, now_s: float) -> NodeIdentity:
        old = self._nodes.get(node, NodeIdentity(node=node))
        live = [(known, end_s) for known, end_s in old.serials.items() if end_s > now_s]
        return replace(old, serials=dict([*live, (serial, until_s)][-SERIALS_PER_NODE:]))

    def removed(self, node: HostName, now_s: float) -> NodeIdentity:
        return NodeIdentity(node=node, refused_before_s=self._cut(node, now_s), removed=True)

    def why_refused(self, who: Caller, now_s: float) -> str:
        """Why a certificate that our CA signed does not count; empty: it does."""
        again = f"join anew: hsctl node enroll {who.node}"
        if now_s >= who.until_s:
            return f"the certificate of {who.node} has expired; {again}"
        row = self._nodes.get(HostName(who.node))
        # A node that is not known at all: the journal was put back from a backup that is older than the node.
        if (
            row is None
            or who.serial in row.serials
            or (not row.removed and who.issued_s > row.refused_before_s)
        ):
            return ""
        if row.removed:
            return f"{certified.removed(who.node)}; {again}"
        return f"the certificate of {who.node} was replaced by a newer one; {again}"

    def certificate_until_s(self, node: HostName) -> float:
        row = self._nodes.get(node)
        return max(row.serials.values(), default=0.0) if row is not None else 0.0
