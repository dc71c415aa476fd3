"""What the documents tell people to type exists: commands parse, targets and linked files are there."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from weightshift.cli.main import build_parser
from weightshift.contracts.plan import Plan

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [
        body
        for document in DOCUMENTS
        for kind, body in BLOCK.findall(document.read_text())
        if kind == language
    ]


def shell_lines() -> list[str]:
    text = "\n".join(blocks("sh")).replace("\\\n", " ")
    return [line.split(" #")[0].strip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("weightshift ")])
def test_a_documented_command_parses(line: str) -> None:
    arguments = shlex.split(line)[1:]
    build_parser().parse_args(arguments)


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("make ")])
def test_a_documented_target_exists(line: str) -> None:
    target = line.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_a_documented_plan_is_valid(text: str) -> None:
    Plan.model_validate(yaml.safe_load(text))


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_plan_is_valid_and_documented(example: Path) -> None:
    Plan.model_validate(yaml.safe_load(example.read_text()))
    assert any(f"--plan examples/{example.name}" in line for line in shell_lines())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_readme_names_the_two_commands() -> None:
    assert {"make demo", "make test"} <= set(shell_lines())
