"""What the import linter cannot see, because the worker is a module and no package: nobody imports it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = [
    path
    for package in ("weightshift", "workflows", "activities", "runtime")
    for path in (ROOT / package).rglob("*.py")
]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_the_composition_root(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        assert "worker" not in {name.split(".")[0] for name in names}
