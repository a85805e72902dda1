"""Presigned forms: what a browser may post, and what it may not."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import aiohttp
import pytest

from imagefleet.aws.objects import Objects, PostForm
from imagefleet.errors import NotFound
from tests.support.aws import a_name

ACCEPTED = {200, 201, 204}


async def a_form(objects: Objects, key: str) -> PostForm:
    return await objects.presigned_post(
        key,
        content_type="image/png",
        min_bytes=10,
        max_bytes=1000,
        expires=timedelta(minutes=15),
    )


async def post(form: PostForm, file: bytes, **changed: str) -> int:
    data = aiohttp.FormData()
    for name, value in {**form.fields, **changed}.items():
        data.add_field(name, value)
    data.add_field("file", file, filename="image.png")
    async with aiohttp.ClientSession() as client, client.post(form.url, data=data) as answer:
        return answer.status


async def test_a_form_stores_its_file(objects: Objects) -> None:
    key = a_name("form")

    assert await post(await a_form(objects, key), b"x" * 100) in ACCEPTED

    facts = await objects.head(key)
    assert (facts.bytes, facts.content_type) == (100, "image/png")


@pytest.mark.parametrize("size", [9, 1001])
async def test_a_file_of_another_size_is_refused(
    objects: Objects, size: int, differs: Callable[[str], bool]
) -> None:
    key = a_name("form")

    status = await post(await a_form(objects, key), b"x" * size)

    if differs("form-size-is-not-checked"):
        assert status in ACCEPTED
        return
    assert status == 400
    with pytest.raises(NotFound):
        await objects.head(key)


@pytest.mark.parametrize("changed", ["key", "Content-Type"])
async def test_a_form_is_for_one_key_and_one_type(
    objects: Objects, changed: str, differs: Callable[[str], bool]
) -> None:
    form = await a_form(objects, a_name("form"))

    status = await post(form, b"x" * 100, **{changed: a_name("other")})

    if differs("form-policy-is-not-checked"):
        assert status in ACCEPTED
    else:
        assert status == 403


async def test_a_form_that_expired_is_refused(
    objects: Objects, differs: Callable[[str], bool]
) -> None:
    form = await objects.presigned_post(
        a_name("form"),
        content_type="image/png",
        min_bytes=1,
        max_bytes=1000,
        expires=timedelta(seconds=-60),
    )

    status = await post(form, b"x" * 100)

    if differs("form-policy-is-not-checked"):
        assert status in ACCEPTED
    else:
        assert status == 403


async def test_a_form_with_another_signature_is_refused(
    objects: Objects, differs: Callable[[str], bool]
) -> None:
    form = await a_form(objects, a_name("form"))
    forged = replace(form, fields={**form.fields, "x-amz-signature": "0" * 64})

    status = await post(forged, b"x" * 100)

    if differs("signatures-are-not-checked"):
        assert status in ACCEPTED
    else:
        assert status == 403
