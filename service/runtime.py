"""Opens what an installation is configured with: reasoner, knowledge base, limits, launch templates."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from graph.answers import Reasoner, Redacted
from graph.context import Context, Limits
from graph.request import Request
from graph.rules import Rules
from service.settings import Settings, load_settings, process_environment
from tools.errors import InputError
from tools.kb import Embedder, KnowledgeBase, find_local_embedder, open_folder, open_seed, open_server
from tools.launch.engines import open_launcher
from tools.launch.launcher import Launcher
from tools.launch.template import read_templates
from tools.names import parse_address
from tools.scenario import did_you_mean
from tools.trials.order import RunLength
from tools.trials.run import LaunchedTrials

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

JOBS, RESULTS, KNOWLEDGE = "jobs", "trials", "knowledge"
"""Folders of the data folder."""
EVERY_TENANT = "*"


def open_trials(settings: Settings) -> LaunchedTrials | None:
    """None if no launch templates are registered. No engine is reached before a job needs it."""
    if settings.launch_templates is None:
        return None
    templates = read_templates(settings.launch_templates)
    default = settings.launch_template or (next(iter(templates)) if len(templates) == 1 else None)
    if default is None or default not in templates:
        allowed = did_you_mean(default or "", tuple(templates)) if templates else "the file registers none"
        raise InputError("ASAP_LAUNCH_TEMPLATE", default, allowed)
    root, environment = jobs_folder(settings), process_environment()
    reached = (settings.kubeconfig, settings.kube_context)

    @cache
    def launcher(name: str) -> Launcher:
        return open_launcher(name, root, templates, environment, *reached)

    return LaunchedTrials(
        launcher=launcher,
        templates=templates,
        default_template=default,
        results=settings.data_dir.absolute() / RESULTS,
        length=RunLength(settings.trial_steps, settings.trial_warmup, settings.trial_profile_steps),
        max_runs=settings.trial_runs,
        queue_s=settings.trial_queue_s,
    )


def jobs_folder(settings: Settings) -> Path:
    return (settings.jobs_dir or settings.data_dir / JOBS).absolute()


def check_tune(settings: Settings, request: Request) -> None:
    """Raises InputError if the request asks for trials that are not available; before anything is queued."""
    if request.options.mode != "tune":
        return
    trials = open_trials(settings)
    if trials is None:
        rule = "this installation runs no trials: it has no launch templates (ASAP_LAUNCH_TEMPLATES)"
        raise InputError("mode", "tune", rule)
    trials.check(request.scenario, request.options.template)


def open_context(settings: Settings, *, saves_cases: bool, tenant: str | None = "") -> Context:
    """With `saves_cases` outcomes are kept; without, what is kept is read if there is something.

    Without a tenant the reasoner is any tenant's, for `reasoner_for`.
    """
    reasoner = reasoner_of(settings)
    return Context(
        knowledge=open_knowledge(settings) if saves_cases or has_knowledge(settings) else open_seed(),
        reasoner=reasoner if tenant is None else reasoner_for(settings, tenant, reasoner),
        remarks=settings.llm_remarks,
        saves_cases=saves_cases,
        trials=open_trials(settings),
        limits=Limits(
            session_s=settings.session_s,
            tokens=settings.session_tokens,
            cost=settings.session_cost,
            device_hours=settings.session_device_hours,
            trials=settings.session_trials,
        ),
    )


def make_graph() -> "CompiledStateGraph[Any, Any, Any, Any]":
    """The graph as LangGraph's own tools open it (`langgraph.json`); they bring their own checkpointer.

    Its input is `{"request": {...}}` with a scenario, and optionally `mode` and `approval`.
    """
    from graph.build import build

    return build(open_context(load_settings(), saves_cases=False)).compile()


def has_knowledge(settings: Settings) -> bool:
    return settings.chroma_url is not None or (settings.data_dir / KNOWLEDGE).is_dir()


def open_knowledge(settings: Settings) -> KnowledgeBase:
    """The installation's store: a Chroma server if one is set, else a folder of its own."""
    if settings.chroma_url is None:
        folder = settings.data_dir / KNOWLEDGE
        return open_folder(folder, embedder_of(settings), shares=settings.share_knowledge)
    parts = parse_address("ASAP_CHROMA_URL", settings.chroma_url)
    is_secure = parts.scheme == "https"
    port = parts.port or (443 if is_secure else 8000)
    embedder, shares = embedder_of(settings), settings.share_knowledge
    return open_server(parts.hostname or "", port, embedder, ssl=is_secure, shares=shares)


def embedder_of(settings: Settings) -> Embedder | None:
    """None if none is wanted, or if the package that carries the model is not installed."""
    if settings.embedding == "none":
        return None
    if settings.embedding == "minilm":
        return find_local_embedder()
    if not settings.embedding_base_url or not settings.embedding_model:
        stated = settings.embedding_base_url or "nothing"
        raise InputError(
            "ASAP_EMBEDDING_BASE_URL", stated, "an endpoint needs ASAP_EMBEDDING_BASE_URL and _MODEL"
        )
    from tools.kb.embed import EndpointEmbedder

    secret = settings.embedding_api_key
    return EndpointEmbedder(
        settings.embedding_base_url, settings.embedding_model, secret.get_secret_value() if secret else None
    )


class LazyKnowledge:
    """Opened at first use: starting the server must not wait for it."""

    def __init__(self, open: Callable[[], KnowledgeBase]) -> None:
        self._open, self._lock = open, Lock()
        self._opened: KnowledgeBase | None = None

    def get(self) -> KnowledgeBase:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None


@cache
def shared_reasoner(settings: Settings) -> Reasoner:
    """One per process: it remembers what its endpoint offers, and lets it rest when it is down."""
    return reasoner_of(settings)


def reasoner_for(settings: Settings, tenant: str, reasoner: Reasoner) -> Reasoner:
    """As the tenant allows: told less, or not asked at all."""
    if tenant in settings.llm_off:
        return Rules()
    hidden = [pattern for whose, pattern in settings.llm_redact if whose in (tenant, EVERY_TENANT)]
    if not hidden or isinstance(reasoner, Rules):
        return reasoner
    return Redacted(reasoner, re.compile("|".join(f"(?:{pattern})" for pattern in hidden)))


def reasoner_of(settings: Settings) -> Reasoner:
    """The language model if an endpoint is set, else the expert rules."""
    if not settings.llm_base_url and not settings.llm_model:
        return Rules()
    if not settings.llm_base_url or not settings.llm_model:
        missing = "ASAP_LLM_MODEL" if settings.llm_base_url else "ASAP_LLM_BASE_URL"
        raise InputError(missing, None, "a language model needs ASAP_LLM_BASE_URL and ASAP_LLM_MODEL")
    from graph.agents import LanguageModel
    from graph.model import Endpoint

    secret = settings.llm_api_key
    try:
        endpoint = Endpoint(
            base_url=settings.llm_base_url,
            model=settings.llm_model,
            api_key=secret.get_secret_value() if secret else None,
            timeout_s=settings.llm_timeout_s,
            deadline_s=settings.llm_deadline_s,
            max_tokens=settings.llm_max_tokens,
            max_question_tokens=settings.llm_question_tokens,
            price_per_million_input=settings.llm_input_price,
            price_per_million_output=settings.llm_output_price,
        )
    except InputError as error:
        raise error.at(f"ASAP_LLM_{error.path.upper()}") from None
    return LanguageModel(endpoint)
