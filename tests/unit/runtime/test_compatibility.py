from pathlib import Path

import pytest
import torch

from runtime import compatibility
from runtime.compatibility import check_requirements, runtime_build
from weightshift.contracts.manifest import Requirements
from weightshift.errors import IncompatibleModel

PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\nGCC version: 12"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs-builder@U16)\n"
)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "version"
    monkeypatch.setattr(compatibility, "_DRIVER_FILE", path)
    return path


def test_another_cuda_is_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for cuda in (None, "12.8", "13.0"):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        names.append(runtime_build.__wrapped__())
    assert len(set(names)) == 3
    assert names[1] == f"{names[0]}+cuda-12.8"


@pytest.mark.parametrize(("text", "version"), [(PROPRIETARY, "535.183.01"), (OPEN, "550.54.15")])
def test_the_driver_is_compared_with_what_is_installed(driver: Path, text: str, version: str) -> None:
    driver.write_text(text)
    check_requirements(Requirements(driver=f"=={version}"))
    check_requirements(Requirements(driver=">=535,<600"))
    with pytest.raises(IncompatibleModel, match=f"requires driver >=600; this runtime has {version}"):
        check_requirements(Requirements(driver=">=600"))


@pytest.mark.parametrize("text", [None, "", "something else"])
def test_without_a_driver_an_artifact_that_needs_one_is_refused(driver: Path, text: str | None) -> None:
    if text is not None:
        driver.write_text(text)
    with pytest.raises(IncompatibleModel, match="this runtime has None"):
        check_requirements(Requirements(driver=">=1"))
    check_requirements(None)


def test_cuda_is_what_torch_was_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    check_requirements(Requirements(cuda=">=12.4,<13"))
    with pytest.raises(IncompatibleModel, match=r"requires cuda >=13; this runtime has 12\.6"):
        check_requirements(Requirements(cuda=">=13"))


def test_torch_is_compared_without_its_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu126")
    check_requirements(Requirements(torch="==2.13.0"))
    with pytest.raises(IncompatibleModel, match="requires torch"):
        check_requirements(Requirements(torch="<2.13"))


@pytest.mark.parametrize("name", ["torch", "cuda", "driver"])
def test_what_is_no_range_is_refused(name: str, driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.write_text(OPEN)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    with pytest.raises(IncompatibleModel, match=f"requires.{name} 'new' is not a version range"):
        check_requirements(Requirements(**{name: "new"}))
