"""Adds the pages to the API's application."""

from fastapi import FastAPI

from service.web import (
    accuracy,
    compare,
    docs,
    forms,
    hardware,
    knowledge,
    new_session,
    nightly,
    rendering,
    session,
    sessions,
    trail,
    what_if,
)
from service.web.rendering import add_error_pages
from service.web.session_figures import Searched

ROUTERS = (
    rendering.router,
    forms.router,
    sessions.router,
    new_session.router,  # before a session whose id could be "new"
    session.router,
    session.actions_router,
    trail.router,
    what_if.router,
    compare.router,
    knowledge.router,
    hardware.router,
    accuracy.router,
    docs.router,
    nightly.router,
)


def add_pages(app: FastAPI) -> None:
    """After the API's routes and handlers."""
    for router in ROUTERS:
        app.include_router(router, include_in_schema=False)
    app.state.searched_spaces = Searched()
    add_error_pages(app)
