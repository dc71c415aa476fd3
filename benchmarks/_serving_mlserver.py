"""The ranker on MLServer, over the Open Inference Protocol, with its adaptive batching."""

from pathlib import Path

import numpy as np
import torch
from _serving_model import ServedRanker
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class RankerModel(MLModel):
    """What MLServer loads, and loads again when its repository is told to."""

    async def load(self) -> bool:
        """Read the artifact that the model's settings name."""
        self.model = ServedRanker(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Score the rows of one request, or of several that were put together."""
        rows = torch.from_numpy(np.asarray(NumpyCodec.decode_input(payload.inputs[0]), dtype=np.float32))
        resources = self.model.resources
        scores = self.model.scores((rows - resources.mean) / resources.std)
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("scores", scores.numpy())]
        )
