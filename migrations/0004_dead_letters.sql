-- What could not succeed: a row for people, and a send for the queue, written with the failure itself.

SET lock_timeout = '2s';

CREATE TABLE dead_letters (
    id uuid NOT NULL DEFAULT gen_random_uuid() CONSTRAINT dead_letters_pk PRIMARY KEY,
    job_id uuid,
    tenant_id text,
    type text,
    reason text NOT NULL,
    fingerprint text NOT NULL,
    message text NOT NULL,
    detail text,
    snapshot jsonb NOT NULL,
    died_at timestamptz NOT NULL DEFAULT now(),
    acknowledged_at timestamptz,
    acknowledged_by text,
    acknowledged_note text,
    CONSTRAINT dead_letters_one_for_a_job UNIQUE (job_id),
    CONSTRAINT dead_letters_acknowledged_says_by_whom CHECK (
        (acknowledged_at IS NULL) = (acknowledged_by IS NULL)
    )
);
CREATE INDEX dead_letters_unacknowledged ON dead_letters (died_at, id) WHERE acknowledged_at IS NULL;
CREATE INDEX dead_letters_by_age ON dead_letters (died_at, id);
CREATE INDEX dead_letters_by_fingerprint ON dead_letters (fingerprint, died_at, id);
CREATE INDEX dead_letters_of_a_tenant ON dead_letters (tenant_id, died_at, id);
-- A message of no job is known by its content, and is one open letter however often it comes.
CREATE UNIQUE INDEX dead_letters_one_open_for_a_message
ON dead_letters ((snapshot ->> 'sha256'), coalesce(acknowledged_at, 'infinity'::timestamptz))
WHERE job_id IS NULL;

-- The outbox of the dead-letter queue; a row goes when SQS has said yes.
CREATE TABLE dead_letter_sends (
    dead_letter_id uuid NOT NULL CONSTRAINT dead_letter_sends_pk PRIMARY KEY,
    due_at timestamptz NOT NULL DEFAULT now(),
    sends integer NOT NULL DEFAULT 0
);
CREATE INDEX dead_letter_sends_due ON dead_letter_sends (due_at);

-- The same fault of the same type is one group; numbers and ids in the detail are not the fault.
CREATE FUNCTION fault_fingerprint(type text, code text, detail text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS $$
    SELECT encode(sha256(convert_to(concat_ws(
        E'\x1f', type, code,
        regexp_replace(coalesce(detail, ''), '[0-9a-f-]*[0-9][0-9a-f-]*', '#', 'gi')
    ), 'UTF8')), 'hex')
$$;

-- Whoever fails a job, by whatever statement: the dead letter is in the same transaction, or neither is.
-- A job that somebody asked to stop is no failure of ours and leaves none.
CREATE FUNCTION write_dead_letter() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
DECLARE
    letter uuid := gen_random_uuid();
BEGIN
    INSERT INTO public.dead_letters
        (id, job_id, tenant_id, type, reason, fingerprint, message, detail, snapshot)
    VALUES (
        letter, NEW.id, NEW.tenant_id, NEW.type, NEW.failure_code,
        public.fault_fingerprint(NEW.type, NEW.failure_code, NEW.failure_detail),
        NEW.failure_message, NEW.failure_detail, to_jsonb(NEW)
    );
    INSERT INTO public.dead_letter_sends (dead_letter_id) VALUES (letter);
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION write_dead_letter() FROM PUBLIC;
CREATE TRIGGER jobs_failed_leaves_a_dead_letter
AFTER UPDATE OF state ON jobs
FOR EACH ROW
WHEN (
    NEW.state = 'failed' AND OLD.state <> 'failed'
    AND NEW.failure_code NOT IN ('cancelled', 'image_deleted')
)
EXECUTE FUNCTION write_dead_letter();

-- The same for the pause that a type asks for: who settles, rescues or claims need not know of it.
-- Whoever ended the job by hand has looked already. Nobody pauses a target twice.
CREATE FUNCTION pause_target() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO public.pauses (scope, tenant_id, name, paused_by, reason)
    VALUES ('target', NEW.tenant_id, NEW.target, 'policy', 'job ' || NEW.id || ' failed')
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION pause_target() FROM PUBLIC;
CREATE TRIGGER jobs_failed_pauses_its_target
AFTER UPDATE OF state ON jobs
FOR EACH ROW
WHEN (
    NEW.pause_target_on_failure AND NEW.target IS NOT NULL
    AND NEW.state = 'failed' AND OLD.state <> 'failed'
    AND NEW.failure_code NOT IN ('cancelled', 'image_deleted', 'failed_by_operator')
)
EXECUTE FUNCTION pause_target();
