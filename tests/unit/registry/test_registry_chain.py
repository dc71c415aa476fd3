from datetime import UTC, datetime

import pytest

from weightshift.contracts.evidence import AuditRow
from weightshift.contracts.identity import Service
from weightshift.errors import InvalidInput
from weightshift.registry.chain import FIRST_PREVIOUS_HASH, Entry, broken_rows, chained

SERVICE = Service(model="ranker", environment="test")


def entry_of(number: int, **data: object) -> Entry:
    return Entry(
        service=SERVICE, operation_id=f"R1/{number}", step="step", operator="ada", summary="", data=data
    )


def chain_of(length: int) -> list[AuditRow]:
    rows: list[AuditRow] = []
    for number in range(1, length + 1):
        previous_hash = rows[-1].hash if rows else FIRST_PREVIOUS_HASH
        now = datetime(2026, 1, 1, 0, 0, number, tzinfo=UTC)
        rows.append(chained(entry_of(number), sequence=number, previous_hash=previous_hash, recorded_at=now))
    return rows


def test_an_untouched_chain_is_whole() -> None:
    assert broken_rows(chain_of(4)) == ()
    assert broken_rows([]) == ()


@pytest.mark.parametrize(
    "change",
    [{"summary": "x"}, {"operator": "eve"}, {"data": {"a": 1}}, {"recorded_at": datetime.now(UTC)}],
)
def test_an_altered_row_is_found(change: dict[str, object]) -> None:
    rows = chain_of(4)
    rows[1] = rows[1].model_copy(update=change)
    assert broken_rows(rows) == (2,)


def test_a_rehashed_row_breaks_the_row_after_it() -> None:
    rows = chain_of(4)
    rows[1] = chained(entry_of(99), sequence=2, previous_hash=rows[0].hash, recorded_at=rows[1].recorded_at)
    assert broken_rows(rows) == (3,)


def test_a_chain_with_another_start_is_found() -> None:
    row = chained(entry_of(1), sequence=1, previous_hash="f" * 64, recorded_at=datetime.now(UTC))
    assert broken_rows([row]) == (1,)


def test_rows_of_another_model_may_lie_between() -> None:
    rows = chain_of(4)
    assert broken_rows([rows[0], rows[3]]) == ()


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidInput, match="R1/1"):
        chained(
            entry_of(1, big=1 << 60),
            sequence=1,
            previous_hash=FIRST_PREVIOUS_HASH,
            recorded_at=datetime.now(UTC),
        )


def test_a_number_that_is_none_is_recorded_as_null() -> None:
    row = chained(
        entry_of(1, rate=float("nan")),
        sequence=1,
        previous_hash=FIRST_PREVIOUS_HASH,
        recorded_at=datetime.now(UTC),
    )
    assert row.data == {"rate": None}
