-- Where every job is, counted as it moves, so that nobody has to count jobs. The `ledger` goes on saying
-- what was accepted and what was pruned, by those who did it; this is the other side of the book: what
-- is there, by the tables themselves. Rows that leave by another hand leave the two sides unequal.

SET lock_timeout = '2s';

-- The hour of a job's birth, since 1970, as its id tells it: ids sort by it, so that what the book says
-- of an hour can be compared with a range of the primary key, whatever clock made the id.
CREATE FUNCTION hour_of(id uuid) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (
    (('x' || substr(id::text, 1, 8) || substr(id::text, 10, 4))::bit(48)::bigint) / 3600000
)::integer;

-- Append-only: one row a statement, for each hour, type and lane whose jobs it moved. Nobody updates
-- one, so two claims never wait for each other here. Who folds deletes them.
CREATE TABLE ledger_entries (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT ledger_entries_pk PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    hour integer NOT NULL,
    type text NOT NULL,
    lane text NOT NULL,
    queued bigint NOT NULL DEFAULT 0,
    processing bigint NOT NULL DEFAULT 0,
    failed_retryable bigint NOT NULL DEFAULT 0,
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- The sums of what was folded: a few rows for every hour of which jobs are left.
CREATE TABLE ledger_counts (
    hour integer NOT NULL,
    type text NOT NULL,
    lane text NOT NULL,
    queued bigint NOT NULL,
    processing bigint NOT NULL,
    failed_retryable bigint NOT NULL,
    completed bigint NOT NULL,
    failed bigint NOT NULL,
    CONSTRAINT ledger_counts_pk PRIMARY KEY (hour, type, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- How far the book was compared with the rows. Until it is open it knows of no job that was there
-- before it, and nobody may read it.
CREATE TABLE ledger_proof (
    only_row boolean NOT NULL DEFAULT true CONSTRAINT ledger_proof_pk_one_row_only PRIMARY KEY,
    opened_at timestamptz,
    -- Every hour up to this one was compared once.
    proven_until integer NOT NULL DEFAULT -1,
    -- From time to time those are compared again, from the first one to the one that was the last.
    round_at integer NOT NULL DEFAULT -1,
    round_until integer NOT NULL DEFAULT -1,
    round_began_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ledger_proof_has_one_row CHECK (only_row)
);

CREATE VIEW ledger_book AS
SELECT hour, type, lane, queued, processing, failed_retryable, completed, failed FROM ledger_counts
UNION ALL
SELECT hour, type, lane, queued, processing, failed_retryable, completed, failed FROM ledger_entries;

-- A job is born queued, as a trigger sees to.
CREATE OR REPLACE FUNCTION count_accepted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO public.ledger (accepted) SELECT count(*) FROM accepted HAVING count(*) > 0;
    INSERT INTO public.ledger_entries (hour, type, lane, queued)
    SELECT public.hour_of(accepted.id), accepted.type, accepted.lane, count(*)
      FROM accepted
     GROUP BY 1, 2, 3;
    RETURN NULL;
END
$$;

-- Most updates move nothing (a beat, progress): they are read and leave no row. No join of what was
-- with what is: their sums are enough.
CREATE FUNCTION count_moved() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO public.ledger_entries
        (hour, type, lane, queued, processing, failed_retryable, completed, failed)
    SELECT moved.hour, moved.type, moved.lane, moved.queued, moved.processing,
           moved.failed_retryable, moved.completed, moved.failed
      FROM (SELECT public.hour_of(one.id) AS hour, one.type, one.lane,
                   sum(CASE one.state WHEN 'queued' THEN one.jobs ELSE 0 END) AS queued,
                   sum(CASE one.state WHEN 'processing' THEN one.jobs ELSE 0 END) AS processing,
                   sum(CASE one.state WHEN 'failed_retryable' THEN one.jobs ELSE 0 END)
                       AS failed_retryable,
                   sum(CASE one.state WHEN 'completed' THEN one.jobs ELSE 0 END) AS completed,
                   sum(CASE one.state WHEN 'failed' THEN one.jobs ELSE 0 END) AS failed
              FROM (SELECT was.id, was.type, was.lane, was.state, -1 AS jobs FROM was
                    UNION ALL
                    SELECT became.id, became.type, became.lane, became.state, 1 FROM became) AS one
             GROUP BY 1, 2, 3) AS moved
     WHERE (moved.queued, moved.processing, moved.failed_retryable, moved.completed, moved.failed)
           <> (0, 0, 0, 0, 0);
    RETURN NULL;
END
$$;

CREATE FUNCTION count_gone() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO public.ledger_entries
        (hour, type, lane, queued, processing, failed_retryable, completed, failed)
    SELECT public.hour_of(gone.id), gone.type, gone.lane,
           -count(*) FILTER (WHERE gone.state = 'queued'),
           -count(*) FILTER (WHERE gone.state = 'processing'),
           -count(*) FILTER (WHERE gone.state = 'failed_retryable'),
           -count(*) FILTER (WHERE gone.state = 'completed'),
           -count(*) FILTER (WHERE gone.state = 'failed')
      FROM gone
     GROUP BY 1, 2, 3;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION count_moved(), count_gone() FROM PUBLIC;

GRANT SELECT ON ledger_entries, ledger_counts, ledger_proof
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;
GRANT SELECT ON ledger_book TO imagefleet_maintenance, imagefleet_operator;
-- An entry by hand is what a proof corrects.
GRANT INSERT (hour, type, lane, queued, processing, failed_retryable, completed, failed), DELETE
ON ledger_entries TO imagefleet_maintenance;
GRANT INSERT, UPDATE, DELETE ON ledger_counts TO imagefleet_maintenance;
GRANT UPDATE (opened_at, proven_until, round_at, round_until, round_began_at) ON ledger_proof
TO imagefleet_maintenance;

-- Last, as from here on nobody writes jobs until this commits. The lock waits for every transaction
-- that has written one, and whoever writes later fires these: so from now on each move is counted,
-- none twice, and nothing had to be counted for it. What is here already is counted afterwards, hour by
-- hour, by `imagefleet maintenance` (store/proofs.py): rows minus entries of one snapshot is a number
-- that no later move changes.
CREATE TRIGGER jobs_moves_are_counted
AFTER UPDATE ON jobs
REFERENCING OLD TABLE AS was NEW TABLE AS became
FOR EACH STATEMENT
EXECUTE FUNCTION count_moved();

CREATE TRIGGER jobs_exits_are_counted
AFTER DELETE ON jobs
REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT
EXECUTE FUNCTION count_gone();

-- Where nothing is to be counted the book is open.
INSERT INTO ledger_proof (opened_at)
SELECT CASE WHEN NOT EXISTS (SELECT FROM jobs) THEN now() END;
