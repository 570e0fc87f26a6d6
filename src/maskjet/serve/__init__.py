"""The HTTP service: masks for images that come over the network; `maskjet serve` runs it.

`app.create_app` makes the ASGI application of loaded models, and `server.run` runs it with uvicorn. A request passes
`guard` (token and limits, before any work), a route (`v1`), `bodies` (decoding, in threads) and `dispatcher` (batches
for the engine).
"""

from __future__ import annotations

from maskjet.extras import require

for _module in ("fastapi", "uvicorn", "python_multipart", "prometheus_client"):
    require(_module, extra="serve", purpose="maskjet serve")
