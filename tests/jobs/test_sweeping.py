"""What a walk remembers, from one key to the next and from one walk to another."""

from datetime import UTC, datetime
from uuid import uuid4

from imagefleet.jobs.sweeping import MOST_MISSING, Bucket, Missing, Progress


def a_missing(key: str, bucket: Bucket = "outputs") -> Missing:
    return Missing(
        bucket=bucket,
        key=key,
        tenant_id="acme",
        image_id=uuid4(),
        found_at=datetime(2026, 1, 1, tzinfo=UTC),
        reprocess=False,
    )


def keys(progress: Progress) -> list[str]:
    return [one.key for one in progress.missing]


def test_a_walk_goes_through_outputs_and_then_originals() -> None:
    begun = Progress().passed("i/5", [])
    turned = begun.passed(None, [])

    assert ("outputs", "i/5") == (begun.bucket, begun.after)
    assert ("originals", "") == (turned.bucket, turned.after)


def test_what_is_missing_stays_until_its_key_is_passed_again() -> None:
    first = Progress().passed("i/5", [a_missing("i/3")]).passed(None, [a_missing("i/7")])
    first = first.passed(None, [a_missing("o/4", "originals")])

    second = first.again()
    assert ["i/3", "i/7", "o/4"] == keys(second)
    second = second.passed("i/3", [])
    assert ["i/7", "o/4"] == keys(second)
    second = second.passed(None, [a_missing("i/7")])
    assert ["o/4", "i/7"] == keys(second)
    assert ["i/7"] == keys(second.passed(None, []))


def test_a_walk_names_so_many_and_counts_the_others() -> None:
    many = [a_missing(f"i/{n:03}") for n in range(MOST_MISSING + 7)]

    progress = Progress().passed(None, many)

    assert MOST_MISSING == len(progress.missing)
    assert MOST_MISSING + 7 == progress.all_missing
    assert MOST_MISSING == progress.again().all_missing
