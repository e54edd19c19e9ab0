"""Every setting, from the environment (`ASAP_*`) or a `.env` file, and the data folder they name.

The only module that reads the environment.
"""

import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tools.errors import InputError

PREFIX = "ASAP_"
DAY_S = 86_400.0
Expiring = Literal["sessions", "details", "audit", "traces"]
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return text


class Settings(BaseSettings):
    """`asap serve --help` prints this table."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", extra="ignore", env_ignore_empty=True, frozen=True
    )

    data_dir: Path = Field(Path(".asap"), description="folder of everything that is not kept in a server")
    database_url: str | None = Field(
        None, pattern="^postgresql://", description="postgresql://...; without it SQLite in the data folder"
    )
    chroma_url: str | None = Field(None, description="http://host:port of a Chroma server; else embedded")
    traces_dir: Path | None = Field(
        None, description="uploaded traces; a shared folder if there are replicas"
    )

    trace_roots: tuple[Path, ...] | None = Field(
        None, description='folders of the server whose traces the operator may name, as JSON: ["/profiles"]'
    )

    llm_base_url: str | None = Field(
        None, description="an OpenAI-compatible endpoint; without it expert rules"
    )
    llm_model: str | None = Field(None, description="the model's name there")
    llm_api_key: SecretStr | None = Field(None, description="its key")
    llm_timeout_s: float = Field(60, gt=0, le=3600, description="for one request")
    llm_deadline_s: float = Field(180, gt=0, le=3600, description="for one question with its requests")
    llm_question_tokens: int = Field(60_000, ge=1000, description="for one question; then it must answer")
    llm_max_tokens: int = Field(2000, ge=16, le=200_000, description="for one answer")
    llm_off: tuple[str, ...] = Field(
        (), description='tenants whose sessions never ask the model, as JSON: ["research"]; "" is the default'
    )
    llm_redact: tuple[tuple[str, Annotated[str, AfterValidator(_check_pattern)]], ...] = Field(
        (),
        description="tenants and regular expressions of what the model is never told, as JSON: "
        '[["research", "atlas-[0-9]+"]]; "*" is every tenant',
    )
    llm_remarks: bool = Field(False, description="show a model's remarks, quoted as unchecked")
    llm_input_price: float = Field(0, ge=0, description="price per million input tokens")
    llm_output_price: float = Field(0, ge=0, description="price per million output tokens")
    session_tokens: int = Field(200_000, ge=0, description="what one session may use")
    session_cost: float = Field(5.0, ge=0, description="money one session may spend")
    session_s: float = Field(900, gt=0, description="seconds one session may take")
    session_device_hours: float = Field(8, ge=0, description="ranks times hours that its trials may take")
    session_trials: int = Field(8, ge=0, le=64, description="plans that one session may measure")

    launch_templates: Path | None = Field(
        None, description="TOML file of what trials may run; without it there are no trials"
    )
    launch_template: str | None = Field(None, description="the template of requests that name none")
    jobs_dir: Path | None = Field(None, description="trials' jobs; for Slurm a folder that the nodes see")
    kubeconfig: Path | None = Field(None, description="cluster of Kubernetes templates; else the pod's own")
    kube_context: str | None = None
    trial_steps: int = Field(20, ge=5, le=10_000, description="measured steps of a trial")
    trial_warmup: int = Field(3, ge=0, le=1000, description="steps before them")
    trial_profile_steps: int = Field(2, ge=0, le=100, description="profiled steps after them")
    trial_runs: int = Field(3, ge=1, le=10, description="runs of a plan whose interval is too wide")
    trial_queue_s: float = Field(14_400, gt=0, description="longest wait in the cluster's queue")

    share_knowledge: bool = Field(
        False, description="tenants see facts and measured figures of each other's cases, never texts"
    )
    embedding: Literal["minilm", "endpoint", "none"] = Field(
        "minilm", description="how knowledge is embedded"
    )
    embedding_base_url: str | None = None
    embedding_model: str | None = None
    embedding_api_key: SecretStr | None = None

    worker_sessions: int = Field(3, ge=1, le=256, description="sessions a worker runs at a time")
    tenant_sessions: int = Field(
        20,
        ge=1,
        description="sessions of one tenant that run at a time; one place of a lone worker stays free",
    )
    lease_s: float = Field(15, ge=1, description="a worker silent for longer loses its jobs")
    shutdown_s: float = Field(20, ge=0, description="time to finish before sessions are handed back")

    max_body_bytes: int = Field(2 * 2**20, ge=1024)
    max_trace_bytes: int = Field(8 * 2**30, ge=1024, description="for one uploaded folder of traces")
    trace_days: int = Field(30, ge=1, description="days that uploaded traces are kept")
    session_days: int | None = Field(None, ge=1, description="days that ended sessions are kept (for ever)")
    detail_days: int | None = Field(
        None,
        ge=1,
        description="days that events and checkpoints of ended sessions are kept (for ever)",
    )
    audit_days: int | None = Field(None, ge=1, description="days that the audit log is kept (for ever)")
    tenant_days: tuple[tuple[str, Expiring, Annotated[int, Field(ge=1)]], ...] = Field(
        (),
        description='one tenant\'s days, as JSON: [["research", "sessions", 90]]; or details, audit, traces',
    )
    request_s: float = Field(30, gt=0, description="longest plan search, and wait for a piece of a body")
    max_connections: int = Field(700, ge=10, description="at a time; below the limit of open files")
    address_connections: int = Field(250, ge=1, description="of one address at a time, except proxies")
    proxies: tuple[str, ...] = Field((), description='whose X-Forwarded-For counts, as JSON: ["10.0.0.2"]')
    key_queued: int = Field(1000, ge=1, description="sessions of one key that have not ended")
    tenant_queued: int = Field(2000, ge=1, description="sessions of one tenant that have not ended")
    tenant_schedules: int = Field(200, ge=1, description="schedules that one tenant keeps")
    tenant_clusters: int = Field(200, ge=1, description="clusters that one tenant reports runs of")
    tenant_uploads: int = Field(1000, ge=1, description="uploads that one tenant keeps")
    tenant_trace_bytes: int = Field(64 * 2**30, ge=1024, description="for all uploads of one tenant")
    key_streams: int = Field(50, ge=1, description="streams of events of one key, per API process")
    tenant_streams: int = Field(200, ge=1, description="streams of events of one tenant, per API process")
    tenant_cpu_s: float = Field(60, gt=0, description="CPU seconds a minute one tenant predicts and searches")
    compute_processes: int = Field(
        2, ge=0, le=64, description="that predict and search; 0: the API itself does"
    )
    requests_per_minute: int = Field(6000, ge=1, description="for one API key or address")

    cookie_secret: SecretStr | None = Field(
        None, description="signs browsers' cookies besides the key's digest; the same on every replica"
    )
    checkpoint_secret: SecretStr | None = Field(
        None, description="signs checkpoints; the same on every replica; else a key made at first use"
    )
    webhook_secret: SecretStr | None = Field(None, description="signs webhooks; without it none are sent")
    webhook_private: bool = Field(False, description="allow webhooks to private addresses")
    smtp_host: str | None = Field(None, description="mails nightly reports; without it none are mailed")
    smtp_port: int = Field(587, ge=1, le=65_535)
    smtp_security: Literal["starttls", "tls", "none"] = Field("starttls", description="of the mail server")
    smtp_user: str | None = None
    smtp_password: SecretStr | None = None
    smtp_from: str | None = Field(None, description="the sender of nightly reports")
    smtp_ca_file: Path | None = Field(None, description="certificates to trust besides the system's")
    public_url: str | None = Field(None, description="where people reach the pages, for links in reports")
    jwt_issuer: str | None = Field(None, description="accept tokens of this OpenID Connect issuer")
    jwt_audience: str | None = None
    jwt_keys_file: Path | None = Field(None, description="the issuer's keys (JWKS)")
    jwt_keys_url: str | None = Field(None, description="where the issuer publishes them, in place of a file")
    jwt_tenant_claim: str | None = Field(None, description="the claim that names the tenant; else one tenant")
    otlp_endpoint: str | None = Field(None, description="send OpenTelemetry traces there")
    server: str = Field("http://127.0.0.1:8000", description="the server that 'asap sessions' connects to")
    api_key: SecretStr | None = Field(None, description="the API key that 'asap sessions' sends")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def days_kept(self, tenant: str, kind: Expiring) -> int | None:
        """The tenant's own days, or everybody's; None is for ever."""
        own = {name: days for whose, name, days in self.tenant_days if whose == tenant}
        everybody: int | None = getattr(self, f"{kind.removesuffix('s')}_days")
        return own.get(kind, everybody)

    @property
    def database(self) -> str:
        """The address for SQLAlchemy."""
        if self.database_url is None:
            return f"sqlite:///{(self.data_dir / 'asap.db').absolute()}"
        return self.database_url.replace("postgresql://", "postgresql+psycopg://", 1)


def process_environment() -> dict[str, str]:
    """What launchers may pass on to jobs; programs of our own Python environment are found first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path}


@cache
def load_settings() -> Settings:
    """Read once; a wrong value names its variable."""
    try:
        return Settings()
    except UnicodeDecodeError:
        raise InputError(".env", "bytes that are no text", "must be UTF-8") from None
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        secret = name.endswith(("KEY", "SECRET", "PASSWORD", "DATABASE_URL"))
        raise InputError(name, "a secret" if secret else first["input"], first["msg"]) from None


def make_data_folder(folder: Path) -> Path:
    """The same folder, which is then there and can be written."""
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise _refusal(folder, error.strerror or str(error)) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refusal(folder, "Permission denied")
    return folder


def make_data_file(path: Path) -> Path:
    """The same file, which is then there, in its folder, and for this user alone; SQLite's `-wal` and `-shm`
    beside it get its mode."""
    make_data_folder(path.parent)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE))
        if path.stat().st_uid == os.getuid():
            path.chmod(PRIVATE_FILE)  # older versions left it readable
    except OSError as error:
        raise _refusal(path.parent, error.strerror or str(error)) from None
    return path


def _refusal(folder: Path, reason: str) -> InputError:
    return InputError("ASAP_DATA_DIR", str(folder), f"must be a folder that this user may write ({reason})")
