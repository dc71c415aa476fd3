import threading
from pathlib import Path

import pytest

from weightshift.contracts.identity import Fence
from weightshift.contracts.traffic import MeshState, TrafficSplit
from weightshift.errors import MeshUnreachable, StaleFence
from weightshift.mesh.route_file import RouteFile


def command(sequence: int, canary: int) -> MeshState:
    return MeshState(split=TrafficSplit.with_canary(canary), fence=Fence(epoch=1, sequence=sequence))


def test_a_new_file_has_everything_on_stable(tmp_path: Path) -> None:
    with RouteFile(path=tmp_path / "routes/route.json") as file:
        assert file.accepted() == MeshState(split=TrafficSplit.with_canary(0))


def test_the_fence_survives_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "route.json"
    with RouteFile(path=path) as file:
        file.accept(command(5, 25))
    with RouteFile(path=path) as file:
        assert file.accepted() == command(5, 25)
        with pytest.raises(StaleFence):
            file.accept(command(4, 50))
    assert [entry.name for entry in tmp_path.iterdir() if entry.suffix != ".lock"] == ["route.json"]


def test_there_is_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "route.json"
    with RouteFile(path=path), pytest.raises(MeshUnreachable, match="another writer"):
        RouteFile(path=path).__enter__()
    with RouteFile(path=path) as file:
        file.accept(command(1, 5))


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "route.json"
    path.write_text("{}")
    with pytest.raises(MeshUnreachable, match="not one of ours"):
        RouteFile(path=path).__enter__()
    assert path.read_text() == "{}"


def test_threads_cannot_undo_a_newer_command(tmp_path: Path) -> None:
    with RouteFile(path=tmp_path / "route.json") as file:

        def write(sequence: int) -> None:
            try:
                file.accept(command(sequence, sequence))
            except StaleFence:
                assert file.accepted().fence != command(sequence, 0).fence

        threads = [threading.Thread(target=write, args=(sequence,)) for sequence in range(1, 21)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert file.accepted() == command(20, 20)
