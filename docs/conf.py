"""The site, from a copy of these documents with those made from the code in it: navigation is
README.md's, signatures are the code's.
"""

import importlib.util
import inspect
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

DOCS = Path(__file__).parent
ROOT = DOCS.parent
# where pomona-federation is installed, its commands are those of pomona as well
SOURCES = [str(ROOT / "src"), str(ROOT / "federation/src")]
sys.path[:0] = SOURCES
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = (".md", ".ipynb")
REPOSITORY = PYPROJECT["project"].get("urls", {}).get("Repository")

project = "Pomona"
html_title = f"Pomona {PYPROJECT['project']['version']}"
root_doc = "README"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
nb_execution_mode = "off"  # notebooks have outputs, which a test compares
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 120
napoleon_use_ivar = True
napoleon_use_rtype = napoleon_attr_annotations = False
python_trailing_comma_in_multi_line_signatures = False
toc_object_entries_show_parents = "hide"
html_theme = "furo"
html_copy_source = html_show_copyright = html_show_sphinx = False
html_css_files = ["site.css"]
html_static_path = ["_static"]
mathjax_path = "tex-svg.js"  # one file, without fonts
if found := importlib.util.find_spec("sphinx-mathjax-offline"):
    html_static_path.append(str(Path(found.origin or "").parent / "static/mathjax" / mathjax_path))


def navigation() -> dict[str, dict[str, str]]:
    """Titles by page, for each heading of README.md with a list of links."""
    headings = re.split(r"^## ", (DOCS / "README.md").read_text(), flags=re.MULTILINE)[1:]
    return {
        part.partition("\n")[0]: {
            page: title for title, page in re.findall(r"\[([^]]+)\]\(([\w/-]+)\.md\)", part)
        }
        for part in headings
    }


def below(page: str, documents: Path) -> dict[str, str]:
    """Titles by page of a page's folder: methods/ of methods/README, results/ of results."""
    # of Markdown, or of a notebook's JSON
    heading = re.compile(r"^(?: *\")?# ([^:\n\"\\]+)", re.MULTILINE)
    titles = {
        str(path.relative_to(documents).with_suffix("")): heading.search(path.read_text())[1]
        for path in (documents / page.removesuffix("README")).glob("*.*")
        if path.suffix in PAGES and path.name != "README.md" and page != root_doc
    }
    return dict(sorted(titles.items(), key=lambda title: title[1].lower()))


def toctree(caption: str, pages: dict[str, str]) -> str:
    """A part of the navigation, as MyST reads it."""
    links = [f"{title} </{page}>" for page, title in pages.items()]
    head = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    return "\n".join(["\n", *head, *links, "```", ""]) if pages else ""


def arguments(thing: type) -> str:
    """A signature without Pydantic's bounds; where there are none Sphinx finds it itself."""
    if hasattr(thing, "model_fields"):
        return "(**settings)"
    if "Annotated[" not in str(inspect.signature(thing)):
        return ""
    types, given = get_type_hints(thing), inspect.signature(thing).parameters
    return str(inspect.Signature([p.replace(annotation=types[p.name]) for p in given.values()]))


def described(module: str, names: list[str]) -> str:
    """Signatures and docstrings of a module's classes and functions."""
    lines = ["\n```{eval-rst}", f".. currentmodule:: {module}", ""]
    for name in dict.fromkeys(names):
        thing = getattr(importlib.import_module(module), name, None)
        if inspect.isclass(thing) and issubclass(thing, Exception):
            lines += [f".. autoexception:: {name}", "   :members:", ""]
        elif inspect.isclass(thing):
            lines += [f".. autoclass:: {name}{arguments(thing)}", "   :members:"]
            requests = [name for name in dir(thing) if name.endswith("_request")]  # scikit-learn's
            lines += [f"   :exclude-members: {', '.join(['model_config', *requests])}", ""]
        elif inspect.isfunction(thing):
            lines += [f".. autofunction:: {name}", ""]
    return "\n".join([*lines, "```", ""])


def api(text: str) -> str:
    """The page of the public API, with signatures under each list of names and each table."""
    parts = re.split(r"(?=^## )", text, flags=re.MULTILINE)
    for place, part in enumerate(parts):
        if module := re.match(r"## `([\w.]+)`", part):
            lists = "".join(re.findall(r"^(?:- |  ).*", part, re.MULTILINE))
            parts[place] += described(module[1], re.findall(r"`(\w+)`", lists))
        for name, cell in re.findall(r"^\| `(pomona\.[\w.]+)` \| (.*) \|$", part, re.MULTILINE):
            parts[place] += f"\n### `{name}`\n" + described(name, re.findall(r"`(\w+)", cell))
    return "".join(parts)


def outside(page: Path, text: str, place: str) -> str:
    """A link to a file outside docs/ leads to the repository where it has an address."""
    path, hash_, anchor = place.partition("#")
    target = Path(os.path.normpath(page.parent / path))
    if target.is_relative_to(DOCS) or not target.exists():
        return f"[{text}]({place})"
    name = str(target.relative_to(ROOT))
    if REPOSITORY:
        return f"[{text}]({REPOSITORY}/blob/main/{name}{hash_}{anchor})"
    return text if text.strip("`") in name else f"{text} (`{name}`)"


def read(app: Any, page: str, source: list[str]) -> None:
    """What the site changes in a document; diagrams are drawn while it is built."""
    path, text = Path(app.env.doc2path(page)), source[0]
    link = re.compile(r"(?<!!)\[([^][]*)\]\((\.\./[^)\s]*)\)")
    text = link.sub(lambda found: outside(DOCS / page, found[1], found[2]), text)
    for block in re.findall(r"^```mermaid\n.*?^```", text, re.DOTALL | re.MULTILINE):
        drawn = importlib.import_module("mermaidx").render(block[11:-3]).svg()
        text = text.replace(block, f'```{{raw}} html\n<div class="diagram">{drawn}</div>\n```')
    text = re.sub(r"(?<=\d) \+- (?=\d)", "\N{NO-BREAK SPACE}+-\N{NO-BREAK SPACE}", text)
    text = api(text) if page == "api" else text
    if path.suffix == ".ipynb":
        notebook = json.loads(text)
        words = f"{{download}}`{path.name}`, with its outputs."
        cell = {"cell_type": "markdown", "id": "download", "metadata": {}, "source": words}
        notebook["cells"].append(cell)
        text = json.dumps(notebook)
    parts = navigation() if page == root_doc else {"": below(page, Path(app.srcdir))}
    source[0] = text + "".join(map(toctree, parts, parts.values()))


def docstring(*given: Any) -> None:
    """A property's "summary: more" holds no type, which napoleon looks for in the first line."""
    given[-1][:0] = ["..", ""] if given[1] == "property" else []


def signature(*given: Any) -> tuple[str | None, ...]:
    """Arrays by their short name."""
    long = r"~?numpy\.ndarray\[tuple\[~?typing\.Any, \.\.\.\], ~?numpy\.dtype\[([^]]*)\]\]"
    return tuple(text and re.sub(long, r"NDArray[\1]", text) for text in given[-2:])


def finish(app: Any, fault: Exception | None) -> None:
    """llms.txt at the site's root, with links to its pages."""
    text = (DOCS / "llms.txt").read_text()
    link = re.compile(r"\[([^]]+)\]\((\.\./[^)]+)\)")
    text = link.sub(lambda found: outside(DOCS / "llms.txt", found[1], found[2]), text)
    if not fault and app.builder.name == "html":
        (Path(app.outdir) / "llms.txt").write_text(text.replace(".md)", ".html)"))


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("build-finished", finish)
    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", docstring, priority=400)
    app.connect("autodoc-process-signature", signature)
