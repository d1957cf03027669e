"""What stands on what: nothing that is measured or shipped needs the tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("folder", "others"),
    [
        ("src", {"bench", "testbed", "tests"}),
        ("testbed", {"bench", "tests"}),
        ("bench", {"tests"}),
        ("tests", {"bench"}),
    ],
)
def test_no_folder_imports_what_stands_on_it(folder: str, others: set[str]) -> None:
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    found = {(str(path.relative_to(ROOT)), name) for path in paths for name in imports(path)}
    assert {(path, name) for path, name in found if name.partition(".")[0] in others} == set()


def imports(path: Path) -> set[str]:
    """The modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found
