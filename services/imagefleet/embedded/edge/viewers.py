"""What a viewer gets of an answer: all of it, a range, its headers alone, or nothing new.

And what every viewer is told beside it, by the distribution's response headers policy.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from imagefleet.embedded.edge.cache import Answer
from imagefleet.errors import Misconfigured

OK: Final = 200
PARTIAL: Final = 206
NOT_MODIFIED: Final = 304
NOT_SATISFIABLE: Final = 416

ONE_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
ABOUT_THE_BODY: Final = frozenset({"Content-Type", "Accept-Ranges"})

# AWS's managed policies, by the ids that are the same in every account. Strict-Transport-Security,
# which this one has too, is not for an edge without TLS.
MANAGED_HEADERS: Final[Mapping[str, Mapping[str, str]]] = {
    "67f7725c-6f97-4210-82d7-5512b31e9d03": {  # SecurityHeadersPolicy
        "Referrer-Policy": "strict-origin-when-cross-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "SAMEORIGIN",
        "X-XSS-Protection": "1; mode=block",
    }
}


def headers_of(policy_id: str) -> Mapping[str, str]:
    """What this policy adds to every answer, errors included."""
    if policy_id not in MANAGED_HEADERS:
        detail = f"the embedded edge does not know the response headers policy {policy_id}"
        raise Misconfigured(detail)
    return MANAGED_HEADERS[policy_id]


def answered(answer: Answer, asked: Mapping[str, str]) -> Answer:
    """Answer conditions and ranges from the whole; `asked` are the viewer's headers."""
    if answer.status != OK:
        return answer
    if _is_known(answer, asked):
        told = {n: v for n, v in answer.headers.items() if n not in ABOUT_THE_BODY}
        return Answer(NOT_MODIFIED, told)
    wanted = ONE_RANGE.fullmatch(asked.get("Range", ""))  # several at once: all of it, as allowed
    if wanted is None or wanted[0] == "bytes=-" or not _is_the_same(answer, asked):
        return answer
    return _part(answer, wanted[1], wanted[2])


def _part(answer: Answer, first: str, last: str) -> Answer:
    size = len(answer.body)
    begin = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if first and last and int(last) < begin:
        return answer  # no range at all
    if begin >= size or (not first and int(last) == 0):
        told = {n: v for n, v in answer.headers.items() if n not in ABOUT_THE_BODY}
        return Answer(NOT_SATISFIABLE, {**told, "Content-Range": f"bytes */{size}"})
    told = {**answer.headers, "Content-Range": f"bytes {begin}-{end}/{size}"}
    return Answer(PARTIAL, told, answer.body[begin : end + 1])


def _is_known(answer: Answer, asked: Mapping[str, str]) -> bool:
    """Whether the viewer has this very answer; tags count before times."""
    etag = answer.headers.get("ETag")
    if "If-None-Match" in asked:
        listed = {_weak(one.strip()) for one in asked["If-None-Match"].split(",")}
        return "*" in listed or (etag is not None and _weak(etag) in listed)
    changed, since = answer.headers.get("Last-Modified"), asked.get("If-Modified-Since")
    if changed is None or since is None:
        return False
    left, right = _time(changed), _time(since)
    return left is not None and right is not None and left <= right


def _is_the_same(answer: Answer, asked: Mapping[str, str]) -> bool:
    """Whether a range continues what the viewer has; else it needs all of it."""
    if "If-Range" not in asked:
        return True
    return asked["If-Range"] in {answer.headers.get("ETag"), answer.headers.get("Last-Modified")}


def _weak(etag: str) -> str:
    return etag.removeprefix("W/")


def _time(date: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(date)
    except (ValueError, TypeError):
        return None
    return found if found.tzinfo else None
