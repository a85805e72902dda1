"""What the values of variables look like, and how each kind of them is read."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

import annotated_types
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
)

from imagefleet.jobs.model import Lane

Network: TypeAlias = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Form:
    """The expected form of a value, in words; faults and the reference show it."""

    text: str


def read_as(reading: Callable[[str], object]) -> BeforeValidator:
    """Read what a variable has as this; what was made by a program is taken as it is."""
    return BeforeValidator(lambda value: reading(value) if isinstance(value, str) else value)


def _seconds(value: str) -> timedelta:
    try:
        return timedelta(seconds=float(value))
    except OverflowError as error:  # inf, or more days than a timedelta holds
        raise ValueError from error


def _listed(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _names(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_listed(value)))


def _networks(value: str) -> tuple[Network, ...]:
    return tuple(ip_network(network) for network in _listed(value))


def _origins(value: str) -> tuple[str, ...]:
    origins = _names(value)
    for origin in origins:
        parts = urlsplit(origin)
        # Only as a browser writes it would it ever be the same.
        written = f"{parts.scheme}://{parts.netloc}".lower()
        is_web = (
            parts.scheme in {"http", "https"} and parts.hostname and not set(origin) & set("@*")
        )
        if origin != "*" and (not is_web or origin != written):
            raise ValueError
    return origins


def _web_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError
    return value.rstrip("/")


def _database_url(value: SecretStr) -> SecretStr:
    parts = urlsplit(value.get_secret_value())
    if parts.scheme not in {"postgresql", "postgres"} or not parts.path.strip("/"):
        raise ValueError
    return value


class BreakerNumbers(BaseModel):
    """The limits of one service, as they are written; what is left out is as for all others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    failures: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    window_seconds: Annotated[float, Field(ge=1, le=3600)] | None = None
    open_seconds: Annotated[float, Field(ge=1, le=86_400)] | None = None


Text = Annotated[str, Form("text")]
File = Annotated[Path, Form("the path of a file")]
Count = Annotated[int, Form("a whole number")]
Switch = Annotated[bool, Form("true or false")]
Seconds = Annotated[timedelta, read_as(_seconds), Form("seconds")]
Port = Annotated[
    int, annotated_types.Interval(ge=0, le=65535), Form("a port number, from 0 to 65535")
]
WebUrl = Annotated[str, AfterValidator(_web_url), Form("http://host or https://host")]
DatabaseUrl = Annotated[
    SecretStr,
    AfterValidator(_database_url),
    Form("postgresql://user:password@host:port/database"),
]
Pooler = Annotated[
    Literal["none", "pgbouncer", "pgbouncer-prepared"],
    read_as(str.lower),
    Form("none, pgbouncer or pgbouncer-prepared"),
]
Names = Annotated[tuple[str, ...], read_as(_names), Form("names separated by commas")]
Networks = Annotated[
    tuple[Network, ...],
    read_as(_networks),
    Form("networks such as 10.0.0.0/8, separated by commas"),
]
Origins = Annotated[
    tuple[str, ...],
    read_as(_origins),
    Form("origins such as https://app.example.com, separated by commas, or *"),
]
Lanes = Annotated[
    tuple[Lane, ...],
    read_as(_names),
    Form(f"one or more of {', '.join(Lane)}, separated by commas"),
]
KeysByName = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=255)], SecretStr],
    read_as(json.loads),
    Form('JSON such as {"alice@example.com": "if_..."}'),
]
Breakers = Annotated[
    dict[Annotated[str, StringConstraints(min_length=1, max_length=63)], BreakerNumbers],
    read_as(json.loads),  # its fault is a ValueError
    Form('JSON such as {"s3": {"failures": 20, "ratio": 0.5}}'),
]
