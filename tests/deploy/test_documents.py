"""What docs/kubernetes.md and docs/operations.md have people type fits the tools and the manifests."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT, Container, all_containers
from tests.deploy.test_references import MADE_BY_PEOPLE
from tests.unit.docs.test_documented_commands import BLOCK
from weightshift.cli.main import build_parser

PAGES = [ROOT / "docs/kubernetes.md", ROOT / "docs/operations.md"]
ISSUED = ["--role", "metrics", "--subject", "prometheus"]
BESIDE = Path(sys.executable).parent


def lines() -> list[str]:
    text = "\n".join(
        body for page in PAGES for kind, body in BLOCK.findall(page.read_text()) if kind == "sh"
    ).replace("\\\n", " ")
    return [line.split(" #")[0].strip() for line in text.splitlines() if line.strip()]


def commands(tool: str) -> list[str]:
    """Return the calls of a tool, without what they are piped into."""
    return [line.split(" | ")[0].removesuffix(" &") for line in lines() if line.startswith(f"{tool} ")]


@pytest.mark.parametrize("line", commands("temporal") + commands("kubectl"))
def test_a_tool_knows_its_options(line: str) -> None:
    tool, *arguments = shlex.split(line.partition(" -- ")[0])
    # Asked for help, it reads its options first and refuses those it does not know.
    done = subprocess.run(
        [str(BESIDE / tool), *arguments, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


@pytest.mark.parametrize("line", [line for line in lines() if " -- weightshift " in line])
def test_a_command_inside_a_pod_parses(line: str) -> None:
    command = line.rpartition("weightshift ")[2].removesuffix("; }")
    build_parser().parse_args(
        [one for one in shlex.split(command) if one != "$@"] + (ISSUED if "$@" in command else [])
    )


@pytest.mark.parametrize("line", [line for line in lines() if "$(issue " in line])
def test_a_documented_token_can_be_issued(line: str) -> None:
    build_parser().parse_args(["token", "issue", *shlex.split(line.partition("$(issue ")[2].rstrip(")"))])


@pytest.mark.parametrize(("kind", "namespace", "name"), sorted(MADE_BY_PEOPLE))
def test_what_people_have_to_make_is_documented_with_its_keys(kind: str, namespace: str, name: str) -> None:
    made = {"Secret": "secret generic", "ConfigMap": "configmap"}[kind]
    documented = [line for line in lines() if f"-n {namespace} create {made} {name} " in line]
    assert documented
    wanted = {
        one["valueFrom"]["secretKeyRef"]["key"]
        for container in all_containers()
        for one in container.spec.get("env", ())
        if one.get("valueFrom", {}).get("secretKeyRef", {}).get("name") == name
        and container.workload["metadata"]["namespace"] == namespace
    }
    keys = set(re.findall(r"--from-(?:literal|file)=([\w.-]+)=", documented[0]))
    assert wanted <= keys
    assert keys


@pytest.mark.parametrize("line", [line for line in lines() if "deploy/" in line])
def test_a_documented_file_is_there(line: str) -> None:
    for path in re.findall(r"\bdeploy/[\w./-]+", line):
        # The second version's directory is made by the documented copy.
        found = ROOT / path.replace("worker-0-2-0", "worker")
        assert found.exists() or "/weightshift-" in path, path


@pytest.mark.parametrize("container", all_containers(), ids=str)
def test_key_files_are_where_the_documents_put_them(container: Container) -> None:
    documented = " ".join(lines())
    for name, value in container.environment().items():
        if name.endswith(("_KEY_FILE", "_KEYS_FILE")):
            assert f"--from-file={Path(value).name}=" in documented
