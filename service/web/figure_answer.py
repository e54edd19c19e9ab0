"""A figure as Plotly's JSON, compressed: a thousand plans weigh more than the rest of a page.

Pages themselves are not compressed: they hold a secret of the form beside text that others chose (BREACH).
"""

import gzip
import json

from fastapi import Request
from fastapi.responses import Response

from service.web.figures.canvas import Figure

MEDIA_TYPE = "application/json"
LEAST_BYTES = 1000
LEVEL = 5


def figure_answer(request: Request, figure: Figure) -> Response:
    body = json.dumps(figure, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(body) < LEAST_BYTES or "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(body, media_type=MEDIA_TYPE)
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(gzip.compress(body, LEVEL, mtime=0), media_type=MEDIA_TYPE, headers=headers)
