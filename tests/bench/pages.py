"""Every page of the console (docs/console.md), with each way to look for something."""

from collections.abc import Mapping
from typing import Final

# Of each kind that there is something to see of: what it is known by.
KNOWN: Final = """
SELECT (SELECT id FROM jobs WHERE finished_at IS NOT NULL AND target LIKE 'image:%'
          AND state = 'completed' ORDER BY id DESC LIMIT 1) AS completed,
       (SELECT job_id FROM dead_letters WHERE acknowledged_at IS NULL
         ORDER BY died_at DESC LIMIT 1) AS failed,
       (SELECT job_id FROM rings WHERE sent_at IS NULL AND next_at < now()
         ORDER BY job_id DESC LIMIT 1) AS waiting,
       (SELECT id FROM jobs WHERE state = 'processing' LIMIT 1) AS running,
       (SELECT substr(id::text, 1, 9) FROM jobs ORDER BY id OFFSET 1000 LIMIT 1) AS begins,
       (SELECT correlation_id FROM jobs WHERE state = 'processing' LIMIT 1) AS correlation,
       (SELECT target FROM jobs WHERE state = 'queued' AND target LIKE 'image:%'
         LIMIT 1) AS target,
       (SELECT key_id FROM audit WHERE key_id IS NOT NULL LIMIT 1) AS key,
       to_char(now() - interval '14 days', 'YYYY-MM-DD"T"HH24:MI') AS between,
       (SELECT fingerprint FROM dead_letters WHERE acknowledged_at IS NULL
         GROUP BY 1 ORDER BY count(*) DESC LIMIT 1) AS frequent,
       (SELECT fingerprint FROM dead_letters WHERE acknowledged_at IS NULL
         GROUP BY 1 ORDER BY count(*) LIMIT 1) AS rare,
       (SELECT id FROM images WHERE revision IS NOT NULL ORDER BY id DESC LIMIT 1) AS image,
       (SELECT id FROM image_tombstones JOIN images ON images.id = image_id LIMIT 1) AS deleted
"""

LARGE: Final = "tenant-0000"
SMALL: Final = "tenant-0040"

# Every page of docs/console.md; what stands in braces is taken from KNOWN.
PAGES: Final[Mapping[str, str]] = {
    "now": "/",
    "now, a day": "/?span=day",
    "now, a month": "/?span=month",
    "faults": "/faults",
    "faults of a tenant": f"/faults?tenant={LARGE}",
    "faults of a type": "/faults?type=process_image",
    "fault, the most frequent": "/faults/{frequent}",
    "fault, a rare one": "/faults/{rare}",
    "jobs": "/jobs",
    **{
        f"jobs, {state}": f"/jobs?status={state}"
        for state in ("queued", "processing", "failed_retryable", "completed", "failed")
    },
    "jobs by type": "/jobs?type=webhook",
    "jobs by a type that there is not": "/jobs?type=nobody",
    "jobs by type and status": "/jobs?type=process_image&status=failed",
    "jobs of a large tenant": f"/jobs?tenant={LARGE}",
    "jobs of a small tenant by status": f"/jobs?tenant={SMALL}&status=failed",
    "jobs by code": "/jobs?code=corrupt",
    "jobs of a tenant by code and type": f"/jobs?tenant={LARGE}&code=corrupt&type=webhook",
    "jobs by a code that none has": "/jobs?code=poison&type=webhook",
    "jobs by target": "/jobs?target={target}",
    "jobs by a target of many": "/jobs?target=sku:3",
    "jobs by target and status": "/jobs?target=sku:3&status=failed",
    "jobs by correlation": "/jobs?correlation={correlation}",
    "jobs by the beginning of an id": "/jobs?id={begins}",
    "jobs after a time": "/jobs?after={between}",
    "jobs before a time": "/jobs?before={between}",
    "failed jobs before a time": "/jobs?status=failed&before={between}",
    "jobs by everything": f"/jobs?tenant={LARGE}&type=webhook&status=failed&code=bug"
    "&after={between}",
    "job, completed": "/jobs/{completed}",
    "job, failed": "/jobs/{failed}",
    "job, waiting": "/jobs/{waiting}",
    "job, running": "/jobs/{running}",
    "images": "/images",
    **{
        f"images, {status}": f"/images?status={status}"
        for status in ("ready", "pending", "failed", "deleted")
    },
    **{
        f"images of a tenant, {status}": f"/images?tenant={LARGE}&status={status}"
        for status in ("ready", "pending", "failed", "deleted")
    },
    "images of a tenant": f"/images?tenant={LARGE}",
    "images by reference": "/images?reference=front-page",
    "images by a rare reference": "/images?reference=order-7",
    "images by the beginning of an id": "/images?id={begins}",
    "image": "/images/{image}",
    "image, its original": "/images/{image}/original",
    "image, deleted": "/images/{deleted}",
    "tenants": "/tenants",
    "tenant, large": f"/tenants/{LARGE}",
    "tenant, small": f"/tenants/{SMALL}",
    "timeline": "/timeline",
    "timeline, a week": "/timeline?span=week",
    "timeline, all": "/timeline?span=all",
    "timeline by somebody": "/timeline?span=all&by=person 3",
    "timeline by a key": "/timeline?span=all&by={key}",
    "timeline on a thing": "/timeline?span=all&on=circuit_breaker/s3",
    "timeline on a kind": "/timeline?span=all&on=tenant",
    "timeline of what nobody did": "/timeline?span=all&what=never",
    "timeline of a tenant": f"/timeline?span=all&tenant={SMALL}",
    "workers": "/workers",
    "workers, and those that ended": "/workers?gone=yes",
    "edge and storage": "/edge",
    "controls": "/controls",
}
SECOND: Final = (
    "fault, the most frequent", "jobs", "jobs, failed", "jobs by type", "jobs by code",
    "jobs of a large tenant", "jobs by a target of many", "images", "images, ready",
    "images by reference", "tenants", "timeline, all", "timeline by somebody",
)  # fmt: skip
"""Those of which the second page is asked for, too."""
