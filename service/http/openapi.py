"""The OpenAPI document: what FastAPI derives from the routes, with problems and keys."""

from functools import cache

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic.json_schema import JsonSchemaValue

from service import __version__
from service.access.auth import MEANINGS
from service.http.problems import KINDS, MEDIA_TYPE, Problem

OPENAPI_PATH = "/openapi.json"
METHODS = ("get", "put", "post", "delete", "patch")
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")
_PROBLEM = {"$ref": "#/components/schemas/Problem"}
_OPEN_PATHS = ("/healthz", "/readyz")

DESCRIPTION = """\
Predicts, diagnoses and improves how a training job is sharded over its accelerators.

Submit a session, follow its events, fetch its report. Send `Authorization: Bearer <key>` (`asap keys add`
makes one); without any key the server answers its own machine only.

Every error is a problem document (RFC 9457) that names the field at fault. Every answer has `X-Request-Id`,
which is in the server's logs; send your own to find a request again.

Scopes of a key:

"""
TAGS = [
    {"name": "sessions", "description": "Optimizations: submitted, followed, decided upon."},
    {"name": "reports", "description": "What a session found."},
    {"name": "traces", "description": "Profiler traces, uploaded in parts."},
    {"name": "predict", "description": "The cost model alone."},
    {"name": "plans", "description": "The plan search alone, for small workloads."},
    {"name": "hardware", "description": "The device catalogue."},
    {"name": "knowledge", "description": "Playbooks and past cases."},
    {"name": "measurements", "description": "Runs of a named cluster, which its predictions learn from."},
    {"name": "schedules", "description": "Nightly runs by the clock, and what they found."},
    {"name": "audit", "description": "Who did what."},
    {"name": "health", "description": "For load balancers and Prometheus."},
]


def serve_description(app: FastAPI) -> None:
    @cache
    def document() -> bytes:
        """Long, and the same for everyone: kept as it is sent."""
        return bytes(JSONResponse(describe(app)).body)

    async def openapi() -> Response:
        return Response(document(), media_type="application/json")

    for path in (OPENAPI_PATH, f"/v1{OPENAPI_PATH}"):
        app.add_api_route(path, openapi, include_in_schema=False)


def describe(app: FastAPI) -> JsonSchemaValue:
    """Made at the first request for it, which takes half a second, then kept."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    document = get_openapi(
        title=app.title,
        version=__version__,
        openapi_version="3.1.0",
        description=DESCRIPTION + "\n".join(f"- `{scope}`: {meaning}" for scope, meaning in MEANINGS.items()),
        routes=app.routes,
        tags=TAGS,
    )
    components = document["components"]
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    schemas = components["schemas"]
    for name in _FASTAPIS_OWN:
        schemas.pop(name, None)
    schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    components["responses"] = {
        "Problem": {"description": "An error", "content": {MEDIA_TYPE: {"schema": _PROBLEM}}}
    }
    statuses = {status for status, _ in KINDS.values()}
    for path, operations in document["paths"].items():
        for operation in (operations[method] for method in METHODS if method in operations):
            # Any operation may answer with a problem; which statuses there are stands in `KINDS`.
            responses = operation["responses"]
            responses.pop("422", None)
            missing = sorted(statuses - {int(code) for code in responses})
            responses |= {str(status): {"$ref": "#/components/responses/Problem"} for status in missing}
            if path not in _OPEN_PATHS:
                operation["security"] = [{"key": []}, {}]
    app.openapi_schema = document
    return document
