"""What a caller is told when a request does not succeed; the codes are in api/http/errors.py."""

from pydantic import BaseModel


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    field: str
    problem: str


class Problem(BaseModel):
    """Why a request did not succeed (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[Fault] | None = None
    limit: str | None = None
    """With 429: which limit it is."""
