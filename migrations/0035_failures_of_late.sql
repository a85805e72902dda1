-- imagefleet: no-transaction
-- squawk-ignore-file ban-concurrent-index-creation-in-transaction, prefer-robust-stmts, require-lock-timeout
-- Operators ask what failed within the last hour, and which faults the open dead letters have. Without these all that ended
-- meanwhile was read for the one, and every letter with the whole job that it tells of for the other. What runs or went
-- well is in neither: a claim and a completion pay nothing for them.

DROP INDEX CONCURRENTLY IF EXISTS jobs_failed_lately;
CREATE INDEX CONCURRENTLY jobs_failed_lately ON jobs (finished_at) INCLUDE (type, failure_code) WHERE state = 'failed';

DROP INDEX CONCURRENTLY IF EXISTS dead_letters_open_by_fault;
CREATE INDEX CONCURRENTLY dead_letters_open_by_fault ON dead_letters (fingerprint, died_at, id)
INCLUDE (job_id, tenant_id, type, reason) WHERE acknowledged_at IS NULL;
