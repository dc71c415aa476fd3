"""The ranker on BentoML. Its batching needs one array of one shape per request, so it is off."""

from typing import Any

import bentoml
from _serving_model import ServedRanker, model_directory


@bentoml.service(workers=1, traffic={"timeout": 30}, metrics={"enabled": False})
class RankerService:
    """What BentoML runs in its one worker."""

    def __init__(self) -> None:
        self.model = ServedRanker(model_directory())

    @bentoml.api(route="/predict")
    async def predict(
        self, context: list[float], candidates: list[list[float]], top: int = 3
    ) -> dict[str, Any]:
        """Answer one request."""
        (answer,) = self.model.answer([{"context": context, "candidates": candidates, "top": top}])
        return dict(answer)
