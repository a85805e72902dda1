"""What each process may do in AWS, by the table in `infra/aws/modules/identity`, and what it does.

`policy_of` makes of a process's rights what the module makes of them, with ARNs of an example; a
test of the module compares the two. `allows` reads such a policy as IAM does, as far as ours go.
"""

import fnmatch
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from tests.faults.plugin.calls import Call

MODULE: Final = Path(__file__).parents[2] / "infra" / "aws" / "modules" / "identity"

ACCOUNT: Final = "111122223333"
REGION: Final = "eu-central-1"
LANES: Final = ("fast", "general", "quarantine")  # one place in the table: they are alike
BUCKETS: Final = ("originals", "outputs")
ARNS: Final[Mapping[str, str]] = {
    **{
        name: f"arn:aws:sqs:{REGION}:{ACCOUNT}:imagefleet-{name}"
        for name in (*LANES, "dead-letter")
    },
    **{name: f"arn:aws:s3:::imagefleet-{name}" for name in BUCKETS},
    "distribution": f"arn:aws:cloudfront::{ACCOUNT}:distribution/EDFDVBD6EXAMPLE",
    "key": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/0d990263-018e-4e65-a703-eff731de951e",
}
OF_BUCKETS: Final = ("s3:ListBucket", "s3:ListBucketVersions")  # all others of S3 are of objects

Policy: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A row of the table: one action, where, which calls need it, and why."""

    process: str
    action: str
    on: tuple[str, ...]
    operations: tuple[str, ...]
    why: str
    prefixes: tuple[str, ...] = ()
    """Of listings, what they may ask for."""
    via: tuple[str, ...] = ()
    """Of a key, the services that may use it on the role's behalf."""
    unseen: str = ""
    """Why no test hears a call that needs it."""

    @classmethod
    def of(cls, process: str, row: Mapping[str, Any]) -> Self:
        lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
        return cls(process=process, **{**row, **lists})

    @property
    def name(self) -> str:
        return f"{self.process} {self.action} on {', '.join(self.on)}"

    def needed_by(self, call: Call, needs: Mapping[str, Sequence[str]]) -> bool:
        """Whether this is a call that the row speaks of."""
        return (
            call.process == self.process
            and call.operation in self.operations
            and self.action in needs.get(call.operation, ())
            and any(covers(place, call, self.action) for place in self.on)
        )

    def statement(self, arns: Mapping[str, str]) -> Policy:
        places = [each for place in self.on for each in (LANES if place == "lanes" else (place,))]
        resources = [arn_of(place, arns) for place in places if place.partition("/")[0] in arns]
        statement: Policy = {"Effect": "Allow", "Action": self.action, "Resource": resources}
        if self.prefixes:
            statement["Condition"] = {"StringLike": {"s3:prefix": [*self.prefixes]}}
        if self.via:
            services = [f"{service}.{REGION}.amazonaws.com" for service in self.via]
            statement["Condition"] = {"StringEquals": {"kms:ViaService": services}}
        return statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The file, read."""

    needs: Mapping[str, Sequence[str]]
    """The actions that AWS asks for, by call."""
    rights: tuple[Right, ...]
    processes: tuple[str, ...]

    @classmethod
    def read(cls) -> Self:
        told = json.loads((MODULE / "rights.json").read_text())
        rights = [
            Right.of(process, row) for process in told["rights"] for row in told["rights"][process]
        ]
        return cls(needs=told["needs"], rights=tuple(rights), processes=tuple(told["rights"]))

    def policy_of(self, process: str, arns: Mapping[str, str] = ARNS) -> Policy:
        """What its role is given, where these exist."""
        statements = [right.statement(arns) for right in self.rights if right.process == process]
        return {
            "Version": "2012-10-17",
            "Statement": [OVER_TLS, *(each for each in statements if each["Resource"])],
        }

    def refused(self, calls: Iterable[Call]) -> list[str]:
        """Of these calls, those that their process may not make, and for want of what."""
        policies = {process: self.policy_of(process) for process in self.processes}
        return sorted(
            f"{call.process} may not {call.operation} on {call.place}: it lacks {action}"
            for call in set(calls)
            for action in self.needs.get(call.operation, ["a row of `needs`"])
            if not asked(policies[call.process], action, call)
        )

    def idle(self, calls: Iterable[Call]) -> dict[str, str]:
        """Rights that nothing of these calls needs, with the places and calls that nothing was of.

        But for those that say why no call is ever heard.
        """
        heard = set(calls)
        idle: dict[str, str] = {}
        for right in self.rights:
            needing = [call for call in heard if right.needed_by(call, self.needs)]
            made = {call.operation for call in needing}
            lacking = [
                place
                for place in right.on
                if not any(covers(place, call, right.action) for call in needing)
            ] + [operation for operation in right.operations if operation not in made]
            if lacking and not right.unseen:
                idle[right.name] = ", ".join(lacking)
        return idle


OVER_TLS: Final[Policy] = {
    "Sid": "OnlyOverTls",
    "Effect": "Deny",
    "Action": "*",
    "Resource": "*",
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}


def arn_of(place: str, arns: Mapping[str, str] = ARNS) -> str:
    resource, slash, rest = place.partition("/")
    return arns[resource] + slash + rest


def covers(place: str, call: Call, action: str) -> bool:
    """Whether a place of the table is where the call is; of a bucket's own actions, its bucket."""
    where = call.place.partition("/")[0] if action in OF_BUCKETS else call.place
    return where in LANES if place == "lanes" else fnmatch.fnmatchcase(where, place)


def asked(policy: Policy, action: str, call: Call) -> bool:
    """Whether IAM lets the call pass this far."""
    where = call.place.partition("/")[0] if action in OF_BUCKETS else call.place
    known = where.partition("/")[0] in ARNS
    listing = {} if call.prefix is None else {"s3:prefix": call.prefix}
    context = {"aws:SecureTransport": "true", **listing}
    return known and allows(policy, action, arn_of(where), context)


def allows(policy: Policy, action: str, resource: str, context: Mapping[str, str]) -> bool:
    """A statement allows it, and none denies it."""
    effects = {
        statement["Effect"]
        for statement in policy["Statement"]
        if fnmatch.fnmatchcase(action, statement["Action"])
        and any(fnmatch.fnmatchcase(resource, each) for each in listed(statement["Resource"]))
        and holds(statement.get("Condition", {}), context)
    }
    return effects == {"Allow"}


def holds(condition: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool:
    """Every operator of it, for every key; a key that the request lacks holds for none of ours."""
    return all(
        key in context
        and any(
            fnmatch.fnmatchcase(context[key], value)
            if operator == "StringLike"
            else context[key] == value
            for value in listed(values)
        )
        for operator, keys in condition.items()
        for key, values in keys.items()
    )


def listed(values: str | Sequence[str]) -> Sequence[str]:
    return [values] if isinstance(values, str) else values
