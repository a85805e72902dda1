"""The statement that inserts a job takes its key: each once, in one order, and before it looks."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations

import pytest

from imagefleet.errors import IdempotencyConflict
from imagefleet.jobs.model import Submitted, new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.images.images import submit_image
from imagefleet.store.jobs.submissions import (
    insert_submissions,
    submit_job,
    submit_jobs,
    submit_together,
)
from tests.conftest import OpenConnection
from tests.store.images.deletions import an_upload
from tests.support.database import Database, driver_of
from tests.support.factories import a_submission
from tests.support.races import all_at_once, many_connections, meanwhile, no_deadlocks

KEYS = [f"key-{number}" for number in range(3)]
LIVING = a_submission(dedup_key="d")

IN_ORDER = """
SELECT named.key FROM unnest($1::text[]) AS named (key)
 ORDER BY hashtextextended('acme/' || named.key, 0)
"""
TAKEN_BY = """
SELECT named.key
  FROM unnest($2::text[]) AS named (key)
  JOIN pg_locks AS locks ON locks.locktype = 'advisory' AND locks.granted AND locks.pid = $1
   AND (locks.classid::bigint << 32) | locks.objid::bigint
       = hashtextextended('acme/' || named.key, 0)
"""
CALLS = "SELECT calls FROM pg_stat_xact_user_functions WHERE funcname = 'take_key'"


async def in_order(connection: Connection) -> list[str]:
    return [row["key"] for row in await connection.fetch(IN_ORDER, KEYS)]


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_keys_are_taken_in_the_order_of_their_numbers_before_anything_is_written(
    order: Sequence[int], api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    keys = await in_order(superuser)
    batch = [a_submission(dedup_key="d"), *(a_submission(idempotency_key=keys[n]) for n in order)]

    transaction = driver_of(worker).transaction()
    await transaction.start()
    await submit_job(worker, a_submission(idempotency_key=keys[1], dedup_key="other"))
    async with meanwhile(superuser, worker, api, submit_jobs(api, batch)) as task:
        mine = driver_of(api).get_server_pid()
        taken = [row["key"] for row in await superuser.fetch(TAKEN_BY, mine, keys)]
        beside = await submit_job(superuser, LIVING)
        await transaction.rollback()

    assert taken == keys[:1]
    merged, *others = task.result()
    assert isinstance(merged, Submitted)
    assert (beside.created, merged.job_id) == (True, LIVING.job_id)
    assert [job.job_id for job in batch[1:]] == [
        answer.job_id for answer in others if isinstance(answer, Submitted)
    ]


async def test_a_key_is_waited_for_before_its_target_is_taken(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    await submit_job(api, a_submission(target="photo"))

    transaction = driver_of(worker).transaction()
    await transaction.start()
    await submit_job(worker, a_submission(idempotency_key="k", dedup_key="d"))
    asks = submit_job(api, a_submission(idempotency_key="k", target="photo"))
    async with meanwhile(superuser, worker, api, asks) as task:
        free = await superuser.fetch("SELECT target FROM targets FOR UPDATE SKIP LOCKED")
        await transaction.rollback()

    assert ["photo"] == [row["target"] for row in free]
    assert task.result().created


async def test_an_alias_that_was_written_after_the_statement_began_is_seen(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    """While it waits for its first key, somebody else is answered under its second one."""
    first, second, _ = await in_order(superuser)
    batch = [a_submission(idempotency_key=key, fingerprint="asked") for key in (first, second)]
    await submit_job(superuser, LIVING)

    transaction = driver_of(worker).transaction()
    await transaction.start()
    await submit_job(worker, a_submission(idempotency_key=first, dedup_key="other"))
    async with meanwhile(superuser, worker, api, submit_jobs(api, batch)) as task:
        await submit_job(superuser, a_submission(idempotency_key=second, dedup_key="d"))
        await transaction.rollback()

    new, refused = task.result()
    assert isinstance(new, Submitted)
    assert new.created
    assert isinstance(refused, IdempotencyConflict)


async def test_a_first_upload_sees_the_alias_that_it_waited_for_and_leaves_nothing(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    await submit_job(api, LIVING)
    upload = an_upload(new_job_id(), idempotency_key="k", fingerprint="upload")

    transaction = driver_of(worker).transaction()
    await transaction.start()
    await submit_job(worker, a_submission(idempotency_key="k", dedup_key="d"))
    with pytest.raises(ExceptionGroup) as caught:
        async with meanwhile(superuser, worker, api, submit_image(api, *upload, is_first=True)):
            await transaction.commit()

    assert caught.group_contains(IdempotencyConflict)
    for table, rows in {"jobs": 1, "rings": 1, "targets": 0, "images": 0}.items():
        assert rows == await api.fetchval(f"SELECT count(*) FROM {table}"), table  # noqa: S608 - names of ours


async def test_a_first_upload_waits_for_its_twin_and_has_its_answer(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    """The twin stored an image of its own name, of which nothing is left but what was stored."""
    upload, twin = (an_upload(new_job_id(), idempotency_key="k") for _ in range(2))

    transaction = driver_of(superuser).transaction()
    await transaction.start()
    await submit_image(superuser, *twin, is_first=True)
    asks = submit_image(api, *upload, is_first=True)
    async with meanwhile(worker, superuser, api, asks) as task:
        await transaction.commit()

    assert (False, twin[0].job_id) == (task.result().created, task.result().job_id)
    assert [twin[1].image_id] == [row["id"] for row in await api.fetch("SELECT id FROM images")]
    assert 1 == await api.fetchval("SELECT count(*) FROM targets")


async def test_who_does_not_wait_leaves_out_what_others_are_asking_or_have_asked(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    await submit_job(api, LIVING)
    await submit_job(api, a_submission(idempotency_key="alias", dedup_key="d"))
    await submit_job(api, a_submission(idempotency_key="used"))
    async with driver_of(worker).transaction():
        await submit_job(worker, a_submission(idempotency_key="busy"))
        batch = [a_submission(idempotency_key=key) for key in ("alias", "used", "busy", "new")]
        answers = await submit_together(api, [*batch, a_submission(), batch[3]])

    assert [False] * 3 + [True] * 2 == [isinstance(each, Submitted) for each in answers[:5]]
    assert [None] * 3 == answers[:3]


async def test_each_key_is_taken_once_and_none_where_there_is_none(
    superuser: OpenConnection,
) -> None:
    keyed = [a_submission(idempotency_key=key) for key in KEYS]
    image, source = an_upload(new_job_id())
    await superuser.execute("SET track_functions = 'pl'")

    calls = []
    async with superuser.transaction():
        await insert_submissions(superuser, [a_submission(), a_submission(dedup_key="d")])
        await submit_image(superuser, image, source, is_first=True)
        calls.append(await superuser.fetchval(CALLS))
        await insert_submissions(superuser, [*keyed, a_submission()])
        calls.append(await superuser.fetchval(CALLS))

    assert [None, len(KEYS)] == calls


@pytest.mark.parametrize("dedup_key", [None, "d"])
async def test_batches_that_ask_the_same_in_opposite_orders_do_not_stop_each_other(
    database: Database, dedup_key: str | None
) -> None:
    jobs = [a_submission(idempotency_key=f"key-{n}", dedup_key=dedup_key) for n in range(40)]
    async with no_deadlocks(database), many_connections(database, "api", 8) as clients:
        answers = await all_at_once(
            [
                partial(
                    submit_jobs,
                    client,
                    [replace(job, job_id=new_job_id()) for job in jobs[:: 1 - 2 * (n % 2)]],
                )
                for n, client in enumerate(clients)
            ]
        )
        known = await clients[0].fetchval("SELECT count(*) FROM jobs")

    assert known == (1 if dedup_key else len(jobs))
    ids = [[each.job_id for each in given if isinstance(each, Submitted)] for given in answers]
    assert {len(jobs)} == {len(given) for given in ids}
    assert [ids[0], ids[0][::-1]] * 4 == ids
