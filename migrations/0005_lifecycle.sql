-- The lifecycle, enforced: the same edges as TRANSITIONS in imagefleet/jobs/lifecycle.py.

SET lock_timeout = '2s';

CREATE FUNCTION check_transition() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE
    edge text := OLD.state || ' -> ' || NEW.state;
BEGIN
    IF OLD.id <> NEW.id THEN
        RAISE EXCEPTION 'a job keeps its id: %', OLD.id USING ERRCODE = 'IF001';
    END IF;
    IF edge NOT IN (
        'queued -> queued',
        'queued -> processing',
        'processing -> processing',
        'processing -> completed',
        'processing -> failed_retryable',
        'processing -> failed',
        'failed_retryable -> failed_retryable',
        'failed_retryable -> processing',
        'failed_retryable -> failed'
    ) THEN
        RAISE EXCEPTION 'illegal transition of job %: %', OLD.id, edge USING ERRCODE = 'IF001';
    END IF;
    -- Maintenance repairs; it never runs a job.
    IF current_user = 'imagefleet_maintenance'
        AND OLD.state <> NEW.state AND NEW.state NOT IN ('failed_retryable', 'failed') THEN
        RAISE EXCEPTION 'maintenance may not do this to job %: %', OLD.id, edge
        USING ERRCODE = 'IF001';
    END IF;
    IF edge IN ('queued -> processing', 'failed_retryable -> processing') THEN
        IF NEW.claim_no <> OLD.claim_no + 1 THEN
            RAISE EXCEPTION 'a claim of job % must raise claim_no by one', OLD.id
            USING ERRCODE = 'IF001';
        END IF;
    ELSIF edge = 'processing -> processing'
        AND (NEW.claim_no, NEW.locked_by) IS DISTINCT FROM (OLD.claim_no, OLD.locked_by) THEN
        -- A takeover: only from a lock that has expired, always under a new claim_no.
        IF NEW.claim_no <> OLD.claim_no + 1
            OR OLD.locked_at >= now() - (SELECT f.lock_timeout FROM public.fleet AS f) THEN
            RAISE EXCEPTION 'the lock of job % has not expired', OLD.id USING ERRCODE = 'IF001';
        END IF;
    ELSIF NEW.claim_no <> OLD.claim_no THEN
        RAISE EXCEPTION 'only a claim of job % may change claim_no', OLD.id USING ERRCODE = 'IF001';
    END IF;
    IF OLD.cancel_requested_at IS NOT NULL
        AND NEW.cancel_requested_at IS DISTINCT FROM OLD.cancel_requested_at THEN
        RAISE EXCEPTION 'a request to cancel job % is never taken back', OLD.id
        USING ERRCODE = 'IF001';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER jobs_take_only_legal_transitions
BEFORE UPDATE ON jobs
FOR EACH ROW
WHEN (
    OLD.state IN ('completed', 'failed')
    OR OLD.state IS DISTINCT FROM NEW.state
    OR OLD.claim_no IS DISTINCT FROM NEW.claim_no
    OR OLD.locked_by IS DISTINCT FROM NEW.locked_by
    OR OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at
    OR OLD.id IS DISTINCT FROM NEW.id
)
EXECUTE FUNCTION check_transition();

CREATE FUNCTION refuse() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'IF001';
END
$$;
CREATE TRIGGER jobs_are_born_queued
BEFORE INSERT ON jobs
FOR EACH ROW
WHEN (
    NEW.state <> 'queued' OR NEW.claim_no <> 0 OR NEW.attempts <> 0 OR NEW.crashes <> 0
    OR NEW.cancel_requested_at IS NOT NULL
)
EXECUTE FUNCTION refuse('a job is born queued, unclaimed and uncharged');
CREATE TRIGGER jobs_leave_only_when_terminal
BEFORE DELETE ON jobs
FOR EACH ROW
WHEN (OLD.state NOT IN ('completed', 'failed'))
EXECUTE FUNCTION refuse('an open job is never deleted');
CREATE TRIGGER jobs_are_never_truncated
BEFORE TRUNCATE ON jobs
FOR EACH STATEMENT
EXECUTE FUNCTION refuse('jobs are never truncated');
CREATE TRIGGER attempts_are_append_only
BEFORE UPDATE ON attempts
FOR EACH ROW
EXECUTE FUNCTION refuse('an attempt is written once');

-- accepted = open + completed + failed + pruned. `accepted` is counted here, by a trigger of its own, so
-- that a row which disappears behind everybody's back unbalances the ledger.
CREATE TABLE ledger (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT ledger_pk PRIMARY KEY,
    accepted bigint NOT NULL DEFAULT 0,
    pruned bigint NOT NULL DEFAULT 0,
    at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ledger_only_grows CHECK (accepted >= 0 AND pruned >= 0)
);
CREATE FUNCTION count_accepted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO public.ledger (accepted) SELECT count(*) FROM accepted HAVING count(*) > 0;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION count_accepted() FROM PUBLIC;
CREATE TRIGGER jobs_accepted_are_counted
AFTER INSERT ON jobs
REFERENCING NEW TABLE AS accepted
FOR EACH STATEMENT
EXECUTE FUNCTION count_accepted();
