"""Requests for messages are held until the server has sent some; complete answers are reported to
the round loop.
"""

import asyncio

import pytest

pytest.importorskip("flwr")

from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, PushObjectRequest

from pomona_federation.server import long_poll
from pomona_federation.server.gate import ACTIVATE, ANSWERS, PIECE
from pomona_federation.server.long_poll import PIPE, PULL, PUSH, Arrivals, LongPoll, Waker, notify

PULL_REPLIES = "/v1/runtime/pull-messages"
NODES = "/v1/runtime/get-nodes"
FOREVER = 1e6


class Link:
    """A SuperLink behind the layer, and the layer's reports; ``answers`` are its bodies by path."""

    def __init__(self, answers=(), status=200, seconds=FOREVER):
        self.answers, self.status, self.asked, self.told = dict(answers), status, [], []
        self.waker = Waker()
        self.hold = LongPoll(self, self.told.append, self.waker, seconds)

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        self.asked.append((scope["path"], body))
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": self.answers.get(scope["path"], b"")})

    async def ask(self, path, body=b""):
        """Status and body of one request."""
        messages = []

        async def receive():
            return {"type": "http.request", "body": body}

        async def send(message):
            messages.append(message)

        await self.hold({"type": "http", "path": path}, receive, send)
        return messages[0]["status"], messages[1]["body"]


async def settled(task):
    """Whether a task has ended once everything runnable has run; sleepers for a hold's shortest
    time end first.
    """
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(2 * long_poll.MIN_HOLD)
    return task.done()


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(long_poll, "MIN_HOLD", 0.01)


def test_a_request_is_held_until_the_servers_next_one_after_it_has_sent():
    async def play():
        link = Link()
        request = asyncio.create_task(link.ask(PULL))
        for request_path in (PULL_REPLIES, NODES, "/v1/fleet/send-node-heartbeat"):
            await link.ask(request_path)
        assert not await settled(request), "nothing was sent"
        await link.ask(PUSH)
        await link.ask("/v1/runtime/push-object")
        assert not await settled(request), "a part of it may be missing"
        await link.ask(PULL_REPLIES)
        assert await settled(request)
        assert request.result() == (200, b"")
        assert [path for path, _ in link.asked].count(PULL) == 1, (
            "it takes no message; the silo asks again"
        )
        later = asyncio.create_task(link.ask(PULL))
        await link.ask(PULL_REPLIES)
        assert not await settled(later), "it rings once for what was sent"
        later.cancel()

    asyncio.run(play())


def test_a_message_that_is_there_is_not_held_nor_a_fault():
    async def play():
        response = PullMessagesResponse(messages_list=[Message()]).SerializeToString()
        assert await Link({PULL: response}).ask(PULL) == (200, response)
        assert await Link(status=401).ask(PULL) == (401, b"")

    asyncio.run(play())


def test_a_hold_ends_by_itself_and_with_the_server():
    async def play():
        assert await Link(seconds=0.01).ask(PULL) == (200, b"")
        link = Link()
        request = asyncio.create_task(link.ask(PULL))
        assert not await settled(request)
        link.waker.close()
        assert await settled(request)
        assert await asyncio.wait_for(link.ask(PULL), 60) == (200, b"")

    asyncio.run(play())


def test_an_answer_is_told_when_its_last_piece_has_come():
    reply = PushMessagesRequest(
        messages_list=[Message(metadata=Metadata(reply_to_message_id="ab"))]
    )
    missing = PushMessagesResponse(objects_to_push=["x", "y"], session_id="s")
    piece = PushObjectRequest(session_id="s", object_content=b"data").SerializeToString()
    strange = PushObjectRequest(session_id="t").SerializeToString()

    async def play():
        link = Link({ANSWERS: missing.SerializeToString()})
        await link.ask(PIECE, strange)
        await link.ask(ANSWERS, reply.SerializeToString())
        await link.ask(PIECE, piece)
        link.status = 500
        await link.ask(PIECE, piece)
        assert link.told == []
        link.status = 200
        await link.ask(PIECE, piece)
        assert link.told == ["ab"]
        await link.ask(PIECE, piece)
        assert link.told == ["ab"]
        assert [body for path, body in link.asked if path == PIECE][1] == piece, (
            "the body reaches SuperLink"
        )
        link.answers[ANSWERS] = b""
        await link.ask(ANSWERS, reply.SerializeToString())
        assert link.told == ["ab", "ab"], "an answer of which SuperLink has all parts already"

    asyncio.run(play())


def test_a_member_whom_superlink_does_not_know_yet_is_to_try_again():
    """The gate lets members in alone; their keys reach SuperLink a moment after it answers."""

    async def play():
        assert await Link(status=412).ask(ACTIVATE) == (503, b"")
        assert await Link(status=401).ask(ACTIVATE) == (401, b"")
        assert await Link().ask(ACTIVATE) == (200, b"")

    asyncio.run(play())


def test_tickets_go_through_the_pipe(tmp_path):
    notify(tmp_path, "ab")  # nobody listens
    arrivals = Arrivals(tmp_path)
    assert arrivals.wait(0.0) == frozenset()
    for ticket in ("ab", "cd", "", "x" * 101, "a\nb", "ab"):
        notify(tmp_path, ticket)
    assert arrivals.wait(FOREVER) == {"ab", "cd"}
    assert arrivals.wait(0.0) == frozenset()
    assert (tmp_path / PIPE).stat().st_mode & 0o777 == 0o600
    restarted = Arrivals(tmp_path)  # a server that was started again
    notify(tmp_path, "ef")
    assert restarted.wait(FOREVER) == {"ef"}


def test_what_is_no_pipe_is_neither_read_nor_written(tmp_path):
    (tmp_path / PIPE).write_text("mine")
    notify(tmp_path, "ab")
    assert (tmp_path / PIPE).read_text() == "mine"
    with pytest.raises(FileExistsError, match="not a pipe"):
        Arrivals(tmp_path)
