"""Every statement of the store is one that Postgres understands, and that its roles may run."""

import ast
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import asyncpg
import pytest

from imagefleet import store
from tests.support.database import Database, Role, driver_of
from tests.support.sources import parsed

ANY_SUBMITTER: Final[tuple[Role, ...]] = ("api", "worker", "maintenance", "operator")
ENDS_CLAIMS: Final[tuple[Role, ...]] = ("worker", "maintenance")
READERS: Final[tuple[Role, ...]] = ("api", "operator")

# Who runs what. A new constant without a line here, or among the two groups below, is a red test.
RUN_BY: Final[Mapping[str, tuple[Role, ...]]] = MappingProxyType(
    {
        "admissions.FIND_KEY_OR_REFUSAL": ("api",),
        "admissions.FIND_REFUSALS": READERS,
        "cancelling.IS_CANCELLABLE": ("api",),
        "admissions.LIST_PARENTS": ("api",),
        "admissions.LIST_STANDING": ("api",),
        "admissions.ROOM_FOR_A_SET": ("worker",),
        "admissions.ROOM_FOR_JOBS": ("api",),
        "audit.BEGIN_ACT": ("operator", "admin", "owner"),
        "audit.FIND_LINE": ("operator",),
        "audit.HAS_AUDIT": ("owner",),
        "audit.HAS_WRITTEN": ("operator", "admin", "owner"),
        "audit.LIST_AUDIT": ("operator",),
        "audit.LIST_AUDIT_BY_AN_ACTOR": ("operator",),
        "audit.LIST_AUDIT_BY_A_KEY": ("operator",),
        "audit.LIST_AUDIT_OF_A_TENANT": ("operator",),
        "audit.LIST_AUDIT_ON_A_THING": ("operator",),
        "audit.RECORD_ACT": (*ANY_SUBMITTER, "admin", "owner"),
        "audit.TAKE_TURNS": ("operator", "admin"),
        "invalidations.LIST_UNSENT": ("maintenance",),
        "invalidations.BEGIN_SEND": ("maintenance",),
        "invalidations.ACCEPT_BATCH": ("maintenance",),
        "invalidations.LIST_ACCEPTED": ("maintenance",),
        "invalidations.COMPLETE_BATCH": ("maintenance",),
        "invalidations.SEND_AGAIN": ("maintenance",),
        "breakers.READ_BREAKER": ("worker",),
        "breakers.LOCK_BREAKER": ("worker",),
        "breakers.ADD_BREAKER": ("worker",),
        "breakers.COUNT_CALLS": ("worker",),
        "breakers.TRIP_BREAKER": ("worker",),
        "breakers.CLOSE_BREAKER": ("worker",),
        "breakers.REOPEN_BREAKER": ("worker",),
        "breakers.HOLD_BREAKER": ("operator",),
        "breakers.FORCE_OPEN": ("operator",),
        "breakers.LIST_BREAKERS": ("operator",),
        "breakers.RESET_BREAKER": ("operator",),
        "cancelling.BEGIN_WALK": ("worker",),
        "cancelling.COUNT_CHOSEN": ("operator",),
        "cancelling.COUNT_CHOSEN_OF_TYPE": ("operator",),
        "cancelling.COUNT_WALK": ("worker",),
        "cancelling.COUNT_WALK_OF_TYPE": ("worker",),
        "cancelling.FIND_OPEN": ("worker",),
        "cancelling.FIND_OPEN_OF_TYPE": ("worker",),
        "cancelling.FLAG_PAGE": ("worker",),
        "cancelling.RING_FIRST": ("operator",),
        "claims.CLAIM_JOBS": ("worker",),
        "workers.REGISTER_WORKER": ("worker",),
        "workers.START_DRAIN": ("worker",),
        "claims.LOCK_WORKER": ("worker",),
        "workers.RETIRE_WORKER": ("worker",),
        "cancelling.FLAG_CANCEL": ("worker",),
        "cancelling.RING_FLAGGED": ("worker",),
        "rings.RING_JOB": ("operator",),
        "rings.RETRY_NOW": ("operator",),
        "pauses.PAUSE": ("operator",),
        "pauses.FIND_PAUSE": ("operator",),
        "pauses.RESUME": ("operator",),
        "pauses.LIST_PAUSES": ("operator",),
        "letters.ACKNOWLEDGE": ("operator",),
        "letters.COUNT_UNACKNOWLEDGED": ("maintenance", "operator"),
        "letters.GET_LETTERS": ("worker", "operator"),
        "letters.GROUP_LETTERS": ("operator",),
        "letters.LIST_LETTERS": ("operator",),
        "letters.LIST_LETTERS_OF_FAULT": ("operator",),
        "letters.LIST_LETTERS_OF_TENANT": ("operator",),
        "letters.LIST_OPEN_LETTERS": ("operator",),
        "dead_letter_queue.TAKE_DUE_SENDS": ("maintenance",),
        "dead_letter_queue.FORGET_SENDS": ("maintenance",),
        "dead_letter_queue.JUDGE_MESSAGES": ("maintenance",),
        "statistics.SAMPLE_BEHIND": ("maintenance",),
        "pruning.LIST_DARK": ("maintenance",),
        "pruning.LOCK_BURIED": ("maintenance",),
        "pruning.PRUNE_IMAGES": ("maintenance",),
        "pruning.PRUNE_REVISIONS": ("maintenance",),
        "pruning.PRUNE_UPLOADS": ("maintenance",),
        "roles.DESCRIBE_SESSION": (*ANY_SUBMITTER, "owner"),
        "dispatching.COUNT_ANNOUNCED": ("maintenance",),
        "dispatching.FIND_LEVELS": ("maintenance",),
        "dispatching.HOLD_LANES": ("maintenance",),
        "dispatching.LEAVE_LANES": ("maintenance",),
        "dispatching.LOOK_AT_FLEET": ("maintenance",),
        "dispatching.LOOK_AT_HOLDS": ("maintenance",),
        "dispatching.LOOK_AT_TYPES": ("maintenance",),
        "dispatching.PUBLISH_ROOM": ("maintenance",),
        "dispatching.READ_MANNERS": ("maintenance",),
        "dispatching.TAKE_RINGS": ("maintenance",),
        "reports.SAMPLE_INVALIDATIONS": ("maintenance", "operator"),
        "reports.READ_MONTH": ("operator",),
        "reports.LIST_BATCHES": ("operator",),
        "elections.FIND_FLUSHER": ("operator",),
        "reports.OWE_FOR_OPERATOR": ("operator",),
        "reports.GET_INVALIDATIONS": ("operator",),
        "pruning.PRUNE_BATCHES": ("maintenance",),
        "elections.HOLD_ELECTION": ("maintenance",),
        "elections.RESIGN": ("maintenance",),
        "elections.BEGIN_PERIOD": ("maintenance",),
        "elections.FINISH_PERIOD": ("maintenance",),
        "elections.FORGET_PERIODS": ("maintenance",),
        "endings.LOCK_TARGETS": (*ENDS_CLAIMS, "operator"),
        "tenants.COUNT_LIMITS": ("operator",),
        "tenants.GET_TENANT": ("operator",),
        "tenants.KNOWS_TENANT": ("operator",),
        "tenants.LIST_TENANTS": ("operator",),
        "tenants.LOCK_TENANT": ("operator",),
        "tenants.RANK_TENANTS": ("operator",),
        "tenants.READ_LIMITS": ("operator",),
        "tenants.RESET_LIMITS": ("operator",),
        "tenants.SET_LIMITS": ("operator",),
        "tenants.SET_QUOTA": ("operator",),
        "deleting.FIND_DELETED": ("operator", "worker"),
        "deleting.FIND_DELETING_JOB": ("api",),
        "deleting.GET_DELETION": READERS,
        "deleting.LIST_VOID": ("api",),
        "deleting.OWNS_IMAGE": ("api",),
        "deleting.WRITE_TOMBSTONE": ("api",),
        "endings.LOCK_CLAIMS": ENDS_CLAIMS,
        "endings.COMPLETE_JOBS": ("worker",),
        "endings.END_UNCOMPLETED": ENDS_CLAIMS,
        "endings.FREE_TARGETS": ENDS_CLAIMS,
        "rings.LOCK_TARGET": ("operator",),
        "rings.RING_NEXT": ("operator",),
        "claims.COUNT_OVER": ("worker",),
        "database.PING": ANY_SUBMITTER,
        "reports.WATCH_JOBS": ("api",),
        "deleting.DARKEN_WITHOUT_EDGE": ("maintenance",),
        "deleting.FLAG_VOID": ("worker",),
        "deleting.LIST_NAMED_KEYS": ("worker",),
        "deleting.LIST_TO_EMPTY_AGAIN": ("maintenance",),
        "deleting.RECORD_EMPTIED": ("worker",),
        "deleting.RECORD_EMPTIED_AGAIN": ("maintenance",),
        "images.ACCEPT_SOURCE": ("api",),
        "images.INSERT_IMAGE": ("api",),
        "images.PUBLISH_IMAGES": ("worker",),
        "images.GET_IMAGE": READERS,
        "images.LIST_IMAGES": READERS,
        "images.LIST_BY_REFERENCE": READERS,
        "invalidations.LOOK_AT_OWED": ("maintenance",),
        "invalidations.COUNT_IN_FLIGHT": ("maintenance",),
        "invalidations.TAKE_OWED": ("maintenance",),
        "invalidations.FREEZE_BATCH": ("maintenance",),
        "invalidations.OWE_AGAIN": ("maintenance",),
        "keys.CREATE_TENANT": ("admin",),
        "keys.CREATE_KEY": ("admin",),
        "keys.FIND_KEYS": ("api", "admin"),
        "keys.TOUCH_KEYS": ("api",),
        "keys.LIST_KEYS": ("admin",),
        "keys.HAS_KEY": ("admin",),
        "keys.REVOKE_KEY": ("admin",),
        "leases.RENEW_CLAIMS": ("worker",),
        "leases.REPORT_PROGRESS": ("worker",),
        "bookkeeping.FOLD_ENTRIES": ("maintenance",),
        "bookkeeping.FOLD_LEDGER": ("maintenance",),
        "bookkeeping.FORGET_EMPTY_COUNTS": ("maintenance",),
        "ledger.READ_BALANCE": ("operator", "maintenance"),
        "ledger.READ_LEDGER": ("maintenance", "operator"),
        "ledger.SAMPLE_DEPTHS": ("maintenance",),
        "ledger.SAMPLE_OLDEST": ("maintenance",),
        "live_settings.LIST_TURNED": ("operator",),
        "live_settings.READ_DEFAULTS": ("operator",),
        "live_settings.READ_LIVE": ("api", "worker", "maintenance"),
        "live_settings.TELL_DEFAULTS": ("api", "worker", "maintenance"),
        "live_settings.TURN": ("operator",),
        "live_settings.TURN_BACK": ("operator",),
        "live_settings.TURN_RETENTION": ("operator",),
        "live_settings.TURN_RETENTION_BACK": ("operator",),
        "migrations.APPLIED": (*ANY_SUBMITTER, "owner"),
        "migrations.INVALID_INDEXES": ("owner",),
        "migrations.HOLDER": ("owner",),
        "migrations.MISSING_ROLES": ("owner",),
        "migrations.RECORD": ("owner",),
        "workers.LIST_HELD": ("operator",),
        "workers.LIST_WORKERS": ("operator",),
        "inspection.OVERSEE_ALL": ("operator",),
        "inspection.OVERSEE_BY_CORRELATION": ("operator",),
        "inspection.OVERSEE_BY_STATE": ("operator",),
        "inspection.OVERSEE_BY_TARGET": ("operator",),
        "inspection.OVERSEE_BY_TYPE": ("operator",),
        "inspection.OVERSEE_CHILDREN": ("operator",),
        "inspection.OVERSEE_TENANT": ("operator",),
        "pointers.FIND_CURRENT": ("api",),
        "bookkeeping.BEGIN_ROUND": ("maintenance",),
        "bookkeeping.CORRECT_BOOK": ("maintenance",),
        "bookkeeping.COUNT_PAGE": ("maintenance",),
        "bookkeeping.FIND_HOUR": ("maintenance",),
        "bookkeeping.OPEN_BOOK": ("maintenance",),
        "bookkeeping.READ_HOUR": ("maintenance",),
        "bookkeeping.READ_PROGRESS": ("maintenance",),
        "bookkeeping.SAVE_PROGRESS": ("maintenance",),
        "inspection.COUNT_PRUNABLE": ("operator",),
        "elections.LIST_PRUNE_RUNS": ("operator",),
        "pruning.LOCK_IDLE_TARGETS": ("maintenance",),
        "pruning.PRUNE_JOBS": ("maintenance",),
        "letters.PRUNE_STRAYS": ("maintenance",),
        "pruning.PRUNE_TARGETS": ("maintenance",),
        "workers.PRUNE_WORKERS": ("maintenance",),
        "statistics.COUNT_STUCK": ("maintenance",),
        "statistics.LIST_FAILURES": ("operator", "maintenance"),
        "statistics.LIST_STUCK": ("operator", "maintenance"),
        "statistics.LOAD_OF_LANES": ("operator",),
        "statistics.READ_QUEUE_HEALTH": ("operator", "maintenance"),
        "statistics.READ_THROUGHPUT": ("operator", "maintenance"),
        "workers.FIND_MOST_MEMORY": ("worker",),
        "statistics.ROOM_FOR_JOB": ("operator",),
        "replays.CLOSE_REPLAYED": ("operator", "maintenance"),
        "replays.COUNT_OUTCOMES": ("operator",),
        "replays.FIND_REPLAYED": ("maintenance",),
        "replays.READ_CLOCK": ("operator",),
        "replays.FIND_REPLAYS": ("operator", "worker"),
        "reports.GET_JOB": READERS,
        "reports.LIST_JOBS": READERS,
        "reports.LIST_BY_STATE": READERS,
        "reports.LIST_BY_TYPE": READERS,
        "reports.LIST_BY_CORRELATION": READERS,
        "reports.LIST_BY_TARGET": READERS,
        "reports.LIST_CHILDREN": READERS,
        "inspection.GET_OPERATOR_JOB": ("operator",),
        "inspection.LIST_ATTEMPTS": ("operator",),
        "inspection.LIST_TAKEN": ("operator",),
        "inspection.EXPLAIN_JOB": ("operator",),
        "reprocessing.COUNT_IMAGES": ("worker",),
        "reprocessing.COUNT_REFERENCE": ("worker",),
        "reprocessing.CREATED_BY": ("worker",),
        "reprocessing.FIND_CANDIDATES": ("api", "worker"),
        "reprocessing.LOCK_IMAGES": ("api", "worker"),
        "reprocessing.WALK_IMAGES": ("worker",),
        "reprocessing.WALK_REFERENCE": ("worker",),
        "rings.ADOPT_RINGS": ("maintenance",),
        "statistics.EXPECT_MESSAGES": ("maintenance", "operator"),
        "rings.FIND_EXPIRED": ("maintenance",),
        "rings.FORGET_LOST": ("maintenance",),
        "rings.CONFIRM_RINGS": ANY_SUBMITTER,
        "rings.READ_ROOMS": ANY_SUBMITTER,
        "rings.RING_HEADS": ("maintenance",),
        "roles.IS_SUPERUSER": ("superuser",),
        "roles.DATABASE_EXISTS": ("superuser",),
        "reprocessing.FIND_ORIGINAL": ("worker",),
        "unheard.FIND_OWN_ENDS": ("worker",),
        "submissions.TAKE_PLACES": ANY_SUBMITTER,
        "submissions.INSERT_JOBS": ANY_SUBMITTER,
        "submissions.FIND_STANDING": ANY_SUBMITTER,
        "submissions.REMEMBER_ALIASES": ANY_SUBMITTER,
        "sweeping.FORGET_UPLOADS": ("maintenance",),
        "sweeping.JUDGE_ORIGINALS": ("maintenance",),
        "sweeping.JUDGE_OUTPUTS": ("maintenance",),
        "unheard.FIND_CLAIMED_ENDS": ("worker",),
        "unheard.FIND_RESCUED_ENDS": ("maintenance",),
        "pruning.LIST_SUPERSEDED": ("maintenance",),
        "pruning.RECORD_SWEPT": ("maintenance",),
        "rescue.LOOK_AT_WORKERS": ("maintenance",),
        "rescue.CONDEMN_WORKER": ("maintenance",),
        "rescue.HELD_BY_WORKER": ("maintenance",),
        "rescue.WAIT_BRIEFLY": ("maintenance",),
        "uploads.CREATE_UPLOAD": ("api",),
        "uploads.GET_UPLOAD": ("api",),
        "uploads.USE_UPLOAD": ("api",),
        "sweeping.COUNT_SUPERSEDED": ("operator",),
        "sweeping.LIST_ORIGINALS": ("maintenance",),
        "sweeping.LIST_SHOWN": ("maintenance",),
        "sweeping.LIST_SWEEP_RUNS": ("operator",),
        "sweeping.READ_WALK": ("maintenance", "operator"),
        "sweeping.SAVE_WALK": ("maintenance",),
    }
)
# Parts of statements; the wholes that they are parts of are above.
FRAGMENTS: Final = frozenset(
    {
        "cancelling._CHOSEN",
        "cancelling._NEWEST",
        "cancelling._OPEN",
        "admissions._KEY_STANDS",
        "admissions._WHY",
        "audit._FIND",
        "audit._LOOK",
        "letters._LETTER",
        "letters._OPEN",
        "letters._PAGE",
        "endings.WRITE_ATTEMPTS",
        "bookkeeping.COLUMNS",
        "bookkeeping._JOBS_IN",
        "reports._BATCHES",
        "reprocessing._IMAGES",
        "reprocessing._SOME_OF",
        "reprocessing._WALK",
        "tenants._PAUSED",
        "endings._CLAIM",
        "unheard._ENDS",
        "unheard._ENDS_OF_JOBS",
        "endings._LET_GO",
        "endings._CLAIMS_THAT_STAND",
        "images._IMAGE",
        "images._PAGE",
        "inspection._A_PAGE_EACH",
        "inspection._BEFORE",
        "inspection._COLUMNS",
        "inspection._NEWEST",
        "inspection._OF_EACH",
        "inspection._OWNERS",
        "ledger._OLDEST",
        "statistics._ROOM",
        "pruning.PAGE_SEEN",
        "reports._OF_TENANT",
        "reports._PAGE",
        "reports._PUBLIC_COLUMNS",
        "rings.RINGING",
        "submissions.ACCEPTING",
        "submissions.ANSWERING",
        "rings.RING_FREED",
        "rings.RING_URGENTLY",
        "verdicts.HOLDS",
        "verdicts.NEXT_OF_TARGET",
        "verdicts.UNTIL",
        "verdicts.VERDICT",
        "verdicts.WHY",
        "sweeping._PAGE",
    }
)
NO_SQL: Final = frozenset(
    {
        "claims.NO_ROOM",
        "audit._LINE",
        "database.ILLEGAL_TRANSITION",
        "letters.HISTORY_FILTERS",
        "letters._LETTERS_NAME",
        "keys.PREFIX",
        "migration_files.COMMENT",
        "migrations.CREATE_RECORD",  # DDL, run by every migration of a test's database
        "migrations.LOCK_TIMEOUT",
        "migrations.PATIENT_LOCK_TIMEOUT",
        "replays.REDRIVE",
        "images.IMAGE_DELETED",
        "replays._TOO_MANY",
        "submissions._FORGOTTEN",
        "submissions._TOO_MANY_KEYS",
        "reports._EXCLUSIVE",
        "roles.OWNER",
        "tenants.WEIGHT",
        "tenants._TENANT",
        "uploads.UPLOAD_USED",
        "sweeping.WALK",
    }
)


def constants(file: Path) -> Iterator[tuple[str, str]]:
    """Name and value of each text that a module of the store defines at its top."""
    (folder,) = store.__path__
    dotted = ".".join(file.relative_to(folder).with_suffix("").parts)
    module = importlib.import_module(f"{store.__name__}.{dotted}")
    for node in parsed(file).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            value = getattr(module, target.id, None) if isinstance(target, ast.Name) else None
            if isinstance(target, ast.Name) and isinstance(value, str):
                yield f"{file.stem}.{target.id}", value


FILES = sorted(
    file
    for folder in store.__path__
    for file in Path(folder).rglob("*.py")
    if file.stem != "__init__"
)
FOUND: Final = {name: value for file in FILES for name, value in constants(file)}


def test_every_text_of_the_store_is_accounted_for() -> None:
    assert {*RUN_BY, *FRAGMENTS, *NO_SQL} == set(FOUND)


@pytest.mark.parametrize("role", sorted({role for roles in RUN_BY.values() for role in roles}))
async def test_every_role_may_run_its_statements(role: Role, database: Database) -> None:
    mine = [name for name, roles in RUN_BY.items() if role in roles]

    refused = {}
    async with database.connect(role) as connection:
        for name in mine:
            try:
                prepared = await driver_of(connection).prepare(FOUND[name])
                nothing = [None] * len(prepared.get_parameters())
                # Privileges are checked when a plan is started, and EXPLAIN starts it.
                await driver_of(connection).fetch(f"EXPLAIN {FOUND[name]}", *nothing)
            except asyncpg.PostgresError as error:
                refused[name] = f"{error.sqlstate} {error}"

    assert {} == refused
