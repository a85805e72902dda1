-- An idempotency key is taken by the statement that inserts what bears it: the lock on its number, and then
-- a look whether the key is an alias of another job. A volatile function looks with a snapshot of its own,
-- as new as the lock; that of the statement around it may be older than the wait.
--
-- Releases before take the same lock, by a statement of its own. A session keeps the function's plan for good,
-- so none is to be made of how few aliases there are: it goes by the key.

SET lock_timeout = '2s';

CREATE FUNCTION take_key(number bigint, tenant text, key text, alone boolean, waits boolean)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, public SET enable_seqscan = off AS $$
BEGIN
    IF NOT waits THEN
        IF NOT pg_try_advisory_xact_lock(number) THEN
            RETURN false;
        END IF;
    ELSIF alone THEN
        PERFORM pg_advisory_xact_lock(number);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(number);
    END IF;
    RETURN NOT EXISTS (
        SELECT FROM idempotency_aliases AS aliases
         WHERE aliases.tenant_id = tenant AND aliases.idempotency_key = key
    );
END
$$;
