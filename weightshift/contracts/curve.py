"""What a stage's judge saw over time: the numbers behind a verdict, small enough for an evidence row."""

from pydantic import Field

from weightshift.contracts.base import Message


class ArmCurve(Message):
    """One arm, one entry for each point: requests, failed requests, and the p99 latency in seconds.

    The latency is None where no request was measured, and a mean by requests where intervals are pooled.
    """

    requests: tuple[int, ...] = ()
    errors: tuple[int, ...] = ()
    p99: tuple[float | None, ...] = ()


class StageCurve(Message):
    """Both arms and every gate's evidence, column by column; every column has an entry for each point.

    `until` is the end of a point's last interval in unix seconds. A long stage pools several intervals in
    a point. `log_harm` and `log_health` are natural logarithms by gate, to be compared with the boundaries
    in the gate's figures; a gate that gathers no evidence of one kind has no entry there.
    """

    until: tuple[float, ...] = ()
    canary: ArmCurve = ArmCurve()
    stable: ArmCurve = ArmCurve()
    log_harm: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    log_health: dict[str, tuple[float, ...]] = Field(default_factory=dict)
