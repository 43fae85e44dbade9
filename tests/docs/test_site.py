"""The site of the documents (``make site``): every page is in its navigation, and it needs no
network.
"""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from generated import pages

from method_pages import write

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOOL = ROOT / ".venv/site/bin/sphinx-build"


@pytest.fixture
def documents(tmp_path):
    """What the site is built from: the documents, and those made from the code."""
    shutil.copytree(DOCS, tmp_path / "docs")
    write(pages(), tmp_path / "docs")
    return tmp_path / "docs"


def test_every_page_is_in_the_navigation_once(monkeypatch, documents):
    monkeypatch.setattr(sys, "path", [*sys.path])
    site = runpy.run_path(str(DOCS / "conf.py"))
    top = [page for titles in site["navigation"]().values() for page in titles]
    listed = top + [page for folder in top for page in site["below"](folder, documents)]
    files = [path for suffix in site["PAGES"] for path in documents.rglob(f"*{suffix}")]
    names = [str(path.relative_to(documents).with_suffix("")) for path in files]
    assert sorted([*listed, "README"]) == sorted(names)


@pytest.mark.slow
@pytest.mark.skipif(not TOOL.exists(), reason="the site's tools are not installed: make site")
def test_the_site_is_whole_and_needs_no_network(tmp_path, documents):
    site = tmp_path / "site"
    draw = [sys.executable, ROOT / "tools/figure_gallery.py", documents]
    subprocess.run(draw, check=True, timeout=600)
    command = [TOOL, "--quiet", "--fail-on-warning", "--fresh-env", "-d", tmp_path / "trees"]
    subprocess.run([*command, "-c", DOCS, documents, site], check=True, timeout=600)
    texts = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}
    from_elsewhere = r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(?:https?:)?//[^"]*'
    assert [tag for text in texts.values() for tag in re.findall(from_elsewhere, text)] == []
    assert (site / "_static/tex-svg.js").stat().st_size > 1e6
    assert "secure-aggregation" in (site / "searchindex.js").read_text()
    for page, content in [
        ("methods/apple", 'class="math'),
        ("methods/apple", "tex-svg.js"),
        ("api", 'id="pomona.Config"'),
        ("api", 'id="pomona.methods.base.Card"'),
        ("internals/architecture", "<svg"),
        ("gallery", "contact_sheet-contact_sheet"),
        ("notebooks/own-method", "27 checks passed"),
    ]:
        assert content in texts[f"{page}.html"]
