-- imagefleet: no-transaction
-- squawk-ignore-file ban-concurrent-index-creation-in-transaction, prefer-robust-stmts, require-lock-timeout
-- What a prune looks for, in the order in which it goes; each holds only what may ever be pruned.

DROP INDEX CONCURRENTLY IF EXISTS uploads_used;
CREATE INDEX CONCURRENTLY uploads_used ON uploads (used_at) WHERE job_id IS NOT NULL;

DROP INDEX CONCURRENTLY IF EXISTS image_revisions_swept;
CREATE INDEX CONCURRENTLY image_revisions_swept ON image_revisions (swept_at)
WHERE swept_at IS NOT NULL;

DROP INDEX CONCURRENTLY IF EXISTS image_tombstones_to_forget;
CREATE INDEX CONCURRENTLY image_tombstones_to_forget ON image_tombstones (dark_at)
WHERE emptied_again_at IS NOT NULL;

DROP INDEX CONCURRENTLY IF EXISTS dead_letters_strays;
CREATE INDEX CONCURRENTLY dead_letters_strays ON dead_letters (acknowledged_at)
WHERE job_id IS NULL;

-- A deleted image goes with all that is said of it, and a target with the last of its jobs.
GRANT DELETE ON targets, images, image_sources, image_tombstones TO imagefleet_maintenance;
