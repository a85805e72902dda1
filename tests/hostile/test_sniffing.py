"""Images whose beginnings are all work and no picture, one after the other: others do not wait."""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections import Counter
from contextlib import AbstractAsyncContextManager
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from tests.faults.crowding import another_tenant
from tests.hostile.flooding import attacking, compared
from tests.support.heads import HEADS
from tests.support.images import gif_of_frames
from tests.support.stack import Producer, Stack

ATTACKERS: Final = 4
MET: Final = {
    "corrupt",
    "too_many_parts",
    "limit_reached",
    "busy",
    "lost",
}
WHOLE: Final = "gif frames"  # a picture, of any number of frames
CPU_SECONDS: Final = "SELECT sum(cpu_seconds) FROM attempts WHERE job_id = $1"
TYPES: Final = {name: f"image/{name.partition(' ')[0]}" for name in HEADS}


def sending(url: str, key: str) -> AbstractAsyncContextManager[Counter[str]]:
    """By programs of their own, so that who measures is not held up himself; what they met."""
    return attacking("tests.hostile.test_sniffing", url, key, programs=ATTACKERS)


@pytest.mark.usefixtures("alone")
async def test_nobody_waits_for_the_heads_of_others(stack: Stack) -> None:
    key = stack.facts["api_key"]
    async with another_tenant(stack, "bystander") as bystander:
        comparison = await compared(
            bystander,
            "heads",
            lambda url: sending(url, key),
            told=MET,
        )

    assert comparison.is_fair, str(comparison)


@pytest.mark.parametrize("name", [name for name in HEADS if name != WHOLE])
async def test_such_a_head_is_refused_or_ends_as_damaged(producer: Producer, name: str) -> None:
    answer = await producer.upload(HEADS[name], TYPES[name])

    if answer.status_code == 202:  # what is wrong lies behind the head
        ended = await producer.ended(answer.json()["jobId"])
        assert ended["failure"]["code"] in {"corrupt", "too_many_parts"}
    else:
        assert answer.status_code == 422
        assert answer.json()["code"] in {"corrupt", "too_many_parts"}


async def test_of_frames_without_end_the_first_is_made_and_costs_what_one_does(
    producer: Producer, stack: Stack
) -> None:
    """Two hundred and fifty-six kilobytes of nothing but frames, seventeen thousand of them."""
    took = {}
    for name, gif in (("many", HEADS[WHOLE]), ("one", gif_of_frames(1))):
        answer = await producer.upload(gif, TYPES[WHOLE])
        assert answer.status_code == 202, answer.text
        ended = await producer.ended(answer.json()["jobId"])
        assert ended["status"] == "completed", ended
        variants = (await producer.image(answer.json()["imageId"]))["variants"]
        said = {"animation_flattened", "not_enlarged"} if name == "many" else {"not_enlarged"}
        assert [said] * 10 == [set(each["warnings"]) for each in variants]
        async with stack.database() as owner:
            took[name] = await owner.fetchval(CPU_SECONDS, UUID(ended["jobId"]))

    # To decode them all would be twice as much as this allows.
    assert took["many"] < took["one"] + 0.1, took


def attack(url: str, key: str) -> None:
    """Until the standard input ends: one head after the other, over one connection."""
    import select  # noqa: PLC0415 - of this program alone

    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
    met: Counter[str] = Counter()
    bodies = {name: head for name, head in HEADS.items() if name in REFUSED}
    names, turn = sorted(bodies), os.getpid()  # each begins with another
    print("attacking", flush=True)  # noqa: T201 - to the test
    while not select.select([sys.stdin], [], [], 0)[0]:
        name = names[turn % len(names)]
        turn += 1
        headers = {"Authorization": f"Bearer {key}", "Content-Type": TYPES[name]}
        try:
            connection.request("POST", "/v1/images", bodies[name], headers)
            answer = connection.getresponse()
            met[json.loads(answer.read()).get("code", "accepted")] += 1
        except (OSError, http.client.HTTPException):
            connection.close()
            met["lost"] += 1
    print(json.dumps(met))  # noqa: T201 - to the test


REFUSED: Final = frozenset(
    {
        "jpeg segments", "jpeg metadata", "jpeg markers", "png chunks", "png exif", "png frames",
        "webp chunks", "gif blocks", "gif extensions", "avif boxes", "avif items",
    }
)  # fmt: skip


if __name__ == "__main__":
    attack(*sys.argv[1:])
