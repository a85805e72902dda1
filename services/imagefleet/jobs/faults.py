"""What is wrong with the fields of a request, or of a payload.

A sentence says what a field must be, never what it was: whoever reads it may not be who sent it.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Self, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

UNKNOWN: Final = "extra_forbidden"
LONGEST_NAME: Final = 40  # characters of a field's: less than a secret of ours has

_WHOLE: Final = "must be a whole number"
_NUMBER: Final = "must be a number"
_SWITCH: Final = "must be true or false"
_OBJECT: Final = "must be an object"
_ONE_OF: Final = "must be {expected}"
_MOMENT: Final = "must be a date and a time, such as 2030-01-01T00:00:00Z"
_SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "missing": "is required",
        UNKNOWN: "is not known",
        "unexpected_keyword_argument": "is not known",
        "less_than_equal": "must be at most {le}",
        "less_than": "must be less than {lt}",
        "greater_than_equal": "must be at least {ge}",
        "greater_than": "must be more than {gt}",
        "enum": _ONE_OF,
        "literal_error": _ONE_OF,
        "string_type": "must be a string",
        "string_too_short": "must have at least {min_length} characters",
        "string_too_long": "must have at most {max_length} characters",
        "string_pattern_mismatch": "must match {pattern}",
        "too_short": "must have at least {min_length} items",
        "too_long": "must have at most {max_length} items",
        "int_type": _WHOLE,
        "int_parsing": _WHOLE,
        "int_parsing_size": _WHOLE,
        "int_from_float": _WHOLE,
        "float_type": _NUMBER,
        "float_parsing": _NUMBER,
        "finite_number": _NUMBER,
        "bool_type": _SWITCH,
        "bool_parsing": _SWITCH,
        "uuid_type": "must be a UUID",
        "uuid_parsing": "must be a UUID",
        "datetime_type": _MOMENT,
        "datetime_parsing": _MOMENT,
        "datetime_from_date_parsing": _MOMENT,
        "timezone_aware": "must have a time zone, such as Z",
        "list_type": "must be an array",
        "tuple_type": "must be an array",
        "dict_type": _OBJECT,
        "model_type": _OBJECT,
        "model_attributes_type": _OBJECT,
    }
)
_NOT_VALID: Final = "is not valid"
_OF_PYDANTIC: Final = frozenset(get_args(ErrorType))


class Fault(BaseModel, frozen=True):
    """One thing that is wrong with a request."""

    field: str
    problem: str
    """For machines."""
    detail: str = ""
    """What the field must be, for people."""

    @classmethod
    def all_of(
        cls, errors: Iterable[ErrorDetails], whole: str, known: Sequence[str] = (), skip: int = 0
    ) -> list[Self]:
        """Where and what, never which value; `whole` is what they are in, `known` its fields.

        So many of the first places are left out of a field's name.
        """
        faults = []
        for error in errors:
            place, kind = error["loc"][skip:], error["type"]
            is_unknown = kind == UNKNOWN and len(place) == 1
            faults.append(
                cls(
                    field=".".join(map(shown_name, place)) or whole,
                    problem=kind,
                    detail=unknown(known) if is_unknown and known else _sentence(error),
                )
            )
        return faults


def shown_name(name: int | str) -> str:
    """A field's name, unless it was made up by the sender and is no name."""
    said = str(name)
    is_one = said.isascii() and said.replace("_", "").isalnum() and len(said) <= LONGEST_NAME
    return said if is_one else "?"


def unknown(known: Sequence[str]) -> str:
    """What is said of a name that is none of these."""
    return f"is not known; known are: {', '.join(known)}" if known else "is not known, nor is any"


def _sentence(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind not in _OF_PYDANTIC:  # in the words of whoever wrote the model
        return error["msg"]
    return _SENTENCES.get(kind, _NOT_VALID).format_map(error.get("ctx", {}))
