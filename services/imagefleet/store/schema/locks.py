"""What migrations will lock, foretold from their text before anything is locked.

A statement is read as far as it matters to others: which tables that are there it locks, how
strongly, and whether it reads or writes all of them meanwhile. One that is not known here is told
as such, never as harmless. What is told is compared with what Postgres locks by
tests/store/schema/test_locks.py.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from imagefleet.store.database import Connection
from imagefleet.store.schema.migration_files import TOKEN, Migration, statements
from imagefleet.store.schema.migrations import LOCK_TIMEOUT, PATIENT_LOCK_TIMEOUT

ROW, VACUUM, WRITES, ALSO_WRITES, ALL = MODES = (
    "ROW EXCLUSIVE",
    "SHARE UPDATE EXCLUSIVE",
    "SHARE",
    "SHARE ROW EXCLUSIVE",
    "ACCESS EXCLUSIVE",
)
"""From the weakest to the strongest."""
HOLDS_UP: Final = dict(
    zip(
        MODES,
        ("writers of the same rows", "vacuum and other migrations", *["writers"] * 2, "everybody"),
        strict=True,
    )
)
WORKS: Final = ("", "scans", "rewrites")

_NAME: Final = r"(?:IF (?:NOT )?EXISTS )?(?:ONLY )?(?P<table>[\w.]+)"
_CONSTRAINT: Final = r"ADD (?:CONSTRAINT \w+ )?"
_COLUMN: Final = r"ALTER (?:COLUMN )?\w+ "
# The first that matches says it. Without a mode it locks nothing that is there already.
_STATEMENTS: Final = (
    (r"(?:SET|GRANT|REVOKE) ", "", ""),
    (r"(?:CREATE|CREATE OR REPLACE|DROP) FUNCTION ", "", ""),
    (r"CREATE (?:TABLE|SEQUENCE|TYPE|DOMAIN) ", "", ""),
    (rf"(?:INSERT INTO|UPDATE|DELETE FROM) {_NAME}", ROW, ""),
    (rf"CREATE (?:UNIQUE )?INDEX CONCURRENTLY .*? ?ON {_NAME}", VACUUM, "scans"),
    (rf"CREATE (?:UNIQUE )?INDEX .*? ?ON {_NAME}", WRITES, "scans"),
    (rf"DROP INDEX CONCURRENTLY {_NAME}$", VACUUM, ""),
    (rf"DROP (?:INDEX|TABLE|VIEW) {_NAME}$", ALL, ""),
    (rf"CREATE (?:OR REPLACE )?VIEW {_NAME}", ALL, ""),
    (rf"CREATE (?:OR REPLACE )?(?:CONSTRAINT )?TRIGGER .*? ON {_NAME}", ALSO_WRITES, ""),
    (rf"DROP TRIGGER .*? ON {_NAME}", ALL, ""),
)
_ACTIONS: Final = (
    (rf"{_CONSTRAINT}CHECK .* NOT VALID$", ALL, ""),
    (rf"{_CONSTRAINT}FOREIGN KEY .* NOT VALID$", ALSO_WRITES, ""),
    (rf"{_CONSTRAINT}FOREIGN KEY ", ALSO_WRITES, "scans"),
    (rf"{_CONSTRAINT}UNIQUE USING INDEX ", ALL, ""),
    (rf"{_CONSTRAINT}(?:CHECK|UNIQUE|PRIMARY KEY|EXCLUDE) ", ALL, "scans"),
    # Only what is the same for every row is not written into each.
    (r"ADD COLUMN .*(?:GENERATED |SERIAL|DEFAULT (?!NOW\(\))\w+ ?\()", ALL, "rewrites"),
    (r"ADD COLUMN .* (?:CHECK|UNIQUE|PRIMARY KEY|DEFAULT .* REFERENCES)\b", ALL, "scans"),
    (r"(?:ADD COLUMN|RENAME) ", ALL, ""),
    (r"DROP (?:COLUMN|CONSTRAINT) (?!.* CASCADE$)", ALL, ""),
    (rf"{_COLUMN}(?:SET DEFAULT|DROP DEFAULT|DROP NOT NULL)\b", ALL, ""),
    (rf"{_COLUMN}SET NOT NULL$", ALL, "scans"),
    (rf"{_COLUMN}(?:SET DATA )?TYPE ", ALL, "rewrites"),
    (r"VALIDATE CONSTRAINT ", VACUUM, "scans"),
    (rf"(?:{_COLUMN}SET STATISTICS|SET \(|RESET \()", VACUUM, ""),
    (r"(?:ENABLE|DISABLE) TRIGGER ", ALSO_WRITES, ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLock:
    """One lock on a table that is there, and what is done under it."""

    table: str
    mode: str
    work: str = ""
    table_bytes: int = 0
    table_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One statement of a migration that is missing."""

    migration: Migration
    statement: str
    locks: tuple[TableLock, ...] | None
    """None: nobody here knows what this one locks."""

    @property
    def told(self) -> str:
        """The statement for people."""
        return _readable(self.statement, texts=True)

    @property
    def waits(self) -> str:
        """For a lock, before it gives way to who waits behind it, and is tried again."""
        return LOCK_TIMEOUT if self.migration.transactional else PATIENT_LOCK_TIMEOUT


# An index is locked with its table. Sizes are those of the last ANALYZE: to measure is to lock.
TABLES: Final = """
SELECT named.name, locked.relname AS table, greatest(locked.reltuples, 0)::bigint AS table_rows,
       locked.relpages::bigint * current_setting('block_size')::bigint AS table_bytes
  FROM unnest($1::text[]) AS named (name)
  JOIN pg_class AS class ON class.oid = to_regclass(named.name)
  LEFT JOIN pg_index ON pg_index.indexrelid = class.oid
  JOIN pg_class AS locked ON locked.oid = coalesce(pg_index.indrelid, class.oid)
"""


# The other side of a foreign key is locked when one is dropped, by whatever name.
FOREIGN_KEYS: Final = """
SELECT referring.relname AS table, referred.relname AS other,
       ARRAY[referring.relname, keys.conname] || ARRAY (
           SELECT attname FROM pg_attribute
            WHERE attrelid = keys.conrelid AND attnum = ANY (keys.conkey)) AS names
  FROM pg_constraint AS keys
  JOIN pg_class AS referring ON referring.oid = keys.conrelid
  JOIN pg_class AS referred ON referred.oid = keys.confrelid
 WHERE keys.contype = 'f'
"""
_DROPS: Final = r"\bDROP (?:TABLE|COLUMN|CONSTRAINT) (?:IF EXISTS )?(?:{})\b"


async def plan(connection: Connection, missing: Sequence[Migration]) -> tuple[Step, ...]:
    """Every statement of these, with what it locks of what is there now."""
    keys = await connection.fetch(FOREIGN_KEYS)
    steps = []
    for migration in missing:
        for statement in statements(migration.sql):
            locks = foretell(statement)
            for key in keys:
                dropped = re.search(_DROPS.format("|".join(key["names"])), statement, re.IGNORECASE)
                if locks and dropped and key["table"] in {lock.table for lock in locks}:
                    locks += (TableLock(table=key["other"], mode=ALL),)
            steps.append(Step(migration=migration, statement=statement, locks=locks))
    names = {lock.table for step in steps for lock in step.locks or ()}
    facts = [dict(row) for row in await connection.fetch(TABLES, list(names))]
    there = {fact.pop("name"): fact for fact in facts}
    return tuple(
        replace(
            step,
            locks=step.locks
            and tuple(
                replace(lock, **there[lock.table]) for lock in step.locks if lock.table in there
            ),
        )
        for step in steps
    )


def foretell(statement: str) -> tuple[TableLock, ...] | None:
    """What it locks of tables, whether they are there or not; None: it is not known here."""
    text = _readable(statement)
    if altered := re.match(rf"ALTER TABLE {_NAME} (?P<actions>.*)", text, re.IGNORECASE):
        actions = _parts(altered["actions"])
        locks = [_read(action, _ACTIONS, altered["table"]) for action in actions]
    else:
        locks = [_read(text, _STATEMENTS)]
    strongest: dict[str, TableLock] = {}
    for lock in (*locks, *_referred_to(text)):
        if lock is None:
            return None
        if lock.mode:
            held = strongest.get(lock.table, lock)
            mode = max(held.mode, lock.mode, key=MODES.index)
            work = max(held.work, lock.work, key=WORKS.index)
            strongest[lock.table] = replace(lock, mode=mode, work=work)
    return tuple(strongest.values())


def _read(text: str, rules: Sequence[tuple[str, str, str]], table: str = "") -> TableLock | None:
    for pattern, mode, work in rules:
        if said := re.match(pattern, text, re.IGNORECASE):
            named = said.groupdict().get("table") or table
            return TableLock(table=named, mode=mode, work=work)
    return None


def _referred_to(text: str) -> Iterator[TableLock]:
    """By foreign keys, which have triggers on both sides."""
    if re.match("(?:ALTER|CREATE) TABLE ", text, re.IGNORECASE):
        for name in re.findall(r"\bREFERENCES ([\w.]+)", text, re.IGNORECASE):
            yield TableLock(table=name, mode=ALSO_WRITES)


def _readable(statement: str, *, texts: bool = False) -> str:
    """On one line, without comments, and with nothing in its bodies; in its texts, if wanted."""
    kept = []
    for token in TOKEN.finditer(statement):
        text = token[0]
        if text.startswith(("--", "/*")):
            text = " "
        elif len(text) > 1 and (text[0] == "$" or (text[0] == "'" and not texts)):
            text = "''"
        kept.append(text)
    return " ".join("".join(kept).split()).removesuffix(";")


def _parts(actions: str) -> list[str]:
    """Cut at the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in actions:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
