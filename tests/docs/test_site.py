"""The site of the documents (``make site``): every page is in its navigation, and it needs no
network.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOOL = ROOT / ".venv/site/bin/sphinx-build"


def test_every_page_is_in_the_navigation_once(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    site = runpy.run_path(str(DOCS / "conf.py"))
    top = [page for pages in site["navigation"]().values() for page in pages]
    listed = top + [page for one in top for page in site["below"](one)]
    pages = [str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")]
    assert sorted([*listed, "README"]) == sorted(pages)


@pytest.mark.slow
@pytest.mark.skipif(not TOOL.exists(), reason="the site's tools are not installed: make site")
def test_the_site_is_whole_and_needs_no_network(tmp_path):
    command = [TOOL, "--quiet", "--fail-on-warning", "--fresh-env", "-d", tmp_path / "trees"]
    subprocess.run([*command, DOCS, tmp_path / "site"], check=True, timeout=600)
    pages = {str(p.relative_to(tmp_path / "site")): p.read_text() for p in tmp_path.rglob("*.html")}
    from_elsewhere = r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(?:https?:)?//[^"]*'
    assert [found for text in pages.values() for found in re.findall(from_elsewhere, text)] == []
    assert (tmp_path / "site/_static/tex-svg.js").stat().st_size > 1e6
    for page, part in [
        ("methods/apple", 'class="math'),
        ("methods/apple", "tex-svg.js"),
        ("api", 'id="pomona.Config"'),
        ("api", 'id="pomona.methods.base.Card"'),
        ("internals/architecture", "<svg"),
    ]:
        assert part in pages[f"{page}.html"]
