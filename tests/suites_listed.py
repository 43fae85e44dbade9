"""A page's table of suites: title, runs and time of each, compared with the suite."""

import re


def listed(page):
    """The rows of a page's table of suites, by suite."""
    rows = (line.strip("| ").split(" | ") for line in page.splitlines())
    return {
        row[0].strip("` "): row for row in rows if len(row) == 5 and row[0] not in ("suite", "---")
    }


def assert_runs(row, suite, planned):
    """A row has the suite's title and numbers of runs; ``planned`` returns the groups of a size."""
    _, title, cpu, time, full_runs = row
    assert title == suite.title
    assert (int(cpu), int(full_runs)) == tuple(map(_runs, map(planned, ("cpu", "full"))))
    assert re.fullmatch(r"\d+ min|minutes|.*h", time)


def _runs(groups):
    """The search, and the final runs of one point, one of them made by the search."""
    return sum(len({cell.folder for cell in (*group.trials, *group.finals[0])}) for group in groups)
