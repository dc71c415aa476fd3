import pytest

from runtime.architectures import Ranker
from runtime.installed_architectures import find_architecture, use_architectures
from weightshift.errors import IncompatibleModel, InvalidInput


class Special(Ranker):
    name = "special"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(IncompatibleModel, match="'unheard-of'"):
        find_architecture("unheard-of")


def test_settings_add_to_the_entry_points() -> None:
    use_architectures(f" {__name__}:Special ,")
    assert isinstance(find_architecture("special"), Special)
    assert type(find_architecture("ranker")) is Ranker


@pytest.mark.parametrize("place", ["nowhere:Model", "json:Model", "json", "json:dumps", "json:decoder", ":"])
def test_a_place_without_an_architecture_is_bad_input(place: str) -> None:
    with pytest.raises(InvalidInput, match="WEIGHTSHIFT_RUNTIME_ARCHITECTURES"):
        use_architectures(place)
