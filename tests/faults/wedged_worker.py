"""The control plane's worker of another build, which cannot take a release any further that has begun.

It is the real worker; its releases begin with another command than their histories do, so that Temporal
refuses every one of their workflow tasks, and tries again for ever.
"""

from datetime import timedelta
from typing import Any

from temporalio import workflow

import worker


@workflow.defn(name="Release", sandboxed=False)
class OtherRelease:
    """Does not replay any release's history."""

    @workflow.run
    async def run(self, _: Any) -> None:
        await workflow.sleep(timedelta(hours=1))


if __name__ == "__main__":
    vars(worker).update(ReleaseWorkflow=OtherRelease)
    worker.run()
