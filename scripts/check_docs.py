"""Checks the references of the documentation: `python scripts/check_docs.py`.

It prints each fault, and exits 1 if there is one. Every promise in docs/semantics.md names a test,
and the test exists. A link between pages leads to a file, and to a heading of it. A module's path
in `code` exists. A cell of a table has at most 120 characters.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "d7yfs"
PROMISES = ROOT / "docs" / "semantics.md"
PAGES = (
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")),
)
MODULE_PAGES = {"architecture.md", "map.md", "dragonfly-facts.md", "CONTRIBUTING.md"}
"""Pages that name the current modules; decisions and changes name those of their own time."""
WIDEST = 120
GENERATED = {"status.md"}
"""Pages whose tables are generated from the code."""

CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
MODULE = re.compile(r"(?:d7yfs/)?[a-z0-9_]+(?:/[a-z0-9_]+)*(?:\.py|/)")


@cache
def functions(path: Path) -> frozenset[str]:
    """The names of a file's functions."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, defined))


def rows(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and cells of each row of a page's tables."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        text = line.strip()
        if text.startswith("|") and not re.fullmatch(r"[|:\- ]+", text):
            cells = re.sub(r"`[^`]*`", lambda code: code[0].replace("|", "\0"), text).strip("|").split("|")
            yield number, [cell.strip().replace("\0", "|") for cell in cells]


def promises() -> Iterator[tuple[int, str]]:
    """Line of each promise, and the text that names its tests; empty if none does."""
    section, start, lines = "", 0, [""]
    for number, line in enumerate([*PROMISES.read_text().splitlines(), "- "], 1):
        if line.startswith("## "):
            section = line
        if section and re.match(r"- |\S", line) and start:
            yield start, "\n".join(lines).partition("\n  - Tests:")[2]
            start = 0
        if section and line.startswith("- "):
            start, lines = number, []
        lines.append(line)


def promised() -> Iterator[str]:
    """The faults in the references of docs/semantics.md."""
    for number, tests in promises():
        references = CODE.findall(tests)
        if not references:
            yield f"{PROMISES.name}:{number}: a promise without a test"
        file = ""
        for reference in references:
            path, _, test = reference.partition("::")
            if reference.startswith("make "):
                continue
            file = path or file
            place = ROOT / "tests" / file
            if not file or not place.exists():
                yield f"{PROMISES.name}:{number}: tests/{file} does not exist"
            elif test and test not in functions(place):
                yield f"{PROMISES.name}:{number}: tests/{file} has no {test}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as links spell them."""
    text = re.sub(r"^    .*$", "", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def linked(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for target in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        if not place.exists():
            yield f"{page.relative_to(ROOT)}: {target} does not exist"
        elif anchor and anchor not in anchors(place):
            yield f"{page.relative_to(ROOT)}: {target} is no heading"


def named(page: Path) -> Iterator[str]:
    """The modules that a page names and the package lacks."""
    for reference in CODE.findall(page.read_text()):
        place = reference.removeprefix("d7yfs/")
        there = any((ROOT / base / place).exists() for base in ("d7yfs", ""))
        if MODULE.fullmatch(reference) and not (there or ("/" not in place and any(PACKAGE.rglob(place)))):
            yield f"{page.relative_to(ROOT)}: there is no {reference}"


def wide(page: Path) -> Iterator[str]:
    """The cells of a page that are too long for a table."""
    for number, cells in rows(page):
        for cell in cells:
            if len(cell) > WIDEST:
                yield f"{page.relative_to(ROOT)}:{number}: a cell of {len(cell)} characters: {cell[:50]}…"


def references() -> Iterator[str]:
    """The pages of docs/ that other tracked files name and that do not exist."""
    git = which("git")
    if git is None or not (ROOT / ".git").exists():
        return
    command = [git, "grep", "-Ino", r"docs/[a-z0-9/-]*\.md", "--", ":!CHANGELOG.md"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in found.stdout.splitlines():
        file, number, page = line.split(":", 2)
        source = (ROOT / file).read_text().splitlines()[int(number) - 1]
        # TorchServe and Triton have a folder docs/ too.
        theirs = re.search(r"(TorchServe|Triton)", source) is not None
        if not theirs and not (ROOT / page).exists():
            yield f"{file}:{number}: {page} does not exist"


def faults() -> Iterator[str]:
    """All faults of the documentation."""
    yield from promised()
    yield from references()
    for page in PAGES:
        yield from linked(page)
        if page.name in MODULE_PAGES:
            yield from named(page)
        if page.name not in GENERATED:
            yield from wide(page)


def main() -> int:
    """Print each fault. Returns 1 if there is one."""
    found = list(faults())
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
