"""/docs: the OpenAPI document for readers; programs read /openapi.json."""

from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic.json_schema import JsonSchemaValue

from service.api.app import describe
from service.api.deps import Reader
from service.web.rendering import PageRoute, page


@dataclass(frozen=True)
class Field:
    """A parameter, or a field of the body."""

    name: str
    where: str
    required: bool
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


def subjects_of(document: JsonSchemaValue) -> list[Subject]:
    operations = list(_operations(document))
    return [
        Subject(
            tag["name"],
            tag["description"],
            [item for name, item in operations if name == tag["name"]],
        )
        for tag in document["tags"]
    ]


def _operations(document: JsonSchemaValue) -> Iterator[tuple[str, Operation]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = _body(document, operation)
            yield (
                operation["tags"][0],
                Operation(
                    method=method.upper(),
                    path=path,
                    summary=operation["summary"],
                    description=operation.get("description", ""),
                    fields=[*map(_parameter, operation.get("parameters", [])), *_body_fields(body)],
                    example=(body.get("examples") or [None])[0],
                ),
            )


def _parameter(parameter: JsonSchemaValue) -> Field:
    says = parameter.get("description") or _kind(parameter["schema"])
    return Field(parameter["name"], parameter["in"], parameter.get("required", False), says)


def _body(document: JsonSchemaValue, operation: JsonSchemaValue) -> JsonSchemaValue:
    """The resolved schema of the body; empty if there is none or it is a file."""
    content = operation.get("requestBody", {}).get("content", {})
    schema: JsonSchemaValue = content.get("application/json", {}).get("schema", {})
    reference = str(schema.get("$ref", ""))
    return document["components"]["schemas"][reference.rsplit("/", 1)[-1]] if reference else schema


def _body_fields(body: JsonSchemaValue) -> Iterator[Field]:
    required = body.get("required", ())
    for name, field in body.get("properties", {}).items():
        yield Field(name, "body", name in required, field.get("description") or _kind(field))


def _kind(schema: JsonSchemaValue) -> str:
    """The type a schema describes, in a few words."""
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    return " or ".join(
        ", ".join(map(str, option["enum"])) if "enum" in option else str(option.get("type", "an object"))
        for option in options
    )


router = APIRouter(prefix="/docs", route_class=PageRoute)


@router.get("")
def show(request: Request, caller: Reader) -> Response:
    document = describe(request.app)
    return page(request, "api", caller, about=document["info"]["description"], subjects=subjects_of(document))
