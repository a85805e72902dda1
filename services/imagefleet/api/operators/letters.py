"""Operators and dead letters: what could not succeed is looked at, acknowledged, replayed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Final, Self
from uuid import UUID

from fastapi import Query, Request
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from imagefleet.api.http.auth import Operator
from imagefleet.api.http.bodies import read_json
from imagefleet.api.http.openapi import Routes, described, json_body
from imagefleet.api.http.requests import Tools, ToolsHere, answer
from imagefleet.api.operators.schemas import CODE, TENANT, TYPE, who
from imagefleet.api.producers.ranges import ID_PREFIX, MOST_ON_A_PAGE, range_alone
from imagefleet.api.producers.schemas import Incoming, Reason, RunAt
from imagefleet.jobs.model import TenantId
from imagefleet.jobs.replays import ReplayOrder
from imagefleet.jobs.shapes.letters import (
    Acknowledged,
    LetterGroups,
    LetterPage,
    ReplayAnswer,
    ReplayedLetter,
    WholeLetter,
)
from imagefleet.store.database import Connection
from imagefleet.store.fleet.audit import Act
from imagefleet.store.letters.faults import count_hourly, group_dead_letters, with_whole_fault
from imagefleet.store.letters.letters import (
    LetterFilter,
    acknowledge_dead_letters,
    find_dead_letters,
    get_dead_letter,
    list_dead_letters,
)
from imagefleet.store.letters.replays import MOST_AT_ONCE, ReplayBatch, replay_letters, replay_page
from imagefleet.telemetry.tracing import inject

MOST_BYTES: Final = 65_536  # of the JSON
FINGERPRINT: Final = r"^[0-9a-f]{8,64}$"
MOST_ACKNOWLEDGED: Final = 1000
MOST_NAMED: Final = 100  # letters in one line of the audit
_ONE_CHOICE: Final = "must have either ids or a filter"

router = Routes(tags=["dead letters"])


class _Lately(Incoming):
    died_after: RunAt | None = None
    died_before: RunAt | None = None


class LetterChoice(_Lately):
    """Which open dead letters; everything that is set must hold, and nothing set is all of them."""

    tenant: Annotated[TenantId, Field(pattern=TENANT)] | None = None
    job_type: Annotated[str, Field(pattern=TYPE)] | None = None
    reason: Annotated[str, Field(pattern=CODE)] | None = None
    fingerprint: Annotated[str, Field(pattern=FINGERPRINT)] | None = None

    def filters(self) -> LetterFilter:
        """As the store knows them."""
        return LetterFilter(
            tenant_id=self.tenant,
            type=self.job_type,
            reason=self.reason,
            fingerprint=self.fingerprint,
            died_after=self.died_after,
            died_until=self.died_before and self.died_before - timedelta.resolution,
        )


class LetterQuery(LetterChoice):
    """The open ones, or with `all` the history."""

    id_prefix: Annotated[str, Field(pattern=ID_PREFIX)] | None = None
    everything: Annotated[bool, Field(alias="all", description="Also what was dealt with.")] = False
    limit: Annotated[int, Field(ge=1, le=MOST_ON_A_PAGE)] = 50
    cursor: UUID | None = None


class Grouping(LetterChoice):
    """The open ones by their faults."""

    by_tenant: Annotated[bool, Field(description="Each tenant's by themselves.")] = False
    hourly: Annotated[
        bool, Field(description="Also how many died in each hour of the last day, of all tenants.")
    ] = False
    limit: Annotated[int, Field(ge=1, le=MOST_ON_A_PAGE)] = 50


class _Chosen(Incoming):
    filter: LetterChoice | None = None
    ids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_ACKNOWLEDGED)] | None = None

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise PydanticCustomError("one_choice", _ONE_CHOICE)
        return self


class Acknowledgement(_Chosen):
    """Somebody knows, and nothing is to be done: by ids, or the oldest that a filter names."""

    note: Reason
    limit: Annotated[int, Field(ge=1, le=MOST_ACKNOWLEDGED)] = MOST_ACKNOWLEDGED


class ReplayRequest(_Chosen):
    """Run failed jobs again as new ones: by ids, or the oldest that a filter names."""

    ids: Annotated[list[UUID], Field(min_length=1, max_length=MOST_AT_ONCE)] | None = None
    reason: Reason
    limit: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = MOST_AT_ONCE
    after: UUID | None = None
    died_until: RunAt | None = None
    dry_run: bool = False
    force: bool = False


@router.get("/v1/operator/dead-letters", **described("List dead letters", LetterPage, 404))
async def find_letters(
    request: Request, _key: Operator, tools: ToolsHere, asked: Annotated[LetterQuery, Query()]
) -> Response:
    """The open ones, oldest first; with `all` the history, whole or by tenant or fingerprint.

    With `idPrefix`, alone, those whose id begins so, or that of their job.
    """
    async with tools.operating("list_dead_letters", "dead_letters") as connection:
        if asked.id_prefix is not None:
            ids = range_alone(request, asked.id_prefix)
            named = await find_dead_letters(connection, *ids, limit=asked.limit)
            return answer(LetterPage(letters=named))
        after = await _letter_of(connection, asked.cursor)
        chosen = await with_whole_fault(connection, asked.filters())
        chosen = replace(chosen, open_only=not asked.everything)
        letters = await list_dead_letters(connection, chosen, after=after, limit=asked.limit + 1)
    page = letters[: asked.limit]
    more = page[-1].id if len(letters) > asked.limit else None
    return answer(LetterPage(letters=page, next_cursor=more))


@router.get(
    "/v1/operator/dead-letters/groups",
    name="group_letters",
    **described("Group the open dead letters by fault", LetterGroups),
)
async def find_groups(
    _key: Operator, tools: ToolsHere, asked: Annotated[Grouping, Query()]
) -> Response:
    """One fault has one fingerprint; the most frequent first, each with an example."""
    async with tools.operating("group_dead_letters", "dead_letters") as connection:
        chosen = await with_whole_fault(connection, asked.filters())
        groups = await group_dead_letters(
            connection, chosen, by_tenant=asked.by_tenant, limit=asked.limit
        )
        if asked.hourly:
            hourly = await count_hourly(connection, {group.fingerprint for group in groups})
            groups = [
                group.model_copy(update={"hourly": hourly[group.fingerprint]}) for group in groups
            ]
    return answer(LetterGroups(groups=groups))


@router.get(
    "/v1/operator/dead-letters/{letter_id}", **described("Look at a dead letter", WholeLetter, 404)
)
async def show_letter(letter_id: UUID, _key: Operator, tools: ToolsHere) -> Response:
    """By its own id or by that of its job; with the job's row as it was when it failed."""
    async with tools.operating("get_dead_letter", "dead_letters") as connection:
        letter = await get_dead_letter(connection, letter_id)
    return answer(letter)


@router.post(
    "/v1/operator/dead-letters:acknowledge",
    name="acknowledge_letters",
    **described("Acknowledge dead letters", Acknowledged, 404, takes=json_body(Acknowledgement)),
)
async def acknowledge(request: Request, key: Operator, tools: ToolsHere) -> Response:
    """Say that somebody knows and nothing is to be done. Final; says who and why."""
    asked = await read_json(request, Acknowledgement, most_bytes=MOST_BYTES)
    async with tools.acting("acknowledge_dead_letters", "dead_letters", request, key) as acting:
        ids: Sequence[UUID] = asked.ids or ()
        more = False
        if asked.filter is not None:
            chosen = await with_whole_fault(acting.connection, asked.filter.filters())
            letters = await list_dead_letters(acting.connection, chosen, limit=asked.limit + 1)
            ids, more = [each.id for each in letters[: asked.limit]], len(letters) > asked.limit
        count = await acknowledge_dead_letters(acting.connection, ids, by=who(key), note=asked.note)
        if count:
            told: dict[str, object] = {"acknowledged": count, "more": more}
            await acting.record(_act("acknowledge", asked.filter, ids, told, asked.note))
        else:
            acting.found_nothing()
    return answer(Acknowledged(acknowledged=count, more=more))


@router.post(
    "/v1/operator/dead-letters:replay",
    name="replay_letters",
    **described("Replay dead letters", ReplayAnswer, 404, takes=json_body(ReplayRequest)),
)
async def replay(request: Request, key: Operator, tools: ToolsHere) -> Response:
    """Run what failed again, as new jobs; once each. A dry run tells and leaves no trace."""
    asked = await read_json(request, ReplayRequest, most_bytes=MOST_BYTES)
    trace = inject()
    order = ReplayOrder(
        by=str(key.id),
        reason=asked.reason,
        force=asked.force,
        dry_run=asked.dry_run,
        traceparent=trace.traceparent,
        tracestate=trace.tracestate,
    )
    if asked.dry_run:
        async with tools.rehearsing("replay_letters", "jobs") as connection:
            batch = await _replayed(connection, asked, order, tools)
    else:
        async with tools.acting("replay_letters", "jobs", request, key) as acting:
            batch = await _replayed(acting.connection, asked, order, tools)
            if batch.replayed:
                told: dict[str, object] = dict(
                    Counter(letter.outcome.value for letter in batch.replayed)
                )
                ids = [letter.letter_id for letter in batch.replayed]
                await acting.record(_act("replay", asked.filter, ids, told, asked.reason))
            else:
                acting.found_nothing()
    tools.doorbell.ring(letter.ring for letter in batch.replayed if letter.ring is not None)
    return answer(
        ReplayAnswer(
            replays=[
                ReplayedLetter.model_validate(letter, from_attributes=True)
                for letter in batch.replayed
            ],
            next_cursor=None if batch.last is None else batch.last.id,
            as_of=batch.as_of,
        )
    )


async def _replayed(
    connection: Connection, asked: ReplayRequest, order: ReplayOrder, tools: Tools
) -> ReplayBatch:
    if asked.filter is None:
        replayed = await replay_letters(connection, asked.ids or (), order, tools.kinds)
        return ReplayBatch(replayed=replayed)
    after = await _letter_of(connection, asked.after)
    chosen = await with_whole_fault(connection, asked.filter.filters())
    ends = [end for end in (asked.died_until, chosen.died_until) if end is not None]
    chosen = replace(chosen, died_until=min(ends, default=None))
    return await replay_page(connection, chosen, order, tools.kinds, after=after, limit=asked.limit)


def _act(
    action: str,
    chosen: LetterChoice | None,
    ids: Sequence[UUID],
    told: Mapping[str, object],
    reason: str,
) -> Act:
    """One for all letters of a request; what became of each, the letters say themselves."""
    by = {} if chosen is None else chosen.model_dump(exclude_none=True)
    named = " ".join(f"{name}={value}" for name, value in by.items()) or "all"
    if chosen is None:
        named = str(ids[0]) if len(ids) == 1 else f"{len(ids)} letters"
    return Act(
        action=action,
        kind="dead_letter",
        name=named,
        tenant_id=by.get("tenant"),
        after={**told, "letters": ids[:MOST_NAMED]},
        reason=reason,
    )


async def _letter_of(connection: Connection, letter_id: UUID | None) -> WholeLetter | None:
    return None if letter_id is None else await get_dead_letter(connection, letter_id)
