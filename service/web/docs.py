"""/docs: the OpenAPI document for readers; programs read /openapi.json."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.deps import Reader
from service.api.openapi import describe
from service.web.rendering import PageRoute, page

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """A parameter, or a field of the body."""

    name: str
    where: str
    needed: bool
    says: str


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    summary: str
    description: str
    fields: list[Field]
    example: object


@dataclass(frozen=True)
class Subject:
    name: str
    description: str
    operations: list[Operation]


def subjects_of(document: Data) -> list[Subject]:
    found = list(_operations(document))
    return [
        Subject(tag["name"], tag["description"], [one for name, one in found if name == tag["name"]])
        for tag in document["tags"]
    ]


def _operations(document: Data) -> Iterator[tuple[str, Operation]]:
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            body = _body(document, told)
            yield (
                told["tags"][0],
                Operation(
                    method=method.upper(),
                    path=path,
                    summary=told["summary"],
                    description=told.get("description", ""),
                    fields=[*map(_parameter, told.get("parameters", [])), *_body_fields(body)],
                    example=(body.get("examples") or [None])[0],
                ),
            )


def _parameter(told: Data) -> Field:
    says = told.get("description") or _kind(told["schema"])
    return Field(told["name"], told["in"], told.get("required", False), says)


def _body(document: Data, told: Data) -> Data:
    """The schema of the body, looked up; nothing where there is none or it is a file."""
    content = told.get("requestBody", {}).get("content", {})
    schema: Data = content.get("application/json", {}).get("schema", {})
    reference = str(schema.get("$ref", ""))
    return document["components"]["schemas"][reference.rsplit("/", 1)[-1]] if reference else schema


def _body_fields(body: Data) -> Iterator[Field]:
    needed = body.get("required", ())
    for name, told in body.get("properties", {}).items():
        yield Field(name, "body", name in needed, told.get("description") or _kind(told))


def _kind(schema: Data) -> str:
    """What a schema takes, in few words."""
    options = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    return " or ".join(
        ", ".join(map(str, one["enum"])) if "enum" in one else str(one.get("type", "an object"))
        for one in options
    )


router = APIRouter(prefix="/docs", route_class=PageRoute)


@router.get("")
def show(request: Request, caller: Reader) -> Response:
    document = describe(request.app)
    return page(request, "api", caller, about=document["info"]["description"], subjects=subjects_of(document))
