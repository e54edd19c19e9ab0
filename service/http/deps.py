"""What routes share: the application, a feature's use cases, parameters that many have, what they answer."""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict

from service.http.state import AppState

T = TypeVar("T")
MAX_ITEMS = 500

Id = Annotated[str, Path(description="32 hexadecimal digits", max_length=64)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=64)]
Limit = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="how many at most")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="your own id of this request: sent again, it returns the same session",
    ),
]


class Public(BaseModel):
    """Base of every response: what a shape does not name does not leave the server. Rows are read by
    attribute; their times, in seconds, become datetimes in UTC."""

    model_config = ConfigDict(extra="ignore", from_attributes=True)


async def get_app_state(request: Request) -> AppState:
    app: AppState = request.app.state.asap
    return app


AppDep = Annotated[AppState, Depends(get_app_state)]


def usecase(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """`Annotated[Sessions, Depends(usecase(Sessions))]`: what service/app.py made of this class."""

    async def get(request: Request) -> T:
        return (await get_app_state(request)).get(kind)

    return get
