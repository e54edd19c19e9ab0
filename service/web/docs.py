"""/docs: the OpenAPI document for readers; programs read /openapi.json."""

from typing import NamedTuple

from fastapi import APIRouter, Response
from pydantic.json_schema import JsonSchemaValue

from service.http.openapi import describe
from service.web.errors import PageRoute
from service.web.rendering import ReaderPage

router = APIRouter(prefix="/docs", route_class=PageRoute)


class DescribedField(NamedTuple):
    """A parameter, or a field of the body."""

    name: str
    where: str
    required: bool
    description: str


class DescribedOperation(NamedTuple):
    method: str
    path: str
    tag: str
    summary: str
    description: str
    fields: list[DescribedField]
    example: object


class Subject(NamedTuple):
    name: str
    description: str
    operations: list[DescribedOperation]


@router.get("")
def show(page: ReaderPage) -> Response:
    document = describe(page.request.app)
    return page("api", about=document["info"]["description"], subjects=subjects_of(document))


def subjects_of(document: JsonSchemaValue) -> list[Subject]:
    operations = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            schema: JsonSchemaValue = content.get("application/json", {}).get("schema", {})  # none of a file
            reference = str(schema.get("$ref", "")).rsplit("/", 1)[-1]
            body = document["components"]["schemas"][reference] if reference else schema
            fields = [
                DescribedField(
                    part["name"], part["in"], part.get("required", False), _words(part, part["schema"])
                )
                for part in operation.get("parameters", [])
            ]
            required = body.get("required", ())
            fields += [
                DescribedField(name, "body", name in required, _words(field, field))
                for name, field in body.get("properties", {}).items()
            ]
            examples = schema.get("examples") or body.get("examples") or [None]
            about = operation["tags"][0], operation["summary"], operation.get("description", "")
            operations.append(DescribedOperation(method.upper(), path, *about, fields, examples[0]))
    return [
        Subject(tag["name"], tag["description"], [item for item in operations if item.tag == tag["name"]])
        for tag in document["tags"]
    ]


def _words(part: JsonSchemaValue, schema: JsonSchemaValue) -> str:
    """Its description, or the type that the schema states in a few words."""
    if stated := part.get("description"):
        return str(stated)
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    return " or ".join(
        ", ".join(map(str, option["enum"])) if "enum" in option else str(option.get("type", "an object"))
        for option in options
    )
