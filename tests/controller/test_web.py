"""The page and what it asks for: who gets in, that it says what hsctl is told, and that nothing from outside becomes markup."""

import asyncio
import base64
import contextlib
import re
import uuid
from http.cookies import SimpleCookie
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf import json_format

from hs_controller import app, web
from hs_controller.config import Config
from hs_controller.permissions import PERMISSIONS, Role
from hs_controller.web.app import FILES, PAGE
from hs_controller.web.bridge import BODY_BYTES, CALLS
from hs_core.policies import find
from hs_proto.v1 import agent_pb2
from hs_proto.v1 import controller_pb2 as pb
from tests.controller.browser import opened
from tests.controller.kit import Sending, spec

PAGES = Path(web.__file__).parent / "pages"
PAGE_JS = (PAGES / "page.js").read_text(encoding="utf-8")


async def token_of(cluster: SimpleNamespace, user: str) -> str:
    stub = cluster.client.stub
    await stub.SetUser(pb.SetUserRequest(key=uuid.uuid4().hex, name=user, tickets=100))
    return (await stub.CreateToken(pb.CreateTokenRequest(key=uuid.uuid4().hex, user=user))).token


# --- who gets in -----------------------------------------------------------------------------------------------------


def test_who_is_not_signed_in_is_sent_to_the_form_and_gets_nothing_else(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            for cookie in ("", "hs_token=hs_guessed", "hs_token="):
                for path in PAGE:
                    answer = await cluster.get(path, cookie=cookie)
                    assert (answer.code, answer.headers["location"], answer.text) == (303, "/login", "")
            for path in FILES:
                assert (await cluster.get(path)).code == 200
            assert (await cluster.get("/history")).code == 401
            for call in CALLS:
                answer = await cluster.post(f"/api/{call}", {})
                assert (answer.code, "hsctl token create" in answer.json["error"]) == (401, True), call

    asyncio.run(story())


def test_a_refusal_waits_until_the_request_was_sent_but_not_for_what_never_ends(config: Config) -> None:
    told = {"type": "http", "method": "POST", "path": "/api/Info", "query_string": b""}
    told |= {"http_version": "1.1", "scheme": "http", "server": None, "client": None}

    async def asked(page, chunks, *headers) -> list[object]:
        """How large each piece was that was taken in, and the code of the answer, in their order."""
        seen = list[object]()

        async def receive():
            more, size = next(chunks)
            seen.append(size)
            return {"type": "http.request", "body": b"x" * size, "more_body": more}

        async def send(message) -> None:
            seen.extend([message["status"]] if message["type"] == "http.response.start" else [])

        await page({**told, "headers": headers}, receive, send)
        return seen

    async def story() -> None:
        async with opened(config) as cluster:
            page = cluster.controller._web._server.config.app
            assert await asked(page, iter([(True, 3), (True, 4), (False, 5)])) == [3, 4, 5, 401]
            assert await asked(page, iter([(False, 0)])) == [0, 401]
            assert await asked(page, repeat((True, 1 << 18))) == [1 << 18] * 4 + [401]
            assert await asked(page, iter([]), (b"expect", b"100-continue")) == [401], "nothing was sent yet"

    asyncio.run(story())


def test_who_goes_away_amid_a_request_is_no_mistake_of_the_controllers(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            page = cluster.controller._web._server.config.app
            who = (b"authorization", f"Bearer {cluster.admin}".encode())
            for path in ("/login", "/api/Info", "/preview"):
                comes = iter([{"type": "http.request", "body": b"{", "more_body": True}])
                codes = list[int]()

                async def receive(comes=comes):
                    return next(comes, {"type": "http.disconnect"})

                async def send(message, codes=codes) -> None:
                    codes.extend([message["status"]] if message["type"] == "http.response.start" else [])

                headers = [(b"content-type", b"application/json"), who]
                told = {"type": "http", "method": "POST", "path": path, "headers": headers}
                told |= {"query_string": b"", "http_version": "1.1", "scheme": "http"}
                await page({**told, "server": None, "client": None}, receive, send)
                assert codes == [400], "which nobody hears"

    asyncio.run(story())


def test_signing_in_takes_a_token_and_sets_a_cookie_that_scripts_and_other_sites_cannot_use(
    config: Config,
) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            token = await token_of(cluster, "ann")
            answer = await cluster.post("/login", {"token": f" {token}\n"})
            assert answer.code == 200
            cookie = SimpleCookie(answer.headers["set-cookie"])["hs_token"]
            assert cookie.value == token
            assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
            sent = f"hs_token={token}"
            assert "page.js" in (await cluster.get("/", cookie=sent)).text
            info = await cluster.post("/api/Info", {}, cookie=sent)
            assert (info.json["you"], info.json["admin"]) == ("ann", False)
            out = await cluster.post("/logout", {}, cookie=sent)
            assert SimpleCookie(out.headers["set-cookie"])["hs_token"]["max-age"] == "0"
            form = await cluster.post("/logout", b"", content_type="application/x-www-form-urlencoded")
            assert form.headers["set-cookie"] is None, "another site's form signs nobody out"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        ({"token": "hs_guessed"}, 401, "not known"),
        ({"token": "hs_ünïcode"}, 401, "not known"),
        ({"token": 7}, 400, "token"),
        ([], 400, "token"),
        (b"{", 400, "token"),
        (b"\xff", 400, "UTF-8"),
        (b" " * (BODY_BYTES + 1), 413, f"{BODY_BYTES} bytes"),
    ],
    ids=["guessed", "no token's letters", "no text", "no object", "no JSON", "no text at all", "too long"],
)
def test_a_bad_token_is_told_and_no_cookie_is_set(config: Config, said: object, code: int, why: str) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            answer = await cluster.post("/login", said)
            assert (answer.code, why in answer.json["error"]) == (code, True), answer.text
            assert answer.headers["set-cookie"] is None

    asyncio.run(story())


def test_a_user_may_over_http_what_it_may_over_grpc_and_no_more(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            token = await token_of(cluster, "ann")
            for call in sorted(CALLS):
                answer = await cluster.post(f"/api/{call}", {}, token=token)
                allowed = Role.USER in PERMISSIONS[f"/hs.v1.HeteroShare/{call}"]
                assert (answer.code == 403) is not allowed, (call, answer.text)

    asyncio.run(story())


def test_another_users_job_is_seen_but_neither_its_log_nor_is_it_cancelled(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            token = await token_of(cluster, "ann")
            [job] = await cluster.client.submit(spec(env={"KEY": "secret"}))
            seen = await cluster.post("/api/GetJob", {"job_id": job}, token=token)
            assert seen.json["spec"]["env"] == {"KEY": "(hidden)"}
            for call, asked in (("Logs", {"job_id": job}), ("Cancel", {"key": "c", "job_ids": [job]})):
                answer = await cluster.post(f"/api/{call}", asked, token=token)
                assert (answer.code, answer.json["error"]) == (404, f"there is no job {job}"), call

    asyncio.run(story())


# --- what is asked ---------------------------------------------------------------------------------------------------


def test_answers_are_those_of_grpc(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            await cluster.agent().join()
            submitted = await cluster.client.submit(spec("<b>bold</b>"), spec("two"))
            for job in submitted:  # from then on nothing becomes of them, as this agent starts nothing
                await cluster.client.until(job, lambda view: view.state == "starting")
            stub = cluster.client.stub
            jobs = await cluster.post("/api/ListJobs", {"limit": 5}, token=cluster.admin)
            assert json_format.ParseDict(jobs.json, pb.ListJobsReply()) == await stub.ListJobs(
                pb.ListJobsRequest(limit=5)
            )
            events = await cluster.post("/api/Events", {"tail": 3}, token=cluster.admin)
            told = [event async for event in stub.Events(pb.EventsRequest(tail=3))]
            assert [json_format.ParseDict(one, pb.Event()) for one in events.json] == told
            nodes = await cluster.post("/api/ListNodes", {}, token=cluster.admin)
            assert [node["name"] for node in nodes.json["nodes"]] == ["h1"]

    asyncio.run(story())


def test_what_is_changed_is_changed_once_however_often_it_is_sent(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            await cluster.agent().join()
            asked = {"key": "k", "node": "h1", "reason": "new fans"}
            first = await cluster.post("/api/DrainNode", asked, token=cluster.admin)
            again = await cluster.post("/api/DrainNode", asked, token=cluster.admin)
            assert first.json == again.json
            assert (first.json["draining"], first.json["drain_reason"]) == (True, "new fans")
            other = await cluster.post("/api/DrainNode", {**asked, "reason": "x"}, token=cluster.admin)
            assert (other.code, "key" in other.json["error"]) == (409, True)

    asyncio.run(story())


def test_a_log_is_given_as_far_as_it_is_asked_for_and_refused_where_it_is_too_long(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            agent = await cluster.agent().join()
            [job] = await cluster.client.submit()
            await agent.until(lambda: agent.wants(job) is not None)
            await agent.report(job, "running")
            line = "loss 0.3 ünïcode\n".encode()

            agent.on_log = lambda request: [
                agent_pb2.LogData(request_id=request.request_id, data=line * request.tail_lines, end=True)
            ]
            few = await cluster.post("/api/Logs", {"job_id": job, "tail_lines": 3}, token=cluster.admin)
            assert b"".join(base64.b64decode(chunk["data"]) for chunk in few.json) == line * 3
            Sending(agent, line * 3000, 200)
            whole = await cluster.post("/api/Logs", {"job_id": job, "tail_lines": -1}, token=cluster.admin)
            assert (whole.code, "ask for less" in whole.json["error"]) == (413, True)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("call", "said", "more", "code", "why"),
    [
        ("ListJobs", {"limits": 5}, {}, 400, 'no field named "limits"'),
        ("ListJobs", {"limit": "many"}, {}, 400, "limit"),
        ("ListJobs", {"states": ["sleeping"]}, {}, 400, "states"),
        ("ListJobs", b"[1", {}, 400, "ListJobsRequest"),
        ("ListJobs", b"\xff", {}, 400, "UTF-8"),
        ("ListJobs", b" " * (BODY_BYTES + 1), {}, 413, f"{BODY_BYTES} bytes"),
        ("ListJobs", {}, {"content_type": "text/plain"}, 415, "application/json was expected"),
        ("Events", {"follow": True}, {}, 400, "only gRPC follows"),
        ("GetJob", {"job_id": 99}, {}, 404, "there is no job 99"),
        ("Submit", {}, {}, 404, "there is no call 'Submit' here"),
        ("__init__", {}, {}, 404, "there is no call"),
        ("ListJobs", b"", {"method": "GET"}, 405, "Method Not Allowed"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong_with_it(
    config: Config, call: str, said: object, more: dict[str, str], *, code: int, why: str
) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            answer = await cluster.post(f"/api/{call}", said, token=cluster.admin, **more)
            assert (answer.code, why in answer.text.replace('\\"', '"')) == (code, True), answer.text

    asyncio.run(story())


def test_there_is_no_other_page(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            for path in (
                "/metrics/",
                "/index.html",
                "/pages/page.js",
                "/../app.py",
                "/style.css/",
                "/docs",
                "/api/",
            ):
                answer = await cluster.get(path, token=cluster.admin)
                assert (answer.code, "there is no such page" in answer.text) == (404, True), path

    asyncio.run(story())


def test_every_answer_forbids_markup_frames_and_copies(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            for path in ("/", "/login", "/page.js", "/nothing", "/metrics"):
                headers = (await cluster.get(path, token=cluster.admin)).headers
                policy = headers["content-security-policy"]
                assert policy.startswith("default-src 'none';")
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert (headers["x-content-type-options"], headers["cache-control"]) == (
                    "nosniff",
                    "no-store",
                )

    asyncio.run(story())


def test_a_preview_of_tickets_says_what_the_policy_would_entitle_to_and_changes_nothing(
    config: Config,
) -> None:
    async def story() -> None:
        async with opened(config, find("gandiva-fair")) as cluster:
            stub, agent = cluster.client.stub, await cluster.agent(gpus=4).join()
            for user in ("ann", "bob"):
                await stub.SetUser(pb.SetUserRequest(key=user, name=user, tickets=100))
                jobs = await cluster.client.submit(*[spec()] * 4, as_user=user)
            await agent.until(lambda: agent.wants(jobs[-1]) is not None)
            decided = (await stub.GetPolicy(pb.PolicyRequest())).decided_at
            answer = await cluster.post("/preview", {"tickets": {"ann": 300}}, token=cluster.admin)
            rows = {row["user"]: (row["gpu_model"], row["now"], row["then"]) for row in answer.json}
            assert rows == {"ann": ("V100", 2.0, 3.0), "bob": ("V100", 2.0, 1.0)}
            assert (await stub.GetPolicy(pb.PolicyRequest())).decided_at == decided
            shares = (await stub.Shares(pb.SharesRequest())).shares
            assert {share.user: (share.tickets, share.entitled_gpus) for share in shares} == {
                "ann": (100.0, 2.0),
                "bob": (100.0, 2.0),
            }

    asyncio.run(story())


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        ({"tickets": {"nobody": 5}}, 404, "there is no user 'nobody'"),
        ({"tickets": {"ann": -1}}, 400, "tickets: -1"),
        ({"tickets": {"ann": 1e308}}, 400, "tickets"),
        ({"tickets": {"ann": "many"}}, 400, '"tickets": {"ann": 200'),
        ({"tickets": {"ann": True}}, 400, '"tickets": {"ann": 200'),
        ({"tickets": []}, 400, '"tickets": {"ann": 200'),
        (b"NaN", 400, '"tickets": {"ann": 200'),
        (b'{"tickets": {"ann": NaN}}', 400, "tickets"),
    ],
)
def test_a_preview_of_what_cannot_be_is_refused(config: Config, said: object, code: int, why: str) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            await token_of(cluster, "ann")
            answer = await cluster.post("/preview", said, token=cluster.admin)
            assert (answer.code, why in answer.json["error"]) == (code, True), answer.text

    asyncio.run(story())


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"1" * 60_000,
        b'{"tickets": {"ann": ' + b"9" * 4_000 + b"}}",
        b'{"token": "\\ud800", "key": "\\ud800", "name": "\\ud800", "tickets": {"\\ud800": 1}}',
        b'{"token": 5, "tickets": 5}',
        b"\xff\xfe",
        b'"\x00"',
        b'{"tickets": {"ann": 1e999}}',
    ],
    ids=lambda said: repr(said[:20]),
)
def test_nonsense_is_refused_whoever_says_it_and_is_no_mistake_of_the_controllers(
    config: Config, said: bytes
) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            await token_of(cluster, "ann")
            for path in ("/login", "/preview", "/api/SetUser", "/api/ListJobs"):
                answer = await cluster.post(path, said, token=cluster.admin)
                assert (path, answer.code) in {(path, code) for code in (400, 401, 404)}, answer.text
                assert answer.json["error"]

    asyncio.run(story())


def test_only_administrators_preview(config: Config) -> None:
    async def story() -> None:
        async with opened(config) as cluster:
            token = await token_of(cluster, "ann")
            assert (await cluster.post("/preview", {"tickets": {}}, token=token)).code == 403

    asyncio.run(story())


# --- what the page is made of ----------------------------------------------------------------------------------------


def test_the_page_makes_text_of_what_it_is_told_never_markup() -> None:
    for file in PAGES.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert way not in text, f"{file.name}: {way}"
    for file in PAGES.glob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=|https?:", text), file.name


@pytest.mark.parametrize("name", ["index.html", "login.html"])
def test_who_has_scripts_off_is_told_what_does_without(name: str) -> None:
    (told,) = re.findall(r"<noscript>(.*?)</noscript>", (PAGES / name).read_text(encoding="utf-8"))
    assert "hsctl top" in told


def _light(colour: str) -> float:
    """Relative luminance, as WCAG 2 has it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_light(one), _light(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_stands_out_from_what_is_behind_it_by_day_and_by_night() -> None:
    text = (PAGES / "style.css").read_text(encoding="utf-8")
    by_day, by_night = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{([^}]*)\}", text)
    )
    for colours in (by_day, by_day | by_night):
        pairs = [
            (colours[word], colours[behind])
            for word in ("text", "dim", "good", "bad", "warn", "accent")
            for behind in ("back", "card")
        ]
        assert all(_contrast(*pair) >= 4.5 for pair in [*pairs, ("#ffffff", colours["alarm"])]), pairs
    assert ".banner { padding: 10px 20px; background: var(--alarm); color: #ffffff; }" in text


def test_the_page_asks_for_what_is_served_and_all_that_is_served_is_asked_for() -> None:
    asked = set(re.findall(r'(?:ask|change)\("(\w+)"', PAGE_JS)) | set(
        re.findall(r'button\("\w+", "(\w+)"\)', PAGE_JS)
    )
    assert asked == CALLS


def test_what_the_script_looks_for_on_the_page_is_there() -> None:
    index = (PAGES / "index.html").read_text(encoding="utf-8")
    looked_for = set(re.findall(r'(?:by|show)\("([\w-]+)"', PAGE_JS))
    assert looked_for <= set(re.findall(r'\bid="([\w-]+)"', index))


def test_the_files_that_are_served_are_all_there_are() -> None:
    assert {file.name for file in PAGES.iterdir()} == {name for name, _ in (FILES | PAGE).values()}


HALF = b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 400\r\n\r\n{"


async def heard_after(address: tuple[str, int], said: bytes) -> bytes:
    """What is answered to one who says no more than that, until the connection is ended."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(said)
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def heard_word_by_word(address: tuple[str, int]) -> bytes:
    """The same for one who says a little more again and again, and never all of it."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
    ending = asyncio.create_task(reader.read())
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while not ending.done():
                writer.write(b"X: y\r\n")
                await asyncio.wait({ending}, timeout=0.05)
        writer.close()
        return await ending
    return b""


async def ask_and_take_nothing(address: tuple[str, int]) -> None:
    """Until the connection is ended."""
    reader, writer = await asyncio.open_connection(*address, limit=1)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            writer.write(b"GET /page.js HTTP/1.1\r\nHost: x\r\n\r\n" * 40)
            while True:
                writer.write(b"G")  # and a word now and then
                await writer.drain()
                await asyncio.sleep(0.05)
    assert reader is not None


async def assert_is_answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /login.js HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200")
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly((PAGES / "login.js").stat().st_size)


def test_who_says_nothing_or_half_of_what_he_wants_is_not_waited_for_for_ever(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "WEB_SILENT_S", 1.0)

    async def story() -> None:
        async with opened(config) as cluster:
            host, _, port = cluster.controller.web_address.partition(":")
            address = host, int(port)
            silent = [heard_after(address, said) for said in (b"", b"GET / HT", HALF)]
            ended = asyncio.gather(*silent, heard_word_by_word(address), ask_and_take_nothing(address))
            connection = await asyncio.open_connection(*address)
            while not ended.done():  # who goes on asking is answered over the same connection
                await assert_is_answered(*connection)
            connection[1].close()
            assert await ended == [b"", b"", b"", b"", None]

    asyncio.run(story())
