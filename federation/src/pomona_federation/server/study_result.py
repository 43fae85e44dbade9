"""The result of a study without a model, as files and a page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomona.core.settings import Settings
from pomona.core.table import MARKDOWN, Table, csv_text, markdown
from pomona.results.web.page_writer import render, write_page


@dataclass(frozen=True)
class ResultFiles:
    """Content of the files.

    Attributes:
        title: of the page.
        opening: sentences before the tables.
        tables: for people.
        records: for programs, as CSV.
    """

    title: str
    opening: Sequence[str]
    tables: Sequence[Table]
    records: Sequence[Mapping[str, Any]]

    def write(
        self, folder: Path, name: str, result: Settings, extra: Mapping[str, str] | None = None
    ) -> Path:
        """Write ``NAME.json``, ``.csv``, ``.md``, and last ``.html``, whose path is returned.

        Raises StorageError.

        Args:
            folder: the study's folder.
            name: of the files, without suffix.
            result: the complete result.
            extra: further texts by file name.
        """
        texts = {
            f"{name}.json": json.dumps(result.model_dump(mode="json"), indent=1) + "\n"
        } | dict(extra or {})
        texts |= {f"{name}.csv": csv_text(self.records)} if self.records else {}
        escaped = (line.translate(MARKDOWN) for line in self.opening)
        texts[f"{name}.md"] = (
            "\n\n".join([f"# {self.title}", *escaped, *map(markdown, self.tables)]) + "\n"
        )
        return write_page(folder, texts | {f"{name}.html": self._html(list(texts))})

    def _html(self, files: Sequence[str]) -> str:
        return render(
            "study_result.html.jinja",
            "pomona_federation.server",
            title=self.title,
            first=self.tables[0].name if self.tables else "",
            links=[(table.name, table.title) for table in self.tables],
            opening=self.opening,
            tables=self.tables,
            files=files,
        )
