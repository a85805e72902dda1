"""The migrations this code ships: named, numbered without gaps, fingerprinted."""

import hashlib
import re
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import imagefleet
from imagefleet.errors import Misconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a database remembers of a migration."""

    version: int
    name: str
    sha256: str
    breaking: bool

    def __str__(self) -> str:
        return f"{self.version:04}_{self.name}.sql"


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration(Applied):
    """The file itself."""

    sql: str = field(repr=False)
    transactional: bool


def shipped_migrations(folder: Path | None = None) -> tuple[Migration, ...]:
    """The files in the installed package, or in the checkout that it is installed from."""
    source = _migrations_folder() if folder is None else folder
    migrations = sorted(
        (_read(file) for file in source.iterdir() if file.name.endswith(".sql")),
        key=lambda migration: migration.version,
    )
    versions = [migration.version for migration in migrations]
    if not migrations or versions != list(range(1, len(migrations) + 1)):
        detail = f"{source}: expected versions 1, 2, 3, … without gaps or doubles, found {versions}"
        raise Misconfigured(detail)
    return tuple(migrations)


def _migrations_folder() -> Traversable:
    packaged = resources.files(imagefleet) / "migrations"
    return packaged if packaged.is_dir() else Path(imagefleet.__file__).parents[2] / "migrations"


def _read(file: Traversable) -> Migration:
    named = re.fullmatch(r"(\d{4})_([a-z0-9_]+)\.sql", file.name)
    if named is None:
        detail = f"{file}: a migration is called NNNN_name.sql"
        raise Misconfigured(detail)
    # A checkout with another line ending is not an edited file.
    sql = file.read_bytes().decode().replace("\r\n", "\n")
    marks = _marks(sql, file.name)
    transactional = "no-transaction" not in marks
    if transactional and any(map(_controls_a_transaction, statements(sql))):
        detail = f"{file.name}: the runner opens and ends the transaction"
        raise Misconfigured(detail)
    return Migration(
        version=int(named[1]),
        name=named[2],
        sql=sql,
        sha256=hashlib.sha256(sql.encode()).hexdigest(),
        transactional=transactional,
        breaking="breaking" in marks,
    )


def _marks(sql: str, name: str) -> set[str]:
    first = re.match(r"-- imagefleet:(.*)", sql)
    marks = set() if first is None else {mark.strip() for mark in first[1].split(",")}
    unknown = marks - {"no-transaction", "breaking"}
    if unknown:
        detail = f"{name}: unknown mark {', '.join(sorted(unknown))!r} in its first line"
        raise Misconfigured(detail)
    return marks


COMMENT = r"--[^\n]*|/\*.*?\*/"
TRANSACTION_CONTROL = re.compile(r"(BEGIN|START|COMMIT|END|ROLLBACK|ABORT)\b", re.IGNORECASE)
TOKEN = re.compile(rf"{COMMENT}|'(?:[^']|'')*'|\"[^\"]*\"|(\$\w*\$).*?\1|(?P<end>;)|.", re.DOTALL)


def statements(sql: str) -> list[str]:
    """Cut at the semicolons that end statements, not at those in texts, bodies and comments."""
    texts, start = [], 0
    for token in TOKEN.finditer(sql):
        if token["end"]:
            texts.append(sql[start : token.end()].strip())
            start = token.end()
    rest = sql[start:].strip()
    return [*texts, rest] if _without_comments(rest) else texts


def _controls_a_transaction(statement: str) -> bool:
    return TRANSACTION_CONTROL.match(_without_comments(statement)) is not None


def _without_comments(statement: str) -> str:
    """Good enough to see how a statement begins."""
    return re.sub(COMMENT, "", statement, flags=re.DOTALL).strip()
