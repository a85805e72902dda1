"""Job types: payloads, policies and the registry."""

from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.dataclasses import dataclass

from imagefleet.errors import Misconfigured, RequestRejected
from imagefleet.jobs.images import image_target
from imagefleet.jobs.kinds import (
    BUILT_IN,
    STANDARD_RETRY,
    CancelJob,
    JobKind,
    Kinds,
    Noop,
    Payload,
    ProcessImage,
    choose_lane,
    read_payload,
    validate_payload,
)
from imagefleet.jobs.model import CancelCode, JsonObject, Lane
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.settings.in_force import Overlay

IMAGE = uuid4()
UPLOAD: dict[str, object] = {
    "image_id": str(IMAGE),
    "source_key": "o/1",
    "source_bytes": 10,
    "content_type": "image/jpeg",
}


class Stamp(BaseModel):
    text: str


STAMP = JobKind(name="stamp", payload=Stamp)


class Corner(BaseModel):
    """A model of somebody else, as strict as ours; so are the two below."""

    model_config = ConfigDict(extra="forbid")
    x: int


class Circle(BaseModel):
    model_config = ConfigDict(extra="forbid")
    radius: int


@dataclass(config=ConfigDict(extra="forbid"))
class Colour:
    name: str


class Notes(BaseModel):
    model_config = ConfigDict(extra="allow")


class Drawing(Payload):
    shapes: tuple[Corner | Circle, ...] = ()
    named: dict[str, Corner] | None = None
    colour: Colour | None = None
    notes: Notes = Notes()


DRAWING = JobKind(name="drawing", payload=Drawing)
NEWER: JsonObject = {
    "shapes": [{"x": 1, "y": 2}, {"radius": 3, "unit": "mm"}],
    "named": {"first": {"x": 4, "y": 5}},
    "colour": {"name": "red", "alpha": 0.5},
    "title": "what no release knew until now",
}


def refusal(name: str, payload: JsonObject) -> str:
    with pytest.raises(RequestRejected) as refused:
        validate_payload(BUILT_IN[name], payload)
    assert refused.value.code == "invalid_payload"
    assert refused.value.detail is None
    return refused.value.public_message


# The built-in kinds.


def test_the_built_in_types_are_eight() -> None:
    assert set(BUILT_IN) == {
        "process_image",
        "delete_image",
        "cancel_job",
        "cancel_jobs",
        "noop",
        "preview_original",
        "replay_jobs",
        "reprocess_images",
    }


def test_an_unknown_type_is_none() -> None:
    assert BUILT_IN.get("resize") is None


def test_jobs_of_one_image_share_its_target() -> None:
    upload, delete = BUILT_IN["process_image"], BUILT_IN["delete_image"]
    of_upload = upload.target(validate_payload(upload, UPLOAD))
    of_delete = delete.target(validate_payload(delete, {"image_id": str(IMAGE)}))

    assert f"image:{IMAGE}" == of_upload == of_delete == image_target(IMAGE)


def test_what_is_about_no_single_image_has_no_target() -> None:
    payloads: dict[str, dict[str, object]] = {
        "cancel_job": {"job_id": str(IMAGE)},
        "noop": {},
        "reprocess_images": {"all_images": True},
    }
    for name, payload in payloads.items():
        kind = BUILT_IN[name]

        assert kind.target(validate_payload(kind, payload)) is None


def test_only_deletion_and_cancellation_go_before_others() -> None:
    assert {"delete_image", "cancel_job", "cancel_jobs"} == {
        kind.name for kind in BUILT_IN.values() if kind.preempts
    }


def test_only_work_on_images_needs_s3() -> None:
    needing = {kind.name: kind.services for kind in BUILT_IN.values() if kind.services}

    of_images = ("process_image", "delete_image", "preview_original")
    assert needing == dict.fromkeys(of_images, ("s3",))


def test_a_failed_image_does_not_stop_the_next_version_of_it() -> None:
    assert not any(kind.pause_target_on_failure for kind in BUILT_IN.values())


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"recipe": "avif"},
        {"all_images": False},
        {"all_images": True, "reference": "r"},
        {"image_ids": []},
        {"image_ids": [str(IMAGE)] * 1001},
        {"recipe_was": "default", "image_ids": [str(IMAGE)]},
        {"all_images": True, "rate": 0},
    ],
)
def test_a_set_of_images_is_named_exactly_once(payload: dict[str, object]) -> None:
    assert "The payload is not valid for reprocess_images" in refusal("reprocess_images", payload)


# Lanes and timeouts.


@pytest.mark.parametrize(
    ("name", "priority", "lane"),
    [
        ("process_image", 100, Lane.GENERAL),
        ("process_image", 50, Lane.GENERAL),
        ("process_image", 49, Lane.FAST),
        ("process_image", -1, Lane.FAST),
        ("noop", 100, Lane.FAST),
        ("delete_image", 500, Lane.FAST),
    ],
)
def test_below_fifty_is_urgent_and_else_the_type_decides(
    name: str, priority: int, lane: Lane
) -> None:
    assert lane is choose_lane(BUILT_IN[name], priority)


def test_the_lane_decides_how_long_an_attempt_may_take() -> None:
    kind = BUILT_IN["process_image"]

    assert timedelta(minutes=2) == Overlay().timeout(kind, Lane.FAST)
    assert timedelta(minutes=20) == Overlay().timeout(kind, Lane.GENERAL)
    assert timedelta(minutes=20) == Overlay().timeout(kind, Lane.QUARANTINE)


def test_a_type_may_have_a_timeout_of_its_own() -> None:
    kind = JobKind(name="stamp", payload=Stamp, timeout=timedelta(seconds=7))

    assert {timedelta(seconds=7)} == {Overlay().timeout(kind, lane) for lane in Lane}


# Payloads.


def test_a_payload_becomes_its_model() -> None:
    payload = validate_payload(BUILT_IN["process_image"], UPLOAD)

    assert isinstance(payload, ProcessImage)
    assert payload.image_id == IMAGE
    assert payload.recipe == "default"
    assert payload.source_seq is None


def test_what_a_model_writes_it_reads_back() -> None:
    written = CancelJob(job_id=IMAGE, code=CancelCode.IMAGE_DELETED, reason="gone")
    kind = BUILT_IN["cancel_job"]

    assert written == validate_payload(kind, written.model_dump(mode="json"))
    assert written == validate_payload(kind, written.model_dump())


def test_cancellation_is_plain_unless_it_says_more() -> None:
    payload = validate_payload(BUILT_IN["cancel_job"], {"job_id": str(IMAGE)})

    assert payload == CancelJob(job_id=IMAGE, code=CancelCode.CANCELLED, reason="")


def test_a_payload_cannot_be_changed() -> None:
    payload = Noop(milliseconds=1)

    with pytest.raises(ValidationError, match="frozen"):
        payload.milliseconds = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"image_id": "no-uuid"}, "image_id must be a UUID"),
        ({"image_id": 7}, "image_id must be a UUID"),
        ({"source_key": ""}, "source_key must have at least 1 characters"),
        ({"source_bytes": 0}, "source_bytes must be at least 1"),
        ({"source_bytes": 2**63}, f"source_bytes must be less than {2**63}"),
        ({"source_bytes": "10"}, "source_bytes must be a whole number"),
        ({"source_sha256": "abc"}, "source_sha256 must match ^[0-9a-f]{64}$"),
        ({"recipe": "../etc"}, "recipe must match ^[a-z][a-z0-9_-]{0,62}$"),
        ({"source_seq": -1}, "source_seq must be at least 0"),
        ({"width": 10}, f"width is not known; known are: {', '.join(ProcessImage.model_fields)}"),
    ],
)
def test_a_fault_is_told_by_its_field_and_what_that_must_be(
    change: dict[str, object], named: str
) -> None:
    sentence = refusal("process_image", {**UPLOAD, **change})

    assert f"The payload is not valid for process_image: {named}." == sentence


def test_what_a_newer_release_added_is_left_out_at_every_depth() -> None:
    expected = Drawing(
        shapes=(Corner(x=1), Circle(radius=3)),
        named={"first": Corner(x=4)},
        colour=Colour(name="red"),
    )

    assert expected == read_payload(DRAWING, NEWER)


def test_what_is_submitted_has_no_unknown_field_at_any_depth() -> None:
    for field, value in NEWER.items():
        with pytest.raises(RequestRejected, match=f"{field}.* is not known"):
            validate_payload(DRAWING, {field: value})


def test_a_model_that_allows_unknown_fields_has_them() -> None:
    drawing = read_payload(DRAWING, {"notes": {"by": "ada"}})

    assert isinstance(drawing, Drawing)
    assert {"by": "ada"} == drawing.notes.model_extra


def test_an_unknown_field_excuses_no_other_fault() -> None:
    with pytest.raises(RequestRejected) as refused:
        read_payload(BUILT_IN["noop"], {"milliseconds": "5", "colour": "red"})

    assert "The payload is not valid for noop: milliseconds must be a whole number." == (
        refused.value.public_message
    )


def test_all_faults_are_named_at_once() -> None:
    sentence = refusal("noop", {"milliseconds": 60_001, "note": 5})

    assert "milliseconds must be at most 60000; note must be a string." in sentence


@pytest.mark.parametrize("milliseconds", [-1, 60_001, 1.5, True])
def test_a_noop_waits_a_minute_at_most(milliseconds: float) -> None:
    assert "milliseconds must be" in refusal("noop", {"milliseconds": milliseconds})


def test_a_refusal_never_repeats_a_value() -> None:
    secret = "hunter2-hunter2"

    sentence = refusal("noop", {"milliseconds": secret, "note": [secret], f"<{secret}>": secret})

    assert "hunter2" not in sentence
    assert "? is not known" in sentence


def test_a_refusal_stays_short_however_much_is_wrong() -> None:
    sentence = refusal("noop", {f"{'x' * 500}{n}": 1 for n in range(100)})

    assert len(sentence) < 1200
    assert sentence.endswith("and 90 more.")


@pytest.mark.parametrize("note", ["\x00", "a\x00b", "\\\x00", "\\\\\x00"])
def test_a_payload_with_nul_is_refused_because_postgres_would(note: str) -> None:
    assert "NUL" in refusal("noop", {"note": note})


@pytest.mark.parametrize("note", ["\\u0000", "u0000", "\\\\u0000"])
def test_text_that_only_looks_like_nul_is_fine(note: str) -> None:
    assert Noop(note=note) == validate_payload(BUILT_IN["noop"], {"note": note})


def test_what_json_cannot_say_is_refused() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]

    for value in (object(), "\ud800", nested):
        assert "cannot be written as JSON" in refusal("noop", {"note": value})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(list(BUILT_IN)),
    st.dictionaries(
        st.sampled_from(["image_id", "job_id", "note", "milliseconds", "code"]) | st.text(),
        json_values,
        max_size=6,
    ),
)
def test_any_payload_is_either_read_or_refused(name: str, payload: dict[str, object]) -> None:
    with suppress(RequestRejected):
        assert isinstance(read_payload(BUILT_IN[name], payload), Payload)
    with suppress(RequestRejected):
        assert read_payload(BUILT_IN[name], payload) == validate_payload(BUILT_IN[name], payload)


# The registry.


def test_a_third_party_adds_a_type_of_its_own() -> None:
    kinds = BUILT_IN.adding(STAMP)

    assert kinds["stamp"] is STAMP
    assert "stamp" not in BUILT_IN
    assert Stamp(text="x") == validate_payload(STAMP, {"text": "x"})
    assert STAMP.target(Stamp(text="x")) is None


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(Misconfigured, match="noop is defined twice"):
        BUILT_IN.adding(JobKind(name="noop", payload=Stamp))


@pytest.mark.parametrize("name", ["", "Stamp", "1st", "_x", "a-b", "a b", "a\n", "x" * 64, "ä"])
def test_a_name_that_is_no_label_is_refused(name: str) -> None:
    with pytest.raises(Misconfigured, match="does not match"):
        JobKind(name=name, payload=Stamp)


def test_the_longest_name_is_allowed() -> None:
    assert "x" * 63 in Kinds([JobKind(name="x" * 63, payload=Stamp)])


def test_no_type_starts_in_quarantine() -> None:
    with pytest.raises(Misconfigured, match="may not start in quarantine"):
        JobKind(name="stamp", payload=Stamp, lane=Lane.QUARANTINE)


def test_a_timeout_is_longer_than_nothing() -> None:
    with pytest.raises(Misconfigured, match="may not have a timeout"):
        JobKind(name="stamp", payload=Stamp, timeout=timedelta(0))


def test_the_settings_policy_reaches_every_type_without_one() -> None:
    own = RetryPolicy(max_attempts=2)
    fleet = RetryPolicy(max_attempts=9)
    kinds = Kinds((STAMP, JobKind(name="picky", payload=Stamp, retry=own)))

    configured = kinds.with_standard_retry(fleet)

    assert fleet is configured["stamp"].retry
    assert own is configured["picky"].retry
    assert STANDARD_RETRY is kinds["stamp"].retry


def test_of_hundreds_of_unknown_fields_one_is_told() -> None:
    sentence = refusal("noop", {f"field{number}": 1 for number in range(1_000)})

    assert sentence == "The payload is not valid for noop: it has hundreds of unknown fields."
