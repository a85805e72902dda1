-- imagefleet: no-transaction
-- squawk-ignore-file ban-concurrent-index-creation-in-transaction, prefer-robust-stmts, require-lock-timeout
-- What a tenant has left unused is counted before it gets another form.

DROP INDEX CONCURRENTLY IF EXISTS uploads_unused_of_a_tenant;
CREATE INDEX CONCURRENTLY uploads_unused_of_a_tenant ON uploads (tenant_id) INCLUDE (max_bytes)
WHERE job_id IS NULL;
