"""Every command of every runbook, on a fleet in the trouble that it is for, one after the other.

RUNBOOKS=DarkLate,edge.md in the environment tries these pages alone.
"""

import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.runbooks.conditions import CONDITIONS
from tests.runbooks.fleet import Fleet, on_call
from tests.runbooks.pages import DO, SEE, WORKED, Block, Page, alerts, deeper
from tests.runbooks.shell import Ended
from tests.runbooks.troubles import OF_ALERTS, OF_BLOCKS, Seen, Shows, Trouble
from tests.support.eventually import eventually
from tests.support.stack import running_stack

LONGEST: Final = 600  # seconds; some ninety on two idle cores
COMES_ABOUT_WITHIN: Final = 40.0
SHOWN_WITHIN: Final = 30.0
ENDS_WITHIN: Final = 40.0
SETTINGS: Final = {
    "all": {"DATABASE_CONNECT_TIMEOUT_SECONDS": "2"},
    "maintenance": {"SAMPLE_INTERVAL_SECONDS": "1", "RESCUE_AFTER": "8"},
}
CHOSEN: Final = os.environ.get("RUNBOOKS", "").split(",")  # noqa: TID251 - whoever runs it


@pytest.mark.timeout(LONGEST)
async def test_every_command_of_every_runbook_does_what_its_page_says(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """One test, as a stack for each of forty would take five minutes."""
    async with running_stack(settings=SETTINGS) as stack, on_call(stack, tmp_path) as fleet:
        for page in alerts() + deeper():
            if CHOSEN != [""] and page.name not in CHOSEN:
                continue
            for name, play in plays(page, fleet):
                with subtests.test(name):
                    await play()


def plays(page: Page, fleet: Fleet) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """What there is to be played of a page, each with its name."""
    if page.name in OF_ALERTS:
        yield page.name, partial(on_an_alert, page, fleet)
    else:
        yield from ((block.name, partial(on_a_deeper_page, block, fleet)) for block in page.blocks)


async def on_an_alert(page: Page, fleet: Fleet) -> None:
    """As somebody does who was woken: look, act, and see that it is over."""
    condition = CONDITIONS[page.name]

    async def stands() -> bool:
        return condition(fleet.marked, await fleet.look())

    async def is_over() -> bool:
        look = await fleet.look()
        told = look.silent == [] and look.of("job_queue_depth")  # else nobody knows
        return bool(told) and not condition(fleet.marked, look)

    async with OF_ALERTS[page.name](fleet) as trouble:
        await eventually(stands, within=COMES_ABOUT_WITHIN)
        if page.console is not None:
            assert (await fleet.console.get(page.console[1])).status_code in trouble.console
        await expect(fleet, page.block(SEE), trouble.see, trouble)
        await trouble.mended()
        await expect(fleet, page.block(DO), [trouble.do], trouble, again=False)
        await trouble.then()
        await eventually(is_over, within=ENDS_WITHIN)
        await expect(fleet, page.block(WORKED), trouble.worked, trouble)


async def on_a_deeper_page(block: Block, fleet: Fleet) -> None:
    async with OF_BLOCKS[block.name](fleet) as trouble:
        await expect(fleet, block, trouble.see, trouble, again=False)


async def expect(
    fleet: Fleet, block: Block, seen: Sequence[Seen], trouble: Trouble, *, again: bool = True
) -> None:
    """Run the lines of a block; where it only looks, until it shows what the page says."""
    lines = block.lines if block.language == "sh" else [" ".join(block.lines)]
    for line, each in zip(lines, seen, strict=True):
        wanted = each if isinstance(each, Shows) else Shows(each)
        look = partial(shows, fleet, block.language, line, wanted, trouble)
        await (eventually(look, within=SHOWN_WITHIN) if again else look())


async def shows(fleet: Fleet, language: str, line: str, wanted: Shows, trouble: Trouble) -> bool:
    ended = await run(fleet, language, line, trouble)
    assert ended.code == wanted.code, f"{line}: {ended}"
    assert re.search(wanted.text, ended.out + ended.err), f"no {wanted.text} in {ended}"
    return True


async def run(fleet: Fleet, language: str, line: str, trouble: Trouble) -> Ended:
    if language == "sh":
        return await fleet.shell.run(line, trouble.words)
    async with fleet.stack.database("operator") as operator:
        rows = await operator.fetch(line)
    return Ended(0, "\n".join(str(dict(row)) for row in rows))
