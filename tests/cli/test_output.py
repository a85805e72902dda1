"""An answer is shown one way: itself for scripts, what they look at for people."""

import json
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from imagefleet.cli.output import Columns, Fields, at, section, show, show_fields, show_list
from imagefleet.client.api import Reply
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.shape import AcceptedJob, JobLinks

PAGE: Final[dict[str, Any]] = {
    "things": [
        {"name": "a", "madeAt": "2026-01-02T03:04:05Z", "tags": ["x"], "newer": 1},
        {"name": "b", "tags": []},
    ],
    "nextCursor": "further",
    "newest": {"of": "all"},
}


@pytest.fixture
def accepted() -> Reply[AcceptedJob]:
    links = JobLinks(self="/", events="/", cancel="/")
    document = {"jobId": "0199a5c2-0000-7000-8000-000000000001", "jobType": "noop"}
    shape = AcceptedJob.model_validate(
        {"job_id": document["jobId"], "job_type": "noop", "status": JobState.QUEUED, "links": links}
    )
    return Reply(shape, {**document, "newer": [1, None]})


def test_scripts_get_the_answer_itself_and_are_told_nothing_else(
    capsys: pytest.CaptureFixture[str], accepted: Reply[AcceptedJob]
) -> None:
    show_list(PAGE, "things", {"name": "name"}, as_json=True)
    listed = capsys.readouterr()
    show(accepted, lambda _: pytest.fail("nobody looks"), as_json=True)
    shown = capsys.readouterr()

    assert (PAGE, "") == (json.loads(listed.out), listed.err)
    assert accepted.document == json.loads(shown.out)


def test_a_column_is_a_field_or_what_is_made_of_it_and_empty_where_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns: Columns = {
        "name": "name",
        "made (UTC)": at("madeAt"),
        "tags": lambda row: len(row["tags"]),
    }

    show_list(PAGE, "things", columns, as_json=False)

    said = capsys.readouterr()
    head, first, second = (line.split() for line in said.out.splitlines())
    assert ["name", "made", "(UTC)", "tags"] == head
    assert ["a", "2026-01-02", "03:04:05", "1"] == first
    assert ["b", "0"] == second
    assert said.err == "imagefleet: there are more: --cursor further\n"


def test_people_see_the_parts_of_a_view_in_order(
    capsys: pytest.CaptureFixture[str], accepted: Reply[AcceptedJob]
) -> None:
    show(
        accepted,
        lambda job: [
            f"{job.job_type}:",
            Fields({"made": datetime(2026, 1, 2, tzinfo=UTC), "by": None}, ("fact", "")),
            *section([], {"never": "seen"}),
            *section([job], {"status": "status"}),
        ],
        as_json=False,
    )

    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [
        "noop:",
        "fact",
        "made  2026-01-02 00:00:00+00:00",
        "by",
        "",
        "status",
        "queued",
    ] == lines


def test_a_table_of_nothing_says_so_in_words_and_scripts_get_their_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing: dict[str, Any] = {"things": []}
    show_list(nothing, "things", {"name": "name"}, as_json=False)
    show_list(nothing, "things", {"name": "name"}, as_json=False, none="none; make one")
    said = capsys.readouterr().out
    show_list(nothing, "things", {"name": "name"}, as_json=True, none="none; make one")

    assert "no things\nnone; make one\n" == said
    assert nothing == json.loads(capsys.readouterr().out)


def test_of_one_thing_whole_each_field_with_a_value_is_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_fields({"id": 1, "none": None, "payload": {"deep": [1]}}, as_json=False)

    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert [["id", "1"], ["payload", '{"deep":[1]}']] == lines
