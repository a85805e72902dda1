"""Judges a run from what it left behind: rows, objects, queues, and what its clients were told.

One pure function over facts, which `tests/support/journal.py` gathers with means of its own.
Nothing of the product is imported: a rule that the product and its judge share would be wrong in
both. As a command it reads facts from a file and ends with 1 when anything was broken:

    python -m tests.support.checker facts.json

The numbers are those of docs/faults.md. I4 stands for what is left of it while nothing is running.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.faults.facts import Attempt, Event, Facts, loaded

TERMINAL: Final = ("completed", "failed")
# From, to, and the roles of the processes that may do it; None is the birth.
EDGES: Final[Mapping[tuple[str | None, str], frozenset[str]]] = {
    (None, "queued"): frozenset({"api", "worker", "maintenance", "operator"}),
    ("queued", "processing"): frozenset({"worker"}),
    ("failed_retryable", "processing"): frozenset({"worker"}),
    ("processing", "processing"): frozenset({"worker"}),
    ("processing", "completed"): frozenset({"worker"}),
    ("processing", "failed_retryable"): frozenset({"worker", "maintenance"}),
    ("processing", "failed"): frozenset({"worker", "maintenance"}),
    ("failed_retryable", "failed"): frozenset({"worker", "maintenance"}),
}
# A job that fails with one of these may still have had attempts left, which nobody may throw away.
TRANSIENT: Final = frozenset(
    {"worker_lost", "crashed", "deadline", "internal_error", "unavailable", "s3_unavailable"}
)
NO_DEAD_LETTER: Final = frozenset({"cancelled", "image_deleted"})
UNCHARGED: Final = frozenset({"released"})
DEAD_LETTERS: Final = "dead-letter"  # the queue
VARIANT_KEY: Final = re.compile(r"i/(?P<image>[0-9a-f-]{36})/(?P<revision>\d+)\.(?P<claim>\d+)/.+")
IMMUTABLE: Final = "public, max-age=31536000, immutable"
WHOLE_SECOND: Final = 1.0  # S3 tells times without fractions


@dataclass(frozen=True, slots=True)
class Breach:
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


Rule = Callable[[Facts], Iterator[str]]
RULES: Final[dict[str, Rule]] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    def keep(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return keep


def check(facts: Facts) -> list[Breach]:
    """Every breach of every rule; an empty list is a good run."""
    return [Breach(name, what) for name, find in RULES.items() for what in find(facts)]


# Durability.


@rule("I1 every accepted request has its job")
def _accepted_is_there(facts: Facts) -> Iterator[str]:
    known = {job.id for job in facts.jobs}
    for post in facts.posts:
        if post.outcome == "ok" and post.job_id not in known:
            yield f"job {post.job_id} was answered with {post.status} and is not there"


@rule("I2 every job was asked for")
def _asked_for(facts: Facts) -> Iterator[str]:
    keys = {(post.tenant, post.key) for post in facts.posts if post.key is not None}
    answered = {post.job_id for post in facts.posts}
    for job in facts.jobs:
        asked = job.id in answered or (job.tenant, job.idempotency_key) in keys
        if not asked and not job.has_origin:
            yield f"nobody asked for job {job.id}"


@rule("I3 nothing is open in the end")
def _all_ended(facts: Facts) -> Iterator[str]:
    for job in facts.jobs:
        if job.state not in TERMINAL:
            yield f"job {job.id} is {job.state}"


@rule("I4 a waiting job has a ring, and no other")
def _rings(facts: Facts) -> Iterator[str]:
    waiting = {job.id for job in facts.jobs if job.state in {"queued", "failed_retryable"}}
    for job_id in waiting - facts.rings.keys():
        yield f"job {job_id} waits without a ring"
    for job_id in facts.rings.keys() - waiting:
        yield f"the ring of {job_id} rings for nothing"
    for job_id in waiting & facts.rings.keys():
        if facts.rings[job_id] > facts.ring_overdue_after:
            yield f"the ring of {job_id} has been due for {facts.rings[job_id]:.0f} s"


@rule("I5 an unanswered request made one job at most")
def _unanswered(facts: Facts) -> Iterator[str]:
    rows = _rows_by_key(facts)
    for post in facts.posts:
        if post.outcome == "info" and len(rows[post.tenant, post.key]) > 1:
            yield f"the key {post.key} has jobs {sorted(rows[post.tenant, post.key])}"


# Idempotency.


@rule("I6 one key, one job, one answer")
def _one_key_one_job(facts: Facts) -> Iterator[str]:
    rows = _rows_by_key(facts)
    for post in facts.posts:
        if post.outcome == "ok" and post.key is not None and post.job_id is not None:
            rows[post.tenant, post.key].add(post.job_id)
    for (_, key), jobs in rows.items():
        if key is not None and len(jobs) > 1:
            yield f"the key {key} stands for {sorted(jobs)}"


@rule("I7 another request under the same key is refused")
def _another_request(facts: Facts) -> Iterator[str]:
    taken: dict[tuple[str, str], set[str]] = defaultdict(set)
    for post in facts.posts:
        if post.key is not None and post.outcome == "ok":
            taken[post.tenant, post.key].add(post.asked)
    for (_, key), asked in taken.items():
        if len(asked) > 1:
            yield f"the key {key} was accepted for {len(asked)} different requests"


@rule("I8 a key belongs to its tenant")
def _tenants_apart(facts: Facts) -> Iterator[str]:
    owners = {job.id: job.tenant for job in facts.jobs}
    for post in facts.posts:
        owner = owners.get(post.job_id or "", post.tenant)
        if post.outcome == "ok" and owner != post.tenant:
            yield f"{post.tenant} was answered with {owner}'s job {post.job_id}"


# The state machine.


@rule("I9 every chain of events is a legal path")
def _legal_path(facts: Facts) -> Iterator[str]:
    for job_id, events in _events_by_job(facts).items():
        before: str | None = None
        for event in events:
            if event.old != before:
                yield f"job {job_id} went on from {event.old} after {before}"
            if (event.old, event.new) not in EDGES and event.old not in TERMINAL:
                yield f"job {job_id} went from {event.old} to {event.new}"
            before = event.new
    last = {event.job_id: event.new for event in facts.events}
    for job in facts.jobs:
        if last.get(job.id) != job.state:
            yield f"job {job.id} is {job.state}; its last event says {last.get(job.id)}"


@rule("I10 nothing follows the end")
def _nothing_after_the_end(facts: Facts) -> Iterator[str]:
    endings: dict[str, str | None] = {}
    for event in facts.events:
        if event.old in TERMINAL:
            yield f"job {event.job_id} went on from {event.old} to {event.new}"
        elif event.new in TERMINAL:
            endings[event.job_id] = event.ending
    for job in facts.jobs:
        if job.id in endings and job.ending != endings[job.id]:
            yield f"the end of job {job.id} was rewritten"


@rule("I11 a job ends once")
def _ends_once(facts: Facts) -> Iterator[str]:
    ends = Counter(event.job_id for event in facts.events if event.new in TERMINAL)
    for job_id, times in ends.items():
        if times > 1:
            yield f"job {job_id} ended {times} times"


@rule("I12 every process keeps to its part")
def _roles(facts: Facts) -> Iterator[str]:
    for event in facts.events:
        allowed = EDGES.get((event.old, event.new))
        if allowed is not None and event.role not in allowed:
            yield f"{event.role} took job {event.job_id} from {event.old} to {event.new}"


# Ownership.


@rule("I13 claims are counted one by one")
def _claims_count(facts: Facts) -> Iterator[str]:
    for job_id, events in _events_by_job(facts).items():
        claims = [event.claim_no for event in events if event.new == "processing"]
        if claims != list(range(1, len(claims) + 1)):
            yield f"job {job_id} was claimed as {claims}"


@rule("I14 one owner at a time")
def _one_owner(facts: Facts) -> Iterator[str]:
    for job_id, attempts in _attempts_by_job(facts).items():
        for earlier, later in pairwise(attempts):
            if later.claimed_at < earlier.ended_at:
                yield f"claims {earlier.claim_no} and {later.claim_no} of job {job_id} overlap"


@rule("I15 a lock is taken over only when it has expired")
def _takeover(facts: Facts) -> Iterator[str]:
    for event in facts.events:
        if (event.old, event.new) == ("processing", "processing") and (
            event.lock_age is None or event.lock_age < facts.lock_timeout
        ):
            yield f"job {event.job_id} was taken over from a lock of {event.lock_age} s"


@rule("I16 a claim is ended in the name of who made it")
def _fenced(facts: Facts) -> Iterator[str]:
    owners = {
        (event.job_id, event.claim_no): event.worker
        for event in facts.events
        if event.new == "processing"
    }
    for attempt in facts.attempts:
        owner = owners.get((attempt.job_id, attempt.claim_no))
        if owner != attempt.worker:
            yield (
                f"claim {attempt.claim_no} of job {attempt.job_id} "
                f"was {owner}'s and ended as {attempt.worker}'s"
            )


@rule("I17 what is published is the completing claim's")
def _published_by_the_winner(facts: Facts) -> Iterator[str]:
    jobs = {job.id: job for job in facts.jobs}
    for variant in facts.variants:
        job = jobs.get(variant.job_id)
        match = VARIANT_KEY.fullmatch(variant.key)
        if job is None or job.state != "completed" or match is None:
            yield f"{variant.key} is published, by {job.state if job else 'no'} job"
        elif (variant.claim_no, int(match["claim"]), int(match["revision"]), match["image"]) != (
            job.claim_no,
            job.claim_no,
            job.target_seq,
            job.image,
        ):
            yield f"{variant.key} is published, by claim {job.claim_no} of job {job.id}"


# Attempts.


@rule("I18 one row an ended claim")
def _attempts_are_claims(facts: Facts) -> Iterator[str]:
    rows = Counter(attempt.job_id for attempt in facts.attempts)
    for job in facts.jobs:
        ended = job.claim_no - (job.state == "processing")
        if rows[job.id] != ended:
            yield f"job {job.id} has {ended} ended claims and {rows[job.id]} attempts"


@rule("I19 charged as it was, never beyond the limit")
def _charged(facts: Facts) -> Iterator[str]:
    charged = Counter(attempt.job_id for attempt in facts.attempts if attempt.charged)
    for job in facts.jobs:
        expected = charged[job.id] + (job.state == "processing")
        if job.attempts != expected or job.attempts > job.max_attempts:
            yield f"job {job.id} says {job.attempts} attempts of {job.max_attempts}, not {expected}"
    for attempt in facts.attempts:
        if attempt.charged and attempt.outcome in UNCHARGED:
            yield f"claim {attempt.claim_no} of job {attempt.job_id} was {attempt.outcome}, charged"


@rule("I20 a job fails for good reason")
def _failed_for_a_reason(facts: Facts) -> Iterator[str]:
    for job in facts.jobs:
        early = job.attempts < job.max_attempts
        if job.state == "failed" and early and job.failure_code in TRANSIENT:
            yield f"job {job.id} failed with {job.failure_code} at attempt {job.attempts}"
        if job.state == "failed" and job.has_dead_letter == (job.failure_code in NO_DEAD_LETTER):
            yield f"job {job.id} failed with {job.failure_code}, dead letter: {job.has_dead_letter}"


@rule("I21 a retry waits as long as it should")
def _backoff(facts: Facts) -> Iterator[str]:
    retried = {
        (attempt.job_id, attempt.claim_no)
        for attempt in facts.attempts
        # After a crash the first wait is chosen by the quarantine, not by the number of attempts.
        if attempt.outcome == "retried" and attempt.charged
    }
    attempts = _attempts_by_job(facts)
    flagged = {job.id for job in facts.jobs if job.flagged}
    for job_id, events in _events_by_job(facts).items():
        charged = [attempt.claim_no for attempt in attempts[job_id] if attempt.charged]
        for event, following in zip(events, [*events[1:], None], strict=True):
            if event.new != "failed_retryable" or event.run_at is None:
                continue
            if (
                following is not None
                and following.new == "processing"
                and following.at < event.run_at
                and job_id not in flagged
            ):
                yield f"job {job_id} was claimed before it was due"
            if (job_id, event.claim_no) in retried:
                doublings = charged.index(event.claim_no)
                least = min(facts.backoff_cap, facts.backoff_base * 2**doublings)
                waits = event.run_at - event.at
                if not least - 1 <= waits <= least * 1.2 + 1:
                    yield f"job {job_id} waits {waits:.1f} s after {doublings + 1} attempts"


# Effects.


@rule("I22 everything published is there, whole, and silent about its author")
def _published_is_there(facts: Facts) -> Iterator[str]:
    objects = {made.key: made for made in facts.objects}
    published = Counter(variant.job_id for variant in facts.variants)
    deleted, stored = set(facts.deleted), set(facts.originals)
    for job in facts.jobs:
        makes = job.type == "process_image" and job.state == "completed"
        if job.image in deleted:
            continue  # another revision may have been stopped by it half-way
        if makes and job.result_reason == "done" and published[job.id] != facts.variants_each:
            yield f"job {job.id} published {published[job.id]} variants"
    for variant in facts.variants:
        there, match = objects.get(variant.key), VARIANT_KEY.fullmatch(variant.key)
        if match is not None and match["image"] in deleted:
            if there is not None:
                yield f"{variant.key} is there, and its image deleted"
        elif there is None:
            yield f"{variant.key} is published and missing"
        elif (there.bytes, there.sha256) != (variant.bytes, variant.sha256):
            yield f"{variant.key} is not what was published"
        elif (there.width, there.height) != (variant.width, variant.height):
            yield f"{variant.key} is {there.width}x{there.height} when decoded"
        elif there.talks:
            yield f"{variant.key} carries metadata"
        elif there.cache_control != IMMUTABLE:
            yield f"{variant.key} is cached as {there.cache_control!r}"
    for key, image in facts.sources.items():
        if (key in stored) == (image in deleted):
            is_what = "is there, and deleted" if key in stored else "is missing"
            yield f"the original {key} of image {image} {is_what}"


@rule("I23 no object but those of known claims")
def _known_objects(facts: Facts) -> Iterator[str]:
    claims = {(job.image, job.target_seq): job.claim_no for job in facts.jobs if job.image}
    for there in facts.objects:
        match = VARIANT_KEY.fullmatch(there.key)
        made = claims.get((match["image"], int(match["revision"]))) if match else None
        if match is None or made is None or not 1 <= int(match["claim"]) <= made:
            yield f"{there.key} belongs to no claim"
    # An original without a row is what a request left that was not answered, or was refused.
    unanswered = sum(post.outcome != "ok" for post in facts.posts)
    stray = set(facts.originals) - facts.sources.keys()
    repeats = _repeated_requests(facts)
    explained = unanswered + repeats
    if len(stray) > explained:
        yield f"{len(stray)} originals without a row, and {explained} requests to explain them"


@rule("I24 nothing published was written after its claim had ended")
def _written_in_time(facts: Facts) -> Iterator[str]:
    written = {made.key: made.modified_at for made in facts.objects}
    ended = {(attempt.job_id, attempt.claim_no): attempt.ended_at for attempt in facts.attempts}
    for variant in facts.variants:
        end = ended.get((variant.job_id, variant.claim_no))
        if end is not None and written.get(variant.key, 0.0) > end + WHOLE_SECOND:
            yield f"{variant.key} was written after claim {variant.claim_no} had ended"


# Dead letters and messages.


@rule("I25 a dead letter for every job that failed, and for no other")
def _letters(facts: Facts) -> Iterator[str]:
    letters = Counter(facts.letters)
    for job in facts.jobs:
        owed = job.state == "failed" and job.failure_code not in NO_DEAD_LETTER
        if letters[job.id] != owed:
            how = f"{job.state} {job.failure_code}"
            yield f"job {job.id} is {how} and has {letters[job.id]} dead letters"


@rule("I26 no message is left over")
def _messages(facts: Facts) -> Iterator[str]:
    for queue, count in facts.messages.items():
        if facts.waited and count and not queue.startswith(DEAD_LETTERS):
            yield f"{count} messages are {queue}"


@rule("I27 every dead letter was announced")
def _announced(facts: Facts) -> Iterator[str]:
    announced = sum(
        count for queue, count in facts.messages.items() if queue.startswith(DEAD_LETTERS)
    )
    # More of them are no breach: what was sent at the moment of an outage is sent again.
    if facts.waited and announced < len(facts.letters):
        yield f"{len(facts.letters)} dead letters, and {announced} messages that tell of them"


# What is no number of its own.


@rule("the ledger balances")
def _ledger(facts: Facts) -> Iterator[str]:
    states = Counter(job.state for job in facts.jobs)
    there = states.total() + facts.ledger["pruned"]
    if facts.ledger["accepted"] != there:
        yield f"{facts.ledger['accepted']} jobs were accepted, {there} are accounted for"


@rule("a target names the job that runs")
def _targets(facts: Facts) -> Iterator[str]:
    running = {job.id for job in facts.jobs if job.state == "processing"}
    for image, job_id in facts.targets.items():
        if job_id not in running:
            yield f"image {image} waits for job {job_id}, which does not run"


def _rows_by_key(facts: Facts) -> defaultdict[tuple[str, str | None], set[str]]:
    rows: defaultdict[tuple[str, str | None], set[str]] = defaultdict(set)
    for job in facts.jobs:
        if job.idempotency_key is not None:
            rows[job.tenant, job.idempotency_key].add(job.id)
    return rows


def _repeated_requests(facts: Facts) -> int:
    """How many requests came again under their key: each may have stored its body once more."""
    first: set[tuple[str, str]] = set()
    repeats = 0
    for post in facts.posts:
        if post.key is not None:
            repeats += (post.tenant, post.key) in first
            first.add((post.tenant, post.key))
    return repeats


def _events_by_job(facts: Facts) -> defaultdict[str, list[Event]]:
    events: defaultdict[str, list[Event]] = defaultdict(list)
    for event in facts.events:
        events[event.job_id].append(event)
    return events


def _attempts_by_job(facts: Facts) -> defaultdict[str, list[Attempt]]:
    attempts: defaultdict[str, list[Attempt]] = defaultdict(list)
    for attempt in sorted(facts.attempts, key=lambda attempt: attempt.claim_no):
        attempts[attempt.job_id].append(attempt)
    return attempts


def main(path: str) -> int:
    breaches = check(loaded(Path(path).read_text(encoding="utf-8")))
    for breach in breaches:
        sys.stdout.write(f"{breach}\n")
    sys.stdout.write(f"{len(breaches)} breaches of {len(RULES)} rules\n")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
