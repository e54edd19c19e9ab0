"""Adds the pages to the API's application."""

from fastapi import FastAPI

from service.web import (
    accuracy,
    clusters,
    compare,
    docs,
    forms,
    hardware,
    infeasible,
    knowledge,
    new_session,
    nightly,
    pipeline,
    plans,
    rendering,
    schedule_form,
    session,
    session_figures,
    sessions,
    topology,
    trace,
    trail,
    trials,
    what_if,
)
from service.web.rendering import add_error_pages

ROUTERS = (
    rendering.router,
    forms.router,
    sessions.router,
    new_session.router,  # before a session whose id could be "new"
    session.router,
    session_figures.router,
    pipeline.router,
    infeasible.router,
    plans.router,
    trail.router,
    trials.router,
    trace.router,
    topology.router,
    what_if.router,
    compare.router,
    knowledge.router,
    hardware.router,
    clusters.router,
    accuracy.router,
    docs.router,
    schedule_form.router,  # before a schedule whose name could be "new"
    nightly.router,
)


def add_pages(app: FastAPI) -> None:
    """After the API's routes and handlers."""
    for router in ROUTERS:
        app.include_router(router, include_in_schema=False)
    add_error_pages(app)
