"""Where an emulator is known not to behave like AWS: each by name, asserted by the test named so.

A test asks `differs(name)` and asserts what is written here, so that it notices when an emulator
learns better. docs/aws-contract.md tells the same to people, and a test compares the two.
"""

from dataclasses import dataclass

from tests.support.emulators import Kind


@dataclass(frozen=True, slots=True)
class Difference:
    """What AWS does, and what each of these emulators does instead."""

    aws: str
    instead: dict[Kind, str]


DIFFERENCES: dict[str, Difference] = {
    "stale-handle-is-refused": Difference(
        "deleting with an old receipt handle succeeds, and the message stays",
        {"ministack": "fails with ReceiptHandleIsInvalid; the message stays"},
    ),
    "stale-handle-deletes": Difference(
        "deleting with an old receipt handle succeeds, and the message stays",
        {
            "moto": "succeeds, and the message is gone",
            "localstack": "succeeds, and the message is gone",
        },
    ),
    "no-redrive-source": Difference(
        "a message that SQS moved to the dead letters names the queue it came from",
        {"moto": "names none"},
    ),
    "no-move-tasks": Difference(
        "StartMessageMoveTask moves dead letters back",
        {"ministack": "answers InvalidAction", "moto": "answers 500"},
    ),
    "move-has-no-reason": Difference(
        "a move without a destination, of what an application sent to the dead letters itself, "
        "fails with CouldNotDetermineMessageSource",
        {"localstack": "fails with AttributeError"},
    ),
    "caller-reference-is-ignored": Difference(
        "an invalidation is made once per caller reference, and refused with other paths",
        {"moto": "makes another one"},
    ),
    "list-is-oldest-first": Difference(
        "invalidations are listed newest first, in pages",
        {"ministack": "all of them, oldest first", "moto": "oldest first"},
    ),
    "batches-are-not-checked": Difference(
        "an invalidation with a wrong quantity, a path without `/` or a wildcard inside is refused",
        {"ministack": "takes it", "moto": "takes it"},
    ),
    "nothing-is-too-much": Difference(
        "3,000 files and tags and 15 wildcards may be in progress, and few calls come quickly",
        {"ministack": "takes any number, and completes it at once", "moto": "the same"},
    ),
    "checksum-is-not-compared": Difference(
        "a body that does not match the checksum sent with it is refused", {"moto": "stores it"}
    ),
    "copy-tells-no-checksum": Difference(
        "a copy that is asked for its SHA-256 is answered with it",
        {"ministack": "tells none"},
    ),
    "form-size-is-not-checked": Difference(
        "a presigned form refuses files outside its size range with 400",
        {"moto": "stores any size"},
    ),
    "form-policy-is-not-checked": Difference(
        "a presigned form is for one key, one content type and a limited time",
        {"moto": "stores under any key and type, for ever"},
    ),
    "signatures-are-not-checked": Difference(
        "a form with a wrong signature is refused",
        {"moto": "stores it", "localstack": "stores it"},
    ),
    "any-key-is-accepted": Difference(
        "an unknown access key is refused", {"moto": "answers", "localstack": "answers"}
    ),
}
