"""What borrowing and returning a generation costs, against the two bare lock pairs it needs.

`python benchmarks/borrow.py [--quick] [--json]`. Rounds of both are interleaved in one process and
compared by the median of their ratios, before and after 1,000 swaps in the same holder.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from typing import Any

from torch import nn

from runtime.architectures import Ranker
from runtime.generation_holder import Generation, GenerationHolder, LoadedModel
from weightshift.contracts.identity import Cohort, Service
from weightshift.contracts.target import Target

SERVICE = Service(model="ranker", environment="benchmark")
SWAPS = 1000
BORROWS = 50_000


def measure(rounds: int) -> dict[str, float]:
    """Compare borrow and return with two bare lock pairs, before and after many swaps in one holder."""
    retired: list[Generation] = []
    holder = GenerationHolder(retire=retired.append)
    install_next(holder, 1)
    before = borrow_ratio(holder, rounds)
    for revision in range(2, SWAPS + 2):
        install_next(holder, revision)
        holder.forget(retired.pop())
    return {
        "borrow_ratio": round(before, 3),
        "borrow_ratio_after_swaps": round(borrow_ratio(holder, rounds), 3),
    }


def install_next(holder: GenerationHolder, revision: int) -> None:
    """Let an empty model serve at a revision."""
    target = Target(
        service=SERVICE,
        cohort=Cohort.STABLE,
        revision=revision,
        artifact_id=f"v{revision}",
        manifest_sha256=f"{revision:064x}",
        feature_schema="ranker-v1",
    )
    model = LoadedModel(
        manifest_sha256=target.manifest_sha256,
        feature_schema=target.feature_schema,
        architecture=Ranker(),
        module=nn.Module(),
        resources=None,
        device="cpu",
        allocated_bytes=0,
    )
    holder.aim(target)
    assert holder.install(Generation(target=target, loaded=model, runtime_build="benchmark"))


def borrow_ratio(holder: GenerationHolder, rounds: int) -> float:
    """Return the median of the ratio over interleaved rounds."""
    return statistics.median(time_borrows(holder) / time_bare_locks() for _ in range(rounds))


def time_borrows(holder: GenerationHolder) -> float:
    """Return the seconds of many borrows and returns."""
    acquire, release = holder.acquire, holder.release
    started = time.perf_counter()
    for _ in range(BORROWS):
        release(acquire())
    return time.perf_counter() - started


def time_bare_locks() -> float:
    """Return the seconds of as many times two bare lock pairs, without even a call around them."""
    lock = threading.Lock()
    started = time.perf_counter()
    for _ in range(BORROWS):
        with lock:
            pass
        with lock:
            pass
    return time.perf_counter() - started


def bar(value: float, limit: float) -> dict[str, Any]:
    """Return a bar's value, limit and whether it is met."""
    return {"value": value, "bar": limit, "ok": value <= limit}


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 rounds instead of 51")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    arguments = parser.parse_args()
    figures = measure(5 if arguments.quick else 51)
    bars = {name: bar(value, 1.5) for name, value in figures.items()}
    for name, result in bars.items():
        print(f"{name:28} {result['value']} (bar {result['bar']}): {'met' if result['ok'] else 'MISSED'}")
    if arguments.json:
        print(json.dumps({"name": "borrow", "figures": figures, "bars": bars}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
