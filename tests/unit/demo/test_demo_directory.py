"""The demonstration empties its own directory, and nobody else's."""

from pathlib import Path

import pytest

from weightshift.errors import LocalStackError
from weightshift.local import demo


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "demo" / "my-own-file"
    precious.parent.mkdir()
    precious.write_text("precious")
    with pytest.raises(LocalStackError, match="something else"):
        demo._empty(precious.parent)
    assert precious.read_text() == "precious"


def test_a_new_directory_is_marked_and_emptied_the_next_time(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    demo._empty(directory)
    leftover = directory / "leftover"
    leftover.write_text("from the last run")
    demo._empty(directory)
    assert not leftover.exists()
