"""Checks docstrings: `python scripts/check_docstrings.py [PATH…]` prints each fault, and exits 1.

Without a path it checks d7yfs. Every docstring opens with a noun or a verb, not with a bare "who"
or "what". A class docstring is a sentence that says what the class is. It does not open with a
preposition ("Of one repository."), and it ends with a full stop.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

BARE = re.compile(r"(who|whoever|whom|whose|what|whatever)\b", re.IGNORECASE)
NO_SUBJECT = re.compile(r"(of|as|in|on|for|with|where|when|those|these|which|see)\b", re.IGNORECASE)
FEWEST_WORDS = 4


def docstrings(tree: ast.Module) -> Iterator[tuple[int, bool, str]]:
    """Line, True for a class's, and text of each docstring, those of attributes included."""
    owners = {id(node.body[0]): node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                yield child.lineno, id(child) in owners, child.value.value.strip()


def faults(text: str, *, of_class: bool) -> Iterator[str]:
    """The rules that one docstring breaks."""
    first = text.partition("\n\n")[0]
    if BARE.match(first):
        yield f"opens with a bare {first.split()[0]!r}"
    if of_class:
        if NO_SUBJECT.match(first):
            yield "does not say what the class is"
        if not first.endswith((".", ":")) or len(first.split()) < FEWEST_WORDS:
            yield "is no sentence"


def main(paths: list[str]) -> int:
    """Print each fault of the Python files at or below `paths`. Returns the exit status."""
    count = 0
    files = [
        file for path in paths for file in ([Path(path)] if path.endswith(".py") else sorted(Path(path).rglob("*.py")))
    ]
    for file in files:
        for line, of_class, text in docstrings(ast.parse(file.read_text())):
            for fault in faults(text, of_class=of_class):
                count += 1
                print(f"{file}:{line}: docstring {fault}: {text.splitlines()[0][:80] if text else ''}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["d7yfs"]))
