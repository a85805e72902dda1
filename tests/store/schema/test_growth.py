"""docs/growth.md names every table there is, what makes it grow, and what keeps it bounded."""

import re
from pathlib import Path

import imagefleet
from imagefleet.store.database import Connection

PAGE = Path(imagefleet.__file__).parents[2] / "docs" / "growth.md"
ROW = re.compile(r"^\| `(\w+)` \| (.+) \| (.+) \|$", re.MULTILINE)
TABLES = """
SELECT relname FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')
"""
BEHIND = "## When a step is behind"


async def test_every_table_is_named_with_its_bound(superuser: Connection) -> None:
    tables = PAGE.read_text(encoding="utf-8").partition(BEHIND)[0]
    named = [name for name, _, _ in ROW.findall(tables)]

    assert sorted(named) == sorted(row[0] for row in await superuser.fetch(TABLES))
