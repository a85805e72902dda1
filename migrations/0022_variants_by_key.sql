-- imagefleet: no-transaction
-- squawk-ignore-file ban-concurrent-index-creation-in-transaction, prefer-robust-stmts, require-lock-timeout
-- Variants that are the same picture are one object from the next migration on. The sweep goes on asking for
-- objects by their keys, in this release and in those before.

DROP INDEX CONCURRENTLY IF EXISTS variants_by_key;
CREATE INDEX CONCURRENTLY variants_by_key ON variants (key);
