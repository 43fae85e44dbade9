"""A drawing as SVG inside a page: in the page's letters and colours, with tooltips."""

import re
from io import BytesIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from markupsafe import Markup

from pomona.results.figures import plot
from pomona.results.method_colours import COLOURS

THEMED = {
    **{light: f"var(--method-{k})" for k, (light, _) in enumerate(COLOURS)},
    plot.INK: "var(--ink)",
    plot.FRAME: "var(--frame)",
    "#ffffff": "var(--paper)",
}
"""Colours of drawings that the page replaces by its own."""
COLOUR = re.compile("|".join(THEMED))
DECIMALS = re.compile(r"\d+\.\d{2,}")
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""Characters of names that XML does not have."""
REFERENCE = re.compile(r"#([\w-]+)\)?$")


def inline_svg(picture: plot.ReportFigure) -> Markup:
    """Return the drawing as an element of an HTML page, where its ids begin with its name.

    It has no font, size of its own or address, so that the page decides on these.
    """
    buffer = BytesIO()
    picture.draw(buffer, "svg", letters="none", paper="none")
    text = NOT_XML.sub("\N{REPLACEMENT CHARACTER}", buffer.getvalue().decode())
    root = ElementTree.fromstring(text.partition("?>")[2])  # noqa: S314 - drawn here
    metadata, style = root[:2]  # of the file, and for all elements of the page
    root.remove(metadata)
    root.remove(style)
    _add_tooltips(root, picture)
    referenced = {found[1] for e in root.iter() for v in e.attrib.values() if (found := _target(v))}
    for element in root.iter():
        element.attrib = _attributes(element, picture.name, referenced)
        element.tag = element.tag.rpartition("}")[2]
        element.text, element.tail = (element.text or "").strip() or None, None
    # A raster of marks, unlike a picture, may change its colours with the page.
    pictures = any(axes.images for axes in picture.figure.axes)
    width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "width": f"{width / 0.75:.0f}",  # points in CSS pixels
        "height": f"{height / 0.75:.0f}",
        "role": "img",
        "aria-label": picture.alt,
        **({} if pictures else {"class": "marks"}),
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 - escaped by ElementTree


def _target(value: str) -> re.Match[str] | None:
    """Return the match of the id to which an attribute refers."""
    return REFERENCE.search(value) if value.startswith(("#", "url(#")) else None


def _add_tooltips(root: Element, picture: plot.ReportFigure) -> None:
    """Add the text of each mark, of the artists with the ids in ``tips``."""
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        marks = group.iter("{http://www.w3.org/2000/svg}use")
        for mark, text in zip(marks, picture.tips.get(group.get("id", ""), ()), strict=False):
            ElementTree.SubElement(mark, "title").text = text


def _attributes(element: Element, name: str, referenced: set[str]) -> dict[str, str]:
    """Return an element's attributes as the page needs them: short, and with unique ids."""
    attributes = {}
    for full, value in element.attrib.items():
        key = full.rpartition("}")[2]
        if key == "id":
            if value in referenced:
                attributes[key] = f"{name}-{value}"
        elif found := _target(value):
            attributes[key.rpartition("}")[2]] = value.replace(
                f"#{found[1]}", f"#{name}-{found[1]}"
            )
        elif key == "style":
            themed = COLOUR.sub(lambda match: THEMED[match[0]], value)
            attributes[key] = re.sub(r"font-family: [^;]*; ", "", themed)
        elif value.startswith("data:"):
            attributes[key] = "".join(value.split())
        elif not value.startswith("rotate(-0 "):
            attributes[key] = DECIMALS.sub(_rounded, " ".join(value.split()))
    return attributes


def _rounded(number: re.Match[str]) -> str:
    """Return a coordinate with a digit after the point, a 750th of an inch."""
    return f"{float(number[0]):.1f}".removesuffix(".0")
