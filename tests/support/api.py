"""A running API, as the fixtures of tests/api hand it out."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

import httpx
from fastapi import FastAPI

from imagefleet.api.observing import Observed
from imagefleet.api.server import Server
from imagefleet.jobs.model import TenantId
from imagefleet.runtime import Drain

PUBLIC = "https://images.example"
MAX_UPLOAD_BYTES = 1_000_000

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
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)


class Serve(Protocol):
    """What the fixture `serve` gives: an API with these differences from the usual."""

    def __call__(
        self,
        *,
        database_url: str | None = None,
        aws_url: str | None = None,
        upload_seconds: float = 30,
        max_upload_bytes: int = MAX_UPLOAD_BYTES,
    ) -> AbstractAsyncContextManager[Running]: ...


def app_of(running: Running) -> FastAPI:
    """The application inside, with what it keeps."""
    outside = running.server._server.config.app
    assert isinstance(outside, Observed)
    assert isinstance(outside._app, FastAPI)
    return outside._app
