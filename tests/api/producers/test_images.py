"""Images over HTTP: stored first, recorded after; refused without a trace in Postgres."""

import asyncio
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.aws.objects import Objects
from imagefleet.aws.transfers import HELD_BYTES
from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.support.api import (
    ACME,
    JPEG,
    MAX_UPLOAD_BYTES,
    PUBLIC,
    Running,
    Serve,
    app_of,
    published,
    uploaded,
)
from tests.support.children import files_in
from tests.support.eventually import eventually
from tests.support.factories import settle_job
from tests.support.http import a_jpeg, a_png, claimed, is_problem, submitted, told
from tests.support.images import quadrants, saved
from tests.support.recipes import RECIPES
from tests.support.rows import job_row


async def in_pieces(data: bytes, size: int = 7919) -> AsyncIterator[bytes]:
    """A body whose length nobody declares."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def nothing_is_recorded(owner: Connection) -> None:
    for table in ("jobs", "images", "image_sources"):
        assert await owner.fetchval(f"SELECT count(*) FROM {table}") == 0, table  # noqa: S608


@pytest.mark.parametrize(
    "how", ["raw", "chunked", "octet-stream", "no type", "curl", "form", "any field"]
)
async def test_an_original_is_stored_and_pinned(
    acme: httpx.AsyncClient, owner: Connection, originals: Objects, how: str
) -> None:
    body = a_jpeg()
    match how:
        case "raw":
            answer = await acme.post("/v1/images", content=body, headers=JPEG)
        case "chunked":
            answer = await acme.post("/v1/images", content=in_pieces(body, 100), headers=JPEG)
        case "octet-stream":
            header = {"Content-Type": "application/octet-stream"}
            answer = await acme.post("/v1/images", content=body, headers=header)
        case "no type":
            answer = await acme.post("/v1/images", content=body)
            assert "content-type" not in answer.request.headers
        case "curl":  # what it says where nobody tells it a type
            header = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = await acme.post("/v1/images", content=body, headers=header)
        case "form":
            answer = await acme.post("/v1/images", files={"file": ("a.jpg", body, "image/jpeg")})
        case _:
            answer = await acme.post("/v1/images", files={"photo": ("a", body)})

    assert answer.status_code == 202, answer.text
    row = await job_row(owner, JobId(UUID(answer.json()["jobId"])))
    payload = row["payload"]
    assert payload["source_sha256"] == hashlib.sha256(body).hexdigest()
    assert (payload["content_type"], payload["recipe"]) == ("image/jpeg", "default")
    assert row["target"] == f"image:{answer.json()['imageId']}"
    facts = await originals.head(payload["source_key"])
    assert (facts.bytes, facts.etag) == (len(body), payload["source_etag"])
    assert facts.content_type == "image/jpeg"
    source = await owner.fetchrow("SELECT * FROM image_sources")
    assert source is not None
    assert (source["width"], source["height"], source["bytes"]) == (64, 40, len(body))
    assert (payload["source_width"], payload["source_height"]) == (64, 40)


async def test_an_upload_larger_than_a_part_arrives_whole(
    serve: Serve, originals: Objects, owner: Connection
) -> None:
    # What follows the picture in its file is nobody's business but S3's.
    body = a_png() + bytes(range(256)) * 40_000
    async with serve(max_upload_bytes=20_000_000) as running, running.client() as client:
        answer = await client.post(
            "/v1/images", content=in_pieces(body, 65_536), headers={"Content-Type": "image/png"}
        )

    assert answer.status_code == 202, answer.text
    row = await job_row(owner, JobId(UUID(answer.json()["jobId"])))
    assert row["payload"]["source_sha256"] == hashlib.sha256(body).hexdigest()
    assert (await originals.head(row["payload"]["source_key"])).bytes == len(body)


async def test_where_nothing_can_be_written_an_upload_is_told_to_come_back(
    acme: httpx.AsyncClient, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = a_jpeg() + bytes(HELD_BYTES)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", "/nowhere")

        answer = await acme.post("/v1/images", content=large, headers=JPEG)
        small = await acme.post("/v1/images", content=a_jpeg(), headers=JPEG)

    is_problem(answer, 503, "unavailable")
    assert int(answer.headers["Retry-After"]) > 0
    assert small.status_code == 202
    assert await owner.fetchval("SELECT count(*) FROM images") == 1
    assert (await acme.post("/v1/images", content=large, headers=JPEG)).status_code == 202


async def test_a_client_that_hangs_up_amid_a_large_upload_leaves_no_file(
    running: Running, owner: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    writer.write(
        b"POST /v1/images HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: 900000\r\n\r\n"
        % running.secrets["acme"].encode()
        + a_jpeg()
        + bytes(HELD_BYTES)
    )
    await eventually(lambda: files_in(tmp_path))

    writer.close()
    await writer.wait_closed()

    await eventually(lambda: not files_in(tmp_path))
    await nothing_is_recorded(owner)


def zero_by_zero() -> bytes:
    png = bytearray(a_png())
    png[16:24] = bytes(8)
    return bytes(png)


def too_many_pixels() -> bytes:
    png = bytearray(a_png())
    png[16:24] = (20_000).to_bytes(4, "big") * 2
    return bytes(png)


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>'

NO_IMAGES = [
    (b"", "image/jpeg", 422, "empty_file"),
    (zero_by_zero(), "image/png", 422, "corrupt"),
    (SVG, "image/svg+xml", 415, "unsupported"),
    (b"just some text", "image/jpeg", 415, "unsupported"),
    (a_png(), "image/jpeg", 415, "type_mismatch"),
    (a_jpeg(), "image/png", 415, "type_mismatch"),
    (a_jpeg(), "text/plain", 415, "unsupported_media_type"),
    (a_jpeg()[:30], "image/jpeg", 422, "corrupt"),
    (too_many_pixels(), "image/png", 422, "too_many_pixels"),
]


async def test_what_is_no_good_image_is_refused(acme: httpx.AsyncClient, owner: Connection) -> None:
    refusals = []
    for body, declared, _, _ in NO_IMAGES:
        header = {"Content-Type": declared}
        answer = await acme.post("/v1/images", content=body, headers=header)
        refusals.append((body, declared, *told(answer)))

    assert refusals == NO_IMAGES
    await nothing_is_recorded(owner)


async def test_what_is_no_good_image_is_refused_in_a_form_too(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    for body, declared, status, code in NO_IMAGES:
        answer = await acme.post("/v1/images", files={"file": ("a.jpg", body, declared)})

        # The form itself is of a type that is taken; its file then is not what it says.
        in_form = "type_mismatch" if code == "unsupported_media_type" else code
        is_problem(answer, status, in_form)
    await nothing_is_recorded(owner)


@pytest.mark.parametrize("how", ["declared", "chunked", "form", "chunked form"])
async def test_nothing_beyond_the_cap_is_taken(
    acme: httpx.AsyncClient, owner: Connection, how: str
) -> None:
    body = a_jpeg() + bytes(MAX_UPLOAD_BYTES + 1 - len(a_jpeg()))
    file = {"file": ("a.jpg", body, "image/jpeg")}
    if how == "declared":
        answer = await acme.post("/v1/images", content=body, headers=JPEG)
    elif how == "chunked":
        answer = await acme.post("/v1/images", content=in_pieces(body), headers=JPEG)
    elif how == "form":
        answer = await acme.post("/v1/images", files=file)
    else:
        form = acme.build_request("POST", "/v1/images", files=file)
        answer = await acme.post(
            "/v1/images",
            content=in_pieces(form.read()),
            headers={"Content-Type": form.headers["content-type"]},
        )

    is_problem(answer, 413, "too_large")
    await nothing_is_recorded(owner)


async def test_the_cap_itself_is_taken(acme: httpx.AsyncClient) -> None:
    body = a_png() + bytes(MAX_UPLOAD_BYTES - len(a_png()))

    raw = await acme.post("/v1/images", content=body, headers={"Content-Type": "image/png"})
    form = await acme.post("/v1/images", files={"file": ("a.png", body, "image/png")})

    assert (raw.status_code, form.status_code) == (202, 202)


HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'

BROKEN_FORMS = [
    ("multipart/form-data", HEAD + b"x\r\n--b--\r\n"),
    ("multipart/form-data; boundary=" + "b" * 1000, b""),
    ("multipart/form-data; boundary=b", b""),
    ("multipart/form-data; boundary=b", b"no form at all"),
    ("multipart/form-data; boundary=b", HEAD + a_jpeg()),
    ("multipart/form-data; boundary=b", HEAD + a_jpeg() + b"\r\n--b"),
    ("multipart/form-data; boundary=b", b"--b\r\nnonsense\r\n\r\nx\r\n--b--\r\n"),
    ("multipart/form-data; boundary=b", b"--b\r\nA: b\r\n\r\nx\r\n--b--\r\n"),
    ("multipart/form-data; boundary=b", b"--b\r\n" + b"A: b\r\n" * 100 + b"\r\nx\r\n--b--"),
    ("multipart/form-data; boundary=b", b"--b\r\nA: " + b"b" * 10_000 + b"\r\n\r\n--b--"),
    ("multipart/form-data; boundary=b", b"--b--\r\n"),
]


async def test_a_broken_form_is_refused(acme: httpx.AsyncClient, owner: Connection) -> None:
    for content_type, body in BROKEN_FORMS:
        header = {"Content-Type": content_type}

        answer = await acme.post("/v1/images", content=body, headers=header)

        is_problem(answer, 400, "invalid_form")
    await nothing_is_recorded(owner)


async def test_a_form_holds_one_file_and_nothing_else(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    file = ("a.jpg", a_jpeg())

    two = await acme.post("/v1/images", files={"a": file, "b": file})
    more = await acme.post("/v1/images", files={"file": file}, data={"recipe": "default"})

    is_problem(two, 400, "invalid_form")
    is_problem(more, 400, "invalid_form")
    await nothing_is_recorded(owner)


NAMES = [
    b"\xff\xfe\x80.jpg",
    b"../../etc/passwd",
    b'a\\"b;c.jpg',
    "\u202egpj.exe".encode(),
    b"",
]


async def test_the_name_of_a_file_is_not_even_kept(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    for name in NAMES:
        head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n' % name

        answer = await acme.post(
            "/v1/images",
            content=head + a_jpeg() + b"\r\n--b--\r\n",
            headers={"Content-Type": "multipart/form-data; boundary=b"},
        )

        assert answer.status_code == 202, answer.text
        image_id = UUID(answer.json()["imageId"])
        key = await owner.fetchval("SELECT key FROM image_sources WHERE image_id = $1", image_id)
        assert re.fullmatch(f"o/{image_id}/[0-9a-f-]{{36}}", key)


async def test_parameters_are_judged_before_the_body(acme: httpx.AsyncClient) -> None:
    for params, code in (
        ({"recipe": "free?w=9999"}, "invalid_request"),
        ({"recipe": "nothing-of-ours"}, "unknown_recipe"),
        ({"reference": "x" * 256}, "invalid_request"),
        ({"reference": "a\x00b"}, "invalid_request"),
        ({"reference": ""}, "invalid_request"),
    ):
        answer = await acme.post("/v1/images", content=b"", headers=JPEG, params=params)

        is_problem(answer, 422, code)


@pytest.fixture
def of_ones_own(tmp_path: Path) -> Path:
    variants = '.variants]]\nname = "all"\nedge = 9\nformat = "jpeg"\n'
    file = tmp_path / "recipes.toml"
    file.write_text(f"[[recipes.default{variants}[[recipes.mine{variants}")
    return file


async def test_the_recipes_are_those_of_the_file(serve: Serve, of_ones_own: Path) -> None:
    async with serve(recipes=of_ones_own) as running, running.client("acme") as acme:
        taken = await acme.post(
            "/v1/images", content=a_jpeg(), headers=JPEG, params={"recipe": "mine"}
        )
        refused = await acme.post(
            "/v1/images", content=a_jpeg(), headers=JPEG, params={"recipe": "avif"}
        )

    assert 202 == taken.status_code, taken.text
    is_problem(refused, 422, "unknown_recipe")
    assert "known are: default, mine." in refused.text


async def test_an_image_is_pending_then_ready(acme: httpx.AsyncClient, worker: Connection) -> None:
    accepted = await uploaded(acme, reference="order 7 · Rückseite")
    link = accepted["links"]["image"]
    pending = (await acme.get(link)).json()

    await published(worker, accepted)

    ready = (await acme.get(link)).json()
    since = pending["original"]["acceptedAt"]
    assert pending == {
        "original": {"acceptedAt": since},
        "imageId": accepted["imageId"],
        "jobId": accepted["jobId"],
        "createdAt": since,  # in the transaction of its first original
        "status": "pending",
        "reference": "order 7 · Rückseite",
        "recipe": "default",
        "recipeHash": RECIPES["default"].hash,
        "variants": [],
        "srcset": {},
        "sources": [],
    }
    prefix = f"{PUBLIC}/i/{accepted['imageId']}"
    assert ready["status"] == "ready"
    assert ready["revision"] == 1
    assert ready["source"] == {"format": "jpeg", "width": 64, "height": 40, "bytes": len(a_jpeg())}
    assert ready["original"] == {"acceptedAt": since}
    assert ready["placeholder"] == {"thumbhash": "aGFzaA==", "color": "#aabbcc"}
    assert ready["variants"][0] == {
        "name": "thumb",
        "format": "jpeg",
        "width": 200,
        "height": 100,
        "bytes": 100,
        "url": f"{prefix}/1.1/thumb.jpg",
        "stableUrl": f"{prefix}/current/thumb.jpg",
        "warnings": ["not_enlarged"],
    }
    names = {made["name"]: made["url"] for made in ready["variants"] if made["format"] == "webp"}
    assert names == {
        "thumb": f"{prefix}/1.1/thumb.webp",
        "small": f"{prefix}/1.1/small.webp",
        "large": f"{prefix}/1.1/small.webp",  # the same picture
    }
    assert ready["srcset"]["image/webp"] == (
        f"{prefix}/1.1/thumb.webp 200w, {prefix}/1.1/small.webp 640w"
    )
    assert ["image/webp", "image/jpeg"] == list(ready["srcset"])
    assert ready["sources"] == [
        {"type": each, "srcset": ready["srcset"][each]} for each in ("image/webp", "image/jpeg")
    ]


async def test_an_image_comes_with_what_a_page_has_of_it(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    accepted = await uploaded(acme)
    link, prefix = accepted["links"]["image"], f"{PUBLIC}/i/{accepted['imageId']}"
    assert "html" not in (await acme.get(link)).json()
    await published(worker, accepted)

    html = (await acme.get(link)).json()["html"]
    asked = {"alt": 'a "dog"', "sizes": "50vw", "loading": "eager", "addresses": "immutable"}
    wanted = (await acme.get(link, params=asked)).json()["html"]

    assert html.startswith(f'<picture><source type="image/webp" srcset="{prefix}/current/thumb.web')
    assert 'width="640" height="320" alt="" loading="lazy"' in html
    assert wanted.startswith(f'<picture><source type="image/webp" srcset="{prefix}/1.1/thumb.webp')
    assert 'sizes="50vw" width="640" height="320" alt="a &quot;dog&quot;" fetchpr' in wanted
    assert not any("html" in each for each in (await acme.get("/v1/images")).json()["images"])


@pytest.mark.parametrize(
    "asked",
    [
        {"alt": "x" * 501}, {"alt": "two\nlines"}, {"sizes": "\x00"}, {"loading": "soon"},
        {"addresses": "none"},
    ],
)  # fmt: skip
async def test_what_no_page_may_say_of_itself_is_refused(
    acme: httpx.AsyncClient, asked: dict[str, str]
) -> None:
    accepted = await uploaded(acme)

    is_problem(await acme.get(accepted["links"]["image"], params=asked), 422, "invalid_request")


async def test_the_job_names_its_image(acme: httpx.AsyncClient) -> None:
    accepted = await uploaded(acme)

    shown = (await acme.get(accepted["links"]["self"])).json()

    assert shown["imageId"] == accepted["imageId"]
    assert shown["links"]["image"] == f"/v1/images/{accepted['imageId']}"


async def test_an_image_whose_job_failed_says_so(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    accepted = await uploaded(acme)
    job = await claimed(worker, accepted["jobId"])
    await settle_job(worker, job, Failed(code="corrupt", message="It is damaged."))

    assert (await acme.get(accepted["links"]["image"])).json()["status"] == "failed"


async def test_a_replacement_is_another_revision_of_the_same_image(
    acme: httpx.AsyncClient, worker: Connection
) -> None:
    first = await uploaded(acme, recipe="default")
    await published(worker, first)

    second = await acme.put(
        first["links"]["image"], content=a_png(), headers={"Content-Type": "image/png"}
    )

    assert second.status_code == 202
    assert second.json()["imageId"] == first["imageId"]
    assert second.json()["jobId"] != first["jobId"]
    assert (await acme.get(first["links"]["image"])).json()["revision"] == 1
    await published(worker, second.json())
    shown = (await acme.get(first["links"]["image"])).json()
    assert (shown["status"], shown["revision"]) == ("ready", 2)


async def test_a_replacement_may_be_repeated(acme: httpx.AsyncClient, owner: Connection) -> None:
    image, other = (await uploaded(acme))["links"]["image"], await uploaded(acme)
    headers = JPEG | {"Idempotency-Key": "put-1"}

    answers = [await acme.put(image, content=a_jpeg(), headers=headers) for _ in range(2)]
    elsewhere = await acme.put(other["links"]["image"], content=a_jpeg(), headers=headers)

    assert answers[0].content == answers[1].content
    is_problem(elsewhere, 422, "idempotency_conflict")
    assert await owner.fetchval("SELECT count(*) FROM jobs") == 3


async def test_a_deleted_image_is_shown_as_deleted_and_not_replaced(
    acme: httpx.AsyncClient, api: Connection, worker: Connection
) -> None:
    accepted = await uploaded(acme)
    await published(worker, accepted)
    headers = JPEG | {"Idempotency-Key": "before"}
    before = await acme.put(accepted["links"]["image"], content=a_jpeg(), headers=headers)
    await api.execute(
        "INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by)"
        " VALUES ($1, 'acme', $2, 'tests')",
        UUID(accepted["imageId"]),
        uuid4(),
    )

    shown = await acme.get(accepted["links"]["image"])
    replaced = await acme.put(accepted["links"]["image"], content=a_jpeg(), headers=JPEG)

    assert shown.status_code == 200
    assert (shown.json()["status"], shown.json()["variants"]) == ("deleted", [])
    assert shown.json()["deletion"]["requestedAt"]
    is_problem(replaced, 409, "image_deleted")
    again = await acme.put(accepted["links"]["image"], content=a_jpeg(), headers=headers)
    assert again.content == before.content


async def test_images_are_found_by_reference_page_by_page(acme: httpx.AsyncClient) -> None:
    made = [(await uploaded(acme, reference="r"))["imageId"] for _ in range(3)]
    await uploaded(acme, reference="s")

    first = (await acme.get("/v1/images?reference=r&limit=2")).json()
    rest = (await acme.get(f"/v1/images?reference=r&limit=2&cursor={first['nextCursor']}")).json()

    assert made[::-1] == [image["imageId"] for image in first["images"] + rest["images"]]
    assert "nextCursor" not in rest
    assert len((await acme.get("/v1/images")).json()["images"]) == 4


async def test_a_client_that_hangs_up_leaves_no_row(running: Running, owner: Connection) -> None:
    ours = app_of(running).state.limiting.tenants.of(ACME)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    writer.write(
        b"POST /v1/images HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: 500000\r\n\r\n"
        % running.secrets["acme"].encode()
        + a_jpeg()
    )
    await eventually(lambda: ours.uploads == 1)

    writer.close()
    await writer.wait_closed()

    await eventually(lambda: ours.uploads == 0)
    await nothing_is_recorded(owner)
    assert await reader.read() == b""


async def test_an_upload_that_takes_too_long_is_given_up(serve: Serve, owner: Connection) -> None:
    async with serve(upload_seconds=1) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
        writer.write(
            b"POST /v1/images HTTP/1.1\r\nHost: x\r\nContent-Type: image/jpeg\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: 500000\r\n\r\n"
            % running.secrets["acme"].encode()
            + a_jpeg()
        )

        async with asyncio.timeout(5):
            assert b"408" in await reader.readline()
        writer.close()

    await nothing_is_recorded(owner)


async def test_jobs_are_listed_by_image(acme: httpx.AsyncClient) -> None:
    accepted = await uploaded(acme)
    await submitted(acme)

    jobs = (await acme.get("/v1/jobs", params={"imageId": accepted["imageId"]})).json()["jobs"]

    assert [accepted["jobId"]] == [job["jobId"] for job in jobs]


async def test_what_nobody_repeats_may_still_be_the_same_picture(
    acme: httpx.AsyncClient,
) -> None:
    first, second = await uploaded(acme), await uploaded(acme)

    assert first["imageId"] != second["imageId"]


async def test_a_real_photograph_has_its_size_read_from_its_first_bytes(
    acme: httpx.AsyncClient, owner: Connection
) -> None:
    body = saved(quadrants(1600, 1200))

    await acme.post("/v1/images", content=body, headers=JPEG)

    source = await owner.fetchrow("SELECT width, height FROM image_sources")
    assert source is not None
    assert (source["width"], source["height"]) == (1600, 1200)
