-- What the fleet is scaled by, under a role of its own that may ask this and nothing else.

SET lock_timeout = '2s';

-- How many jobs of a lane workers could run now: those that are due and that nothing holds back, and those
-- that run, so that no worker is taken away while it has something to do.
--
-- What runs comes from the book, which nobody has to count. What is due does not stand there, as jobs become
-- due without a statement; that is counted by level, as a dispatcher does when it looks: one probe of an
-- index tells the earliest row of a level, and only of those that are due and may run are rows counted, in
-- all no more than a fleet could ever be made for. So a backlog, a pause and a schedule of a million jobs
-- are never read through.
--
-- An unknown lane is an error: whoever misspells one would wait for ever for workers.
CREATE FUNCTION work_in_lane(of_lane text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
-- Who scales keeps its connection, and with it plans that were made when there was nothing.
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    most CONSTANT bigint := 10000;
    urgent CONSTANT integer := -1; -- of who is flagged or overtakes all others: nothing holds it back
    running bigint;
    due bigint;
    room bigint;
    anything_held boolean;
    tried text [] := '{}';
    half_open text [];
    level record;
    manners record;
BEGIN
    IF NOT EXISTS (SELECT FROM public.lanes WHERE lanes.lane = of_lane) THEN
        RAISE EXCEPTION 'there is no lane %', quote_literal(of_lane) USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF EXISTS (SELECT FROM public.ledger_proof AS proof WHERE proof.opened_at IS NOT NULL) THEN
        SELECT greatest(sum(book.processing), 0) INTO running
        FROM public.ledger_book AS book WHERE book.lane = of_lane;
    ELSE
        SELECT count(*) INTO running
        FROM public.jobs WHERE jobs.state = 'processing' AND jobs.lane = of_lane;
    END IF;

    -- What has a message is due, and whoever takes that finds out what holds it.
    SELECT count(*) INTO due FROM (
        SELECT FROM public.rings WHERE rings.lane = of_lane AND rings.sent_at IS NOT NULL
        ORDER BY rings.sends, rings.sent_at
        LIMIT most
    ) AS announced;

    anything_held := EXISTS (SELECT FROM public.pauses WHERE pauses.scope IN ('all', 'lane', 'type', 'tenant'))
        OR EXISTS (SELECT FROM public.circuit_breakers AS breakers WHERE breakers.state = 'open')
        OR EXISTS (SELECT FROM public.live_settings AS turned
                   WHERE turned.name LIKE 'slots.type.%' AND turned.value = '0');

    SELECT '' AS tenant_id, '' AS type, -2147483648 AS priority INTO level;
    WHILE due < most LOOP
        SELECT rings.tenant_id, rings.type, rings.priority, rings.next_at, rings.job_id INTO level
        FROM public.rings
        WHERE rings.lane = of_lane AND rings.sent_at IS NULL AND rings.tenant_id IS NOT NULL
            AND (rings.tenant_id, rings.type, rings.priority)
            > (level.tenant_id, level.type, level.priority)
        ORDER BY rings.tenant_id, rings.type, rings.priority, rings.next_at
        LIMIT 1;
        EXIT WHEN NOT FOUND;
        CONTINUE WHEN level.next_at > now();

        room := most - due;
        IF anything_held AND level.priority <> urgent THEN
            SELECT jobs.services, jobs.preempts INTO manners FROM public.jobs WHERE jobs.id = level.job_id;
            CONTINUE WHEN NOT manners.preempts AND EXISTS (
                SELECT FROM (
                    VALUES ('all', '', ''), ('lane', '', of_lane), ('type', '', level.type),
                    ('tenant', level.tenant_id, ''), ('tenant', level.tenant_id, level.type)
                ) AS hold (scope, tenant_id, name)
                INNER JOIN public.pauses USING (scope, tenant_id, name)
            );
            CONTINUE WHEN EXISTS (
                SELECT FROM public.live_settings AS turned
                WHERE turned.name = 'slots.type.' || level.type AND turned.value = '0'
            );
            CONTINUE WHEN EXISTS (
                SELECT FROM public.circuit_breakers AS breakers
                WHERE breakers.state = 'open' AND breakers.service = ANY (manners.services)
                    AND (breakers.forced OR breakers.retry_at > now())
            );
            -- A service may be tried again: somebody has to be there for the one job that does.
            half_open := ARRAY(
                SELECT breakers.service FROM public.circuit_breakers AS breakers
                WHERE breakers.state = 'open' AND breakers.service = ANY (manners.services)
            );
            CONTINUE WHEN half_open && tried;
            IF half_open <> '{}' THEN
                tried := tried || half_open;
                room := 1;
            END IF;
        END IF;

        due := due + (
            SELECT count(*) FROM (
                SELECT FROM public.rings
                WHERE rings.lane = of_lane AND rings.tenant_id = level.tenant_id
                    AND rings.type = level.type AND rings.priority = level.priority
                    AND rings.sent_at IS NULL AND rings.next_at <= now()
                ORDER BY rings.next_at
                LIMIT room
            ) AS waiting
        );
    END LOOP;
    RETURN running + due;
END
$$;

REVOKE ALL ON FUNCTION work_in_lane(text) FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO imagefleet_scaler;
GRANT EXECUTE ON FUNCTION work_in_lane(text) TO imagefleet_scaler, imagefleet_operator;
