import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pytest

from weightshift.cli.main import build_parser
from weightshift.cli.options import Option

Run = Callable[..., Any]


def commands(
    parser: argparse.ArgumentParser, path: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield every command, and the parser of its arguments."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield path.strip(), parser
    for group in groups:
        for name, inner in group.choices.items():
            yield from commands(inner, f"{path} {name}")


ALL = dict(commands(build_parser()))


def test_the_commands_are_these() -> None:
    assert sorted(ALL) == sorted(
        [
            *(f"artifact {verb}" for verb in ("push", "list", "show", "approve", "reject")),
            *("target show", "instance list", "keys generate", "demo", "doctor"),
            *(f"release {verb}" for verb in ("start", "status", "watch", "pause", "resume", "promote")),
            *("release approve", "release rollback", "release list", "release report"),
            *(f"audit {verb}" for verb in ("show", "verify", "head")),
            *(f"token {verb}" for verb in ("issue", "list", "revoke")),
            *("registry migrate", "registry recover"),
            *(f"local {verb}" for verb in ("up", "down", "status", "traffic")),
        ]
    )


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_mirrored_by_a_variable_that_its_help_names(name: str) -> None:
    parser = ALL[name]
    declared: list[Option] = parser.get_default("options")
    text = parser.format_help()
    flags = {flag for action in parser._actions for flag in action.option_strings} - {"-h", "--help"}
    assert flags == {flag for option in declared for flag in option.flags}
    for option in declared:
        assert option.variable.startswith("WEIGHTSHIFT_")
        assert option.variable in text


def test_a_flag_wins_over_its_variable_and_both_over_the_default(run: Run, releases: Any) -> None:
    os.environ["WEIGHTSHIFT_ENVIRONMENT"] = "from-variable"
    run("release", "pause", "ranker")
    run("release", "pause", "ranker", "-e", "from-flag")
    assert [call[1].environment for call in releases.calls if call[0] == "pause"] == [
        "from-variable",
        "from-flag",
    ]


def test_an_empty_variable_is_not_set(run: Run) -> None:
    os.environ["WEIGHTSHIFT_ENVIRONMENT"] = ""
    assert "environment: give" in run("release", "pause", "ranker").err


def test_the_version_is_told(run: Run) -> None:
    result = run("--version")
    assert (result.code, result.out) == (0, f"weightshift {version('weightshift')}\n")


def test_a_missing_value_names_both_ways_to_give_it(run: Run) -> None:
    result = run("release", "pause", "ranker")
    assert result.code == 2
    assert "environment: give --environment or set WEIGHTSHIFT_ENVIRONMENT" in result.err


def test_everything_that_is_missing_is_named_at_once(run: Run) -> None:
    result = run("artifact", "push", "models/v1", "--precision", "fp7")
    assert result.code == 2
    for name in ("model: give --model", "id: give --id", "feature_schema: give", "precision: 'fp7' is not"):
        assert name in result.err


@pytest.mark.parametrize(("value", "prints_json"), [("1", True), ("true", True), ("0", False), ("no", False)])
def test_switches_have_variables_too(run: Run, value: str, prints_json: bool) -> None:
    os.environ["WEIGHTSHIFT_JSON"] = value
    assert run("release", "status", "ranker", "-e", "test").out.startswith("{") is prints_json


def test_an_unreadable_switch_is_refused(run: Run) -> None:
    os.environ["WEIGHTSHIFT_JSON"] = "perhaps"
    result = run("release", "status", "ranker", "-e", "test")
    assert result.code == 2
    assert "json: 'perhaps' is not valid" in result.err


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("release",), ("release", "pause")])
def test_wrong_usage_is_bad_input(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).code == 2


def test_the_process_ends_with_the_exit_code_and_its_output() -> None:
    script = "from weightshift.cli.main import run; run()"
    process = subprocess.run(
        [sys.executable, "-c", script, "release", "pause", "ranker", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert '"type": "InvalidInput"' in process.stdout
    assert process.stderr == ""


def test_help_needs_no_heavy_library() -> None:
    script = (
        "import sys; from weightshift.cli.main import main; main(['--help']);"
        "print([name for name in ('torch', 'boto3', 'temporalio', 'httpx') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.endswith("[]\n")
