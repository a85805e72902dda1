-- imagefleet: no-transaction
-- squawk-ignore-file ban-concurrent-index-creation-in-transaction, prefer-robust-stmts, require-lock-timeout
-- Images are listed by when they came, and deleted ones by themselves: without these a list that asks for the few of
-- many would read them all. Neither column is ever written again, so updates stay as cheap as they were.

DROP INDEX CONCURRENTLY IF EXISTS images_list_by_time;
CREATE INDEX CONCURRENTLY images_list_by_time ON images (tenant_id, created_at DESC, id DESC);

-- NULLS LAST for the reason that the lists of jobs have.
DROP INDEX CONCURRENTLY IF EXISTS image_tombstones_of_a_tenant;
CREATE INDEX CONCURRENTLY image_tombstones_of_a_tenant ON image_tombstones (tenant_id, image_id DESC NULLS LAST);
