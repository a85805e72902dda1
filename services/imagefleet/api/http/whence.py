"""Where a request came from, for the audit and for lines about refused keys.

The peer of the connection: whatever a header says, anybody may say. Only where the peer is one of
our own proxies is its header believed, and of that the end which our proxies wrote.
"""

import ipaddress
from collections.abc import Iterable

from fastapi import Request

from imagefleet.settings.values import Network


def whence(request: Request, trusted: Iterable[Network]) -> str | None:
    """The address nearest to us that is not one of our proxies; None where nobody knows."""
    peer = None if request.client is None else request.client.host
    networks = tuple(trusted)
    if peer is None or not _is_in(peer, networks):
        return peer
    said = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
    for one in reversed([one.strip() for one in said]):
        address = _address(one)
        if address is None:  # what our proxies did not write: nothing beyond it is believed
            break
        peer = str(address)
        if not _is_in(peer, networks):
            break
    return peer


def _is_in(host: str, networks: Iterable[Network]) -> bool:
    address = _address(host)
    return address is not None and any(address in network for network in networks)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)  # how a socket of both families shows IPv4
    return address if mapped is None else mapped
