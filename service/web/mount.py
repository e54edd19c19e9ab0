"""Joins the pages to the API's application."""

from fastapi import FastAPI

from service.web import assets
from service.web.error_pages import add_error_pages
from service.web.pages import (
    accuracy,
    api,
    compare,
    hardware,
    knowledge,
    login,
    new_session,
    nightly,
    session,
    session_actions,
    sessions,
    trail,
    what_if,
)
from service.web.space import Searched

PAGES = (
    assets,
    login,
    sessions,
    new_session,  # before a session whose id could be "new"
    session,
    session_actions,
    trail,
    what_if,
    compare,
    knowledge,
    hardware,
    accuracy,
    api,
    nightly,
)


def add_pages(app: FastAPI) -> None:
    """After the API's routes and handlers."""
    for one in PAGES:
        app.include_router(one.router, include_in_schema=False)
    app.state.searched_spaces = Searched()
    add_error_pages(app)
