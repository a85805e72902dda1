"""A tenant writes to whoever looks at its jobs; the terminal of an operator does not listen."""

import asyncio
import os
import pty
import sys
from typing import Final

import pytest

from imagefleet.jobs.model import TenantId
from imagefleet.store.database import connect
from imagefleet.store.fleet.keys import create_key
from tests.faults.crowding import another_tenant
from tests.support.images import quadrants, saved, without_pixels
from tests.support.stack import Producer, Stack

# A reference takes no controls; the reason of a cancellation takes whatever Postgres does.
REFERENCE: Final = "[/bold][red]x[/] \u202egnp.exe\u2066 :boom:"
REASON: Final = "\x1b[2J\x1b]0;owned\x07\x1b]52;c;cm0gLXJm\x07\x9b31m\r\nimagefleet: ok" + REFERENCE
A_PICTURE: Final = saved(quadrants())
STOLEN: Final = ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\u202e", "\u2066", "\nimagefleet: ok")


async def seen_at_a_terminal(stack: Stack, key: str, *verb: str) -> tuple[int, str]:
    """What a terminal gets to see of this verb; the exit code."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "imagefleet", *verb,
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={
            **os.environ,  # noqa: TID251 - as from a terminal
            "IMAGEFLEET_URL": str(stack.facts["api_url"]),
            "IMAGEFLEET_KEY": str(stack.facts[key]),
            "COLUMNS": "1000", "TERM": "xterm-256color",
        },
    )  # fmt: skip
    os.close(theirs)

    def read() -> bytes:
        seen = b""
        try:
            while piece := os.read(ours, 65_536):
                seen += piece
        except OSError:  # the other side was closed
            pass
        return seen

    try:
        async with asyncio.timeout(30):
            seen = await asyncio.to_thread(read)
            return await process.wait(), seen.decode()
    finally:
        os.close(ours)


@pytest.mark.parametrize("form", [(), ("--json",)])
async def test_text_of_a_tenant_steers_no_terminal(
    stack: Stack, producer: Producer, form: tuple[str, ...]
) -> None:
    jpeg = {"Content-Type": "image/jpeg"}
    body = {"jobType": "noop", "runAt": "2090-01-01T00:00:00Z"}
    made = await producer.post(
        "/v1/images", None, "an image", jpeg, params={"reference": REFERENCE}, content=A_PICTURE
    )
    later = await producer.post("/v1/jobs", None, "a job for later", json=body)
    assert (made.status_code, later.status_code) == (202, 202), (made.text, later.text)
    job_id = later.json()["jobId"]
    path = f"/v1/jobs/{job_id}/cancel"
    cancelled = await producer.post(path, None, "its end", json={"reason": REASON})
    assert cancelled.status_code == 202, cancelled.text
    await producer.ended(job_id)

    images = await seen_at_a_terminal(stack, "api_key", "images", "list", *form)
    job = await seen_at_a_terminal(stack, "operator_key", "jobs", "show", "--full", job_id, *form)

    for code, text in (images, job):
        assert code in {0, 1}, text
        assert [] == [each for each in STOLEN if each in text], text
        assert "Traceback" not in text
        assert "[/bold][red]x[/]" in text
        assert r"\u202e" in text
    assert r"\x1b[2J" in job[1] or r"\u001b[2J" in job[1]


# Each of an operator; {failed} and {waiting} are jobs of the tenant.
VERBS: Final = (
    "dlq list --history",
    "dlq show {failed}",
    "dlq groups --by-tenant",
    "jobs list --every-tenant",
    "jobs show --full {waiting}",
    "jobs explain {waiting}",
    "jobs attempts {failed}",
    "audit --tenant hostile",
    "queue stats",
    "tenants list",
    "tenants show hostile",
)


@pytest.mark.timeout(120)
async def test_no_verb_of_an_operator_lets_a_tenant_steer(stack: Stack) -> None:
    """A job that has failed, one that waits, a key: each with all that its tenant may name."""
    later = {
        "jobType": "noop",
        "runAt": "2090-01-01T00:00:00Z",
        "dedupKey": REFERENCE,
        "payload": {"note": REASON},
    }
    jpeg = {"Content-Type": "image/jpeg"}
    async with another_tenant(stack, "hostile") as hostile:
        damaged = await hostile.post(
            "/v1/images", None, "a damaged image", jpeg, params={"reference": REFERENCE},
            content=without_pixels(A_PICTURE),
        )  # fmt: skip
        waiting = await hostile.post("/v1/jobs", None, "a job for later", json=later)
        assert (damaged.status_code, waiting.status_code) == (202, 202), waiting.text
        jobs = {"failed": damaged.json()["jobId"], "waiting": waiting.json()["jobId"]}
        assert (await hostile.ended(jobs["failed"]))["status"] == "failed"
        async with connect(stack.facts["database_urls"]["admin"], process="test") as connection:
            await create_key(connection, TenantId("hostile"), name=REASON, scopes=("read",))

        table = document = ""
        for verb in VERBS:
            words = verb.format_map(jobs).split()
            shown = await asyncio.gather(
                seen_at_a_terminal(stack, "operator_key", *words),
                seen_at_a_terminal(stack, "operator_key", *words, "--json"),
            )
            for code, text in shown:
                assert code in {0, 1}, (verb, text)
                assert [] == [each for each in STOLEN if each in text], (verb, text)
                assert "Traceback" not in text, (verb, text)
            table += shown[0][1]
            document += shown[1][1]
        for told in ("[/bold][red]x[/]", r"\u202e", jobs["failed"], jobs["waiting"]):
            assert told in table
            assert told in document
        path = f"/v1/jobs/{jobs['waiting']}/cancel"
        ended = await hostile.post(path, None, "its end", json={"reason": REASON})
        assert ended.status_code == 202, ended.text
        await hostile.ended(jobs["waiting"])
