"""`imagefleet edge` against a real API and a real Postgres."""

import asyncio
from uuid import uuid4

from imagefleet.cli.output import ExitCode
from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import (
    Accepted,
    BatchLimits,
    accept_batch,
    commit_batch,
    complete_batch,
    look_at_owed,
)
from tests.cli.conftest import Cli
from tests.support.api import Running, uploaded
from tests.support.eventually import eventually

ROOMY = BatchLimits(paths=3000, wildcards=15)


async def an_image(running: Running) -> str:
    async with running.client("acme") as client:
        return str((await uploaded(client))["imageId"])


async def paid(maintenance: Connection) -> bool:
    debts = [owed.debt for owed in await look_at_owed(maintenance, limit=10)]
    batch = await commit_batch(maintenance, debts, lambda tag: f"#img-{tag}", within=ROOMY)
    if batch is None:
        return False
    await accept_batch(maintenance, batch.id, "I1")
    return await complete_batch(maintenance, Accepted(batch.id, "I1")) is not None


async def test_invalidate_waits_until_the_edge_agrees(
    operate: Cli, running: Running, maintenance: Connection
) -> None:
    image_id = await an_image(running)

    ended, _ = await asyncio.gather(
        operate("edge", "invalidate", image_id, "--wait", "--json", "--reason", "a takedown"),
        eventually(lambda: paid(maintenance), within=10),
    )

    assert ExitCode.DONE == ended.code, ended.err
    (invalidation,) = ended.json()["invalidations"]
    assert (image_id, "a takedown") == (invalidation["imageId"], invalidation["requestReason"])
    assert "completedAt" in invalidation


async def test_waiting_ends_and_the_debt_stays(operate: Cli, running: Running) -> None:
    ended = await operate("edge", "invalidate", await an_image(running), "--wait", "--within", "0")

    assert ExitCode.UNAVAILABLE == ended.code
    assert "stay owed" in ended.err


async def test_an_unknown_image_is_refused(operate: Cli) -> None:
    assert ExitCode.REFUSED == (await operate("edge", "invalidate", str(uuid4()))).code
    assert ExitCode.USAGE == (await operate("edge", "invalidate", "x")).code


async def test_the_status_is_a_table_or_json(
    operate: Cli, running: Running, maintenance: Connection
) -> None:
    image_id = await an_image(running)
    told = await operate("edge", "invalidate", image_id)
    await paid(maintenance)

    table = await operate("edge", "status")
    status = (await operate("edge", "status", "--json")).json()

    assert image_id in told.out
    assert "1 of 1000 paths" in table.out
    assert "nobody yet" in table.out
    assert 1 == status["month"]["paths"]
