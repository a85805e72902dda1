"""What the values of variables look like, and how each kind of them is read."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

import annotated_types
from pydantic import AfterValidator, BeforeValidator, SecretStr

from imagefleet.jobs.model import Lane


@dataclass(frozen=True, slots=True)
class Form:
    """The expected form of a value, in words; faults and the reference show it."""

    text: str


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return timedelta(seconds=float(value))
    except OverflowError as error:  # inf, or more days than a timedelta holds
        raise ValueError from error


def _names(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


def lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


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


Text = Annotated[str, Form("text")]
Count = Annotated[int, Form("a whole number")]
Switch = Annotated[bool, Form("true or false")]
Seconds = Annotated[timedelta, BeforeValidator(_seconds), Form("seconds")]
Port = Annotated[
    int, annotated_types.Interval(ge=0, le=65535), Form("a port number, from 0 to 65535")
]
WebUrl = Annotated[str, AfterValidator(_web_url), Form("http://host or https://host")]
DatabaseUrl = Annotated[
    SecretStr,
    AfterValidator(_database_url),
    Form("postgresql://user:password@host:port/database"),
]
Names = Annotated[tuple[str, ...], BeforeValidator(_names), Form("names separated by commas")]
Lanes = Annotated[
    tuple[Lane, ...],
    BeforeValidator(_names),
    Form(f"one or more of {', '.join(Lane)}, separated by commas"),
]
