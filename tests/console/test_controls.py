"""What is turned from pages: pauses, breakers, live settings; and where it is told that it was."""

from imagefleet.store.database import Connection
from tests.console.conftest import Opened
from tests.support.factories import open_breaker

WHY = "an order of the tests"


async def test_a_pause_is_made_and_lifted_and_both_are_told(
    console: Opened, superuser: Connection
) -> None:
    async with console.logged_in() as visitor:
        paused = await console.post(
            visitor, "/pauses/pause", scope="type", name="noop", refuse_new="yes", reason=WHY
        )
        row = await superuser.fetchrow("SELECT name, refuse_new, reason FROM pauses")
        lifted = await console.post(visitor, "/pauses/resume", scope="type", name="noop")
        left = await superuser.fetchval("SELECT count(*) FROM pauses")
        told = (await visitor.get("/timeline")).text

    assert "It is paused." in paused.text
    assert row is not None
    assert tuple(row) == ("noop", True, WHY)
    assert "The pause is lifted" in lifted.text
    assert left == 0
    assert "pause" in told
    assert WHY in told


async def test_a_pause_of_a_type_that_nobody_knows_says_so(console: Opened) -> None:
    async with console.logged_in() as visitor:
        paused = await console.post(
            visitor, "/pauses/pause", scope="type", name="nop", reason=WHY, back="/controls"
        )

    assert "No type of that name is known here" in paused.text
    assert "no type of this name is known here" in paused.text


async def test_what_the_api_refuses_is_told_and_changes_nothing(
    console: Opened, superuser: Connection
) -> None:
    async with console.logged_in() as visitor:
        refused = await console.post(visitor, "/pauses/pause", scope="lane", name="", reason=WHY)

    assert 'class="notice refused"' in refused.text
    assert await superuser.fetchval("SELECT count(*) FROM pauses") == 0


async def test_a_breaker_is_forced_open_and_reset(
    console: Opened, worker: Connection, superuser: Connection
) -> None:
    state = "SELECT state FROM circuit_breakers WHERE service = 's3'"
    async with console.logged_in() as visitor:
        await console.post(visitor, "/breakers/force", service="s3", reason=WHY)
        forced = await superuser.fetchval(state)
        await console.post(visitor, "/breakers/s3/reset")
        reset = await superuser.fetchval(state)
        unnamed = await console.post(visitor, "/breakers/force", service="")
        await open_breaker(worker)
        shown = (await visitor.get("/controls")).text

    assert (forced, reset) == ("open", "closed")
    assert "No service was named" in unnamed.text
    assert "/breakers/s3/reset" in shown


async def test_a_live_setting_is_turned_and_given_its_default_back(console: Opened) -> None:
    async with console.logged_in() as visitor:
        turned = await console.post(
            visitor,
            "/settings/turn",
            name="slots.lane.general",
            value="2",
            reason=WHY,
            back="/controls",
        )
        nonsense = await console.post(
            visitor, "/settings/turn", name="slots.lane.general", value="many", reason=WHY
        )
        reset = await console.post(
            visitor,
            "/settings/turn",
            name="slots.lane.general",
            how="reset",
            reason=WHY,
            back="/controls",
        )

    assert "slots.lane.general is 2" in turned.text
    assert 'value="slots.lane.general"' in turned.text
    assert "a whole number of slots" in nonsense.text
    assert "has its default again" in reset.text
