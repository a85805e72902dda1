"""Operators and rates: which time is asked of, in which steps, and what of it is refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from imagefleet.store.database import Connection
from tests.support.http import is_problem

RATES = "/v1/operator/rates"
COSTS = "/v1/operator/costs"
ADD = """
INSERT INTO rollups (step, at, type, lane, submitted, completed, failed, published, waits,
                     durations, longest_wait, longest_duration)
SELECT steps.step, date_trunc(steps.step, counted_until - $1::interval, 'UTC'), $2, $3, $4, $4, 1,
       $4, '{1,2}', '{0,0,3}', interval '1 ms', interval '2 ms'
  FROM rollup_progress, unnest('{minute,hour,day}'::text[]) AS steps (step)
    ON CONFLICT DO NOTHING
"""


async def rolled_up(
    superuser: Connection,
    jobs: int,
    *,
    ago: timedelta = timedelta(minutes=5),
    job_type: str = "noop",
    lane: str = "fast",
) -> None:
    await superuser.execute(ADD, ago, job_type, lane, jobs)


async def asked(client: httpx.AsyncClient, path: str, **query: str) -> Any:  # noqa: ANN401 - JSON
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    ("span", "step", "points"),
    [("hour", "minute", {60}), ("day", "hour", {24, 25}), ("month", "day", {30, 31})],
)
async def test_a_span_ends_now_and_has_steps_that_fit(
    operating: httpx.AsyncClient, superuser: Connection, span: str, step: str, points: set[int]
) -> None:
    await rolled_up(superuser, 600)

    for path in (RATES, COSTS):
        seen = await asked(operating, path, span=span)

        assert (step, len(seen["points"])) == (seen["step"], len(seen["points"]))
        assert len(seen["points"]) in points
        assert seen["since"] == seen["points"][0]["at"] < seen["countedUntil"] <= seen["until"]


async def test_rates_are_of_the_last_hour_and_costs_of_the_last_day(
    operating: httpx.AsyncClient, superuser: Connection
) -> None:
    await rolled_up(superuser, 600)
    await superuser.execute(
        "INSERT INTO rollup_costs (step, at, sqs_requests, s3_writes)"
        " SELECT 'hour', date_trunc('hour', counted_until, 'UTC'), 60, 6600 FROM rollup_progress"
    )

    rates, costs = await asked(operating, RATES), await asked(operating, COSTS)

    (kind,) = rates["kinds"]
    assert {"jobType": "noop", "lane": "fast"} | rates["totals"] == kind
    assert (600, 600, 1, 10.02) == (
        kind["submitted"],
        kind["completed"],
        kind["failed"],
        kind["jobsAMinute"],
    )
    assert {"p50": 0.001, "p90": 0.001, "p99": 0.001, "max": 0.001} == kind["wait"]
    assert ["minute", "hour"] == [rates["step"], costs["step"]]
    assert {"sqsRequests": 100.0, "s3Writes": 11000.0, "invalidationPaths": 0.0} == (
        costs["totals"]["perThousandImages"]
    )
    silent = [point for point in rates["points"] if "wait" not in point]
    assert 59 == len(silent), "what has no value is left out"


async def test_a_type_and_a_lane_are_chosen(
    operating: httpx.AsyncClient, superuser: Connection
) -> None:
    await rolled_up(superuser, 60)
    await rolled_up(superuser, 120, lane="general")
    await rolled_up(superuser, 6, job_type="process_image")

    async def completed(**query: str) -> int:
        totals = (await asked(operating, RATES, **query))["totals"]
        return int(totals["completed"])

    assert [186, 180, 66, 6, 0] == [
        await completed(),
        await completed(jobType="noop"),
        await completed(lane="fast"),
        await completed(jobType="process_image", lane="fast"),
        await completed(jobType="other"),
    ]


async def test_since_and_until_are_a_time_of_the_past(
    operating: httpx.AsyncClient, superuser: Connection
) -> None:
    await rolled_up(superuser, 60, ago=timedelta(hours=5))
    await rolled_up(superuser, 7)
    since, until = (datetime.now(UTC) - timedelta(hours=hours) for hours in (6, 3))

    seen = await asked(operating, RATES, since=since.isoformat(), until=until.isoformat())
    open_ended = await asked(operating, RATES, since=since.isoformat(), step="hour")

    assert (60, "minute") == (seen["totals"]["completed"], seen["step"])
    assert (67, "hour") == (open_ended["totals"]["completed"], open_ended["step"])


async def test_nothing_is_counted_behind_what_is_told(operating: httpx.AsyncClient) -> None:
    later = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    seen = await asked(operating, RATES, since=later)

    assert [] == seen["points"]
    assert 0 == seen["totals"]["jobsAMinute"]


@pytest.mark.parametrize("path", [RATES, COSTS])
@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"span": "week"}, "invalid_request"),
        ({"step": "second"}, "invalid_request"),
        ({"since": "yesterday"}, "invalid_request"),
        ({"since": "2026-01-01T00:00:00"}, "invalid_request"),
        ({"span": "day", "step": "minute"}, "invalid_filter"),
        ({"span": "month", "step": "minute"}, "invalid_filter"),
        ({"span": "day", "since": "2026-01-01T00:00:00Z"}, "invalid_filter"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    operating: httpx.AsyncClient, path: str, query: dict[str, str], code: str
) -> None:
    is_problem(await operating.get(path, params=query), 422, code)


async def test_a_lane_that_is_none_is_refused(operating: httpx.AsyncClient) -> None:
    answer = await operating.get(RATES, params={"lane": "slow"})

    is_problem(answer, 422, "invalid_request")
