"""A round's messages at the server: each silo's task, and the verification of its answer.

Verified are signatures, scores and the uplink's bytes. Nothing in an answer is trusted before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from pomona.core.errors import ProtocolError
from pomona.federation.admission import Admission
from pomona.federation.exchange import Arrival, ClientRequest, Reply, with_name
from pomona.federation.norm_bounds import UNBOUNDED
from pomona.methods.base import Card
from pomona.metrics.metric import Metric, Score, metric_named
from pomona_federation.agreement import StudyAgreement
from pomona_federation.audit_log import Audit
from pomona_federation.messages.message_bodies import (
    Answer,
    CertifiedKey,
    DownlinkEntry,
    MaskKey,
    Newcomer,
    Refusal,
    Renewal,
    RowOrigin,
    Task,
    mask_statement,
    row_statement,
)
from pomona_federation.messages.message_bus import Message, untrusted
from pomona_federation.messages.tensor_bytes import (
    Encoding,
    PackedRows,
    entry_form_of,
    require_keys,
    sha256,
)
from pomona_federation.server.member_registry import RegisteredMember
from pomona_federation.server.message_exchange import MessageExchange
from pomona_federation.server.outgoing_messages import OutgoingMessage
from pomona_federation.study import TrainingStudy
from pomona_federation.unused_uplinks import ADMITTED, UNUSED, Reason, UnusableError, UnusedUplink

Origins = dict[str, RowOrigin]  # of one silo's rows, by hash


@dataclass
class OutgoingTask(OutgoingMessage):
    """One silo's task in transit.

    Attributes:
        rows: the bytes of all rows that it may have to include, by hash.
        held_rows: hashes of the rows that the silo presumably holds.
        bytes_down, bytes_up: so far.
        mask: the silo's key for the round's sum, once it has answered, with secure aggregation.
    """

    body: Task
    rows: Mapping[str, memoryview]
    held_rows: frozenset[str] = frozenset()
    bytes_down: int = 0
    bytes_up: int = 0
    mask: MaskKey | None = None

    def message(self) -> Message:
        """The task, with its rows; only the first attempt omits those that the silo presumably
        holds.
        """
        absent = (
            self.body.required_rows - self.held_rows
            if self.attempts == 1
            else self.body.required_rows
        )
        message = Message.of(self.body, enclosed={digest: self.rows[digest] for digest in absent})
        self.bytes_down += message.size
        return message


def downlink_entry(
    packed: PackedRows, key: str, k: int, client: int, origins: Mapping[int, Origins]
) -> DownlinkEntry:
    """An entry of the downlink for one silo; its rows are packed.

    Args:
        packed: the rows of all receivers.
        key: of the entry.
        k: the silo's number among the receivers.
        client: the silo's.
        origins: those of relayed rows, by silo: two of them may have sent the same row.
    """
    rows = packed.downlink[key]
    row_form = entry_form_of(rows)
    index = rows.index[k].tolist() if row_form.many else [int(rows.index[k])]
    digests = {
        j: packed.digest(key, j) for j in dict.fromkeys(index) if not row_form.many or j != client
    }
    return DownlinkEntry(
        form=row_form,
        index=tuple(index) if row_form.many else (0,),
        rows=digests if row_form.many else {0: digests[index[0]]},
        origins={
            j: origins[j][digest] for j, digest in digests.items() if digest in origins.get(j, {})
        },
    )


def introductions(
    members: Sequence[RegisteredMember], founders: int
) -> tuple[tuple[Newcomer, ...], tuple[Renewal, ...]]:
    """The silos that a task introduces: those that joined after the founders, and those whose key
    was renewed.

    Args:
        members: all present and past ones, by client id.
        founders: number of founders.
    """
    newcomers = (
        Newcomer(place=i, silo=e.name, key=e.key, certificate=e.certificate)
        for i, e in enumerate(members)
        if i >= founders
    )
    renewed = (
        Renewal(silo=e.name, keys=(*e.earlier, CertifiedKey(key=e.key, certificate=e.certificate)))
        for e in members
        if e.earlier
    )
    return tuple(newcomers), tuple(renewed)


def log_admission(
    audit: Audit,
    names: Sequence[str],
    number: int,
    verdict: Admission,
    rejected: Sequence[UnusedUplink],
) -> None:
    """Log each decision of one exchange of the round loop. Raises StorageError.

    A line is of the event ``admitted`` or ``unused``. For an uplink of the right form it has, by
    tensor, the L2 ``norms`` and their ``limits``. Null stands for a norm that is not finite, and
    for a limit while too few norms are known to compute one.
    ``names``: of the silos, by client id; ``rejected``: the record of each rejection.
    """

    def figures(client: int) -> dict[str, dict[str, float | None]]:
        norms = verdict.norms.get(client)
        if norms is None:
            return {}
        return {"norms": _figures(norms), "limits": _figures(verdict.bounds)}

    for arrival in verdict.accepted:
        client = arrival.reply.client
        audit.write(ADMITTED, silo=names[client], round=number, **figures(client))
    for rejection, unused in zip(verdict.rejected, rejected, strict=True):
        audit.write(UNUSED, **unused.fields, **figures(rejection.client))


def _figures(values: Mapping[str, float]) -> dict[str, float | None]:
    """Each value to six digits; None for one that is not finite."""
    return {
        name: float(f"{v:.6g}") if isfinite(v) and v < UNBOUNDED else None
        for name, v in values.items()
    }


MODELS = {"personal", "global", "local"}  # see ``record.Evaluation``


@dataclass(frozen=True)
class AnswerReader:
    """Reads the answers of a run.

    Attributes:
        relays: the tensors of an uplink that are passed on to other silos unchanged.
    """

    exchange: MessageExchange
    relays: Collection[str]

    def verified(
        self, client: int, outgoing: OutgoingMessage, message: Message
    ) -> Answer | Refusal:
        """The body signed by the client's silo.

        Raises ProtocolError, also for an answer to another task.
        """
        body = self.exchange.verified(client, outgoing, Answer, message)
        expected = (outgoing.silo, outgoing.body.digest, self.exchange.terms.agreement)
        if isinstance(body, Answer) and (body.silo, body.task, body.agreement) != expected:
            raise UnusableError(Reason.WRONG_TASK, "an answer to another task")
        return body

    def arrival(
        self,
        client: int,
        outgoing: OutgoingTask,
        answer: Answer,
        uplink: bytes,
        request: ClientRequest,
    ) -> tuple[Arrival, Origins]:
        """A verified answer for the round loop, and its rows that others will get.

        Raises ProtocolError.
        """
        fault = with_name(answer.fault, client, answer.silo) if answer.fault else ""
        terms = self.exchange.terms
        with untrusted(Reason.SCORES):
            scores = checked_scores(answer, request.watched, terms)
        reply = Reply(client, loss=answer.loss, scores=scores, seconds=answer.seconds, fault=fault)
        arrival = Arrival(
            reply, answer.run, answer.number, answer.samples, outgoing.bytes_down, outgoing.bytes_up
        )
        if fault or not request.trains:
            return arrival, {}
        if terms.config.secure_aggregation:
            outgoing.mask = self._key(client, outgoing, answer)
            return arrival, {}
        if sha256(uplink) != answer.uplink:
            raise UnusableError(Reason.SIGNATURE, "the uplink is not the one that was signed")
        encoding = Encoding(terms.run_study.wire, terms.federation.places)
        tensors = encoding.unpack_uplink(uplink, request.expects)
        origins = dict(
            self._origin(client, outgoing, answer, name, encoding.pack(tensors[name]))
            for name in self.relays
        )
        return replace(arrival, reply=replace(reply, uplink=tensors)), origins

    def _key(self, client: int, outgoing: OutgoingTask, answer: Answer) -> MaskKey:
        """A silo's key for the round's sum, as its peers will check it, and what admission would
        check of an uplink.

        Raises ProtocolError for anything that would spoil the sum for all.
        """
        task = outgoing.body
        expected = (task.run, task.number, task.sizes[client])
        if (answer.run, answer.number, answer.samples) != expected:
            text = "an answer of another run or round, or with other sample counts"
            raise UnusableError(Reason.WRONG_ROUND, text)
        if answer.mask is None:
            text = "an answer without a key for the sum of the round"
            raise UnusableError(Reason.SUM_KEY, text)
        statement = mask_statement(task, answer.silo, answer.mask.key)
        self.exchange.registry.require_signed(client, "mask", statement, answer.mask.signature)
        with untrusted(Reason.SUM_KEY):
            require_keys({answer.silo: answer.mask.key})
        return answer.mask

    def _origin(
        self, client: int, outgoing: OutgoingTask, answer: Answer, tensor: str, row: bytes
    ) -> tuple[str, RowOrigin]:
        """Raise ProtocolError for a row without a valid signature of its silo, as its receivers
        will check it.

        Each receiver would refuse its whole task for that row; so agreement, run and round are
        those of the task.
        """
        signature, digest = answer.rows.get(tensor, ""), sha256(row)
        origin = RowOrigin(
            silo=answer.silo, round=outgoing.body.number, tensor=tensor, signature=signature
        )
        try:
            statement = row_statement(outgoing.body.agreement, self.exchange.run, origin, digest)
            self.exchange.registry.require_signed(client, "row", statement, signature)
        except ProtocolError as fault:
            text = f"its row {tensor!r}, which others would get: {fault}"
            raise UnusableError(Reason.SIGNATURE, text) from None
        return digest, origin


def checked_scores(answer: Answer, watched: Collection[str], terms: StudyAgreement) -> list[Score]:
    """The scores of an answer; none if the federation does not share them.

    Args:
        answer: as signed by a silo.
        watched: the requested stages.
        terms: defines whether scores are shared, how many samples a silo may have, and the
            method.

    Raises:
        ProtocolError: a score that was not requested, is duplicated, is on more samples than a silo
            may have, is outside the metric's range, or contradicts itself.
    """
    if isinstance(terms.study, TrainingStudy) and not terms.study.share_scores:
        return []
    for score in answer.scores:
        if not terms.run_study.shares(score.split, score.samples):
            raise ProtocolError(
                f"a score on {score.samples} samples of {score.split}, which was not to be shared"
            )
        figures = (score.loss, score.accuracy, score.value, score.interval)
        if (score.broken or not score.samples) and figures != (None,) * 4:
            raise ProtocolError("a score has figures, but no samples or no finite loss")
    metric = metric_named(str(terms.config.metric))
    card, max_samples = terms.config.method.method().card, terms.federation.most_samples
    return possible_scores(answer.scores, watched, card, metric, max_samples)


def possible_scores(
    scores: Iterable[Score], watched: Collection[str], card: Card, metric: Metric, max_samples: int
) -> list[Score]:
    """The scores of a client, each of a model of the method and of a requested stage, once, on no
    more than so many samples, and within the metric's range.

    Raises ProtocolError for any other.
    """
    models = MODELS | {card.headline[0], *card.models}
    by_key: dict[tuple[str, str, str], Score] = {}
    for score in scores:
        if score.model not in models or score.when not in watched or score.key in by_key:
            raise ProtocolError(
                f"a score of {score.model!r}, {score.when}, on {score.split}: it was not asked for"
            )
        _require_in_range(score, max_samples, metric)
        by_key[score.key] = score
    return list(by_key.values())


def _require_in_range(score: Score, max_samples: int, metric: Metric) -> None:
    if score.samples > max_samples:
        raise ProtocolError(f"a score on {score.samples:.4g} samples, but at most {max_samples}")
    if score.value is not None and not metric.low <= score.value <= metric.high:
        raise ProtocolError(f"a score of {score.value:.4g} is outside the range of {metric.title}")
    if score.interval and score.interval[0] > score.interval[1]:
        raise ProtocolError(f"an interval from {score.interval[0]:.4g} to {score.interval[1]:.4g}")
