"""Generation over HTTP, the engine built at module scope. `MODEL=... uvicorn http_app:app`"""

import json
import os
import uuid
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from engine import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=os.environ["MODEL"], pace=50))


async def generate_text(request: Request) -> StreamingResponse:
    prompt = request.query_params["prompt"]
    max_tokens = int(request.query_params.get("max_tokens", 100))
    request_id = str(uuid.uuid4())
    sampling_params = SamplingParams(temperature=0.8, max_tokens=max_tokens, ignore_eos=True)

    async def generate_stream() -> AsyncIterator[str]:
        async for output in engine.generate(prompt, sampling_params, request_id):
            yield f"data: {json.dumps({'text': output.outputs[0].text})}\n\n"

    headers = {"Cache-Control": "no-cache", "X-Request-Id": request_id}
    return StreamingResponse(generate_stream(), media_type="text/plain", headers=headers)


async def cancel_request(request: Request) -> JSONResponse:
    await engine.abort(request.path_params["request_id"])
    return JSONResponse({"message": "Request cancelled"})


async def num_unfinished(request: Request) -> JSONResponse:
    return JSONResponse(int(engine.get_num_unfinished_requests()))


app = Starlette(
    routes=[
        Route("/generate", generate_text, methods=["POST"]),
        Route("/cancel/{request_id}", cancel_request, methods=["DELETE"]),
        Route("/num_unfinished", num_unfinished),
    ]
)
