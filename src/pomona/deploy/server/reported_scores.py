"""A silo's figures of its own models, as far as they can be believed: none that would break the record later."""

from collections.abc import Collection

from pomona.core.errors import ProtocolError
from pomona.deploy.agreement import Federation
from pomona.deploy.messages import Answer, ReportedScore
from pomona.federation.exchange import Score

MODELS = {"personal", "global", "local"}  # see ``record.Evaluation``


def figures(answer: Answer, watched: Collection[str], federation: Federation) -> list[Score]:
    """The scores of an answer; none where the federation does not share them.

    Args:
        answer: as a silo signed it.
        watched: the moments that were asked for.
        federation: what was agreed: whether scores are shared, how many samples a silo may have, the method.

    Raises:
        ProtocolError: a figure that nobody asked for, that comes twice, that is on more samples than were agreed that a
            silo may have, or that contradicts itself.
    """
    if not federation.share_scores:
        return []
    named = MODELS | {federation.config().method.method().card.headline[0]}
    found: dict[tuple[str, str, str], Score] = {}
    for figure in answer.scores:
        key = figure.model, figure.when, figure.split
        if figure.model not in named or figure.when not in watched or key in found:
            raise ProtocolError(f"a figure of {figure.model!r}, {figure.when}, on {figure.split}: nobody asked for it")
        _require_sound(figure, federation.most_samples)
        found[key] = Score(**figure.model_dump())
    return list(found.values())


def _require_sound(figure: ReportedScore, most: int) -> None:
    if figure.samples > most:
        raise ProtocolError(f"a figure on {figure.samples:.4g} samples, most_samples is {most}")
    if (figure.loss is None) != (figure.samples == 0) or (figure.accuracy is not None and not figure.samples):
        raise ProtocolError(f"a figure on {figure.samples} samples has a loss of {figure.loss}")
