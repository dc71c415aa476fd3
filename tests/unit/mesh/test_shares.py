import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightshift.contracts.traffic import TrafficSplit
from weightshift.errors import RouteInvalid
from weightshift.mesh.shares import apportion, owned_share, percent_of

percents = st.integers(0, 100)


@given(percent=percents, share=st.integers(2, 1_000_000))
def test_weights_sum_to_the_share_and_nobody_in_between_gets_nothing(percent: int, share: int) -> None:
    stable, canary = apportion(TrafficSplit.with_canary(percent), share)
    assert stable + canary == share
    assert stable >= 0
    assert canary >= 0
    assert (canary == 0) is (percent == 0)
    assert (stable == 0) is (percent == 100)
    assert abs(canary - share * percent / 100) <= 1


@given(percent=percents)
def test_alone_in_a_route_the_weights_are_the_percentages(percent: int) -> None:
    assert owned_share(3, 1, 0) == 100
    assert apportion(TrafficSplit.with_canary(percent), 100) == (100 - percent, percent)
    assert percent_of(100 - percent, percent) == percent


@settings(max_examples=30)
@given(share=st.integers(2, 10_000))
def test_a_rising_percentage_never_lowers_a_weight(share: int) -> None:
    weights = [apportion(TrafficSplit.with_canary(percent), share)[1] for percent in range(101)]
    assert weights == sorted(weights)


def test_others_keep_their_share() -> None:
    assert owned_share(70, 20, 10) == 90
    assert apportion(TrafficSplit.with_canary(50), 90) == (45, 45)


def test_nothing_to_divide_is_refused() -> None:
    with pytest.raises(RouteInvalid, match="give stable a weight"):
        owned_share(0, 0, 10)
    with pytest.raises(RouteInvalid, match="at least 2"):
        apportion(TrafficSplit.with_canary(5), 1)
    assert apportion(TrafficSplit.with_canary(0), 1) == (1, 0)
