"""The two entry points, Flower's ServerApp and ClientApp.

Flower starts a silo's process anew for each message, so all lasting state is in the silo's folder.
"""

import faulthandler
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from pomona.core.errors import PomonaError
from pomona.core.registry import importable
from pomona_federation.messages.message_bodies import Hello, Refusal, SumRequest, Task
from pomona_federation.messages.message_bus import Message, packed, unpacked
from pomona_federation.messages.study_bodies import SurveyQuestion
from pomona_federation.silo.settings import own_kit
from pomona_federation.supervision.process_logs import APP, at_round, logging_to
from pomona_federation.supervision.supervisor import SERVER_KIT
from pomona_federation.versions import note

LONGEST = 30 * 86_400.0  # largest message lifetime in seconds that is taken at its value
STDERR = 2  # the process's own stderr, even if sys.stderr has been replaced
GRACE = 30.0  # seconds after a message's lifetime that a silo may still work on it

logger = logging.getLogger("pomona")
server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the study named by the run's configuration, from the kit named by the environment."""
    from pomona_federation.server.flower_bus import FlowerBus
    from pomona_federation.server.server_app import coordinate

    kit = Path(os.environ[SERVER_KIT])
    coordinate(kit, FlowerBus.listening(grid, kit / "run"), str(context.run_config["study"]))


@client_app.query()
def query(message: FlowerMessage, _: Context) -> FlowerMessage:
    """Report this silo's identity."""
    return _answered(message)


@client_app.train()
def train(message: FlowerMessage, _: Context) -> FlowerMessage:
    """Do a round's task."""
    return _answered(message)


def _answered(message: FlowerMessage) -> FlowerMessage:
    with ending_after(time_for(message.metadata.ttl)), saying_no_more():
        answer = handled(own_kit(), unpacked(message.content))
        return FlowerMessage(packed(answer), reply_to=message)


def time_for(ttl: float) -> float:
    """Seconds that a silo may work on a message with this lifetime, which the server sets: any
    number, or NaN.
    """
    return (min(max(ttl, 0.0), LONGEST) if isfinite(ttl) else 0.0) + GRACE


@contextmanager
def saying_no_more() -> Iterator[None]:
    """Remove the text of any exception that leaves the block: Flower sends it to the server,
    unsigned.
    """
    try:
        yield
    except Exception as fault:
        from pomona_federation.silo.outgoing_filter import scrubbed

        raise RuntimeError(scrubbed(fault)) from None


@contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer, and log the line it was at.

    The server no longer waits for the answer, but Flower's node would: it handles one message at a
    time, so one that hangs would keep it from all later rounds. faulthandler keeps the time, since
    it runs even if Python does not.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def handled(folder: Path, message: Message) -> Message:
    """A silo's answer to a message; a refusal if it will not or cannot do what is asked."""
    from pomona_federation.silo import state_origin

    state_origin.ensure_origin(folder)
    with logging_to(folder / "state" / "logs" / APP):
        return _handled(folder, message)


def _handled(folder: Path, message: Message) -> Message:
    import torch

    from pomona_federation.silo import history
    from pomona_federation.silo.client_app import ClientApp
    from pomona_federation.silo.outgoing_filter import scrubbed
    from pomona_federation.silo.silo_in_study import Silo, audited
    from pomona_federation.silo.survey_answers import surveyed

    os.umask(0o077)
    importable(folder)
    silo, work = Silo(folder), None
    torch.set_num_threads(silo.file.threads)
    try:
        note(folder / "state", "server", message.versions)
        body: Hello | Task | SurveyQuestion | SumRequest = message.read(
            Hello, Task, SurveyQuestion, SumRequest
        )
        silo = work = silo.working_for(body.agreement)
        if isinstance(body, SurveyQuestion) or silo.terms.survey:
            reply = surveyed(silo, body)
            history.clear_fault(silo.state)
            return Message.of(reply, silo.signer)
        if isinstance(body, Hello):
            logger.info("the server asks who this is")
            return Message.of(ClientApp(silo).greet(body), silo.signer)
        at_round(body.number)
        if isinstance(body, SumRequest):
            answer, uplink = ClientApp(silo).masked_part(body)
        else:
            answer, uplink = ClientApp(silo).answer(
                body, {name: bytes(data) for name, data in message.enclosed.items()}
            )
        logger.info("answered with an uplink of %d bytes", len(uplink))
        history.clear_fault(silo.state)
        audited(silo, "answered", round=body.number, task=body.digest, bytes=len(uplink))
        return Message.of(answer, silo.signer, {"uplink": uplink} if uplink else {})
    except Exception as fault:  # the text of an unexpected error stays at the silo
        logger.exception("a message could not be answered")
        with suppress(OSError, PomonaError):  # the server should see whose disk is full
            if work:
                history.note_fault(work.state, fault)
        with suppress(OSError, PomonaError):
            audited(silo, "refused", reason=scrubbed(fault))
        return Message.of(Refusal(silo=silo.file.name, fault=scrubbed(fault)), silo.signer)
