"""The site's pages that are made from the code, by their path below docs/."""

from functools import cache
from pathlib import Path

import fault_table

import figure_gallery
import method_pages
import settings_pages
from figure_gallery import CATALOGUE

DOCS = Path(__file__).parents[2] / "docs"


@cache
def pages() -> dict[str, str]:
    """Markdown of all of them, by path."""
    faults = {fault_table.PAGE: fault_table.page()}
    gallery = {figure_gallery.PAGE: figure_gallery.page()}
    return {**method_pages.pages(), **settings_pages.pages(), **faults, **gallery}


def exists(path: Path) -> bool:
    """Whether a link's target is in the repository, or is generated for the site."""
    path = path.resolve()
    pictures = {DOCS / figure_gallery.picture(entry) for entry in CATALOGUE}
    return (
        path.exists()
        or path in pictures
        or (path.is_relative_to(DOCS) and path.relative_to(DOCS).as_posix() in pages())
    )
