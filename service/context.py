"""Wires the agents to this installation: its reasoner, its knowledge base, its limits."""

from graph.context import Context, Limits
from graph.reasoner.question import Reasoner
from graph.reasoner.rules import Rules
from service.settings import Settings
from service.trials import open_trials
from tools.address import parse_address
from tools.errors import InputError
from tools.kb import Embedder, KnowledgeBase, find_local_embedder, open_folder, open_seed, open_server

KNOWLEDGE_FOLDER = "knowledge"


def open_context(settings: Settings, *, learns: bool) -> Context:
    """With `learns` outcomes are kept; without, what is kept is read where there is something."""
    return Context(
        knowledge=open_knowledge(settings) if learns or has_knowledge(settings) else open_seed(),
        reasoner=reasoner_of(settings),
        learns=learns,
        trials=open_trials(settings),
        limits=Limits(
            session_s=settings.session_s,
            tokens=settings.session_tokens,
            cost=settings.session_cost,
            device_hours=settings.session_device_hours,
            trials=settings.session_trials,
        ),
    )


def has_knowledge(settings: Settings) -> bool:
    return settings.chroma_url is not None or (settings.data_dir / KNOWLEDGE_FOLDER).is_dir()


def open_knowledge(settings: Settings) -> KnowledgeBase:
    """The installation's store: a Chroma server where one is set, else a folder of its own."""
    if settings.chroma_url is None:
        return open_folder(settings.data_dir / KNOWLEDGE_FOLDER, embedder_of(settings))
    host, port, secure = _chroma_address(settings.chroma_url)
    return open_server(host, port, embedder_of(settings), ssl=secure)


def _chroma_address(url: str) -> tuple[str, int, bool]:
    parts = parse_address("ASAP_CHROMA_URL", url)
    secure = parts.scheme == "https"
    return parts.hostname or "", parts.port or (443 if secure else 8000), secure


def embedder_of(settings: Settings) -> Embedder | None:
    """None where none is wanted, or where the package that carries the model is not installed."""
    if settings.embedding == "none":
        return None
    if settings.embedding == "minilm":
        return find_local_embedder()
    if not settings.embedding_base_url or not settings.embedding_model:
        given = settings.embedding_base_url or "nothing"
        raise InputError(
            "ASAP_EMBEDDING_BASE_URL", given, "an endpoint needs ASAP_EMBEDDING_BASE_URL and _MODEL"
        )
    from tools.kb.endpoint import EndpointEmbedder

    secret = settings.embedding_api_key
    return EndpointEmbedder(
        settings.embedding_base_url, settings.embedding_model, secret.get_secret_value() if secret else None
    )


def reasoner_of(settings: Settings) -> Reasoner:
    """The language model where an endpoint is set, else the expert rules."""
    if not settings.llm_base_url and not settings.llm_model:
        return Rules()
    if not settings.llm_base_url or not settings.llm_model:
        missing = "ASAP_LLM_MODEL" if settings.llm_base_url else "ASAP_LLM_BASE_URL"
        raise InputError(missing, None, "a language model needs ASAP_LLM_BASE_URL and ASAP_LLM_MODEL")
    from graph.reasoner.endpoint import Endpoint
    from graph.reasoner.llm import LanguageModel

    secret = settings.llm_api_key
    try:
        endpoint = Endpoint(
            base_url=settings.llm_base_url,
            model=settings.llm_model,
            api_key=secret.get_secret_value() if secret else None,
            timeout_s=settings.llm_timeout_s,
            max_tokens=settings.llm_max_tokens,
            price_per_million_input=settings.llm_input_price,
            price_per_million_output=settings.llm_output_price,
        )
    except InputError as error:
        raise InputError(f"ASAP_LLM_{error.field.upper()}", error.given, error.allowed) from None
    return LanguageModel(endpoint)
