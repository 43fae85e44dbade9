"""Put a built site beside those of other versions: tools/site_versions.py SITE PAGES NAME.

PAGES is a checkout of what is published: a folder for each release, and ``main``. Its front page
leads to the newest release, and lists all.
"""

import re
import shutil
import sys
from pathlib import Path

RELEASE = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


def put(site: Path, pages: Path, name: str) -> list[str]:
    """Copy a site into PAGES/NAME, replacing what was there, and write the front page.

    Args:
        site: as ``make site`` builds it.
        pages: folder of all versions.
        name: of the folder: a tag such as ``v0.1.0``, or ``main``.

    Returns:
        All versions, the newest release first.

    Raises:
        ValueError: a name that is neither.
    """
    if name != "main" and not RELEASE.fullmatch(name):
        raise ValueError(f"{name!r} is neither main nor a release such as v0.1.0")
    shutil.rmtree(pages / name, ignore_errors=True)
    shutil.copytree(site, pages / name)
    (pages / ".nojekyll").touch()  # names that begin with _ are files of the site
    names = [path.name for path in pages.iterdir() if (path / "index.html").is_file()]
    versions = sorted(names, key=_age)
    links = "".join(f'<li><a href="{version}/">{version}</a></li>' for version in versions)
    (pages / "index.html").write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Pomona</title>'
        f'<meta http-equiv="refresh" content="0; url={versions[0]}/">'
        f"<p>Pomona's documents, by version:</p><ul>{links}</ul></html>\n"
    )
    return versions


def _age(name: str) -> tuple[bool, list[int]]:
    """Sort releases from the newest, and ``main`` after them."""
    match = RELEASE.fullmatch(name)
    return match is None, [-int(number) for number in match.groups()] if match else []


if __name__ == "__main__":
    print("\n".join(put(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
