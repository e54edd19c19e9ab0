"""Forms of one button: the API's own function, and where the browser goes when it is done."""

from collections.abc import Callable, Mapping

from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response

from service.api.dependencies import Id, PartsOf, Submitter
from service.api.parts import Parts
from service.auth.caller import Caller
from service.web.forms import CheckedForm

Act = Callable[[str, Parts, Caller], object]


def add_buttons(router: APIRouter, path: str, buttons: Mapping[str, tuple[Act, str]]) -> None:
    """For each name what it does and where it leads, under `path`; both addresses may hold `{id}`."""
    for name, (act, place) in buttons.items():
        router.add_api_route(f"{path}/{name}", _pressed(act, place), methods=["POST"])


def _pressed(act: Act, place: str) -> Callable[..., Response]:
    def press(id: Id, form: CheckedForm, parts: PartsOf, caller: Submitter) -> Response:
        act(id, parts, caller)
        return RedirectResponse(place.format(id=id), 303)

    return press
