"""Where the console ends: its own origin, its proxies, its cookie, and what a page may load."""

from contextlib import suppress
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request

from imagefleet.settings import Console

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"


def cookie_name(settings: Console) -> str:
    """With its prefix a browser takes it over https alone, and for this host and path."""
    return "__Host-imagefleet-console" if is_secure(settings) else "imagefleet-console"


def is_secure(settings: Console) -> bool:
    """Whether browsers reach the console over https."""
    return settings.origin is not None and settings.origin.startswith("https:")


def origin_of(settings: Console, headers: Headers) -> str:
    """Where a browser has our pages from."""
    if settings.origin is None:
        return f"http://{headers.get('host', '')}"
    parts = urlsplit(settings.origin)
    return f"{parts.scheme}://{parts.netloc}".lower()


def is_trusted(settings: Console, request: Request) -> bool:
    """Whether a proxy of ours is at the other end."""
    if request.client is None or not settings.trusted_proxies:
        return False
    address = ip_address(request.client.host)
    return any(address in network for network in settings.trusted_proxies)


def address_of(settings: Console, request: Request) -> str:
    """Where somebody asks from, as far as proxies of ours tell."""
    told = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    if told and is_trusted(settings, request):
        with suppress(ValueError):
            return str(ip_address(told))
    return request.client.host if request.client else ""


def local(path: str) -> str:
    """A path of ours to go on to, whatever somebody made of it."""
    ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if ours and not path.startswith((LOGIN, LOGOUT)) else "/"


def policy(pictures: str | None) -> str:
    parts = urlsplit(pictures or "")
    from_there = f" {parts.scheme}://{parts.netloc}" if pictures else ""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        f"img-src 'self' data:{from_there}; "  # data: placeholders, which are drawn here
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
