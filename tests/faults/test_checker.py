"""The judge is judged first: it passes a good run, and every planted breach under its own rule."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from tests.faults.facts import Attempt, Event, Facts, Job, Object, Post, Variant, dumped
from tests.support.checker import IMMUTABLE, RULES, check

Row = TypeVar("Row")

IMAGE = "11111111-1111-7111-8111-111111111111"
PICTURE, IDLE, BROKEN, RETRIED = "picture", "idle", "broken", "retried"
KEYS = tuple(f"i/{IMAGE}/1.2/{name}.webp" for name in ("thumb", "small"))


def an_event(job_id: str, old: str | None, new: str, claim_no: int, at: float) -> Event:
    role = {"queued": "api", "processing": "worker"}.get(new, "worker")
    worker = f"worker-{claim_no}" if new == "processing" else None
    ending = f"{job_id} {new}" if new in {"completed", "failed"} else None
    return Event(
        job_id=job_id,
        old=old,
        new=new,
        claim_no=claim_no,
        worker=worker,
        role=role,
        at=at,
        ending=ending,
        run_at=at,
    )


def an_attempt(job_id: str, claim_no: int, begun: float, outcome: str, why: str = "") -> Attempt:
    return Attempt(
        job_id=job_id,
        claim_no=claim_no,
        worker=f"worker-{claim_no}",
        claimed_at=begun,
        ended_at=begun + 5,
        charged=True,
        outcome=outcome,
        why=why,
    )


def a_job(job_id: str, state: str, claim_no: int) -> Job:
    return Job(
        id=job_id,
        tenant="demo",
        type="noop",
        state=state,
        claim_no=claim_no,
        attempts=claim_no,
        max_attempts=5,
        due=True,
        idempotency_key=f"key of {job_id}",
        ending=f"{job_id} {state}",
        result_reason="done" if state == "completed" else None,
    )


def a_post(job_id: str) -> Post:
    return Post(
        tenant="demo",
        key=f"key of {job_id}",
        asked=f"what {job_id} is",
        outcome="ok",
        status=202,
        job_id=job_id,
    )


def an_object(key: str) -> Object:
    return Object(
        key=key,
        bytes=100,
        sha256=key,
        modified_at=114.0,
        width=20,
        height=10,
        talks=False,
        cache_control=IMMUTABLE,
    )


def a_variant(key: str) -> Variant:
    return Variant(job_id=PICTURE, claim_no=2, key=key, width=20, height=10, bytes=100, sha256=key)


def the_events_of_a_good_run() -> list[Event]:
    lost = replace(an_event(PICTURE, "processing", "failed_retryable", 1, 105), role="maintenance")
    waits = replace(an_event(RETRIED, "processing", "failed_retryable", 1, 105), run_at=138.0)
    return [
        an_event(PICTURE, None, "queued", 0, 99),
        an_event(IDLE, None, "queued", 0, 99),
        an_event(BROKEN, None, "queued", 0, 99),
        an_event(RETRIED, None, "queued", 0, 99),
        an_event(PICTURE, "queued", "processing", 1, 100),
        an_event(RETRIED, "queued", "processing", 1, 100),
        lost,
        waits,
        an_event(PICTURE, "failed_retryable", "processing", 2, 110),
        an_event(IDLE, "queued", "processing", 1, 100),
        an_event(IDLE, "processing", "completed", 1, 105),
        an_event(BROKEN, "queued", "processing", 1, 100),
        an_event(BROKEN, "processing", "failed", 1, 105),
        an_event(PICTURE, "processing", "completed", 2, 115),
        an_event(RETRIED, "failed_retryable", "processing", 2, 140),
        an_event(RETRIED, "processing", "completed", 2, 145),
    ]


def a_good_run() -> Facts:
    """A picture whose first worker was lost, a job at once, one refused, one tried twice."""
    picture = replace(a_job(PICTURE, "completed", 2), type="process_image", image=IMAGE)
    broken = replace(a_job(BROKEN, "failed", 1), failure_code="corrupt", has_dead_letter=True)
    return Facts(
        posts=[*(a_post(one) for one in (PICTURE, IDLE, BROKEN, RETRIED)), a_post(PICTURE)],
        jobs=[
            replace(picture, target_seq=1),
            a_job(IDLE, "completed", 1),
            broken,
            a_job(RETRIED, "completed", 2),
        ],
        events=the_events_of_a_good_run(),
        attempts=[
            an_attempt(PICTURE, 1, 100, "rescued", "worker_lost"),
            an_attempt(PICTURE, 2, 110, "completed"),
            an_attempt(IDLE, 1, 100, "completed"),
            an_attempt(BROKEN, 1, 100, "failed", "corrupt"),
            an_attempt(RETRIED, 1, 100, "retried", "unavailable"),
            an_attempt(RETRIED, 2, 140, "completed"),
        ],
        rings={},
        targets={},
        variants=[a_variant(key) for key in KEYS],
        # The lost worker's litter is no breach.
        objects=[*map(an_object, KEYS), an_object(f"i/{IMAGE}/1.1/thumb.webp")],
        # What the repeated request had stored, before it learned that it was one.
        originals=["o/1", "o/2"],
        sources={"o/1": IMAGE},
        ledger={"accepted": 4, "pruned": 0},
        letters=[BROKEN],
        # Told twice: the sender had not heard that it was taken.
        messages={"fast": 0, "fastNotVisible": 0, "dead-letter": 1, "dead-letterNotVisible": 1},
        waited=True,
        variants_each=2,
    )


def changed(rows: Sequence[Row], index: int, /, **changes: object) -> list[Row]:
    copied = list(rows)
    copied[index] = replace(copied[index], **changes)  # type: ignore[type-var]
    return copied


def without(rows: Sequence[Row], index: int) -> list[Row]:
    return [*rows[:index], *rows[index + 1 :]]


def a_lost_row(run: Facts) -> Facts:
    return replace(run, jobs=without(run.jobs, 1))


def a_double_terminal(run: Facts) -> Facts:
    again = an_event(IDLE, "completed", "completed", 1, 120)
    return replace(run, events=[*run.events, again])


def a_missing_object(run: Facts) -> Facts:
    return replace(run, objects=without(run.objects, 0))


def an_uninvited_job(run: Facts) -> Facts:
    return replace(run, posts=[post for post in run.posts if post.job_id != IDLE])


def an_open_job(run: Facts) -> Facts:
    return replace(run, jobs=changed(run.jobs, 1, state="queued"))


def a_silent_ring(run: Facts) -> Facts:
    return replace(an_open_job(run), rings={})


def a_ring_for_nobody(run: Facts) -> Facts:
    return replace(run, rings={IDLE: -10.0})


def two_jobs_of_no_answer(run: Facts) -> Facts:
    asked = replace(run.posts[1], outcome="info", job_id=None, status=None)
    twin = replace(run.jobs[1], id="twin")
    return replace(run, posts=[*run.posts, asked], jobs=[*run.jobs, twin])


def another_answer(run: Facts) -> Facts:
    return replace(run, posts=changed(run.posts, 4, job_id=IDLE))


def another_request(run: Facts) -> Facts:
    return replace(run, posts=changed(run.posts, 4, asked="something else"))


def a_foreign_answer(run: Facts) -> Facts:
    return replace(run, posts=changed(run.posts, 1, tenant="other"))


def a_shortcut(run: Facts) -> Facts:
    return replace(run, events=without(run.events, 9))


def a_rewritten_end(run: Facts) -> Facts:
    return replace(run, jobs=changed(run.jobs, 1, ending="something else"))


def an_api_that_completes(run: Facts) -> Facts:
    return replace(run, events=changed(run.events, 10, role="api"))


def a_skipped_claim(run: Facts) -> Facts:
    return replace(run, events=changed(run.events, 8, claim_no=3))


def two_owners(run: Facts) -> Facts:
    return replace(run, attempts=changed(run.attempts, 1, claimed_at=104.0))


def a_stolen_lock(run: Facts) -> Facts:
    theft = replace(an_event(PICTURE, "processing", "processing", 3, 112), lock_age=2.0)
    return replace(run, events=[*run.events[:13], theft, *run.events[13:]])


def a_zombie(run: Facts) -> Facts:
    return replace(run, attempts=changed(run.attempts, 1, worker="worker-1"))


def the_losers_pictures(run: Facts) -> Facts:
    key = f"i/{IMAGE}/1.1/thumb.webp"
    return replace(run, variants=[replace(a_variant(key), claim_no=1), run.variants[1]])


def an_unwritten_attempt(run: Facts) -> Facts:
    return replace(run, attempts=without(run.attempts, 0))


def a_charged_release(run: Facts) -> Facts:
    return replace(run, attempts=changed(run.attempts, 0, outcome="released"))


def an_uncharged_failure(run: Facts) -> Facts:
    return replace(run, jobs=changed(run.jobs, 3, attempts=1))


def an_early_failure(run: Facts) -> Facts:
    return replace(run, jobs=changed(run.jobs, 2, failure_code="worker_lost"))


def no_dead_letter(run: Facts) -> Facts:
    return replace(run, jobs=changed(run.jobs, 2, has_dead_letter=False))


def an_impatient_retry(run: Facts) -> Facts:
    return replace(run, events=changed(run.events, 7, run_at=110.0))


def a_retry_before_its_time(run: Facts) -> Facts:
    return replace(run, events=changed(run.events, 14, at=120.0))


def other_bytes(run: Facts) -> Facts:
    return replace(run, objects=changed(run.objects, 0, sha256="other"))


def an_undecodable_object(run: Facts) -> Facts:
    return replace(run, objects=changed(run.objects, 0, width=None, height=None))


def a_talkative_object(run: Facts) -> Facts:
    return replace(run, objects=changed(run.objects, 0, talks=True))


def a_mutable_object(run: Facts) -> Facts:
    return replace(run, objects=changed(run.objects, 0, cache_control="no-cache"))


def a_variant_too_few(run: Facts) -> Facts:
    return replace(run, variants=without(run.variants, 0))


def a_deleted_image_that_is_still_there(run: Facts) -> Facts:
    return replace(run, deleted=[IMAGE])


def a_lost_original(run: Facts) -> Facts:
    return replace(run, originals=["o/2"])


def an_object_of_nobody(run: Facts) -> Facts:
    return replace(run, objects=[*run.objects, an_object(f"i/{IMAGE}/1.3/thumb.webp")])


def originals_of_nobody(run: Facts) -> Facts:
    return replace(run, originals=["o/1", "o/2", "o/3"])


def a_late_write(run: Facts) -> Facts:
    return replace(run, objects=changed(run.objects, 0, modified_at=117.0))


def a_forged_ledger(run: Facts) -> Facts:
    return replace(run, ledger={"accepted": 5, "pruned": 0})


def a_stuck_target(run: Facts) -> Facts:
    return replace(run, targets={IMAGE: PICTURE})


def a_lost_letter(run: Facts) -> Facts:
    return replace(run, letters=[])


def a_letter_too_many(run: Facts) -> Facts:
    return replace(run, letters=[BROKEN, IDLE])


def a_letter_of_a_cancelled_job(run: Facts) -> Facts:
    return replace(run, jobs=changed(run.jobs, 2, failure_code="cancelled"))


def a_letter_of_a_deleted_image(run: Facts) -> Facts:
    return replace(run, jobs=changed(run.jobs, 2, failure_code="image_deleted"))


def an_invisible_message(run: Facts) -> Facts:
    return replace(run, messages={**run.messages, "fastNotVisible": 1})


def a_message_of_nobody(run: Facts) -> Facts:
    return replace(run, messages={**run.messages, "fast": 1})


def an_untold_letter(run: Facts) -> Facts:
    return replace(run, messages={"fast": 0})


PLANTS: dict[str, list[Callable[[Facts], Facts]]] = {
    "I1": [a_lost_row],
    "I2": [an_uninvited_job],
    "I3": [an_open_job],
    "I4": [a_silent_ring, a_ring_for_nobody],
    "I5": [two_jobs_of_no_answer],
    "I6": [another_answer],
    "I7": [another_request],
    "I8": [a_foreign_answer],
    "I9": [a_shortcut],
    "I10": [a_double_terminal, a_rewritten_end],
    "I11": [a_double_terminal],
    "I12": [an_api_that_completes],
    "I13": [a_skipped_claim],
    "I14": [two_owners],
    "I15": [a_stolen_lock],
    "I16": [a_zombie],
    "I17": [the_losers_pictures],
    "I18": [an_unwritten_attempt],
    "I19": [a_charged_release, an_uncharged_failure],
    "I20": [an_early_failure, no_dead_letter],
    "I21": [an_impatient_retry, a_retry_before_its_time],
    "I22": [
        a_missing_object,
        other_bytes,
        an_undecodable_object,
        a_talkative_object,
        a_mutable_object,
        a_variant_too_few,
        a_lost_original,
        a_deleted_image_that_is_still_there,
    ],
    "I23": [an_object_of_nobody, originals_of_nobody],
    "I24": [a_late_write],
    "I25": [
        a_lost_letter,
        a_letter_too_many,
        a_letter_of_a_cancelled_job,
        a_letter_of_a_deleted_image,
    ],
    "I26": [an_invisible_message, a_message_of_nobody],
    "I27": [an_untold_letter],
    "the ledger": [a_lost_row, a_forged_ledger],
    "a target": [a_stuck_target],
}


def test_a_good_run_has_no_breach() -> None:
    assert check(a_good_run()) == []


@pytest.mark.parametrize(
    ("rule", "plant"),
    [
        pytest.param(rule, plant, id=f"{rule}-{plant.__name__}")
        for rule, plants in PLANTS.items()
        for plant in plants
    ],
)
def test_every_planted_breach_is_found(rule: str, plant: Callable[[Facts], Facts]) -> None:
    broken = {breach.rule for breach in check(plant(a_good_run()))}

    assert any(name.startswith(f"{rule} ") for name in broken), broken


def test_every_rule_has_a_plant() -> None:
    untried = [name for name in RULES if not any(name.startswith(f"{rule} ") for rule in PLANTS)]

    assert untried == []


@pytest.mark.parametrize(
    ("plant", "code"),
    [(lambda run: run, 0), (a_lost_row, 1), (a_double_terminal, 1), (a_missing_object, 1)],
    ids=["nothing", "a_lost_row", "a_double_terminal", "a_missing_object"],
)
def test_the_command_ends_with_one_on_any_breach(
    tmp_path: Path, plant: Callable[[Facts], Facts], code: int
) -> None:
    facts = tmp_path / "facts.json"
    facts.write_text(dumped(plant(a_good_run())))

    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.checker", facts],
        stdout=subprocess.PIPE,
        check=False,
        text=True,
    )

    assert code == ended.returncode, ended.stdout
