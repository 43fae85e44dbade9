"""The documents are accurate: every code block runs, in order, in a folder of its own."""

import ast
import os
import re
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from docs_blocks import CONDITIONS, Block, Runner, blocks
from generated import exists, pages
from PIL import Image

import pomona
from command_line import command
from method_pages import DOCUMENTED, EXAMPLE
from pomona.config import resolve
from pomona.methods import METHODS
from pomona.personal import PersonalModel
from representatives import drawn

ROOT = Path(__file__).parents[2]
FIRST_STEPS = ROOT / "docs/guides/first-steps.md"
PATTERNS = ["*.md", "docs/*.md", "federation/*.md", "reproduction/**/README.md", "skills/**/*.md"]
PATTERNS += [f"docs/{name}/*.md" for name in ("guides", "internals", "performance", "results")]
PATTERNS += ["docs/notebooks/*.*"]
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
LONG_GUIDES = {
    *("SKILL", "add-a-method", "first-steps", "own-data"),
    *("privacy-audit", "python", "read-a-report", "suites"),
}  # 10 to 70 seconds each: two of them in the gate
RUNNABLE = [path for path in DOCUMENTS if blocks(path)]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\(")
LENT = ("examples", "benchmarks", "reproduction")  # folders of a checkout that commands name
FOLDERS = (*LENT, ".ci", ".github", "docs", "native", "skills", "src", "tests", "tools")
DOWNLOADS = {  # public data that readers are told to fetch, by where POMONA_DATA has them
    "heart_disease": "heart_disease",
    "tcga_brca": "tcga_brca",
    "dialysis.csv": "multicentre_tables/dialysis_brazil.csv",
}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=name)


@each_document
def test_links_lead_somewhere_and_pictures_have_a_text(path):
    text = path.read_text()
    assert [target for target in targets(path, text) if not exists(target)] == []
    assert all(PICTURE.findall(text))


def targets(path: Path, text: str) -> list[Path]:
    """The files that a document links."""
    return [path.parent / link for link in LINK.findall(text) if "://" not in link]


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if not p.is_relative_to(ROOT / "docs")])
def test_documents_outside_the_site_link_files_of_the_repository(path):
    """Pages that are generated for the site exist nowhere else."""
    assert [target for target in targets(path, path.read_text()) if not target.exists()] == []


IDIOM = re.compile(
    r"\b(judge[sd]?|nobody|hurts?|told|flatters?|fares?|goes on|anew)\b", re.IGNORECASE
)


def visible_texts(path: Path) -> list[str]:
    """Texts in a module or template that appear in pages and messages; docstrings of code are
    excluded.
    """
    text = path.read_text()
    if path.suffix != ".py":
        return re.findall(r"[\"'>`][^<>\"'`{}\n]* [^<>\"'`{}\n]*", text)
    nodes = [*ast.walk(ast.parse(text))]
    aside = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [
        node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [node.value for node in texts if id(node) not in aside and " " in node.value]


def test_messages_pages_and_guides_use_the_words_of_the_field():
    """Headline metric, worst client, no client, reported: not what one has to guess at."""
    sources = (ROOT / "src/pomona", ROOT / "federation/src/pomona_federation")
    pages = [
        p for source in sources for p in source.rglob("*") if p.suffix in {".py", ".js", ".jinja"}
    ]
    idioms = {
        (name(p), text)
        for p in pages
        for text in visible_texts(p)
        if IDIOM.search(text) and not text.startswith("/*")
    }
    assert idioms == set()
    guides = [
        ROOT / f"docs/guides/{k}.md"
        for k in ("read-a-report", "choose-a-method", "own-data", "training")
    ]
    of_guides = {
        (name(p), match.group())
        for p in [ROOT / "README.md", *guides]
        for match in IDIOM.finditer(p.read_text())
    }
    assert of_guides == set()


@each_document
def test_blocks_that_are_held_back_say_why(path):
    for block in blocks(path):
        assert block.condition in ("", "file", *CONDITIONS), (
            f"{block.position}: {block.condition}; known: file, {', '.join(CONDITIONS)}"
        )
        assert bool(block.reason) == (block.condition in CONDITIONS), (
            f"{block.position}: give a reason behind {block.condition}"
        )


@each_document
def test_commands_name_files_that_there_are(path):
    """Also those that are too long to be run, and indented ones."""
    for file in re.findall(r"(?:examples|benchmarks|reproduction)/[\w./-]*\w", path.read_text()):
        assert (ROOT / file).exists(), file


@each_document
def test_files_of_the_repository_that_are_named_exist(path):
    """In backticks outside blocks: by their path, or a file of tests by its name alone."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    names = {name for quoted in re.findall(r"`([^`\n]+)`", text) for name in quoted.split()}
    tests = {
        file.name
        for folder in ("tests", "federation/tests")
        for file in (ROOT / folder).rglob("*.py")
    }
    paths = {
        name
        for name in names
        if re.fullmatch(r"[\w.-]+/[\w./-]*\w", name) and name.partition("/")[0] in FOLDERS
    }
    assert [name for name in sorted(paths) if not (ROOT / name).exists()] == []
    assert [
        name for name in sorted(names) if re.fullmatch(r"test_\w+\.py", name) and name not in tests
    ] == []


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the checkout's examples and the downloads; imports of custom modules
    end with it.
    """
    for lent in LENT:
        if (ROOT / lent).exists():
            (tmp_path / lent).symlink_to(ROOT / lent)
    for local, download in DOWNLOADS.items() if "POMONA_DATA" in os.environ else ():
        (tmp_path / local).symlink_to(Path(os.environ["POMONA_DATA"], download))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    modules_before = set(sys.modules)
    yield tmp_path
    for module in set(sys.modules) - modules_before:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]


def prepare_inputs() -> None:
    """What users have, and the first pages take for granted: an image, and a table with owners."""
    draw = np.random.Generator(np.random.Philox(5))
    Image.fromarray(draw.integers(0, 256, (8, 8), dtype=np.uint8)).save("digit.png")
    rows = [
        f"{draw.integers(20, 90)},{'fm'[k % 2]},{'ill' if k % 3 else 'well'},{'ABC'[k % 3]}{k % 2}"
        for k in range(240)
    ]
    Path("patients.csv").write_text("\n".join(["age,sex,outcome,hospital", *rows]) + "\n")


def is_run(block: Block, slow: bool) -> bool:
    """Whether a block is run now."""
    data = "POMONA_DATA" in os.environ
    if block.condition == "needs":
        return find_spec(block.reason) is not None
    return {"slow": slow, "data": data, "slow-data": slow and data, "elsewhere": False}.get(
        block.condition, True
    )


def run(path: Path, folder: Path, slow: bool) -> None:
    """Run a document's blocks."""
    if path in (ROOT / "README.md", FIRST_STEPS):
        prepare_inputs()
    runner = Runner()
    for block in blocks(path):
        if is_run(block, slow):
            runner.run(block)


@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    [
        *(path for path in RUNNABLE if path.stem not in LONG_GUIDES),
        *drawn((path for path in RUNNABLE if path.stem in LONG_GUIDES), 2),
    ],
    ids=name,
)
def test_blocks_run(path, folder):
    run(path, folder, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [p for p in RUNNABLE if any(b.condition in ("slow", "slow-data") for b in blocks(p))],
    ids=name,
)
def test_long_blocks_run_too(path, folder):
    run(path, folder, slow=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_command_of_the_pages_of_methods_runs_for_all(method, folder):
    assert command(*EXAMPLE.format(name=method).split()[1:]) == 0


def test_the_readme_counts_the_methods():
    text = (ROOT / "README.md").read_text()
    assert f"{len(METHODS)} names" in text


def test_the_guide_counts_the_lines_of_the_worked_example():
    lines = len((ROOT / "examples/interpolated.py").read_text().splitlines())
    assert f"{lines} lines" in (ROOT / "docs/guides/add-a-method.md").read_text()


def test_plain_pytorch_from_the_first_steps_gives_the_personal_model(folder):
    """Its five lines, on samples normalised by the numbers in the file's metadata."""
    config = resolve({"method": "apple", "rounds": 1, "clients": 3, "model": {"hidden": [64]}})
    pomona.run(config, folder / "runs" / "apple")
    (five,) = (b for b in blocks(FIRST_STEPS) if "load_state_dict" in b.text)
    assert len([line for line in five.text.splitlines() if line]) == 5
    runner = Runner()
    runner.run(five)
    model = PersonalModel.load(folder / "runs/apple/models/client-00.safetensors")
    x = np.arange(128, dtype=np.uint8).reshape(2, 8, 8, 1)
    normalised = (torch.from_numpy(x).float() - model.about.shift[0]) / model.about.scale[0]
    assert torch.equal(runner.names["net"](normalised), model.outputs(x))


def test_the_citation_file_is_one():
    """The fields that the format (1.2.0) requires, and the version and licence of the package."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert all(
        {"name"} <= a.keys() or {"family-names", "given-names"} <= a.keys()
        for a in cited["authors"]
    )
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (cited["version"], cited["license"]) == (package["version"], package["license"])
    assert cited["cff-version"] == "1.2.0"
    assert cited["type"] == "software"


def test_the_file_for_agents_has_its_form_and_links_that_exist():
    """llms.txt: a title, a summary, and headings over lists of links (llmstxt.org)."""
    lines = (ROOT / "docs/llms.txt").read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[2].startswith("> ")
    sections = "\n".join(lines).split("\n## ")[1:]
    links = [line for section in sections for line in section.splitlines()[1:] if line]
    targets = [re.match(r"- \[[^]]+\]\(([^)]+)\)", line)[1] for line in links]
    assert [target for target in targets if not exists(ROOT / "docs" / target)] == []
    assert len(targets) == len(set(targets)) > 15


def test_the_skill_has_the_front_matter_that_agents_look_for():
    path = ROOT / "skills/pomona/SKILL.md"
    front = yaml.safe_load(path.read_text().split("---\n")[1])
    assert front.keys() == {"name", "description"}
    assert front["name"] == path.parent.name
    assert len(front["description"]) < 1024


def test_generated_pages_have_a_title_and_links_that_lead_somewhere():
    for name, text in pages().items():
        assert text.startswith("# "), name
        assert [t for t in targets(ROOT / "docs" / name, text) if not exists(t)] == [], name


def test_every_method_has_a_page_on_which_the_index_leads_to_it():
    rows = dict(
        re.findall(r"^\| \[(\S+)\]\((\w+\.md)\)", pages()["methods/README.md"], re.MULTILINE)
    )
    assert rows.keys() == DOCUMENTED.keys()
    assert all(f"\n## {method}\n" in pages()[f"methods/{page}"] for method, page in rows.items())
