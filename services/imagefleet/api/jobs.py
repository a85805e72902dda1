"""Jobs: submitted one by one or in a batch, looked at, waited for, cancelled."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from imagefleet.api.admission import Admission
from imagefleet.api.auth import Reader, Submitter
from imagefleet.api.errors import problem_of
from imagefleet.api.idempotency import correlate, fingerprint, key_of
from imagefleet.api.intake import media_type, read_json, validated
from imagefleet.api.openapi import idempotency_header, json_body, problems
from imagefleet.api.schemas import (
    MAX_PAYLOAD_BYTES,
    TOKEN,
    AcceptedJob,
    BatchAnswer,
    BatchAnswers,
    Cancellation,
    JobPage,
    JobView,
    NewJob,
    NewJobs,
)
from imagefleet.api.submitting import compose, job_asked
from imagefleet.api.tools import Tools, tools_of
from imagefleet.api.views import accepted, accepted_job, answer, job_view
from imagefleet.api.watching import Watcher
from imagefleet.errors import FleetError, IdempotencyConflict, RequestRejected
from imagefleet.jobs.kinds import image_target
from imagefleet.jobs.model import TERMINAL, JobId, JobState, Submission, Submitted, TenantId
from imagefleet.store.reports import JobFilter, PublicJob, get_job, list_jobs
from imagefleet.store.submissions import submit_job, submit_jobs
