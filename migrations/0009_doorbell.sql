-- The doorbell rebuilt. A ring row says whether a message of its job exists, as far as Postgres knows
-- (sent_at), and not how often somebody meant to send one. Waiting rows are found by who they are of, so
-- that no tenant and no pause can hide the others, and a lane's room in SQS is a row that everybody reads.
--
-- Processes of 0.2.0 run beside the new ones while they are replaced, and know due_at, rings and since
-- alone: these stay, their writes are followed by a trigger, and rows that they insert are adopted by the
-- dispatcher. A later release drops the three columns, the trigger, the index rings_due and the adoption.

SET lock_timeout = '2s';

ALTER TABLE rings
ADD COLUMN tenant_id text,
ADD COLUMN type text,
ADD COLUMN next_at timestamptz NOT NULL DEFAULT now(),
ADD COLUMN sent_at timestamptz,
ADD COLUMN sends integer NOT NULL DEFAULT 0,
-- For dispatchers of 0.2.0, as submit has always left it to them.
ALTER COLUMN due_at SET DEFAULT now() + interval '5 seconds';

-- Tables that are not new take their indexes under a lock that lets them be read; with a million rings
-- each takes about a second. What was open when the release was made has no tenant_id until it is adopted.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX rings_waiting ON rings (lane, tenant_id, type, priority, next_at)
WHERE sent_at IS NULL AND tenant_id IS NOT NULL;
-- Keyed by how often it was sent: each further time is waited for longer, so no old row hides a young one.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX rings_announced ON rings (lane, sends, sent_at) WHERE sent_at IS NOT NULL;
-- Behind their target until that is free; the slow step that looks whether somebody forgot them walks here.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX rings_parked ON rings (job_id) WHERE next_at = 'infinity';
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX rings_of_older_processes ON rings (job_id) WHERE tenant_id IS NULL;

CREATE FUNCTION follow_older_ring() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF NEW.rings > OLD.rings THEN
        -- Pushed because it was sent, or is about to be.
        NEW.sent_at := now();
        NEW.sends := least(OLD.sends + 1, 8);
    ELSE
        -- Deferred, and its message deleted; or made due.
        NEW.next_at := NEW.due_at;
        NEW.sent_at := NULL;
    END IF;
    RETURN NEW;
END
$$;
-- New processes never write due_at: for them this costs nothing.
CREATE TRIGGER rings_follow_older_processes
BEFORE UPDATE OF due_at ON rings
FOR EACH ROW EXECUTE FUNCTION follow_older_ring();

-- One row a lane. Its holder alone announces there; the room it leaves is for those who submit.
CREATE TABLE lanes (
    lane text NOT NULL CONSTRAINT lanes_pk PRIMARY KEY,
    holder uuid,
    until timestamptz NOT NULL DEFAULT now(),
    room integer NOT NULL DEFAULT 0,
    looked_at timestamptz NOT NULL DEFAULT now() - interval '1 hour',
    -- For people: how many may be announced and unclaimed at a time, and since when the first waits
    -- that nothing but its turn holds back.
    window_size integer NOT NULL DEFAULT 0,
    oldest_at timestamptz,
    CONSTRAINT lanes_lane_is_known CHECK (lane IN ('fast', 'general', 'quarantine')),
    CONSTRAINT lanes_room_is_not_negative CHECK (room >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
INSERT INTO lanes (lane) VALUES ('fast'), ('general'), ('quarantine');

-- What a worker has heard, told with its beat, for each of its lanes in their order: when its newest long
-- poll that brought nothing began, and the newest announcement among the messages that it claimed by.
ALTER TABLE workers
ADD COLUMN silent_at timestamptz [],
ADD COLUMN heard_at timestamptz [];

-- A tenant of weight 4 has four turns where one of weight 1 has one.
ALTER TABLE tenants
ADD COLUMN weight integer NOT NULL DEFAULT 1
CONSTRAINT tenants_weight_is_sane CHECK (weight BETWEEN 1 AND 100);

GRANT INSERT (tenant_id, type, next_at), UPDATE (next_at, sent_at, sends) ON rings
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;
-- Who flags a job makes it urgent; who adopts a row says whose it is.
GRANT UPDATE (priority) ON rings TO imagefleet_worker;
GRANT UPDATE (tenant_id, type) ON rings TO imagefleet_maintenance;
GRANT SELECT ON lanes
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;
GRANT UPDATE (holder, until, room, looked_at, window_size, oldest_at) ON lanes TO imagefleet_maintenance;
GRANT UPDATE (silent_at, heard_at) ON workers TO imagefleet_worker;
GRANT UPDATE (weight) ON tenants TO imagefleet_operator;

-- What should have a message is what says so now, and not what somebody meant to ring.
CREATE OR REPLACE VIEW expected_messages AS
SELECT
    lanes.lane,
    coalesce(waiting.jobs, 0) AS waiting,
    coalesce(waiting.announced, 0) AS announced,
    coalesce(running.jobs, 0) AS processing,
    coalesce(waiting.announced, 0) + coalesce(running.jobs, 0) AS expected
FROM (VALUES ('fast'), ('general'), ('quarantine')) AS lanes (lane)
LEFT JOIN (
    SELECT
        rings.lane,
        count(*) AS jobs,
        count(*) FILTER (WHERE rings.sent_at IS NOT NULL) AS announced
    FROM rings
    GROUP BY rings.lane
) AS waiting ON waiting.lane = lanes.lane
LEFT JOIN (
    SELECT
        jobs.lane,
        count(*) AS jobs
    FROM jobs
    WHERE jobs.state = 'processing'
    GROUP BY jobs.lane
) AS running ON running.lane = lanes.lane;
