"""What tenants wrote is shown in an operator's terminal, and steers nothing there."""

import ast
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest
import typer
from rich.console import Console

from imagefleet.cli import output, progress
from imagefleet.cli.main import STARTED_ELSEWHERE, app
from imagefleet.jobs.lifecycle import Failed
from imagefleet.jobs.model import JobState, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import create_key
from tests.cli.conftest import Cli, Ended
from tests.support.api import ACME, Running
from tests.support.database import Database
from tests.support.factories import MadeJob, a_job, a_submission, settle_job
from tests.support.http import a_jpeg
from tests.support.sources import parsed

CLI: Final = Path(output.__file__).parent

# Clears the screen, sets the title, speaks C1, turns the reading, opens and ends markup.
TAKEN: Final = "[/bold][red]x[/] [link=file:///etc]y \u202eevil\u2066\u200b\U000e0041 :boom:"
FORGED: Final = "\nimagefleet: all is well\r\x1b[2J\x1b]0;owned\x07\x9b31m\x85\x08\x7f" + TAKEN
# What a terminal may act upon; a line's end is ours, and a colour is none where nobody looks.
STEERS: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


def is_harmless(ended: Ended) -> None:
    for text in (ended.out, ended.err):
        assert STEERS.search(text) is None, text
        assert not any(line == "imagefleet: all is well" for line in text.splitlines()), text
    assert "Traceback" not in ended.err


class Place:
    """A tenant that has written what it may, everywhere it may."""

    def __init__(self, image: dict[str, str], failed: MadeJob, waiting: MadeJob, key: UUID) -> None:
        self.image_id, self.image_job = image["imageId"], image["jobId"]
        self.failed, self.waiting = str(failed.job_id), str(waiting.job_id)
        self.key_id, self.worker = str(key), str(failed.worker_id)


@pytest.fixture
async def place(
    running: Running, worker: Connection, admin: Connection, superuser: Connection
) -> Place:
    async with running.client("acme") as acme:
        uploaded = await acme.post(
            "/v1/images",
            params={"reference": TAKEN},
            content=a_jpeg(),
            headers={"Content-Type": "image/jpeg"},
        )
        assert uploaded.status_code == 202, uploaded.text
    submission = a_submission(payload={"note": FORGED}, dedup_key=TAKEN, tenant_id=ACME)
    failed = await a_job(worker, superuser, state=JobState.PROCESSING, submission=submission)
    await settle_job(worker, failed, Failed(code="corrupt", message=FORGED, detail=FORGED))
    waiting = await a_job(
        worker, superuser, submission=a_submission(dedup_key=f"{TAKEN}2", tenant_id=ACME)
    )
    await create_key(admin, TenantId("acme"), name=FORGED, scopes=["read"])
    for table, column in (("workers", "host"), ("workers", "version")):
        await superuser.execute(f"UPDATE {table} SET {column} = $1", FORGED)  # noqa: S608 - ours
    await superuser.execute(
        "INSERT INTO pauses (scope, name, tenant_id, reason, paused_by)"
        " VALUES ('target', $1, 'acme', $2, $2)",
        TAKEN,
        FORGED,
    )
    key: UUID = await superuser.fetchval("SELECT id FROM api_keys WHERE name = $1", FORGED)
    return Place(uploaded.json(), failed, waiting, key)


# Each verb, as it meets such text; {…} is of the place. A later one may need an earlier one.
VERBS: Final = (
    ("acme", "images list"),
    ("acme", "images show {image_id}"),
    ("acme", "images download {image_id}"),
    ("acme", "images original {image_id}"),
    ("acme", "jobs show {failed}"),
    ("acme", "jobs watch {failed}"),
    ("acme", "jobs list"),
    ("acme", "jobs submit noop --correlation-id x"),
    ("acme", "submit {file} --keep-path"),
    ("acme", "images replace {image_id} {file}"),
    ("acme", "images reprocess {image_id}"),
    ("acme", "images focal {image_id} 0.5 0.5"),
    ("acme", "targets pause image:{image_id} --reason {text}"),
    ("acme", "targets show image:{image_id}"),
    ("acme", "targets resume image:{image_id}"),
    ("acme", "targets cancel image:{image_id} --reason {text}"),
    ("acme", "images delete --yes {image_id} {text}"),
    ("operator", "jobs list --every-tenant"),
    ("operator", "jobs show --full {failed}"),
    ("operator", "jobs explain {waiting}"),
    ("operator", "jobs attempts {failed}"),
    ("operator", "jobs retry-now {waiting} --reason x"),
    ("operator", "jobs cancel --reason {text} {waiting}"),
    ("operator", "jobs fail --reason {text} {waiting}"),
    ("operator", "dlq list --history"),
    ("operator", "dlq show {failed}"),
    ("operator", "dlq groups"),
    ("operator", "dlq replay --reason {text} --dry-run {failed}"),
    ("operator", "dlq replay --reason {text} --within 0 {failed}"),
    ("operator", "dlq replay-all --reason {text} --dry-run --all"),
    ("operator", "dlq ack --note {text} {failed}"),
    ("operator", "queue stats"),
    ("operator", "queue explain fast"),
    ("operator", "images preview --reason {text} --within 0 --into - {image_id}"),
    ("operator", "queue rates"),
    ("operator", "queue costs"),
    ("operator", "queue pause --target {text} --tenant acme --reason {text}"),
    ("operator", "queue pause --type noop --reason {text}"),
    ("operator", "queue pauses"),
    ("operator", "queue resume --target {taken} --tenant acme --reason x"),
    ("operator", "queue resume --type noop --reason {text}"),
    ("operator", "breaker list"),
    ("operator", "breaker open {text} --reason x"),
    ("operator", "breaker reset {text} --reason x"),
    ("operator", "settings live list"),
    ("operator", "settings live set slots.lane.fast 2 --reason {text}"),
    ("operator", "settings live list --turned"),
    ("operator", "settings live reset slots.lane.fast --reason {text}"),
    ("operator", "tenants list"),
    ("operator", "tenants limit acme --set uploads=9 --reason {text}"),
    ("operator", "tenants show acme"),
    ("operator", "tenants pause acme --reason {text}"),
    ("operator", "tenants resume acme --reason {text}"),
    ("operator", "tenants cancel acme --reason {text} --dry-run"),
    ("operator", "tenants cancel acme --reason {text} --yes"),
    ("operator", "audit"),
    ("operator", "edge status"),
    ("operator", "edge invalidate --reason {text} {image_id}"),
    ("operator", "workers list --history --jobs"),
    ("operator", "workers drain --reason {text} {worker}"),
    ("operator", "status"),
    ("operator", "ledger"),
    ("operator", "prune"),
    ("operator", "sweep"),
    ("operator", "keys list"),
    ("operator", "keys create --tenant acme --name {text}"),
    ("operator", "keys revoke {key_id}"),
)
# These show nothing that anybody but us has written.
OURS: Final = {
    "up",
    "version",
    "settings",
    *(f"recipes {verb}" for verb in ("list", "show", "check", "diff", "schema")),
    "jobs types",
    "capacity",
    "doctor",
    "migrate",
    "migrate status",
    *STARTED_ELSEWHERE,
}
# Of these the text must be seen, so that what is tested is its harmlessness and not its absence.
SHOWN: Final = {
    "images list", "jobs show", "jobs watch", "jobs attempts", "dlq show", "queue pauses",
    "workers list", "keys list", "submit", "settings live list", "tenants show", "audit",
}  # fmt: skip


@pytest.mark.parametrize("form", ["table", "json"])
async def test_no_verb_lets_a_tenant_steer_the_terminal(
    cli: Cli,
    place: Place,
    running: Running,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    form: str,
) -> None:
    monkeypatch.setenv("IMAGEFLEET_URL", running.url)
    monkeypatch.setenv("DATABASE_URL", database.url("admin"))
    name = os.fsdecode(b"\xff") + FORGED.replace("/", "")
    file = tmp_path / name
    file.write_bytes(b"no image\n" * 100)
    values = vars(place) | {"text": FORGED, "taken": TAKEN, "file": str(file)}
    seen: set[str] = set()

    for who, verb in VERBS:
        monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets[who])
        words = [word.format(**values) for word in verb.split()]
        extra = ["--json"] if form == "json" and "keys revoke" not in verb else []
        ended = await cli(*words, *extra)

        is_harmless(ended)
        if extra and ended.out:
            for line in ended.out.splitlines() if "watch" in verb else [ended.out]:
                json.loads(line)
        if "u202e" in ended.out + ended.err or "x1b" in ended.out + ended.err:
            seen |= {known for known in SHOWN if verb.startswith(known)}

    assert SHOWN == seen


def test_every_verb_is_among_those() -> None:
    def names(command: object, path: str = "") -> Iterator[str]:
        inside: dict[str, object] = getattr(command, "commands", {})
        for name, inner in inside.items():
            yield from names(inner, f"{path} {name}".strip())
        if not inside or path in OURS:
            yield path

    tried = {verb for _, verb in VERBS}
    verbs = set(names(typer.main.get_command(app)))

    assert OURS <= verbs
    assert [] == sorted(
        name
        for name in verbs - OURS
        if not any(f"{verb} ".startswith(f"{name} ") for verb in tried)
    )


def test_only_two_modules_print() -> None:
    """What writes to a terminal is asked for in `output` and `progress`, which make it harmless."""
    forbidden = {
        ("typer", "echo"), ("typer", "secho"), ("typer", "prompt"), ("typer", "confirm"),
        ("click", "echo"), ("click", "secho"), ("sys", "stdout"), ("sys", "stderr"),
        ("os", "write"),
    }  # fmt: skip
    breaches = []
    for path in sorted(CLI.rglob("*.py")):
        if path.name in {"output.py", "progress.py"}:
            continue
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Attribute(value=ast.Name(id=module), attr=name):
                    found = (module, name) in forbidden
                case ast.Name(id="print"):
                    found = True
                case ast.Import(names=names):
                    found = any(each.name.split(".")[0] == "rich" for each in names)
                case ast.ImportFrom(module=str(module), names=names):
                    found = module.split(".")[0] == "rich" or any(
                        (module, each.name) in forbidden for each in names
                    )
                case _:
                    found = False
            if found:
                breaches.append(f"{path.name}:{getattr(node, 'lineno', 0)}")

    assert breaches == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("täglich \u3000名前 👍 é", "täglich \u3000名前 👍 é"),
        ("a\tb\nc\r", r"a\tb\nc\r"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b\x85", r"\x9b\x85"),
        ("\u202e\u2066\u200b\ufeff", r"\u202e\u2066\u200b\ufeff"),
        ("\u2028\U000e0041\udcff", r"\u2028\U000e0041\udcff"),
        ("[/bold] [red]x[/] :boom:", "[/bold] [red]x[/] :boom:"),
    ],
)
def test_what_steers_is_written_down_and_all_else_left_alone(
    capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    output.say(text)
    output.complain(text)
    output.show([{"a": text}], lambda rows: output.Table(rows, {"a": "a"}), as_json=False)
    output.show_fields({"a": text, text: "b"}, as_json=False)
    output.show_fields({"in": [text]}, as_json=False)

    said = capsys.readouterr()
    assert said.out.splitlines()[0] == shown
    assert said.err == f"imagefleet: {shown}\n"
    assert said.out.count(shown) >= 1 + 1 + 2
    assert STEERS.search(said.out) is None


@pytest.mark.parametrize("text", ["\x1b\x9b\x7f", "\u202e\U000e0041", "täglich 👍", "\x00\n\t"])
def test_json_means_what_it_meant(capsys: pytest.CaptureFixture[str], text: str) -> None:
    output.print_json({text: [text, {"inner": text}]})
    output.print_json({text: text}, on_a_line=True)

    said = capsys.readouterr().out
    assert STEERS.search(said) is None
    *indented, line = said.splitlines()
    assert json.loads("\n".join(indented)) == {text: [text, {"inner": text}]}
    assert json.loads(line) == {text: text}


def test_what_goes_on_is_shown_as_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_terminal() -> Console:
        return Console(file=sys.stderr, force_terminal=True, color_system=None, width=500)

    monkeypatch.setattr(progress, "_messages", on_a_terminal)

    with progress.waiting(FORGED) as tell:
        tell(FORGED)
    with progress.counting(FORGED, 1) as advance:
        advance()

    said = capsys.readouterr().err
    assert "[/bold][red]x[/] [link=file:///etc]y" in said
    for stolen in ("\x1b[2J", "\x1b]0;", "\x07", "\x9b", "\x85", "\u202e", "\nimagefleet"):
        assert stolen not in said
