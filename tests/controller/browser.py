"""What comes over HTTP: a controller with its port open in plaintext, as in development, and who asks it."""

import asyncio
import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hs_controller.config import Config
from hs_core.policy import Policy
from tests.controller.kit import PLAIN, started


class _Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object) -> None:
        return None


def fetch(
    url: str,
    token: str = "",
    *,
    method: str = "GET",
    body: bytes | None = None,
    context: ssl.SSLContext | None = None,
    **headers: str,
) -> SimpleNamespace:
    """Goes nowhere by itself: where it is sent is in the headers. `headers`: underscores for hyphens."""
    if token:
        headers["authorization"] = f"Bearer {token}"
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, headers=said, method=method, data=body)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Stays)
    try:
        with opener.open(request, timeout=60) as answer:
            return SimpleNamespace(code=answer.status, text=answer.read().decode(), headers=answer.headers)
    except urllib.error.HTTPError as refusal:
        with refusal:  # Python 3.14 warns of one that was left open
            return SimpleNamespace(code=refusal.code, text=refusal.read().decode(), headers=refusal.headers)


@contextlib.asynccontextmanager
async def opened(config: Config, policy: Policy = PLAIN) -> AsyncIterator[SimpleNamespace]:
    """As `started`, with `get` and `post` (JSON both ways), and the token of whoever administers it."""
    async with started(replace(config, dev=True, web_listen=("127.0.0.1", 0)), policy) as cluster:
        base = f"http://{cluster.controller.web_address}"

        async def get(path: str, **more: Any) -> SimpleNamespace:
            return await asyncio.to_thread(fetch, base + path, **more)

        async def post(path: str, said: Any, **more: Any) -> SimpleNamespace:
            more = {"content_type": "application/json", "method": "POST", **more}
            answer = await get(
                path, body=said if isinstance(said, bytes) else json.dumps(said).encode(), **more
            )
            answer.json = json.loads(answer.text) if "json" in answer.headers["content-type"] else None
            return answer

        token = (config.state_dir / "admin.token").read_text().strip()
        yield SimpleNamespace(**vars(cluster), base=base, get=get, post=post, admin=token)
