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
    values = [value for element in root.iter() for value in element.attrib.values()]
    referenced = {target[1] for target in map(_target, values) if target}
    for element in root.iter():
        element.attrib = _attributes(element, picture.name, referenced)
        element.tag = element.tag.rpartition("}")[2]
        element.text, element.tail = (element.text or "").strip() or None, None
    root.attrib = _root_attributes(picture, root.attrib["viewBox"])
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704 - escaped by ElementTree


def _root_attributes(picture: plot.ReportFigure, view_box: str) -> dict[str, str]:
    """Return the attributes of the SVG element, whose size is in CSS pixels."""
    # A raster of marks, unlike a picture, may change its colours with the page.
    pictures = any(axes.images for axes in picture.figure.axes)
    width, height = (float(v) / 0.75 for v in view_box.split()[2:])
    return {
        "viewBox": view_box,
        "width": f"{width:.0f}",
        "height": f"{height:.0f}",
        "role": "img",
        "aria-label": picture.alt,
        **({} if pictures else {"class": "marks"}),
    }


def _target(value: str) -> re.Match[str] | None:
    """Return the match of the id to which an attribute refers."""
    return REFERENCE.search(value) if value.startswith(("#", "url(#")) else None


def _add_tooltips(root: Element, picture: plot.ReportFigure) -> None:
    """Add the text of each mark, of the artists with the ids in ``tips``."""
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        marks = [*group.iter("{http://www.w3.org/2000/svg}use")]
        texts = picture.tips.get(group.get("id", ""), ())
        # Marks outside the drawing are left out: which of them is then not known.
        for mark, text in zip(marks, texts, strict=True) if len(marks) == len(texts) else ():
            ElementTree.SubElement(mark, "title").text = text


def _attributes(element: Element, name: str, referenced: set[str]) -> dict[str, str]:
    """Return an element's attributes as the page needs them: short, and with unique ids."""
    return {
        key.rpartition("}")[2]: _value(key, value, name)
        for key, value in element.attrib.items()
        if not value.startswith("rotate(-0 ") and (key != "id" or value in referenced)
    }


def _value(key: str, value: str, name: str) -> str:
    """Return the value of an attribute in the drawing with a name."""
    if key == "id":
        return f"{name}-{value}"
    if target := _target(value):
        return value.replace(f"#{target[1]}", f"#{name}-{target[1]}")
    if key == "style":
        themed = COLOUR.sub(lambda match: THEMED[match[0]], value)
        return re.sub(r"font-family: [^;]*; ", "", themed)
    if value.startswith("data:"):
        return "".join(value.split())
    return DECIMALS.sub(_rounded, " ".join(value.split()))


def _rounded(number: re.Match[str]) -> str:
    """Return a coordinate with a digit after the point, a 750th of an inch."""
    return f"{float(number[0]):.1f}".removesuffix(".0")
