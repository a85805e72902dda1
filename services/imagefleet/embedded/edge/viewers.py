"""What a viewer gets of an answer: all of it, a range, its headers alone, or nothing new."""

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

from imagefleet.embedded.edge.cache import Answer

OK: Final = 200
PARTIAL: Final = 206
NOT_MODIFIED: Final = 304
NOT_SATISFIABLE: Final = 416

ONE_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
ABOUT_THE_BODY: Final = frozenset({"Content-Type", "Accept-Ranges"})


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
