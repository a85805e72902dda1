"""docs/security.md says of roles and scopes what is so."""

import re
from pathlib import Path
from typing import Final

from imagefleet.store.fleet.keys import SCOPES
from tests.store.schema.test_grants import EXPECTED, NOTHING, May

PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"


def rows_below(head: str) -> list[list[str]]:
    """Of the table that begins so."""
    table = PAGE.read_text(encoding="utf-8").partition(f"\n{head}\n")[2].partition("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]


def told(may: May) -> str:
    changes = "changes" if may.update is True else "changes some"
    said = {"adds": may.insert, changes: may.update, "deletes": may.delete}
    return ", ".join(verb for verb, extent in said.items() if extent)


def test_each_role_is_told_to_do_what_it_is_granted() -> None:
    """Whether it is granted that, tests/store/schema/test_grants.py asks Postgres."""
    head = re.search(r"^\| table \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert head
    roles = head[1].split(" | ")
    known = {role for by_role in EXPECTED.values() for role in by_role}

    wanted = {
        table: {role: told(by_role.get(role, NOTHING)) for role in roles}
        for table, by_role in EXPECTED.items()
    }
    said = {
        name.strip("`"): dict(zip(roles, map(str.strip, cells), strict=True))
        for name, *cells in (
            re.split(r" ?\| ?", line)[1:-1]
            for line in PAGE.read_text(encoding="utf-8").splitlines()
            if re.match(rf"\| `\w+` \|(.*\|){{{len(roles)}}}$", line)
        )
    }

    assert {table: row for table, row in wanted.items() if any(row.values())} == said
    assert known == set(roles)


def test_each_scope_is_told() -> None:
    assert [*SCOPES] == [scope.strip("`") for scope, _ in rows_below("| scope | may |")]
