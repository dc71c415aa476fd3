"""The ranker on Ray Serve, with its own dynamic batching; a line on standard input names another model."""

import sys
from pathlib import Path
from typing import Any

import ray
from _serving_model import MAX_BATCH, ServedRanker, model_directory, port
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=256, ray_actor_options={"num_cpus": 1})
class RankerDeployment:
    """What Ray runs in its one replica."""

    def reconfigure(self, config: dict[str, str]) -> None:
        """Load the model that the configuration names; Ray calls this at start and for every change."""
        self.model = ServedRanker(Path(config["directory"]))

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=0.0)
    async def answer(self, bodies: list[Any]) -> list[Any]:
        """Answer a batch."""
        return self.model.answer(bodies)

    async def __call__(self, request: Request) -> Any:
        """Answer one request."""
        return await self.answer(await request.json())


def deploy(directory: str) -> None:
    """Serve a model, in the place of the one before."""
    deployment: Any = RankerDeployment
    configured = deployment.options(user_config={"directory": directory})
    serve.run(configured.bind(), route_prefix="/predict", name="ranker")


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port()})
    deploy(str(model_directory()))
    for line in sys.stdin:
        deploy(line.strip())
    serve.shutdown()
    ray.shutdown()
