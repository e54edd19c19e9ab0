"""What the tables and rows of all features are made of; each feature declares its own in its model.py."""

import types
from datetime import datetime
from typing import Annotated, Any, Union, get_args, get_origin

import sqlalchemy as sa
from pydantic import BaseModel, PlainSerializer, TypeAdapter
from sqlalchemy.types import TypeEngine

metadata = sa.MetaData()

JsonColumn = sa.JSON(none_as_null=True)
Id = sa.String(32)
Word = sa.String(20)
Digest = sa.String(64)
ColumnType = TypeEngine[Any] | type[TypeEngine[Any]]
COLUMN_TYPES: dict[object, ColumnType] = {str: sa.Text, int: sa.Integer, float: sa.Double, bool: sa.Boolean}
_MOMENT: TypeAdapter[datetime] = TypeAdapter(datetime)

Timestamp = Annotated[float, PlainSerializer(_MOMENT.validate_python, return_type=datetime, when_used="json")]
"""Seconds in a row, a date and time in UTC on the wire."""


def columns_of(row: type[BaseModel]) -> list[sa.Column[object]]:
    """The columns of a table by the fields of its row: `id` is its key, and what may be None is nullable.

    A field's column type follows from its type (what is no word, number or truth value is JSON), unless a
    type of SQLAlchemy is annotated.
    """
    columns = []
    for name, field in row.model_fields.items():
        union = get_origin(field.annotation) in (Union, types.UnionType)
        parts = get_args(field.annotation) if union else (field.annotation,)
        plain = next(part for part in parts if part is not type(None))
        if get_origin(plain) is Annotated:
            plain = get_args(plain)[0]
        stated = next((kind for kind in field.metadata if isinstance(kind, TypeEngine)), None)
        kind = stated or COLUMN_TYPES.get(plain, JsonColumn)
        nullable = type(None) in parts
        columns.append(sa.Column(name, kind, primary_key=name == "id", nullable=nullable))
    return columns


def required(kind: ColumnType, *names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def optional(kind: ColumnType, *names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, kind) for name in names]


def key(kind: ColumnType, *names: str) -> list[sa.Column[object]]:
    return [sa.Column(name, kind, primary_key=True, autoincrement=False) for name in names]


def parent_key(parent: str, name: str, primary_key: bool = False) -> sa.Column[object]:
    """A foreign key: the row is deleted with its parent."""
    return sa.Column(
        name, sa.ForeignKey(f"{parent}.id", ondelete="CASCADE"), primary_key=primary_key, nullable=False
    )
