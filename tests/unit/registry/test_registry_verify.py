import pytest

from weightshift.contracts.evidence import AuditHead, AuditQuery, AuditRow, Evidence
from weightshift.contracts.identity import Service
from weightshift.errors import InvalidInput
from weightshift.registry.chain import ChainBreak, first_break, head_of, row_hash
from weightshift.registry.memory import MemoryRegistry
from weightshift.registry.pages import ReadPage
from weightshift.registry.verify import verify_chain

EMPTY = head_of("test", None)


@pytest.fixture
async def chain(registry: MemoryRegistry, service: Service) -> tuple[AuditRow, ...]:
    for number in range(6):
        evidence = Evidence(
            service=service, release_id="R1", operation_id=f"R1/{number}", step="warm-up", summary="warm"
        )
        await registry.record_evidence(evidence)
    return await registry.audit(service)


def reading(rows: tuple[AuditRow, ...]) -> ReadPage:
    """Pages of two rows."""

    async def read(query: AuditQuery) -> tuple[AuditRow, ...]:
        # As many as asked for, or the walk would take a short page for the last one.
        return tuple(row for row in rows if row.sequence > query.after)[: query.limit]

    return read


def rewritten(row: AuditRow, **changes: object) -> AuditRow:
    changed = row.model_copy(update=changes)
    return changed.model_copy(update={"hash": row_hash(changed)})


def test_a_chain_is_checked_from_any_row_on(chain: tuple[AuditRow, ...]) -> None:
    assert first_break(chain, after=EMPTY) is None
    assert first_break(chain[3:], after=head_of("test", chain[2])) is None


def test_a_changed_row_is_the_first_broken_one(chain: tuple[AuditRow, ...]) -> None:
    broken = first_break((*chain[:2], chain[2].model_copy(update={"summary": "x"}), *chain[3:]), after=EMPTY)
    assert broken == ChainBreak(sequence=3, problem="it was changed after it was written")


def test_a_row_rewritten_with_its_hash_breaks_the_next(chain: tuple[AuditRow, ...]) -> None:
    broken = first_break((*chain[:2], rewritten(chain[2], summary="x"), *chain[3:]), after=EMPTY)
    assert broken == ChainBreak(sequence=4, problem="it does not continue the row before it")


def test_a_row_that_was_taken_out_is_named(chain: tuple[AuditRow, ...]) -> None:
    broken = first_break((*chain[:2], *chain[3:]), after=EMPTY)
    assert broken == ChainBreak(sequence=3, problem="it is missing; row 4 follows")


async def test_a_whole_chain_has_a_head(chain: tuple[AuditRow, ...]) -> None:
    head = AuditHead(environment="test", sequence=6, hash=chain[-1].hash)
    assert await verify_chain(reading(chain), "test") == head
    assert await verify_chain(reading(chain), "test", known=head_of("test", chain[2])) == head
    assert await verify_chain(reading(()), "test") == EMPTY


async def test_a_chain_cut_at_its_end_is_found_by_an_exported_head(chain: tuple[AuditRow, ...]) -> None:
    known = head_of("test", chain[-1])
    assert isinstance(await verify_chain(reading(chain[:4]), "test"), AuditHead)
    broken = await verify_chain(reading(chain[:4]), "test", known=known)
    assert broken == ChainBreak(sequence=5, problem="it is missing, with everything after it")


async def test_a_chain_rewritten_as_a_whole_is_found_by_an_exported_head(
    chain: tuple[AuditRow, ...],
) -> None:
    forged: list[AuditRow] = []
    for row in chain:
        previous = forged[-1].hash if forged else EMPTY.hash
        forged.append(rewritten(row, operator="eve", previous_hash=previous))
    assert isinstance(await verify_chain(reading(tuple(forged)), "test"), AuditHead)
    broken = await verify_chain(reading(tuple(forged)), "test", known=head_of("test", chain[3]))
    assert broken == ChainBreak(sequence=4, problem="it is not the one that was exported")


@pytest.mark.parametrize("value", [10**30, float("inf"), float("nan"), "\ud800"])
def test_data_that_no_row_was_written_with_breaks_its_row(chain: tuple[AuditRow, ...], value: object) -> None:
    changed = chain[2].model_copy(update={"data": {"x": value}})
    broken = first_break((*chain[:2], changed, *chain[3:]), after=EMPTY)
    assert broken == ChainBreak(sequence=3, problem="it was changed after it was written")


async def test_a_head_of_another_chain_verifies_nothing(chain: tuple[AuditRow, ...]) -> None:
    head = AuditHead(environment="artifacts", sequence=6, hash=chain[-1].hash)
    with pytest.raises(InvalidInput, match="artifacts"):
        await verify_chain(reading(chain), "test", known=head)
