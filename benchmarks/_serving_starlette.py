"""The floor: Starlette on uvicorn, the model called on the event loop, no batching, no swapping."""

import orjson
import uvicorn
from _serving_model import ServedRanker, model_directory, port
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_model = ServedRanker(model_directory())


async def predict(request: Request) -> Response:
    """Answer one request."""
    (answer,) = _model.answer([orjson.loads(await request.body())])
    return Response(orjson.dumps(answer), media_type="application/json")


if __name__ == "__main__":
    app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=port(), log_level="error", access_log=False)
