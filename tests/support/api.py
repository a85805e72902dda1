"""A running API, as the fixtures of tests/api hand it out."""

import ssl
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, Protocol, cast
from uuid import UUID, uuid4

import httpx
from fastapi import FastAPI

from imagefleet.api.http.connections import Server
from imagefleet.api.http.documents import DOCUMENTS, describe
from imagefleet.api.http.requests import Observed, Tools
from imagefleet.api.main import create_app
from imagefleet.api.producers.events import Watcher
from imagefleet.api.producers.job_types import names_in_force
from imagefleet.imaging.recipes.files import recipes_in_force
from imagefleet.jobs.images import Caveat, variant_key
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import TenantId
from imagefleet.runtime import Drain
from imagefleet.settings.values import Network
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import ApiKey
from tests.support.factories import settle_job
from tests.support.http import a_jpeg, claimed
from tests.support.image_rows import a_publication, a_variant

PUBLIC = "https://images.example"
MAX_UPLOAD_BYTES = 1_000_000

JPEG = {"Content-Type": "image/jpeg"}

UNUSED: Final = ssl.create_default_context()
"""Nothing here speaks TLS, and a context of its own costs every client 20 ms."""

ACME, RIVAL = TenantId("acme"), TenantId("rival")


@dataclass
class Running:
    """An API process, and clients of it."""

    server: Server
    drain: Drain
    url: str
    secrets: dict[str, str] = field(default_factory=dict)

    def client(self, who: str | None = "acme", **headers: str) -> httpx.AsyncClient:
        """A client that bears the key of this name, or none."""
        if who is not None:
            headers["Authorization"] = f"Bearer {self.secrets[who]}"
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, verify=UNUSED)


class Serve(Protocol):
    """What the fixture `serve` gives: an API with these differences from the usual."""

    def __call__(
        self,
        *,
        database_url: str | None = None,
        aws_url: str | None = None,
        statement_seconds: float = 8,
        upload_seconds: float = 30,
        max_upload_bytes: int = MAX_UPLOAD_BYTES,
        operating: bool = True,
        trusted_proxies: Sequence[Network] = (),
        allowed_origins: Sequence[str] = (),
        originals_kept_days: int = 0,
        recipes: Path | None = None,
        public_base_url: str = PUBLIC,
    ) -> AbstractAsyncContextManager[Running]: ...


def app_of(running: Running) -> FastAPI:
    """The application inside, with what it keeps."""
    outside = running.server._server.config.app
    assert isinstance(outside, Observed)
    assert isinstance(outside.app, FastAPI)
    return outside.app


def of_nobody() -> FastAPI:
    """An application that nobody serves: to be described, it needs few tools."""
    tools = SimpleNamespace(
        operators=object(), turned_for=None, known_kinds=BUILT_IN, recipes=recipes_in_force(None)
    )
    return create_app(cast("Tools", tools), cast("Watcher", None))


def documents_of(app: FastAPI) -> dict[str, dict[str, Any]]:
    """What describes it to producers and to operators, by the addresses of the two."""
    in_force = names_in_force(app.state.tools)
    return {each.address: describe(app, each, in_force) for each in DOCUMENTS}


def described_whole(app: FastAPI) -> tuple[dict[str, Any], dict[str, Any]]:
    """The paths and the schemas of both."""
    documents = documents_of(app).values()
    paths = {path: told for each in documents for path, told in each["paths"].items()}
    schemas = [each["components"]["schemas"] for each in documents]
    return paths, {name: schema for each in schemas for name, schema in each.items()}


def a_key(tenant: str = "acme") -> ApiKey:
    """A key as the API knows it, of which Postgres knows nothing."""
    return ApiKey(
        id=uuid4(),
        tenant_id=TenantId(tenant),
        name="tests",
        scopes=("submit",),
        created_at=None,  # type: ignore[arg-type] # nobody asks
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
    )


@dataclass(frozen=True)
class Route:
    """One route, and the request that it answers with success for its owner."""

    method: str
    path: str
    scope: Literal["submit", "read", "originals", "operate", "none"]
    json: object = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    async def ask(
        self, client: httpx.AsyncClient, job_id: object, image_id: object
    ) -> httpx.Response:
        path = self.path.format(
            job=job_id,
            image=image_id,
            target=f"image:{image_id}",
            letter=job_id,
            invalidation=job_id,
            worker=job_id,
            tenant="acme",
            variant="thumb",
            name="retry.*.max_attempts",
            lane="fast",
            ext="webp",
        )
        return await client.request(
            self.method, path, json=self.json, content=self.content, headers=self.headers
        )


ROUTES = [
    Route("POST", "/v1/jobs", "submit", json={"jobType": "noop"}),
    Route("POST", "/v1/jobs:batch", "submit", json={"jobs": [{"jobType": "noop"}]}),
    Route("GET", "/v1/jobs", "read"),
    Route("GET", "/v1/jobs/{job}", "read"),
    Route("GET", "/v1/jobs/{job}?wait=20", "read"),
    Route("GET", "/v1/jobs/{job}/events", "read"),
    Route("POST", "/v1/jobs/{job}/cancel", "submit"),
    Route("POST", "/v1/images", "submit", content=a_jpeg(), headers=JPEG),
    Route("PUT", "/v1/images/{image}", "submit", content=a_jpeg(), headers=JPEG),
    Route("POST", "/v1/images/{image}/reprocess", "submit"),
    Route("PATCH", "/v1/images/{image}", "submit", json={"focalPoint": {"x": 0.5, "y": 0.5}}),
    Route("GET", "/v1/images", "read"),
    Route("GET", "/v1/images/{image}", "read"),
    Route("GET", "/v1/images/{image}/original", "originals"),
    Route("POST", "/v1/uploads", "submit", json={"contentType": "image/jpeg"}),
    Route("PUT", "/v1/targets/{target}/pause", "submit", json={"reason": "why"}),
    Route("GET", "/v1/targets/{target}", "read"),
    Route("DELETE", "/v1/targets/{target}/pause", "submit"),
    Route("POST", "/v1/targets/{target}/cancel", "submit"),
    Route("DELETE", "/v1/images/{image}", "submit"),
]

# With any key.
ANY_KEYS_ROUTES = [Route("GET", "/v1/recipes", "none"), Route("GET", "/v1/job-types", "none")]

# Without a key.
PUBLIC_ROUTES = [Route("GET", "/i/{image}/current/{variant}.{ext}", "none")]

NOBODY = "0199a5c2-0000-7000-8000-000000000000"
BECAUSE = {"reason": "why"}

OPERATOR_ROUTES = [
    Route("GET", "/v1/operator/jobs", "operate"),
    Route("GET", "/v1/operator/jobs/{job}", "operate"),
    Route("GET", "/v1/operator/jobs/{job}/attempts", "operate"),
    Route("GET", "/v1/operator/jobs/{job}/explain", "operate"),
    Route("POST", "/v1/operator/jobs/{job}/cancel", "operate", json=BECAUSE),
    Route("POST", "/v1/operator/jobs/{job}/fail", "operate", json=BECAUSE),
    Route("POST", "/v1/operator/jobs/{job}/retry-now", "operate"),
    Route("POST", "/v1/operator/jobs:outcomes", "operate", json={"jobIds": [NOBODY]}),
    Route("GET", "/v1/operator/dead-letters", "operate"),
    Route("GET", "/v1/operator/dead-letters/groups", "operate"),
    Route("GET", "/v1/operator/dead-letters/{letter}", "operate"),
    Route(
        "POST",
        "/v1/operator/dead-letters:acknowledge",
        "operate",
        json={"ids": [NOBODY], "note": "why"},
    ),
    Route("POST", "/v1/operator/dead-letters:replay", "operate", json=BECAUSE | {"ids": [NOBODY]}),
    Route(
        "POST",
        "/v1/operator/dead-letters:replay-all",
        "operate",
        json=BECAUSE | {"filter": {}, "dryRun": True},
    ),
    Route("GET", "/v1/operator/images", "operate"),
    Route("GET", "/v1/operator/images/{image}", "operate"),
    Route("POST", "/v1/operator/images/{image}/preview", "operate"),
    Route("GET", "/v1/operator/images/{image}/preview", "operate"),
    Route("POST", "/v1/operator/images/{image}/reprocess", "operate", json=BECAUSE),
    Route(
        "PATCH",
        "/v1/operator/images/{image}",
        "operate",
        json=BECAUSE | {"focalPoint": {"x": 0.5, "y": 0.5}},
    ),
    Route(
        "PUT",
        "/v1/operator/images/{image}?reason=why",
        "operate",
        content=a_jpeg(),
        headers=JPEG,
    ),
    Route("DELETE", "/v1/operator/images/{image}?reason=why", "operate"),
    Route("GET", "/v1/operator/lanes/{lane}/explain", "operate"),
    Route("GET", "/v1/operator/pauses", "operate"),
    Route("PUT", "/v1/operator/pauses", "operate", json=BECAUSE | {"scope": "all"}),
    Route("DELETE", "/v1/operator/pauses?scope=all", "operate"),
    Route("GET", "/v1/operator/queues", "operate"),
    Route("GET", "/v1/operator/rates", "operate"),
    Route("GET", "/v1/operator/costs", "operate"),
    Route("GET", "/v1/operator/ledger", "operate"),
    Route("GET", "/v1/operator/prune", "operate"),
    Route("GET", "/v1/operator/sweep", "operate"),
    Route("GET", "/v1/operator/breakers", "operate"),
    Route("POST", "/v1/operator/breakers/s3/open", "operate"),
    Route("POST", "/v1/operator/breakers/s3/reset", "operate"),
    Route("GET", "/v1/operator/settings", "operate"),
    Route(
        "PUT",
        "/v1/operator/settings/{name}",
        "operate",
        json=BECAUSE | {"value": 7},
    ),
    Route("DELETE", "/v1/operator/settings/{name}?reason=why", "operate"),
    Route("GET", "/v1/operator/edge", "operate"),
    Route(
        "POST", "/v1/operator/edge/invalidations", "operate", json=BECAUSE | {"imageIds": [NOBODY]}
    ),
    Route("GET", "/v1/operator/edge/invalidations/{invalidation}", "operate"),
    Route("GET", "/v1/operator/tenants", "operate"),
    Route("GET", "/v1/operator/tenants/{tenant}", "operate"),
    Route(
        "PUT",
        "/v1/operator/tenants/{tenant}/limits",
        "operate",
        json=BECAUSE | {"limits": {"weight": 1}},
    ),
    Route(
        "POST", "/v1/operator/tenants/{tenant}/cancel", "operate", json=BECAUSE | {"dryRun": True}
    ),
    Route("POST", "/v1/operator/jobs:cancel", "operate", json=BECAUSE | {"dryRun": True}),
    Route("GET", "/v1/operator/workers", "operate"),
    Route("POST", "/v1/operator/workers/{worker}/drain", "operate", json=BECAUSE),
    Route("GET", "/v1/operator/audit", "operate"),
]


async def uploaded(client: httpx.AsyncClient, **params: str) -> dict[str, Any]:
    answer = await client.post("/v1/images", content=a_jpeg(), headers=JPEG, params=params)
    assert answer.status_code == 202, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def published(worker: Connection, accepted: dict[str, Any]) -> None:
    """The job completes, and shows variants of both formats, of which two are one picture."""
    job = await claimed(worker, accepted["jobId"])
    image_id = UUID(accepted["imageId"])
    revision = await worker.fetchval("SELECT target_seq FROM jobs WHERE id = $1", job.job_id)
    variants = [
        a_variant(
            variant_key(image_id, revision, job.claim_no, picture, extension),
            name=name,
            width=width,
            height=width // 2,
            warnings=(Caveat.NOT_ENLARGED,),
        )
        for name, picture, width in (
            ("thumb", "thumb", 200),
            ("small", "small", 640),
            ("large", "small", 640),
        )
        for extension in ("jpg", "webp")
    ]
    publication = a_publication(
        job, image_id, revision, variants, tenant_id=ACME, source_bytes=len(a_jpeg())
    )
    await settle_job(worker, job, Completed(publication=publication))
