"""How far a walk through the buckets is, and what it remembers as missing."""

from datetime import UTC, datetime
from uuid import uuid4

from imagefleet.jobs.images import Bucket
from imagefleet.jobs.shapes.sweeping import MOST_MISSING, MissingView, SweepProgress


def a_missing(key: str, bucket: Bucket = "outputs") -> MissingView:
    return MissingView(
        bucket=bucket,
        key=key,
        tenant_id="acme",
        image_id=uuid4(),
        found_at=datetime(2026, 1, 1, tzinfo=UTC),
        reprocess=False,
    )


def keys(progress: SweepProgress) -> list[str]:
    return [entry.key for entry in progress.missing]


def test_a_walk_goes_through_outputs_and_then_originals() -> None:
    begun = SweepProgress().passed("i/5", [])
    turned = begun.passed(None, [])

    assert ("outputs", "i/5") == (begun.bucket, begun.after)
    assert ("originals", "") == (turned.bucket, turned.after)


def test_what_is_missing_stays_until_its_key_is_passed_again() -> None:
    first = SweepProgress().passed("i/5", [a_missing("i/3")]).passed(None, [a_missing("i/7")])
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

    progress = SweepProgress().passed(None, many)

    assert MOST_MISSING == len(progress.missing)
    assert MOST_MISSING + 7 == progress.all_missing
    assert MOST_MISSING == progress.again().all_missing
