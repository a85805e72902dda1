"""What counts as a migration, and where a statement in one ends."""

from pathlib import Path

import pytest

from imagefleet.errors import Misconfigured
from imagefleet.store.schema.migration_files import shipped_migrations, statements


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in (1, 2, 3):
        (tmp_path / f"{number:04}_step.sql").write_text(f"-- so\nSELECT {number};\n")
    return tmp_path


def test_line_endings_do_not_change_a_migration(folder: Path) -> None:
    before = shipped_migrations(folder)
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))

    assert shipped_migrations(folder) == before


@pytest.mark.parametrize(
    ("name", "sql", "fault"),
    [
        ("0005_late.sql", "SELECT 1;", "without gaps"),
        ("0003_twin.sql", "SELECT 1;", "without gaps"),
        ("4_short.sql", "SELECT 1;", "NNNN_name"),
        ("0004_marked.sql", "-- imagefleet: fast\nSELECT 1;", "unknown mark 'fast'"),
        ("0004_own.sql", "-- so\nbegin; SELECT 1; commit;", "opens and ends the transaction"),
    ],
)
def test_a_folder_that_makes_no_sense_is_refused(
    folder: Path, name: str, sql: str, fault: str
) -> None:
    (folder / name).write_text(sql)

    with pytest.raises(Misconfigured, match=fault):
        shipped_migrations(folder)


def test_an_installed_package_carries_its_migrations(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = folder / "migrations"
    packaged.mkdir()
    (packaged / "0001_packaged.sql").write_text("SELECT 1;")
    monkeypatch.setattr("importlib.resources.files", lambda _package: folder)

    assert [each.name for each in shipped_migrations()] == ["packaged"]


def test_statements_end_at_their_own_semicolons_only() -> None:
    sql = """
    SELECT ';' || 'it''s; fine'; -- not; here
    /* nor; here */ CREATE FUNCTION f() RETURNS int LANGUAGE sql AS $body$ SELECT 1; $body$;
    SELECT "odd;name" FROM t
    -- the end;
    """

    texts = statements(sql)

    assert [each.split()[0] for each in texts] == ["SELECT", "--", "SELECT"]
    assert statements("-- nothing\n") == []
