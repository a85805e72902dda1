"""What the embedded edge keeps, for how long, and what it forgets: no clock but the test's own."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefleet.embedded.edge.cache import OVERHEAD, TAG_HEADER, Cache, EdgeAnswer, Kept, names
from imagefleet.embedded.edge.origins import MANAGED, Policy, seconds_kept
from imagefleet.embedded.edge.server import answered
from imagefleet.embedded.topology import described

SERVED = MANAGED[described().edge.served_cache_policy]
POINTERS = MANAGED[described().edge.pointers_cache_policy]
A_DAY, A_YEAR = 86_400, 31_536_000


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> Cache:
    cache = Cache(clock=clock)
    cache.open()
    return cache


def a_redirect(to: str = "/old", **headers: str) -> EdgeAnswer:
    return EdgeAnswer(302, {"Location": to, **headers})


def keep(
    cache: Cache, path: str, answer: EdgeAnswer | None = None, seconds: float = 60
) -> Kept | None:
    fill = cache.begin(path)
    kept = cache.keep(fill, answer or a_redirect(), seconds)
    cache.end(fill)
    return kept


# For how long.


@pytest.mark.parametrize(
    ("cache_control", "served", "pointers"),
    [
        ("public, max-age=31536000, immutable", A_YEAR, A_YEAR),
        ("public, max-age=5, s-maxage=86400", A_DAY, A_DAY),
        ("s-maxage=0, max-age=100", 1, 0),
        ("max-age=99999999999", A_YEAR, A_YEAR),
        ("max-age=-1", 1, 0),
        ("max-age=soon", 1, 0),
        ('MAX-AGE="7"', 7, 7),
        ("no-store", 1, 0),
        ("private, max-age=100", 1, 0),
        ("no-cache", 1, 0),
        ("", A_DAY, 0),
        ("public", A_DAY, 0),
    ],
)
def test_answers_are_kept_as_they_say_within_the_policy(
    cache_control: str, served: float, pointers: float
) -> None:
    headers = {"Cache-Control": cache_control}

    for status in (200, 301, 302):
        assert served == seconds_kept(status, headers, SERVED)
        assert pointers == seconds_kept(status, headers, POINTERS)


@pytest.mark.parametrize(
    ("expires", "seconds"),
    [
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 1),
        ("0", 1),
        ("Thu, 01 Jan 2026 00:01:00", 1),
    ],
)
def test_without_a_max_age_the_time_of_expiry_counts(expires: str, seconds: float) -> None:
    headers = {"Date": "Thu, 01 Jan 2026 00:00:00 GMT", "Expires": expires}

    assert seconds == seconds_kept(200, headers, SERVED)


@pytest.mark.parametrize(
    ("status", "cache_control", "seconds"),
    [
        (404, "", 10),
        (404, "no-store", 0),
        (410, "private", 0),
        (404, "max-age=60", 60),
        (404, "max-age=2", 10),
        (403, "", 0),
        (403, "max-age=60", 60),
        (503, "", 10),
        (503, "no-store", 10),
        (502, "", 10),
        (416, "max-age=60", 0),
        (206, "max-age=60", 0),
    ],
)
def test_errors_are_kept_as_cloudfront_keeps_them(
    status: int, cache_control: str, seconds: float
) -> None:
    assert seconds == seconds_kept(status, {"Cache-Control": cache_control}, POINTERS)


@given(
    st.sampled_from([200, 302, 404, 503]),
    st.text(st.sampled_from('max-age=s ,0123456789no-storeprivate"'), max_size=60),
    st.text(max_size=30),
)
def test_no_header_keeps_anything_beyond_the_policy(status: int, said: str, expires: str) -> None:
    policy = Policy(minimum=1, default=5, maximum=100)
    seconds = seconds_kept(status, {"Cache-Control": said, "Expires": expires}, policy)

    if status < 400:
        assert 1 <= seconds <= 100
    else:
        assert seconds >= 0


# Keeping and ageing.


def test_it_grows_older_and_then_stale(cache: Cache, clock: Clock) -> None:
    kept = keep(cache, "/i/1/current/a", seconds=60)
    assert kept is not None

    clock.now += 59.5
    assert cache.is_fresh(kept)
    assert 59 == cache.age(kept)
    clock.now += 0.5
    assert not cache.is_fresh(kept)
    assert cache.find("/i/1/current/a") is kept  # it may still be confirmed


def test_what_is_confirmed_is_new_again_and_what_nobody_answers_for_is_not(
    cache: Cache, clock: Clock
) -> None:
    kept = keep(cache, "/i/1/1.1/a")
    assert kept is not None
    clock.now += 70

    fill = cache.begin("/i/1/1.1/a")
    assert cache.extend(fill, kept, 10, confirmed=False)
    assert (cache.is_fresh(kept), cache.age(kept)) == (True, 70)
    assert cache.extend(fill, kept, 60, confirmed=True)
    assert (cache.is_fresh(kept), cache.age(kept)) == (True, 0)


def test_nothing_is_kept_before_anybody_listens_for_invalidations(clock: Clock) -> None:
    cache = Cache(clock=clock)
    early = cache.begin("/i/1/current/a")
    cache.open()

    assert cache.keep(early, a_redirect(), 60) is None
    assert keep(cache, "/i/1/current/a") is not None


def test_what_may_not_be_kept_takes_the_place_of_nothing_but_ends_the_old(cache: Cache) -> None:
    keep(cache, "/i/1/current/a")

    assert keep(cache, "/i/1/current/a", EdgeAnswer(404, {}), seconds=0) is None
    assert cache.find("/i/1/current/a") is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3000)), max_size=60))
def test_it_stays_within_its_bounds_whatever_it_is_given(given_: list[tuple[int, int]]) -> None:
    most_bytes = 3 * (OVERHEAD + 1000)
    cache = Cache(clock=Clock(), most_bytes=most_bytes, most_entries=4)
    cache.open()

    for number, size in given_:
        keep(cache, f"/{number}", EdgeAnswer(200, {}, bytes(size)))

        assert cache.bytes <= most_bytes
        assert len(cache) <= 4
        held = [cache.find(f"/{n}") for n in range(10)]
        assert cache.bytes == sum(kept.bytes for kept in held if kept is not None)


def test_what_nobody_asked_for_for_longest_goes_first(clock: Clock) -> None:
    cache = Cache(clock=clock, most_entries=2)
    cache.open()
    for path in ("/a", "/b"):
        keep(cache, path)

    cache.find("/a")
    keep(cache, "/c")

    assert [path for path in ("/a", "/b", "/c") if cache.find(path)] == ["/a", "/c"]


# Forgetting.

PATHS = ("/i/1/1.1/a", "/i/1/current/a", "/i/10/current/a", "/i/2/current/a")


@pytest.mark.parametrize(
    ("items", "left"),
    [
        (["/i/1/*"], [2, 3]),
        (["/i/1*"], [3]),
        (["i/1/*"], [2, 3]),
        (["/i/1/current/a"], [0, 2, 3]),
        (["/i/1/current/a", "/i/2/*"], [0, 2]),
        (["/*"], []),
        (["/i/*/current/a"], [0, 1, 2, 3]),  # only at its end is it a wildcard
        (["/i/1/current/a?x=1"], [0, 1, 2, 3]),
        (["#img-1"], [2, 3]),
        (["#IMG-1", "#other"], [2, 3]),
        (["#img"], [0, 1, 2, 3]),
    ],
)
def test_an_invalidation_forgets_what_it_names_and_nothing_else(
    cache: Cache, items: list[str], left: list[int]
) -> None:
    for path in PATHS:
        tag = f"Img-{path.split('/')[2]}, all"
        keep(cache, path, a_redirect(**{TAG_HEADER: tag}))

    cache.forget(items)

    assert [n for n, path in enumerate(PATHS) if cache.find(path)] == left


@pytest.mark.parametrize("item", ["/i/1/*", "/i/1/current/a", "#img-1"])
def test_an_answer_that_was_asked_for_before_an_invalidation_is_not_kept_after_it(
    cache: Cache, item: str
) -> None:
    old = a_redirect("/old", **{TAG_HEADER: "img-1"})
    fill = cache.begin("/i/1/current/a")
    other = cache.begin("/i/2/current/a")

    cache.forget([item])

    assert not fill.is_current
    assert cache.keep(fill, old, 60) is None
    assert cache.find("/i/1/current/a") is None
    assert cache.keep(other, a_redirect(**{TAG_HEADER: "img-2"}), 60) is not None
    assert keep(cache, "/i/1/current/a", old) is not None  # asked for after it


def test_an_old_answer_that_comes_late_leaves_the_new_one_alone(cache: Cache) -> None:
    late = cache.begin("/i/1/current/a")
    cache.forget(["/i/1/*"])
    new = keep(cache, "/i/1/current/a", a_redirect("/new"))

    assert cache.keep(late, a_redirect("/old"), 60) is None
    assert cache.keep(late, EdgeAnswer(404, {}), 0) is None
    assert cache.find("/i/1/current/a") is new


def test_what_was_forgotten_cannot_be_confirmed(cache: Cache) -> None:
    kept = keep(cache, "/i/1/1.1/a")
    assert kept is not None
    fill = cache.begin("/i/1/1.1/a")

    cache.forget(["/i/1/*"])

    assert not cache.extend(fill, kept, 60, confirmed=True)


@given(st.text(st.sampled_from("/i1*"), max_size=8), st.text(st.sampled_from("/i1"), max_size=8))
def test_a_name_is_the_path_itself_or_its_beginning(item: str, path: str) -> None:
    expected = path.startswith(item[:-1]) if item[-1:] == "*" else item == path

    assert expected == names(item, path)


# What a viewer gets of it.

WHOLE = EdgeAnswer(
    200,
    {
        "ETag": '"one"',
        "Content-Type": "image/webp",
        "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
    },
    b"0123456789",
)


@pytest.mark.parametrize(
    ("wanted", "status", "body", "content_range"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=8-", 206, b"89", "bytes 8-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=-0", 416, b"", "bytes */10"),
        ("bytes=5-3", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("bytes=0-1,4-5", 200, b"0123456789", None),
        ("lines=0-3", 200, b"0123456789", None),
    ],
)
def test_ranges_are_cut_from_the_whole(
    wanted: str, status: int, body: bytes, content_range: str | None
) -> None:
    told = answered(WHOLE, {"Range": wanted})

    assert (status, body) == (told.status, told.body)
    assert content_range == told.headers.get("Content-Range")


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"If-None-Match": '"one"'}, 304),
        ({"If-None-Match": '"zero", W/"one"'}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"two"'}, 200),
        ({"If-None-Match": '"two"', "If-Modified-Since": "Fri, 02 Jan 2026 00:00:00 GMT"}, 200),
        ({"If-Modified-Since": "Fri, 02 Jan 2026 00:00:00 GMT"}, 304),
        ({"If-Modified-Since": "Wed, 31 Dec 2025 00:00:00 GMT"}, 200),
        ({"If-Modified-Since": "yesterday"}, 200),
        ({"If-None-Match": '"one"', "Range": "bytes=0-1"}, 304),
        ({"If-Range": '"one"', "Range": "bytes=0-1"}, 206),
        ({"If-Range": '"two"', "Range": "bytes=0-1"}, 200),
    ],
)
def test_conditions_are_answered_from_what_is_kept(asked: Mapping[str, str], status: int) -> None:
    told = answered(WHOLE, asked)

    assert status == told.status
    assert (status == 304) == (told.body == b"")


def test_an_error_is_no_picture_to_take_a_part_of() -> None:
    missing = EdgeAnswer(404, {}, b"no such key")

    assert missing is answered(missing, {"Range": "bytes=0-1", "If-None-Match": "*"})
