"""The ranker on LitServe, with its own dynamic batching."""

from typing import Any

import litserve
from _serving_model import MAX_BATCH, ServedRanker, model_directory, port


class RankerAPI(litserve.LitAPI):
    """What LitServe calls, in its own worker process."""

    def setup(self, device: str) -> None:
        """Load the model."""
        self.model = ServedRanker(model_directory())

    def decode_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take the parsed body."""
        return request

    def batch(self, inputs: list[Any]) -> list[Any]:
        """Keep bodies apart: they have different numbers of candidates."""
        return inputs

    def predict(self, batch: list[Any]) -> list[Any]:
        """Answer a batch."""
        return self.model.answer(batch)

    def unbatch(self, output: list[Any]) -> list[Any]:
        """Give each request its answer."""
        return output

    def encode_response(self, output: Any) -> Any:
        """Send it as JSON."""
        return output


if __name__ == "__main__":
    api = RankerAPI(max_batch_size=MAX_BATCH, batch_timeout=0.0)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=30)
    server.run(
        host="127.0.0.1", port=port(), num_api_servers=1, log_level="error", generate_client_file=False
    )
