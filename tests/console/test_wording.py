"""How values are written on a page."""

from datetime import UTC, datetime, timedelta

import pytest

from imagefleet.console import wording


@pytest.mark.parametrize(
    ("span", "told"),
    [
        (None, "—"),
        (timedelta(milliseconds=12), "12 ms"),
        (timedelta(seconds=1.26), "1.3 s"),
        (timedelta(seconds=59), "59 s"),
        (timedelta(seconds=61), "1 min 1 s"),
        (timedelta(hours=1), "1 h"),
        (timedelta(hours=25, minutes=59), "1 d 1 h"),
        (timedelta(days=120, hours=3), "120 d"),
        (86_400.0, "1 d"),
    ],
)
def test_a_span_is_told_in_its_largest_units(span: timedelta | float | None, told: str) -> None:
    assert told == wording.span(span)


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (None, "—"),
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (300 * 2**20, "300 MiB"),
    ],
)
def test_bytes_are_told_as_people_read_them(count: int | None, told: str) -> None:
    assert told == wording.size(count)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (None, "—"),
        (0, "0"),
        (1234567, "1\u202f234\u202f567"),
        (81.3, "81.3"),
        (2285.7, "2\u202f286"),
    ],
)
def test_thousands_stand_apart(number: float | None, told: str) -> None:
    assert told == wording.amount(number)


def test_moments_and_jobs_of_a_sentence_become_what_they_are() -> None:
    job = "01a1f71c-279a-74f8-864c-aa333dbc0291"

    told = wording.told(f"Job {job} comes first <b>; due at 2026-11-20 03:59:40 UTC\u202e.")

    assert f'<a href="/jobs/{job}">Job …3dbc0291</a> comes first &lt;b&gt;' in told
    assert '<time datetime="2026-11-20T03:59:40.000+00:00">2026-11-20 03:59:40 UTC</time>' in told
    assert "\u202e" not in told


def test_text_of_strangers_loses_what_steers_and_what_is_exact_keeps_it() -> None:
    forged = "a\x1b[2J\u202e<b>"

    assert wording.harmless(forged) == "a\\x1b[2J\\u202e<b>"
    assert wording.exact(forged) == "a\x1b[2J\u202e&lt;b&gt;"
    assert wording.lines("one\ntwo\x07<") == "one\ntwo\\x07&lt;"
    assert '"\\u202e"' in str(wording.as_json({"note": "\u202e"})).replace("&#34;", '"')


def test_a_moment_that_never_was_says_so() -> None:
    assert "never" in wording.moment(None)
    assert 'data-ago=""' in wording.since(datetime.now(UTC))
