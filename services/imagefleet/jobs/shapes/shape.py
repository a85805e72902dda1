"""What all shapes are: camelCase outside, what has no value left out, nothing changed once made."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any, Final, Protocol, Self

from pydantic import BaseModel, ConfigDict, PlainSerializer
from pydantic.alias_generators import to_camel

Seconds = Annotated[
    timedelta, PlainSerializer(lambda span: round(span.total_seconds(), 3), return_type=float)
]

# What tables call one way and everybody outside another.
_SHOWN_AS: Final = {"tenant_id": "tenant", "type": "job_type", "state": "status"}


class Row(Protocol):
    """A row by the names of its columns, each of the type that its migration says."""

    def __getitem__(self, name: str, /) -> Any: ...  # noqa: ANN401 - only Postgres knows

    def keys(self) -> Iterable[str]: ...


class Shape(BaseModel):
    """Something that we answer; what has no value is left out."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, validate_by_name=True)

    @classmethod
    def of(cls, row: Row) -> Self:
        """What this shows of a row; its other columns are nobody's business."""
        fields = cls.model_fields
        return cls.model_validate(
            {
                name if name in fields else _SHOWN_AS.get(name, name): value
                for name, value in dict(row).items()
            }
        )

    def encoded(self) -> bytes:
        """The JSON that is sent."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()
