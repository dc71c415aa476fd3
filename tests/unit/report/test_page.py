"""The page: everything escaped, nothing loaded, and the curves in it."""

import re
from html.parser import HTMLParser

import pytest

from tests.unit.report.conftest import Chain, after, make_chain, make_record
from weightshift.contracts.release import ReleaseRecord
from weightshift.contracts.traffic import TrafficSplit
from weightshift.report.assemble import assemble
from weightshift.report.charts import draw
from weightshift.report.document import Measured, MeasuredArm, ReleaseReport
from weightshift.report.page import render

HOSTILE = "<script>alert('x')</script>\"'&"
MEASURED = Measured(
    at=(after(20).timestamp(), after(30).timestamp()),
    canary=MeasuredArm(error_rate=(0.1, None), p99=(0.01, 0.02)),
    stable=MeasuredArm(error_rate=(None, None), p99=(0.01, 0.01)),
)


class Elements(HTMLParser):
    """Every element with its attributes, and every text outside of styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._style = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        self._style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._style = False

    def handle_data(self, data: str) -> None:
        if not self._style:
            self.texts.append(data.strip())


@pytest.fixture(scope="module")
def report() -> ReleaseReport:
    return assemble(make_record(), make_chain().rows, now=after(500), measured=MEASURED)


@pytest.fixture(scope="module")
def page(report: ReleaseReport) -> str:
    return render(report)


def test_the_page_shows_the_curves_with_their_boundaries(page: str) -> None:
    texts = Elements(page).texts
    for expected in (
        "Traffic as the mesh was read back",
        "canary, as judged",
        "stable, as judged",
        "canary, Prometheus",
        "limit error_rate <= 0.03",
        "limit error_rate ratio 1.1",
        "limit p99 ratio 1.5",
        "rolls back",
        "passes",
        "turned back",
        "2026-01-02 02:58:30",
    ):
        assert expected in texts, expected
    assert "stable, Prometheus" in texts
    assert "6.60 of 6.50" in texts


def test_whatever_people_wrote_stays_text(record: ReleaseRecord, chain: Chain) -> None:
    chain.add("observing", HOSTILE, seconds=95, operator=HOSTILE)
    hostile = record.model_copy(update={"operator": HOSTILE, "reason": HOSTILE})
    report = assemble(hostile, chain.rows, now=after(500), notes=[HOSTILE])
    elements = Elements(render(report.model_copy(update={"why": HOSTILE, "request_key": HOSTILE})))
    assert "script" not in {tag for tag, _ in elements.found}
    assert elements.texts.count(HOSTILE) == 7, "who, reason, why, request key, a note, a step and who took it"


def test_the_charts_escape_what_a_gate_is_called(report: ReleaseReport) -> None:
    (stage,) = report.stages
    limit = stage.error_limits[0].model_copy(update={"gate": "$x_1$ <b>&"})
    svg = draw(report.model_copy(update={"stages": (stage.model_copy(update={"error_limits": (limit,)}),)}))
    assert "limit $x_1$ &lt;b&gt;&amp;" in svg


def test_a_mirrored_share_is_named_beside_its_stage(report: ReleaseReport) -> None:
    mirrored = TrafficSplit(stable=0, canary=100, mirrored=7)
    changed = {
        "splits": tuple(change.model_copy(update={"split": mirrored}) for change in report.splits),
        "stages": tuple(stage.model_copy(update={"weight": 100}) for stage in report.stages),
    }
    assert "7 % mirrored" in draw(report.model_copy(update=changed))
    assert "mirrored" not in draw(report)


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    elements = Elements(page)
    assert not {"script", "link", "iframe", "img", "object"} & {tag for tag, _ in elements.found}
    loading = [
        value
        for _, attributes in elements.found
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "data") and value and not value.startswith("#")
    ]
    assert loading == []
    assert re.findall(r"url\((?!#)", page) == []
    assert any("default-src 'none'" in str(attributes.get("content")) for _, attributes in elements.found)


def test_the_same_release_gives_the_same_page(report: ReleaseReport, page: str) -> None:
    assert render(report) == page


def test_a_release_of_which_nothing_is_known_still_has_a_page(record: ReleaseRecord) -> None:
    running = record.model_copy(update={"outcome": None, "finished_at": None, "reason": ""})
    texts = Elements(render(assemble(running, (), now=after(0)))).texts
    assert "The audit chain holds nothing of this release." in texts
    assert "No stage was judged to its end." in texts
