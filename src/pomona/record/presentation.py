"""Presentation of a method in reports: its title, and names for the quantities in its ``info``.

It is stored in a run's record, so that a page needs neither the method's code nor PyTorch.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, WrapSerializer
from pydantic.dataclasses import dataclass

from pomona.core.bounds import Label, Line

LISTED = WrapSerializer(lambda items, dumped: list(dumped(items)))  # as JSON returns it
QuantityKind: TypeAlias = Literal["matrix", "values", "clusters", "epochs"]


@dataclass(frozen=True)
class Quantity:
    """Presentation of one quantity in ``info``.

    Attributes:
        name: the name in ``info``.
        kind: type of figure: a clients-by-clients matrix, values per client (and layer), CFL's
            clusters, or one curve per client over the epochs of a round.
        title: heading of its main figure.
        symbol: label of its axis.
        meaning: continues "METHOD: ".
        history: heading of a matrix' figure over rounds.
        own: heading of a figure of a matrix' diagonal; empty for none.
        entries: the entries of a client's vector, in the singular.
        column: prefix of a column's name in the CSV.
    """

    name: Label
    kind: QuantityKind
    title: Line
    symbol: Line
    meaning: Line
    history: Line = ""
    own: Line = ""
    entries: Line = "entry"
    column: Line = ""


@dataclass(frozen=True)
class Presentation:
    """The part of a method's card that its records contain.

    Attributes:
        title: the name as its paper writes it.
        quantities: presentations of quantities in ``info``; others are shown by name.
    """

    title: Line
    quantities: Annotated[tuple[Quantity, ...], Field(max_length=100), LISTED] = ()

    def quantity(self, name: str, columns: int, clients: int) -> Quantity:
        """Return the presentation of a quantity for which records have ``columns`` numbers per
        client.
        """
        for quantity in self.quantities:
            if quantity.name == name and columns == {"matrix": clients, "clusters": 1}.get(
                quantity.kind, columns
            ):
                return quantity
        return default_quantity(name, "matrix" if columns == clients > 1 else "values")


def default_quantity(name: str, kind: QuantityKind) -> Quantity:
    """Return a default presentation for a quantity that the method does not describe."""
    label = name.replace("_", " ")
    shape = (
        "the row of client i, the column of client j" if kind == "matrix" else "a value a client"
    )
    meaning = f"“{label}” as the method records it, {shape}."
    return Quantity(name, kind, f"“{label}”", label, meaning, history=f"“{label}” over the rounds")
