"""Stable addresses, as an HTTP cache between us and the world would read them."""

import asyncio
import time
from collections.abc import AsyncIterator
from time import monotonic
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.store.database import Connection
from tests.support.api import JPEG, PUBLIC, Running, Serve, published, uploaded
from tests.support.database import Database
from tests.support.eventually import eventually
from tests.support.http import a_jpeg, but_for_its_id, is_problem
from tests.support.wires import Gate, gate_before

A_DAY = 86_400
DEADLINE = 2  # seconds, of what may say where something is


@pytest.fixture
async def anybody(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with running.client(None) as client:
        yield client


@pytest.fixture
async def image_id(acme: httpx.AsyncClient, worker: Connection) -> UUID:
    """Of an image that is published."""
    accepted = await uploaded(acme)
    await published(worker, accepted)
    return UUID(accepted["imageId"])


def stable(image_id: object, name: str = "thumb.webp") -> str:
    return f"/i/{image_id}/current/{name}"


def directives(answer: httpx.Response) -> dict[str, str]:
    """Of Cache-Control, each once."""
    parts = [part.strip().partition("=") for part in answer.headers["cache-control"].split(",")]
    assert len(parts) == len({name for name, _, _ in parts})
    return {name: value for name, _, value in parts}


def is_not_found(answer: httpx.Response) -> None:
    is_problem(answer, 404, "not_found")
    assert directives(answer) == {"no-store": ""}
    assert "location" not in answer.headers


async def deleted(api: Connection, image_id: UUID) -> None:
    await api.execute(
        "INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by)"
        " VALUES ($1, 'acme', $2, 'tests')",
        image_id,
        uuid4(),
    )


async def test_it_leads_to_every_variant_by_the_address_that_the_image_tells(
    acme: httpx.AsyncClient, anybody: httpx.AsyncClient, image_id: UUID
) -> None:
    shown = (await acme.get(f"/v1/images/{image_id}")).json()

    for variant in shown["variants"]:
        answer = await anybody.get(variant["stableUrl"].removeprefix(PUBLIC))

        assert answer.status_code == 302
        assert variant["url"] == answer.headers["location"]
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.content == b""
    assert len(shown["variants"]) == 6
    assert len({variant["url"] for variant in shown["variants"]}) == 4


async def test_the_edge_may_keep_it_for_a_day_and_browsers_for_seconds(
    anybody: httpx.AsyncClient, image_id: UUID
) -> None:
    answer = await anybody.get(stable(image_id))

    kept = directives(answer)
    assert {"public", "max-age", "s-maxage"} == set(kept)
    assert 0 < int(kept["max-age"]) <= 10
    assert int(kept["max-age"]) < int(kept["s-maxage"]) <= A_DAY
    # Whatever else a cache looks at: nothing that makes two of one, or forbids to keep it.
    assert not {"vary", "set-cookie", "expires", "pragma", "age"} & set(answer.headers)


async def test_it_bears_the_tag_that_an_invalidation_names(
    anybody: httpx.AsyncClient, image_id: UUID
) -> None:
    answer = await anybody.get(stable(image_id))

    assert f"img-{image_id}" == answer.headers["x-amz-meta-cache-tag"]
    assert f"img-{image_id}" == answer.headers["cache-tag"]


async def test_head_says_what_get_says(anybody: httpx.AsyncClient, image_id: UUID) -> None:
    own = {"date", "x-correlation-id"}
    for path in (stable(image_id), stable(uuid4())):
        got, head = await anybody.get(path), await anybody.head(path)

        assert got.status_code == head.status_code
        assert head.content == b""
        told = [{k: v for k, v in answer.headers.items() if k not in own} for answer in (got, head)]
        assert told[0] == told[1]


async def test_a_replacement_is_what_it_leads_to_next(
    acme: httpx.AsyncClient,
    anybody: httpx.AsyncClient,
    worker: Connection,
    image_id: UUID,
) -> None:
    replaced = await acme.put(f"/v1/images/{image_id}", content=a_jpeg(), headers=JPEG)
    before = await anybody.get(stable(image_id))
    await published(worker, replaced.json())
    after = await anybody.get(stable(image_id))

    assert f"{PUBLIC}/i/{image_id}/1.1/thumb.webp" == before.headers["location"]
    assert f"{PUBLIC}/i/{image_id}/2.1/thumb.webp" == after.headers["location"]


async def test_what_is_not_there_is_not_found_and_not_kept(
    acme: httpx.AsyncClient, anybody: httpx.AsyncClient, image_id: UUID
) -> None:
    not_yet = (await uploaded(acme))["imageId"]

    answers = [
        await anybody.get(path)
        for path in (
            stable(not_yet),
            stable(uuid4()),
            stable(image_id, "nothing.webp"),
            stable(image_id, "thumb.avif"),
        )
    ]

    for answer in answers:
        is_not_found(answer)
    assert 1 == len({but_for_its_id(answer) for answer in answers})


async def test_a_deleted_image_is_not_found_from_its_tombstone_on(
    anybody: httpx.AsyncClient, api: Connection, image_id: UUID
) -> None:
    before = await anybody.get(stable(image_id))
    await deleted(api, image_id)

    assert 302 == before.status_code
    is_not_found(await anybody.get(stable(image_id)))


async def test_an_address_that_is_written_otherwise_is_another(
    running: Running, image_id: UUID
) -> None:
    """The edge keeps each spelling by itself, and an invalidation names only one."""
    plain = str(image_id)
    escaped = f"%{ord(plain[0]):02x}{plain[1:]}"
    for path in (
        stable(plain.upper().replace("0", "%30", 1)),
        stable(escaped),
        stable(image_id.hex),
        stable(f"%7B{plain}%7D"),
        stable(f"urn:uuid:{plain}"),
        stable(plain, "thumb%2Ewebp"),
        stable(plain, "thum%62.webp"),
        stable(plain, "THUMB.webp"),
        stable(plain, "thumb.WEBP"),
        stable(plain, "thumb.webp/"),
    ):
        is_not_found(await raw(running, path))


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("not-an-id", "thumb.webp"),
        ("0" * 10_000, "thumb.webp"),
        ("%00", "thumb.webp"),
        ("%ff%fe", "thumb.webp"),
        ("..%2f..", "thumb.webp"),
        ("'%20OR%201=1--", "thumb.webp"),
        (None, "%00.webp"),
        (None, "..%2f..%2fetc%2fpasswd.webp"),
        (None, "%0d%0aSet-Cookie:%20a=b.webp"),
        (None, "%27%20OR%201=1--.webp"),
        (None, "%25.webp"),
        (None, "%e2%80%ae.webp"),
        (None, "x" * 10_000 + ".webp"),
        (None, ".webp"),
        (None, "thumb."),
        (None, "thumb"),
        (None, "thumb.webp.webp"),
        (None, "thumb.%00"),
        (None, "{variant}.{ext}"),
    ],
)
async def test_hostile_names_are_not_found(
    running: Running, image_id: UUID, image: str | None, name: str
) -> None:
    answer = await raw(running, stable(image or image_id, name))

    is_not_found(answer)
    assert "set-cookie" not in answer.headers


async def raw(running: Running, path: str) -> httpx.Response:
    """Ask for exactly this, which no client of good manners would."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines]
    return httpx.Response(int(first.split()[1]), headers=headers, content=body)  # type: ignore[arg-type]


async def test_it_only_answers_questions(anybody: httpx.AsyncClient, image_id: UUID) -> None:
    for method in ("POST", "PUT", "DELETE"):
        answer = await anybody.request(method, stable(image_id))

        is_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("how", ["closed", "silent", "slow"])
async def test_without_postgres_it_says_so_soon_and_never_where_it_was(
    serve: Serve, database: Database, superuser: Connection, how: str
) -> None:
    parts = urlsplit(database.url("api"))
    async with gate_before(parts.hostname or "", parts.port or 0) as gate:
        login = parts.netloc.rpartition("@")[0]
        url = parts._replace(netloc=f"{login}@127.0.0.1:{gate.port}").geturl()
        async with serve(database_url=url) as running, running.client(None) as anybody:
            is_not_found(await anybody.get(stable(uuid4())))
            async with superuser.transaction():
                await held_up(gate, superuser, how)
                begun = monotonic()
                answer = await anybody.get(stable(uuid4()))
            gate.open()

    is_problem(answer, 503, "unavailable")
    assert directives(answer) == {"no-store": ""}
    assert int(answer.headers["retry-after"]) > 0
    assert monotonic() - begun < DEADLINE + 2  # giving the connection up takes its time too


async def test_a_process_that_stood_still_after_its_read_does_not_tell_what_it_read(
    anybody: httpx.AsyncClient, image_id: UUID, superuser: Connection
) -> None:
    """Meanwhile the pointer may have moved, and the edge have been told so."""
    assert 302 == (await anybody.get(stable(image_id))).status_code  # the driver knows the read now
    await superuser.execute("BEGIN")
    await superuser.execute("LOCK TABLE images IN ACCESS EXCLUSIVE MODE")

    async def is_read() -> bool:
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'images'::regclass"
        return bool(await superuser.fetch(waiting))

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(anybody.get(stable(image_id)))
        await eventually(is_read, within=5)
        group.create_task(superuser.execute("ROLLBACK"))
        await asyncio.sleep(0)  # it is sent; Postgres answers both while nobody here listens
        time.sleep(DEADLINE + 0.1)  # noqa: ASYNC251, TID251 - stands still, as a stopped process
    answer = asking.result()

    is_problem(answer, 503, "unavailable")
    assert directives(answer) == {"no-store": ""}
    assert "location" not in answer.headers


async def held_up(gate: Gate, superuser: Connection, how: str) -> None:
    if how == "closed":
        gate.close()
    elif how == "silent":
        gate.silence()
    else:
        await superuser.execute("LOCK TABLE images IN ACCESS EXCLUSIVE MODE")
