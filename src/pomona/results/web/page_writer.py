"""Shared by all pages: rendering of templates, and writing a page with its files."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pomona.core.files import publish, writing
from pomona.results.figures.inline_svg import inline_svg
from pomona.results.figures.numbers import numbers
from pomona.results.figures.plot import ReportFigure, save
from pomona.results.method_colours import COLOURS

FIGURES = "figures"
"""Folder of figures next to a page."""


WEB = "pomona.results.web"
"""Package of templates shared by all pages."""


def render(template: str, package: str = WEB, **context: Any) -> str:
    """Render a template of a package as HTML; undefined names are errors.

    It may extend templates in ``WEB``.
    """
    return str(_templates(package).get_template(template).render(context))


@cache
def _templates(
    package: str,
) -> Any:  # jinja2.Environment; compiling templates is slower than rendering them
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, ".") for name in (package, WEB)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"unbroken": unbroken, "inline_svg": inline_svg, "numbers": numbers}
    environment.globals["colours"] = COLOURS
    return environment


def unbroken(text: str) -> Markup:
    """Mark up a text so that words with a hyphen are not broken if they fit a line: FedAvg-FT is
    one name.
    """
    span = Markup('<span class="whole">{}</span>')
    return Markup(" ").join(
        span.format(token) if "-" in token else token for token in text.split(" ")
    )


def write_page(
    folder: Path,
    texts: Mapping[str, str],
    figures: Sequence[ReportFigure] = (),
    formats: Sequence[str] = (),
) -> Path:
    """Write figures and then texts by their file names, each text atomically.

    Args:
        folder: the folder; created if missing.
        texts: the page comes last.
        figures: written as files in the folder of figures, replacing those of an earlier call.
        formats: the formats of each figure; with none the folder is unchanged.

    Returns:
        The path of the page.

    Raises:
        StorageError: the folder cannot be written.
    """
    with writing(folder):
        if figures and formats:
            save(figures, folder / FIGURES, formats)
        return [publish(folder / name, [text.encode()]) for name, text in texts.items()][-1]
