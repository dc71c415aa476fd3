"""One stage over time, on samples written by hand and a clock that is told."""

import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest

from activities.observation import StageObservation
from weightshift.analysis import series
from weightshift.analysis.queries import BUSY_SECONDS, DURATIONS, REJECTED, REQUESTS, SCORES
from weightshift.analysis.series import Series
from weightshift.contracts.commands import Observation, ObserveMode
from weightshift.contracts.identity import Service
from weightshift.contracts.plan import Gate, Metric, ResolvedStage
from weightshift.contracts.verdict import GateVerdict, StageOutcome
from weightshift.errors import MetricsUnreachable

SERVICE = Service(model="ranker", environment="prod")
START = 1_000_000.0
GATE = Gate(metric=Metric.ERROR_RATE, maximum=0.2)


class WrittenSamples:
    """A `MetricsReader` on counters that grow by a fixed number each second."""

    scrape_interval = 1.0
    calibration = 60.0
    mesh_errors = ""

    def __init__(self, *, good: int, bad: int = 0) -> None:
        self.good, self.bad = good, bad
        self.failure: Exception | None = None
        self.silent_from = float("inf")
        self.selectors: list[str] = []

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        self.selectors.append(selector)
        if self.failure:
            raise self.failure
        metric = selector.partition("{")[0]
        span, _, step = selector.rpartition("[")[2].removesuffix("]").partition(":")
        seconds, apart = (int(text.removesuffix("ms") or 1_000) / 1_000 for text in (span, step))
        if metric not in (REQUESTS, DURATIONS, BUSY_SECONDS):
            return ()
        offsets = [START + offset for offset in range(-100, 400)]
        heard = [
            at for at in offsets if end - seconds < at <= end and at < self.silent_from and at % apart == 0
        ]
        return tuple(
            Series(
                {"cohort": cohort, "revision": revision, "instance": instance, **labels},
                tuple((at, (at - START + 100) * rate) for at in heard),
            )
            for cohort, revision in (("canary", "8"), ("stable", "7"))
            for instance in (f"{cohort}-0", f"{cohort}-1")
            for labels, rate in self._rates(metric, cohort)
        )

    def _rates(self, metric: str, cohort: str) -> list[tuple[dict[str, str], float]]:
        """Every label of a metric with what is counted in a second; the mean is 0.08 s, 1 % is over 0.2 s."""
        if metric == REQUESTS:
            return [({"code": "200"}, self.good), ({"code": "500"}, self.bad if cohort == "canary" else 0)]
        if metric == BUSY_SECONDS:
            return [({}, self.good * 0.08)]
        shares = {"0.1": 0.5, "0.2": 0.99, "0.22": 0.995, "+Inf": 1.0}
        return [({"le": edge}, self.good * share) for edge, share in shares.items()]


def observation(mode: ObserveMode = ObserveMode.WINDOW) -> Observation:
    return Observation(
        release_id="R1",
        service=SERVICE,
        stage=ResolvedStage(
            weight=50,
            window=timedelta(seconds=30),
            max_window=timedelta(seconds=60),
            min_samples=10,
            gates=(GATE,),
        ),
        interval=timedelta(seconds=5),
        started_at=datetime.fromtimestamp(START, UTC),
        canary_revision=8,
        stable_revision=7,
        canary=(),
        mode=mode,
    )


async def test_an_interval_is_judged_once_and_one_scrape_late() -> None:
    reader = WrittenSamples(good=50)
    stage = StageObservation(observation(), reader)
    counts = [(await stage.judge_due_intervals(START + at)).intervals for at in (4, 10, 10.9, 11, 12, 16)]
    assert counts == [0, 0, 0, 1, 1, 2], "the interval of the weight write, 0 to 5 s, is dropped"


async def test_a_stage_that_is_judged_again_comes_to_the_same_verdict() -> None:
    first = StageObservation(observation(), WrittenSamples(good=50))
    for at in range(0, 40, 3):
        stepwise = await first.judge_due_intervals(START + at)
    second = StageObservation(observation(), WrittenSamples(good=50))
    again = await second.judge_due_intervals(START + 39)
    assert stepwise == again
    curves = [stage.observed(again, evidence_recorded=True).curve for stage in (first, second)]
    assert curves[0] == curves[1]
    assert sum(curves[0].canary.requests) == again.canary_requests
    assert curves[0].until[0] == START + 10
    (result, _) = again.gates
    assert curves[0].log_harm[result.gate][-1] == result.figures["log_harm"]


async def test_health_before_the_window_ends_is_not_final() -> None:
    stage = StageObservation(observation(), WrittenSamples(good=50))
    verdict = await stage.judge_due_intervals(START + 29)
    assert verdict.outcome is StageOutcome.HEALTHY
    assert not stage.is_final(verdict, START + 29)
    assert stage.is_final(verdict, START + 30)


async def test_a_breach_is_final_at_once_in_every_mode() -> None:
    for mode in ObserveMode:
        stage = StageObservation(observation(mode), WrittenSamples(good=0, bad=50))
        verdict = await stage.judge_due_intervals(START + 11)
        assert verdict.outcome is StageOutcome.BREACH
        assert stage.is_final(verdict, START + 11)


@pytest.mark.parametrize(
    ("mode", "final"), [(ObserveMode.WINDOW, True), (ObserveMode.HOLD, False), (ObserveMode.WATCH, False)]
)
async def test_no_evidence_ends_only_at_the_longest_window(mode: ObserveMode, final: bool) -> None:
    reader = WrittenSamples(good=50)
    reader.silent_from = START
    stage = StageObservation(observation(mode), reader)
    verdict = await stage.judge_due_intervals(START + 70)
    assert verdict.outcome is StageOutcome.INCONCLUSIVE
    assert not stage.is_final(verdict, START + 59)
    assert stage.is_final(verdict, START + 67) is final


async def test_metrics_that_are_away_are_inconclusive_and_lose_no_interval() -> None:
    reader = WrittenSamples(good=50)
    reader.failure = MetricsUnreachable("Prometheus did not answer")
    stage = StageObservation(observation(), reader)
    verdict = await stage.judge_due_intervals(START + 20)
    assert (verdict.outcome, verdict.reason) == (StageOutcome.INCONCLUSIVE, "Prometheus did not answer")
    reader.failure = None
    assert (await stage.judge_due_intervals(START + 36)).intervals == 6


async def test_a_stage_reads_on_from_where_it_was() -> None:
    reader = WrittenSamples(good=50)
    stage = StageObservation(observation(), reader)
    await stage.judge_due_intervals(START + 11)
    reader.selectors.clear()
    reader.failure = MetricsUnreachable("Prometheus did not answer")
    await stage.judge_due_intervals(START + 16)
    reader.failure = None
    verdict = await stage.judge_due_intervals(START + 21)
    asked = {selector.rpartition("[")[2] for selector in reader.selectors}
    assert asked == {"6000ms]", "11000ms]"}, "what came since, and a scrape that may have come late"
    again = await StageObservation(observation(), WrittenSamples(good=50)).judge_due_intervals(START + 21)
    assert verdict == again


def bytes_of_samples() -> int:
    kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, series.__file__)])
    return sum(one.size for one in kept.statistics("filename"))


async def test_a_judge_keeps_no_more_samples_the_longer_its_stage_lasts() -> None:
    stage = StageObservation(observation(ObserveMode.WATCH), WrittenSamples(good=50))
    tracemalloc.start()
    try:
        for at in range(6, 106, 5):
            await stage.judge_due_intervals(START + at)
        after_a_few = bytes_of_samples()
        for at in range(106, 596, 5):
            await stage.judge_due_intervals(START + at)
        assert bytes_of_samples() < 1.5 * after_a_few
    finally:
        tracemalloc.stop()


class FailingAllAtOnce(WrittenSamples):
    """Every canary instance has 40 failures at once, under a code that it never had before."""

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        found = await super().select(selector, end=end)
        heard = tuple((at, 40.0) for at in (START + 12, START + 13) if at <= end)
        if not (selector.startswith(REQUESTS) and heard):
            return found
        labels = {"cohort": "canary", "revision": "8", "code": "502"}
        return (*found, *(Series({**labels, "instance": f"canary-{n}"}, heard) for n in (0, 1)))


async def test_a_series_that_begins_between_two_reads_counts_from_zero() -> None:
    stage = StageObservation(observation(), FailingAllAtOnce(good=50))
    before = await stage.judge_due_intervals(START + 11)
    assert before.intervals == 1
    after = await stage.judge_due_intervals(START + 16)
    assert stage.observed(after, evidence_recorded=True).curve.canary.errors == (0, 80)


async def test_an_analysis_that_fails_is_inconclusive() -> None:
    reader = WrittenSamples(good=50)
    reader.failure = ZeroDivisionError("no")
    verdict = await StageObservation(observation(), reader).judge_due_intervals(START + 20)
    assert verdict.outcome is StageOutcome.INCONCLUSIVE
    assert "the analysis failed" in verdict.reason


async def test_wealth_goes_on_to_the_next_stage() -> None:
    first = StageObservation(observation(), WrittenSamples(good=40, bad=3))
    carried = first.observed(await first.judge_due_intervals(START + 30), evidence_recorded=True)
    assert set(carried.wealth) == {GATE.name, "hard"}
    following = observation().model_copy(update={"wealth": carried.wealth})
    second = StageObservation(following, WrittenSamples(good=50))
    await second.judge_due_intervals(START + 6)
    assert second.observed(carried.verdict, evidence_recorded=True).wealth == carried.wealth


async def test_a_stage_begins_with_stables_last_hour() -> None:
    reader = WrittenSamples(good=50)
    await StageObservation(observation(), reader).judge_due_intervals(START + 4)
    assert [selector.rpartition("[")[2] for selector in reader.selectors] == [
        "60000ms:6000ms]",
        "60000ms:6000ms]",
        "1800000ms]",
    ]


async def test_of_latencies_the_history_holds_only_what_the_gates_compare() -> None:
    latency = (GATE, Gate(metric=Metric.LATENCY, ratio=1.1), Gate(metric=Metric.LATENCY, maximum=0.21))
    stage = observation().stage.model_copy(update={"gates": latency})
    reader = WrittenSamples(good=50)
    await StageObservation(observation().model_copy(update={"stage": stage}), reader).judge_due_intervals(
        START
    )
    durations = [selector for selector in reader.selectors if selector.startswith(DURATIONS)]
    assert ["le=~" in selector for selector in durations] == [False, True]
    assert 'le=~"0.2|0.22|[+]Inf"' in durations[1]


async def test_only_what_the_gates_ask_for_is_read() -> None:
    gates = (GATE, Gate(metric=Metric.REJECT_RATE, ratio=1.5), Gate(metric=Metric.SCORE_DRIFT, maximum=0.05))
    more = observation().model_copy(update={"stage": observation().stage.model_copy(update={"gates": gates})})
    reader = WrittenSamples(good=50)
    verdict = await StageObservation(more, reader).judge_due_intervals(START + 20)
    assert {selector.partition("{")[0] for selector in reader.selectors} == {
        REQUESTS,
        DURATIONS,
        REJECTED,
        SCORES,
    }
    assert verdict.gates[2].verdict is GateVerdict.NO_DATA
    assert verdict.outcome is StageOutcome.INCONCLUSIVE


async def test_between_two_intervals_there_is_nothing_to_judge_but_the_windows_end() -> None:
    stage = StageObservation(observation(), WrittenSamples(good=20))
    await stage.judge_due_intervals(START + 45)
    interval = observation().interval.total_seconds()
    assert 0 < stage.seconds_to_next(START + 45) <= interval
    window_ends = START + observation().stage.window.total_seconds()
    assert stage.seconds_to_next(window_ends - 0.25) <= 0.25


class Mesh(WrittenSamples):
    """The canary's requests are lost on the way, and the mesh alone counts them."""

    mesh_errors = 'envoy_cluster_upstream_rq_xx{envoy_cluster_name="$cohort",envoy_response_code_class="5"}'

    async def select(self, selector: str, *, end: float) -> tuple[Series, ...]:
        if not selector.startswith("envoy"):
            return await super().select(selector, end=end)
        self.selectors.append(selector)
        rate = 50 if '"canary"' in selector else 0
        samples = tuple((START + at, float(max(0, at) * rate)) for at in range(-10, int(end - START) + 1))
        return (Series({"envoy_response_code_class": "5"}, samples),)


async def test_requests_that_are_lost_on_the_way_to_the_canary_stop_the_stage() -> None:
    silent = WrittenSamples(good=0)
    held = await StageObservation(observation(), silent).judge_due_intervals(START + 31)
    assert held.outcome is StageOutcome.INCONCLUSIVE
    verdict = await StageObservation(observation(), Mesh(good=0)).judge_due_intervals(START + 31)
    assert (verdict.outcome, verdict.reason) == (StageOutcome.BREACH, "gate hard breached")
