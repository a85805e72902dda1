"""The walks: what is asked of a stack while it tells where it goes."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

import httpx

from tests.support.eventually import eventually
from tests.support.images import BLUE, RED, quadrants, saved
from tests.support.published import a_picture, all_flushed, publish, replace
from tests.support.stack import Producer, Stack, running_stack
from tests.walk.trace import IDLE, NOTHING, STARTING, Walk, read_steps, say, walks

IDLE_SECONDS: Final = 8.0  # every ticker that ticks within an upload has ticked by then
QUIET_SECONDS: Final = 0.7  # after the last thing that can be seen: deletes and counts follow it
SETTINGS: Final = {"maintenance": {"SAMPLE_INTERVAL_SECONDS": "1"}}


Go: TypeAlias = Callable[[], Awaitable[None]]


class Walker:
    """Asks for one thing after another; only what follows `go` is told."""

    def __init__(self, stack: Stack, producer: Producer, operator: Producer, folder: Path) -> None:
        self.stack = stack
        self.producer = producer
        self.operator = operator
        self.folder = folder

    async def upload(self, go: Go) -> None:
        await go()
        accepted = await self.producer.upload(saved(quadrants()))
        await self.ended(accepted, "completed")

    async def cancel(self, go: Go) -> None:
        accepted = await self.producer.submit("noop", {"milliseconds": 60_000})
        await self.reaches(accepted.json()["jobId"], "processing")
        await go()
        await self.ok(self.producer.http.post(f"/v1/jobs/{accepted.json()['jobId']}/cancel"))
        await self.ended(accepted, "failed")

    async def replay(self, go: Go) -> None:
        await self.ok(self.operator.http.get("/v1/operator/dead-letters"))  # the key is known
        broken = saved(quadrants())
        accepted = await self.producer.upload(broken[:200])
        await self.ended(accepted, "failed")
        async with self.stack.database() as owner:
            letter = await owner.fetchval("SELECT id FROM dead_letters LIMIT 1")
        asked = {"ids": [str(letter)], "reason": "a walk"}
        await go()
        await self.ok(self.operator.http.post("/v1/operator/dead-letters:replay", json=asked))
        await self.stack.all_ended(within=20)

    async def replacement(self, go: Go) -> None:
        image = await publish(self.producer, RED)
        await go()
        await replace(self.producer, image.image_id, a_picture(BLUE))
        await self.stack.all_ended(within=20)
        await all_flushed(self.stack)

    async def explain(self, go: Go) -> None:
        accepted = await self.producer.submit("noop", {"milliseconds": 5_000})
        await self.reaches(accepted.json()["jobId"], "processing")
        await go()
        asked = f"/v1/operator/jobs/{accepted.json()['jobId']}/explain"
        await self.ok(self.operator.http.get(asked))

    async def ok(self, asked: Awaitable[httpx.Response]) -> Any:  # noqa: ANN401 - JSON
        answer = await asked
        assert answer.is_success, answer.text
        return answer.json()

    async def reaches(self, job_id: str, state: str) -> None:
        """Without the API, whose ways this is not about."""
        async with self.stack.database() as owner:

            async def there() -> bool:
                now = await owner.fetchval("SELECT state FROM jobs WHERE id = $1::uuid", job_id)
                assert now == state
                return True

            await eventually(there, within=20)

    async def ended(self, accepted: httpx.Response, state: str) -> None:
        assert accepted.status_code == 202, accepted.text
        await self.reaches(accepted.json()["jobId"], state)


WALKS: Final[Mapping[str, Callable[[Walker, Go], Awaitable[None]]]] = {
    "upload": Walker.upload,
    "cancel": Walker.cancel,
    "replay": Walker.replay,
    "replacement": Walker.replacement,
    "explain": Walker.explain,
}


async def walked(idle_seconds: float = IDLE_SECONDS) -> list[Walk]:
    """Start a stack, leave it alone, walk each walk, and tell what was beyond being left alone."""
    with TemporaryDirectory(prefix="imagefleet-walk-") as name:
        folder = Path(name)
        say(folder, STARTING)
        async with (
            running_stack(settings=SETTINGS, walk=folder) as stack,
            stack.producer() as producer,
            stack.producer(key="operator_key") as operator,
        ):
            walker = Walker(stack, producer, operator, folder)
            await walker.upload(partial(_go, folder, NOTHING))  # some things are done once only
            say(folder, IDLE)
            await asyncio.sleep(idle_seconds)
            for phase, walk in enumerate(WALKS.values(), IDLE + 1):
                say(folder, NOTHING)
                await walk(walker, partial(_go, folder, phase))
                await asyncio.sleep(QUIET_SECONDS)
            say(folder, NOTHING)
            return walks(read_steps(folder), [*WALKS])


async def _go(folder: Path, phase: int) -> None:
    """What was made ready is over, to its last line in the log."""
    await asyncio.sleep(QUIET_SECONDS)
    say(folder, phase)
