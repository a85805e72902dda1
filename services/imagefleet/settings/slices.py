"""The variables themselves: one class a concern, the line under each field is its description.

No name is a process's name with `_PORT` or `_HOST` behind it: Kubernetes sets such variables for a
Service of that name.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final, Literal, Self

from pydantic import AliasChoices, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from imagefleet.jobs.model import Lane
from imagefleet.jobs.policies import (
    LONGEST_CAP,
    MOST_ATTEMPTS,
    RetryPolicy,
)
from imagefleet.settings.values import (
    Breakers,
    Count,
    DatabaseUrl,
    File,
    Form,
    KeysByName,
    Lanes,
    Names,
    Networks,
    Origins,
    Pooler,
    Port,
    Seconds,
    Switch,
    Text,
    WebUrl,
    read_as,
)


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def _seconds(default: float, least: float, most: float, variable: str) -> timedelta:
    """A span within these bounds, which are seconds like the variable."""
    bounded: timedelta = Field(
        _span(default), ge=_span(least), le=_span(most), validation_alias=variable
    )
    return bounded


Password = Annotated[SecretStr, Form("printable ASCII characters")]


class Slice(BaseSettings):
    """Some variables that belong together, made by `load` or, in tests, from arguments."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,  # the line under a field is its description
        validate_by_name=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take arguments alone: a slice made in a test must not pick up the tester's shell."""
        return (init_settings,)


_DAYS_OF_ORIGINALS: Count = Field(0, ge=0, le=36_500, validation_alias="ORIGINALS_KEPT_DAYS")


# Of a worker one claims while another settles; whoever asks does so for a moment, and holds no
# other meanwhile.
POOLED: Final[Mapping[str, int]] = {"api": 10, "worker": 2, "maintenance": 10}


class Database(Slice):
    """Postgres, under the role of this process."""

    url: DatabaseUrl = Field(validation_alias="DATABASE_URL")
    """Where Postgres is, and the role of this process there; every process has its own."""
    pooler: Pooler = Field("none", validation_alias="DATABASE_POOLER")
    """What is behind that address: Postgres itself (none), or PgBouncer in transaction mode, where
    no statement stays prepared (pgbouncer) or, from its 1.21 on, each does (pgbouncer-prepared)."""
    pool_min: Count = Field(1, ge=0, le=100, validation_alias="DATABASE_POOL_MIN")
    """Connections that are kept open."""
    pool_max: Count | None = Field(None, ge=1, le=500, validation_alias="DATABASE_POOL_MAX")
    """The most connections this process opens: 10; of a worker 2, beside that of its beat."""
    connect_timeout: Seconds = _seconds(5, 0.1, 60, "DATABASE_CONNECT_TIMEOUT_SECONDS")
    """How long opening a connection may take."""
    statement_timeout: Seconds = _seconds(8, 0.1, 600, "DATABASE_STATEMENT_TIMEOUT_SECONDS")
    """When Postgres ends a statement; after 2 s more of silence the connection is given up.
    What operators ask by an API is ended after 5 s at the latest."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.pool_max is not None and self.pool_min > self.pool_max:
            msg = "DATABASE_POOL_MIN is larger than DATABASE_POOL_MAX"
            raise ValueError(msg)
        return self

    def pool_of(self, process: str) -> int:
        """Return how many connections one pool of such a process has at most."""
        return self.pool_max or max(POOLED[process], self.pool_min)


class Aws(Slice):
    """SQS, S3 and CloudFront. Credentials are found by the AWS SDK in its own ways."""

    region: Text = Field(validation_alias=AliasChoices("AWS_REGION", "AWS_DEFAULT_REGION"))
    """The region of queues and buckets."""
    endpoint_url: WebUrl | None = Field(None, validation_alias="AWS_ENDPOINT_URL")
    """Where AWS is, if it is an emulator."""
    endpoint_url_sqs: WebUrl | None = Field(None, validation_alias="AWS_ENDPOINT_URL_SQS")
    """The same for SQS alone."""
    endpoint_url_s3: WebUrl | None = Field(None, validation_alias="AWS_ENDPOINT_URL_S3")
    """The same for S3 alone."""
    endpoint_url_cloudfront: WebUrl | None = Field(
        None, validation_alias="AWS_ENDPOINT_URL_CLOUDFRONT"
    )
    """The same for CloudFront alone."""
    fast_queue_url: WebUrl = Field(validation_alias="FAST_QUEUE_URL")
    """The queue of the lane `fast`."""
    general_queue_url: WebUrl = Field(validation_alias="GENERAL_QUEUE_URL")
    """The queue of the lane `general`."""
    quarantine_queue_url: WebUrl = Field(validation_alias="QUARANTINE_QUEUE_URL")
    """The queue of the lane `quarantine`, for jobs that crashed twice."""
    dead_letter_queue_url: WebUrl = Field(validation_alias="DEAD_LETTER_QUEUE_URL")
    """The queue that failed jobs are announced on."""
    originals_bucket: Text = Field(validation_alias="ORIGINALS_BUCKET")
    """The bucket of uploaded files; private."""
    outputs_bucket: Text = Field(validation_alias="OUTPUTS_BUCKET")
    """The bucket of made images, which the edge reads."""
    distribution_id: Text | None = Field(None, validation_alias="CLOUDFRONT_DISTRIBUTION_ID")
    """The distribution to invalidate; unset where there is no edge."""
    invalidate_by_tag: Switch = Field(default=False, validation_alias="CLOUDFRONT_CACHE_TAGS")
    """Whether the distribution has a cache tag; else one path an image is invalidated."""
    monthly_paths: Count = Field(
        1000, ge=1, le=1_000_000_000, validation_alias="CLOUDFRONT_MONTHLY_PATHS"
    )
    """How many paths a month are expected: beyond it maintenance warns, and goes on."""
    connect_timeout: Seconds = _seconds(3, 0.1, 60, "AWS_CONNECT_TIMEOUT_SECONDS")
    """How long opening a connection to AWS may take."""
    read_timeout: Seconds = _seconds(10, 0.1, 300, "AWS_READ_TIMEOUT_SECONDS")
    """How long AWS may stay silent within a call; long polls have their own, longer one."""
    max_connections: Count = Field(50, ge=1, le=1000, validation_alias="AWS_MAX_CONNECTIONS")
    """The most connections to one service."""

    def endpoint(self, service: Literal["sqs", "s3", "cloudfront"]) -> str | None:
        """Return where this service is; None is AWS itself."""
        own = {
            "sqs": self.endpoint_url_sqs,
            "s3": self.endpoint_url_s3,
            "cloudfront": self.endpoint_url_cloudfront,
        }
        return own[service] or self.endpoint_url

    def queue_url(self, lane: Lane) -> str:
        """Return the queue of this lane."""
        return {
            Lane.FAST: self.fast_queue_url,
            Lane.GENERAL: self.general_queue_url,
            Lane.QUARANTINE: self.quarantine_queue_url,
        }[lane]


class Api(Slice):
    """The HTTP interface."""

    host: Text = Field("127.0.0.1", validation_alias="LISTEN_HOST")
    """The address to listen on; 0.0.0.0 in a container."""
    port: Port = Field(8080, validation_alias="LISTEN_PORT")
    """The port to listen on; 0 takes any free one."""
    public_base_url: WebUrl = Field(validation_alias="PUBLIC_BASE_URL")
    """The host of every published image address: the edge, or the API itself without one."""
    upload_timeout: Seconds = _seconds(300, 1, 3600, "UPLOAD_TIMEOUT_SECONDS")
    """How long one upload may take."""
    upload_least_rate: Count = Field(
        2048, ge=0, le=2**20, validation_alias="UPLOAD_LEAST_BYTES_PER_SECOND"
    )
    """How slow an upload may be: one that falls ten seconds behind this ends. 0 turns it off. The
    slowest phones send four thousand bytes a second, and less would not end within the timeout."""
    trusted_proxies: Networks = Field((), validation_alias="TRUSTED_PROXIES")
    """Where our own proxies are: from there, `X-Forwarded-For` says where a request came from."""
    allowed_origins: Origins = Field((), validation_alias="CORS_ALLOWED_ORIGINS")
    """The origins whose pages may speak to the API with a key (CORS); unset is none, `*` is any.
    Published images are for every page, whatever this says."""
    originals_kept_days: Count = _DAYS_OF_ORIGINALS
    """The same as maintenance has, which says what it means: images tell of it."""
    operator_database_url: DatabaseUrl | None = Field(
        None, validation_alias="OPERATOR_DATABASE_URL"
    )
    """Postgres under the operator's role; without it the operator's routes are not served."""
    shutdown_grace: Seconds = _seconds(30, 0, 3600, "SHUTDOWN_GRACE_PERIOD_SECONDS")
    """How long requests may finish after SIGTERM."""


class Pictures(Slice):
    """What one picture may cost. API and workers should have the same."""

    max_bytes: Count = Field(50 * 2**20, ge=1024, le=5 * 2**30, validation_alias="MAX_UPLOAD_BYTES")
    """The largest upload that is taken, and the largest file that is read."""
    max_jpeg_pixels: Count = Field(110_000_000, ge=1, le=2**32, validation_alias="MAX_JPEG_PIXELS")
    """The most pixels of a JPEG, which is decoded at the size that is wanted."""
    max_pixels: Count = Field(2**26, ge=1, le=2**31, validation_alias="MAX_PIXELS")
    """The most pixels of any other picture."""


class Console(Slice):
    """The operators' web pages. Who logs in there acts by the API, with a key of their own."""

    host: Text = Field("127.0.0.1", validation_alias="LISTEN_HOST")
    """The address to listen on; 0.0.0.0 in a container."""
    port: Port = Field(8081, validation_alias="LISTEN_PORT")
    """The port to listen on; 0 takes any free one."""
    api_url: WebUrl = Field("http://127.0.0.1:8080", validation_alias="IMAGEFLEET_URL")
    """Where the API is, which is asked for everything."""
    origin: WebUrl | None = Field(None, validation_alias="CONSOLE_ORIGIN")
    """How a browser writes where the console is, such as https://console.example.com: nothing is
    changed from another origin. Unset, that is http and the host that a request names."""
    public_base_url: WebUrl | None = Field(None, validation_alias="PUBLIC_BASE_URL")
    """The host of published images, as the API has it; unset, pages show no pictures from there."""
    read_only: Switch = Field(default=False, validation_alias="CONSOLE_READ_ONLY")
    """Whether nobody changes anything here, whatever their key may."""
    idle: Seconds = _seconds(1800, 60, 86_400, "CONSOLE_IDLE_SECONDS")
    """How long a session may be left alone before it is over."""
    session: Seconds = _seconds(43_200, 60, 604_800, "CONSOLE_SESSION_SECONDS")
    """How long a session lasts at most."""
    trusted_proxies: Networks = Field((), validation_alias="TRUSTED_PROXIES")
    """Where our own proxies are: from there, `X-Forwarded-For` says where somebody logs in from,
    and CONSOLE_PROXY_HEADER who it is."""
    proxy_header: Text | None = Field(None, validation_alias="CONSOLE_PROXY_HEADER")
    """The header in which such a proxy names whom it let in, as X-Forwarded-User; unset, everybody
    logs in with a key."""
    proxy_keys: KeysByName = Field({}, validation_alias="CONSOLE_PROXY_KEYS")
    """The key that each of them acts with, by the name that the header has."""
    shutdown_grace: Seconds = _seconds(5, 0, 3600, "SHUTDOWN_GRACE_PERIOD_SECONDS")
    """How long requests may finish after SIGTERM."""


class Worker(Slice):
    """What one worker process takes on."""

    fast_slots: Count = Field(16, ge=0, le=100, validation_alias="WORKER_FAST_SLOTS")
    """Jobs at once that only the lane `fast` may use."""
    general_slots: Count = Field(16, ge=0, le=100, validation_alias="WORKER_GENERAL_SLOTS")
    """Jobs at once of the lane `general`, or of `fast` while `general` is empty."""
    lanes: Lanes = Field(tuple(Lane), min_length=1, validation_alias="WORKER_LANES")
    """The lanes this worker listens to."""
    job_types: Names = Field((), validation_alias="WORKER_JOB_TYPES")
    """The job types this worker takes; unset is all it knows."""
    shutdown_grace: Seconds = _seconds(300, 0, 7200, "SHUTDOWN_GRACE_PERIOD_SECONDS")
    """How long running jobs may finish after SIGTERM before they are given back."""
    receive_wait: Seconds = _seconds(20, 1, 20, "RECEIVE_WAIT_SECONDS")
    """How long a receive waits for a message; SQS allows 20, and bills every one."""
    breakers: Breakers = Field({}, validation_alias="BREAKERS")
    """When a service that jobs need counts as down: `failures` (at least; 5) that are a `ratio`
    (0.5) of its calls in `window_seconds` (30) open its breaker for `open_seconds` (60). `*` is
    every service that is not named."""
    render_children: Count = Field(2, ge=1, le=64, validation_alias="RENDER_CHILDREN")
    """Images decoded at once; one or two a processor core. One more is claimed."""
    render_memory: Count | None = Field(
        None, ge=128 * 2**20, le=2**50, validation_alias="RENDER_MEMORY_BYTES"
    )
    """What these may take together: a picture begins when there is room for what its head tells.
    Unset, the container's limit less 256 MiB; without one, 512 MiB a child and as much again."""

    @model_validator(mode="after")
    def _has_slots(self) -> Self:
        if self.fast_slots + self.general_slots == 0:
            msg = "WORKER_FAST_SLOTS and WORKER_GENERAL_SLOTS are both 0: nothing could ever run"
            raise ValueError(msg)
        return self


class Recipes(Slice):
    """Which variants are made: of the API, the workers, and `imagefleet recipes`."""

    file: File | None = Field(None, validation_alias="RECIPES_FILE")
    """The recipes, as TOML or JSON (docs/recipes.md); unset, those that are shipped."""


class Retry(Slice):
    """The backoff of every job type that brings no policy of its own."""

    base: Seconds = Field(
        _span(30), gt=_span(0), le=LONGEST_CAP, validation_alias="BACKOFF_BASE_SECONDS"
    )
    """The wait after the first failure; it doubles with each further one."""
    cap: Seconds = Field(
        _span(3600), gt=_span(0), le=LONGEST_CAP, validation_alias="BACKOFF_CAP_SECONDS"
    )
    """The longest wait, up to a fifth of jitter apart."""
    max_attempts: Count = Field(5, ge=1, le=MOST_ATTEMPTS, validation_alias="MAX_ATTEMPTS")
    """How often a job may run, the first time included."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.base > self.cap:
            msg = "BACKOFF_BASE_SECONDS is larger than BACKOFF_CAP_SECONDS"
            raise ValueError(msg)
        return self

    def policy(self) -> RetryPolicy:
        """Return these numbers as the policy that `decide` takes."""
        return RetryPolicy(base=self.base, cap=self.cap, max_attempts=self.max_attempts)


class Maintenance(Slice):
    """The process that rings again, rescues, flushes, sweeps and prunes."""

    rescue_after: Seconds = _seconds(30, 0, 600, "RESCUE_AFTER")
    """How long a worker may be silent before its jobs are rescued, in seconds; 0 turns it off."""
    dispatch_interval: Seconds = _seconds(0.5, 0.1, 60, "DISPATCH_INTERVAL_SECONDS")
    """How often a lane is looked at in which nothing waits; five times a second where something
    does. Over 1 s, who submits leaves ringing to the next look."""
    dispatch_batch: Count = Field(1000, ge=1, le=5000, validation_alias="DISPATCH_BATCH")
    """The most jobs of a lane rung in one look."""
    sample_interval: Seconds = _seconds(10, 1, 300, "SAMPLE_INTERVAL_SECONDS")
    """How often gauges are read from Postgres and SQS."""
    sweep_grace: Seconds = _seconds(86_400, 0, 864_000, "SWEEP_GRACE_SECONDS")
    """How long a superseded version is kept after the edge has forgotten it; a day is how long
    caches between the edge and a viewer may keep the way to it."""
    originals_kept_days: Count = _DAYS_OF_ORIGINALS
    """How many days an original is kept after it was accepted; 0 is for as long as its image.
    Without it nothing of the image is rendered again, and what is shown stays."""
    sweep_deletes: Switch = Field(default=True, validation_alias="SWEEP_DELETES")
    """Whether what is swept is deleted from S3; off, it is only counted. Turn it off
    before maintenance meets a Postgres that was restored from a backup."""


class Telemetry(Slice):
    """Logs, metrics, health and traces."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        read_as(str.lower),
        Form("debug, info, warning or error"),
    ] = Field("info", validation_alias="LOG_LEVEL")
    """The least important lines that are written."""
    log_format: Annotated[
        Literal["json", "console"], read_as(str.lower), Form("json or console")
    ] = Field("json", validation_alias="LOG_FORMAT")
    """One JSON object a line, or lines for a person at a terminal."""
    health_host: Text = Field("127.0.0.1", validation_alias="HEALTH_LISTEN_HOST")
    """The address of /healthz, /readyz and /metrics; 0.0.0.0 in a container."""
    health_port: Port = Field(9090, validation_alias="HEALTH_LISTEN_PORT")
    """The port of /healthz, /readyz and /metrics; 0 takes any free one."""
    otlp_endpoint: WebUrl | None = Field(None, validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    """Where traces go; unset is no tracing. The exporter reads its other OTEL_ variables itself."""


class Client(Slice):
    """What the command line's verbs need to speak to the API."""

    url: WebUrl = Field("http://127.0.0.1:8080", validation_alias="IMAGEFLEET_URL")
    """Where the API is."""
    key: Annotated[SecretStr, Form("an API key")] = Field(validation_alias="IMAGEFLEET_KEY")
    """The API key; it says who acts."""


class Person(Slice):
    """Who uses the verbs that speak to the database themselves: `keys`, `migrate --roles`."""

    name: Text | None = Field(None, validation_alias="IMAGEFLEET_ACTOR")
    """Who acts, as the audit tells it; if it is not set, the user of this machine."""


class Roles(Slice):
    """The login roles of Postgres, while they are made."""

    admin_url: DatabaseUrl = Field(validation_alias="ADMIN_DATABASE_URL")
    """Postgres as somebody who may create roles and databases."""
    owner: Password = Field(validation_alias="OWNER_DATABASE_PASSWORD")
    """Of imagefleet_owner, which owns the schema and only migrates."""
    api: Password = Field(validation_alias="API_DATABASE_PASSWORD")
    """Of imagefleet_api."""
    worker: Password = Field(validation_alias="WORKER_DATABASE_PASSWORD")
    """Of imagefleet_worker."""
    maintenance: Password = Field(validation_alias="MAINTENANCE_DATABASE_PASSWORD")
    """Of imagefleet_maintenance."""
    operator: Password = Field(validation_alias="OPERATOR_DATABASE_PASSWORD")
    """Of imagefleet_operator."""
    admin: Password = Field(validation_alias="ADMIN_DATABASE_PASSWORD")
    """Of imagefleet_admin, which makes tenants and keys, and nothing else."""
    scaler: Password = Field(validation_alias="SCALER_DATABASE_PASSWORD")
    """Of imagefleet_scaler, which asks how much work there is, and nothing else."""

    def passwords(self) -> dict[str, str]:
        """Return them by the role's full name."""
        return {
            f"imagefleet_{name}": secret.get_secret_value()
            for name, secret in self
            if name != "admin_url"
        }
