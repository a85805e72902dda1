"""Live settings over HTTP: what is allowed, what is refused by which sentence, what is undone."""

import asyncio
from typing import Any

import httpx
import pytest

from imagefleet.settings.live import DECLARED
from imagefleet.store.database import Connection
from tests.support.api import Running, app_of
from tests.support.eventually import eventually
from tests.support.http import submitted

PATH = "/v1/operator/settings"
WHY = "too many at once"


async def turn(client: httpx.AsyncClient, name: str, value: object) -> httpx.Response:
    return await client.put(f"{PATH}/{name}", json={"value": value, "reason": WHY})


async def turn_back(client: httpx.AsyncClient, name: str) -> httpx.Response:
    return await client.delete(f"{PATH}/{name}", params={"reason": "over"})


async def shown(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = await client.get(PATH)
    assert answer.status_code == 200, answer.text
    return {setting["name"]: setting for setting in answer.json()["settings"]}


def problem(answer: httpx.Response) -> tuple[int, str, str]:
    told = answer.json()
    return answer.status_code, told["code"], told["detail"]


async def test_every_setting_is_listed_with_what_it_may_be_and_means(
    operating: httpx.AsyncClient,
) -> None:
    settings = await shown(operating)

    told = {setting["meaning"] for setting in settings.values()}
    assert {setting.meaning for setting in DECLARED} == told
    assert all(
        setting["allowed"] and setting["processes"] and setting["defaultFrom"]
        for setting in settings.values()
    )
    assert (5, 5, False) == tuple(
        settings["retry.*.max_attempts"][field] for field in ("value", "default", "turned")
    )
    assert 30 == settings["retention.jobs_days"]["value"]


async def test_a_setting_is_turned_shown_and_reset(operating: httpx.AsyncClient) -> None:
    answer = await turn(operating, "retry.*.max_attempts", 7)

    view = answer.json()
    assert (200, 7, 5, True, WHY) == (
        answer.status_code,
        *(view[field] for field in ("value", "default", "turned", "reason")),
    )
    assert view["setBy"]
    assert view == (await shown(operating))["retry.*.max_attempts"]

    back = (await turn_back(operating, "retry.*.max_attempts")).json()
    assert (5, False) == (back["value"], back["turned"])
    assert "setBy" not in back
    assert 404 == (await turn_back(operating, "retry.*.max_attempts")).status_code


async def test_it_is_in_force_for_the_next_job_and_no_longer_after_the_reset(
    running: Running, operating: httpx.AsyncClient, superuser: Connection
) -> None:
    async with running.client("acme") as acme:

        async def attempts_of_a_new_job() -> int:
            job = await submitted(acme)
            attempts = await superuser.fetchval("SELECT max_attempts FROM jobs WHERE id = $1", job)
            return int(attempts)

        async def wait_for(attempts: int) -> None:
            async def are_so_many() -> bool:
                return attempts == await attempts_of_a_new_job()

            await eventually(are_so_many, within=5)

        await wait_for(5)
        await turn(operating, "retry.*.max_attempts", 7)
        await wait_for(7)
        await turn(operating, "retry.noop.max_attempts", 2)
        await wait_for(2)
        await turn_back(operating, "retry.noop.max_attempts")
        await turn_back(operating, "retry.*.max_attempts")
        await wait_for(5)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("slots.lane.fast", -1, "slots.lane.fast is a whole number of slots from 0 to 100."),
        ("slots.lane.fast", 1.5, "slots.lane.fast is a whole number of slots from 0 to 100."),
        ("slots.lane.fast", True, "slots.lane.fast is a whole number of slots from 0 to 100."),
        ("slots.lane.fast", "2", "slots.lane.fast is a whole number of slots from 0 to 100."),
        ("breaker.s3.ratio", 0, "breaker.s3.ratio is a number from 0.01 to 1."),
        ("breaker.s3.failures", 10**30, "breaker.s3.failures is a whole number from 1 to 1000000."),
        ("retention.sweep_deletes", 0, "retention.sweep_deletes is true or false."),
        (
            "retention.jobs_days",
            29,
            "retention.jobs_days is a whole number of days from 30 to 3650.",
        ),
        (
            "retry.*.base_seconds",
            7200,
            (
                "retry.*.base_seconds would be 7200, and so longer than retry.*.cap_seconds, "
                "which is 3600: turn that first."
            ),
        ),
        (
            "retry.noop.cap_seconds",
            1,
            (
                "retry.*.base_seconds would be 30, and so longer than retry.noop.cap_seconds, "
                "which is 1: turn that first."
            ),
        ),
    ],
)
async def test_nonsense_is_refused_by_a_sentence_and_changes_nothing(
    name: str,
    value: object,
    sentence: str,
    operating: httpx.AsyncClient,
    superuser: Connection,
) -> None:
    assert (422, "invalid_setting", sentence) == problem(await turn(operating, name, value))

    assert 0 == await superuser.fetchval("SELECT count(*) FROM live_settings")
    assert 0 == await superuser.fetchval("SELECT count(*) FROM audit WHERE kind = 'setting'")


@pytest.mark.parametrize("value", [None, [], {}, [1], "x" * 300])
async def test_what_is_no_value_at_all_is_an_invalid_request(
    value: object, operating: httpx.AsyncClient
) -> None:
    answer = await turn(operating, "slots.lane.fast", value)

    assert (422, "invalid_request") == problem(answer)[:2]


async def test_a_reason_is_needed(operating: httpx.AsyncClient) -> None:
    without = await operating.put(f"{PATH}/slots.lane.fast", json={"value": 2})
    empty = await operating.put(f"{PATH}/slots.lane.fast", json={"value": 2, "reason": ""})
    back = await operating.delete(f"{PATH}/slots.lane.fast")

    assert [422, 422, 422] == [answer.status_code for answer in (without, empty, back)]


@pytest.mark.parametrize("name", ["nothing", "slots.lane.express", "breaker.s3", "timeout.type.*"])
async def test_a_name_that_there_is_not_is_not_found(
    name: str, operating: httpx.AsyncClient
) -> None:
    assert (404, "not_found") == problem(await turn(operating, name, 1))[:2]
    assert 404 == (await turn_back(operating, name)).status_code


async def test_what_would_contradict_after_a_reset_stays(operating: httpx.AsyncClient) -> None:
    await turn(operating, "retry.*.cap_seconds", 10_000)
    await turn(operating, "retry.*.base_seconds", 7200)

    refused = await turn_back(operating, "retry.*.cap_seconds")

    assert (422, "invalid_setting") == problem(refused)[:2]
    assert "retry.*.base_seconds" in problem(refused)[2]
    assert 200 == (await turn_back(operating, "retry.*.base_seconds")).status_code
    assert 200 == (await turn_back(operating, "retry.*.cap_seconds")).status_code


async def test_no_limit_keeps_operators_from_resetting_it(
    running: Running, operating: httpx.AsyncClient
) -> None:
    lowest = {
        setting.name: setting.low for setting in DECLARED if setting.name.startswith("limits.")
    }
    for name, value in lowest.items():
        assert 200 == (await turn(operating, name, int(value))).status_code
    live = app_of(running).state.tools.live
    await eventually(lambda: lowest.items() <= live.now.turned.items(), within=10)

    assert [200] * len(lowest) == [
        (await turn_back(operating, name)).status_code for name in lowest
    ]


async def test_two_who_turn_at_once_do_not_contradict_each_other(
    operating: httpx.AsyncClient,
) -> None:
    """Each alone would be allowed."""
    answers = await asyncio.gather(
        turn(operating, "retry.*.base_seconds", 3000), turn(operating, "retry.*.cap_seconds", 60)
    )

    assert [200, 422] == sorted(answer.status_code for answer in answers)


async def test_rows_that_somebody_wrote_by_hand_are_shown_ignored_and_can_be_reset(
    operating: httpx.AsyncClient, superuser: Connection
) -> None:
    await superuser.execute(
        "INSERT INTO live_settings (name, value, set_by, reason) VALUES"
        " ('later.release', '1', 'me', 'why'), ('slots.lane.fast', '\"two\"', 'me', 'why')"
    )

    settings = await shown(operating)

    assert "this release has no such setting" == settings["later.release"]["ignored"]
    assert "is a whole number" in settings["slots.lane.fast"]["ignored"]
    assert "value" not in settings["slots.lane.fast"]
    assert 200 == (await turn(operating, "slots.lane.general", 2)).status_code
    for name in ("later.release", "slots.lane.fast"):
        assert 200 == (await turn_back(operating, name)).status_code


async def test_a_slip_in_the_name_of_a_type_is_told(operating: httpx.AsyncClient) -> None:
    slip = (await turn(operating, "timeout.type.nop", 5)).json()
    known = (await turn(operating, "timeout.type.noop", 5)).json()
    star = (await turn(operating, "retry.*.max_attempts", 5)).json()

    assert (False, True, None) == (slip["known"], known["known"], star.get("known"))


async def test_there_are_no_more_than_everybody_reads(
    operating: httpx.AsyncClient, superuser: Connection
) -> None:
    await superuser.execute(
        "INSERT INTO live_settings (name, value, set_by, reason)"
        " SELECT 'slots.type.t' || n, '1', 'me', 'why' FROM generate_series(1, 1000) AS n"
    )

    assert (422, "invalid_setting") == problem(await turn(operating, "slots.lane.fast", 1))[:2]
    assert 200 == (await turn(operating, "slots.type.t5", 2)).status_code


async def test_retention_is_turned_for_every_statement(
    operating: httpx.AsyncClient, superuser: Connection
) -> None:
    retention = "SELECT extract(days FROM retention)::int FROM fleet"

    assert 200 == (await turn(operating, "retention.jobs_days", 90)).status_code
    assert 90 == await superuser.fetchval(retention)
    assert 30 == (await shown(operating))["retention.jobs_days"]["default"]
    assert 200 == (await turn_back(operating, "retention.jobs_days")).status_code
    assert 30 == await superuser.fetchval(retention)


async def test_only_operators_may_look_or_turn(running: Running) -> None:
    async with running.client("acme") as acme:
        answers = [
            await acme.get(PATH),
            await turn(acme, "slots.lane.fast", 1),
            await turn_back(acme, "slots.lane.fast"),
        ]

    assert [403, 403, 403] == [answer.status_code for answer in answers]
