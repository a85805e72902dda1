-- imagefleet: no-transaction
-- squawk-ignore-file ban-concurrent-index-creation-in-transaction, prefer-robust-stmts, require-lock-timeout
-- Operators list what failed by why it did, of all tenants at once. What runs or went well is not in it: a claim and a
-- completion pay nothing for it. NULLS LAST for the reason that the other lists have.

DROP INDEX CONCURRENTLY IF EXISTS jobs_failed_by_code;
CREATE INDEX CONCURRENTLY jobs_failed_by_code ON jobs (failure_code, state, id DESC NULLS LAST)
WHERE state IN ('failed', 'failed_retryable');
