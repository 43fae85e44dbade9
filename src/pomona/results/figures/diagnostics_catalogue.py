"""What methods show of themselves in a round's ``info``, in words: the title and the sentence of every quantity."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["matrix", "values", "clusters", "epochs"]


@dataclass(frozen=True)
class Quantity:
    """The words for one name in ``info``.

    Attributes:
        name: the name in ``info``.
        kind: how it is drawn: a matrix clients by clients, values per client (and layer), CFL's clusters, or a curve
            a client over the epochs of a round.
        title: heading of its main figure.
        symbol: what an axis calls it.
        meaning: continues "METHOD: ".
        history: heading of a matrix' figure over rounds.
        own: heading of a figure of a matrix' diagonal; empty for none.
        entries: what the entries of a client's vector are, in the singular.
        column: what a column of the CSV begins with.
    """

    name: str
    kind: Kind
    title: str
    symbol: str
    meaning: str
    history: str = ""
    own: str = ""
    entries: str = "entry"
    column: str = ""


def unknown(name: str, kind: Kind) -> Quantity:
    """Words for what a method outside this catalogue shows."""
    spoken = name.replace("_", " ")
    shape = "the row of client i, the column of client j" if kind == "matrix" else "a value a client"
    meaning = f"“{spoken}” as the method records it, {shape}."
    return Quantity(name, kind, f"“{spoken}”", spoken, meaning, history=f"“{spoken}” over the rounds")


def _values(name: str, title: str, symbol: str, meaning: str, entries: str = "entry") -> Quantity:
    return Quantity(name, "values", title, symbol, meaning, entries=entries)


CATALOGUE = {
    quantity.name: quantity
    for quantity in (
        Quantity(
            "dr",
            "matrix",
            "Who listens to whom",
            "p(i, j)",
            "the directed relationships p(i, j), the weight that client i (row) gives the core model of client j "
            "(column). In a deployment each row stays with its client.",
            history="How each client came to choose",
            own="How much each client relies on itself",
            column="p",
        ),
        Quantity(
            "attention",
            "matrix",
            "Whose models make up each client's cloud model",
            "ξ(i, j)",
            "the attention ξ(i, j), the share of the model of client j (column) in the cloud model that the server "
            "makes for client i (row).",
            history="How the attention of each client moved",
        ),
        Quantity(
            "weights",
            "matrix",
            "Whose models each client moved towards",
            "w*(i, j)",
            "the normalised weight w*(i, j) with which client i (row) took the model of client j (column) into its own "
            "in that round; 0 for models that did not help on its validation data or did not come.",
            history="Which models helped each client, round by round",
        ),
        Quantity(
            "affinity",
            "matrix",
            "Whose models have helped so far",
            "p(i, j)",
            "the affinity p(i, j), the sum over rounds of the weights that client i (row) found for the model of "
            "client j (column) on its validation data; the highest are asked for next. In a deployment each row stays "
            "with its client.",
            history="How each client's affinities grew",
        ),
        Quantity(
            "cluster",
            "clusters",
            "Which cluster each client is in",
            "cluster",
            "the cluster whose model each client received.",
        ),
        _values(
            "alpha",
            "How much of its own model each client uses",
            "\N{GREEK SMALL LETTER ALPHA}",
            "\N{GREEK SMALL LETTER ALPHA}, the share of a client's own model in its personal one; the rest is its copy "
            "of the global model.",
        ),
        _values(
            "coupling",
            "How much weight each client puts on the others",
            "weight on all others",
            "the attention that a client's cloud model gives to all other clients together, before it is cut at 1; "
            "above 1 nothing of the client's own model is left in it.",
        ),
        _values(
            "ala_weight",
            "How much of the global model local training starts from",
            "mean ALA weight",
            "the weights of adaptive local aggregation, averaged over each of the upper layers: at 1 a layer starts "
            "as received, at 0 from the client's own last one.",
            "upper layer",
        ),
        _values(
            "ala_epochs",
            "How long the starting mixture was learned",
            "epochs on ALA weights",
            "epochs that a client spent on the weights of adaptive local aggregation in that round.",
        ),
        Quantity(
            "ala_losses",
            "epochs",
            "The loss while the starting mixture is learned",
            "training loss",
            "the client's training loss at the end of each epoch on the weights of adaptive local aggregation (its "
            "last batch), counted through: first those of the initial stage, then those of later rounds, each of "
            "which begins with a newly received model and a newly trained own one.",
        ),
        _values(
            "gates",
            "Which layers come from the global model",
            "gate",
            "the gate of each layer: at 1 it comes from the global model, at 0 from the client's own last one; in "
            "between it is the learned probability, or with a fixed rule the share of the layer's numbers.",
            "layer",
        ),
        _values(
            "inheritance",
            "How much of the inherited model stays",
            "share kept, m",
            "m, the share of its past that the inherited private model keeps in that round; the rest is the model just "
            "trained.",
        ),
        _values(
            "head_distance",
            "How far each client's last layer is from the others'",
            "distance to the mean",
            "the Euclidean distance of a client's last layer from the mean of all last layers.",
        ),
    )
}


def quantity(name: str, columns: int, clients: int) -> Quantity:
    """The words for a name whose records hold ``columns`` numbers a client."""
    known = CATALOGUE.get(name)
    if known and columns == {"matrix": clients, "clusters": 1}.get(known.kind, columns):
        return known
    return unknown(name, "matrix" if columns == clients > 1 else "values")
