-- Live rows that steer the fleet: workers and their beats, pauses, breakers, elections.

SET lock_timeout = '2s';

-- One row a worker process, under a fresh id each start. Dead is for ever.
CREATE TABLE workers (
    id uuid NOT NULL CONSTRAINT workers_pk PRIMARY KEY,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    lanes text [] NOT NULL,
    types text [] NOT NULL,
    -- One for each of its lanes, in their order. General ones serve the fast lane too.
    slots integer [] NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    beat_at timestamptz NOT NULL DEFAULT now(),
    beats bigint NOT NULL DEFAULT 0,
    draining_since timestamptz,
    dead_at timestamptz,
    dead_why text,
    CONSTRAINT workers_every_lane_has_slots CHECK (cardinality(slots) = cardinality(lanes)),
    CONSTRAINT workers_dead_says_why CHECK ((dead_at IS NULL) = (dead_why IS NULL)),
    CONSTRAINT workers_death_is_known CHECK (dead_why IN ('stopped', 'silent'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);
CREATE INDEX workers_alive ON workers (id) WHERE dead_at IS NULL;

CREATE TABLE pauses (
    scope text NOT NULL,
    tenant_id text NOT NULL DEFAULT '',
    name text NOT NULL DEFAULT '',
    refuse_new boolean NOT NULL DEFAULT false,
    paused_by text NOT NULL,
    reason text NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pauses_pk PRIMARY KEY (scope, tenant_id, name),
    CONSTRAINT pauses_scope_is_known CHECK (scope IN ('target', 'type', 'lane', 'all')),
    CONSTRAINT pauses_name_fits_the_scope CHECK ((scope = 'all') = (name = '')),
    CONSTRAINT pauses_tenant_fits_the_scope CHECK ((scope = 'target') = (tenant_id <> ''))
);

-- A breaker is half open when it is open and its retry_at has passed: then one probe may go.
CREATE TABLE circuit_breakers (
    service text NOT NULL CONSTRAINT circuit_breakers_pk PRIMARY KEY,
    state text NOT NULL DEFAULT 'closed',
    forced boolean NOT NULL DEFAULT false,
    failures integer NOT NULL DEFAULT 0,
    trips bigint NOT NULL DEFAULT 0,
    opened_at timestamptz,
    retry_at timestamptz,
    last_failure_at timestamptz,
    updated_by text NOT NULL DEFAULT 'worker',
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT circuit_breakers_state_is_known CHECK (state IN ('closed', 'open')),
    CONSTRAINT circuit_breakers_open_knows_when CHECK (
        (state = 'open') = (opened_at IS NOT NULL) AND (state = 'open') = (retry_at IS NOT NULL)
    ),
    CONSTRAINT circuit_breakers_service_is_bounded CHECK (length(service) BETWEEN 1 AND 63)
);

-- Who does a thing that one process should do. Harmless if two do: a lease, not a lock.
CREATE TABLE elections (
    name text NOT NULL CONSTRAINT elections_pk PRIMARY KEY,
    holder uuid NOT NULL,
    term bigint NOT NULL DEFAULT 1,
    until timestamptz NOT NULL
);

-- Periodic steps: the first to insert a period runs it.
CREATE TABLE periods (
    name text NOT NULL,
    period_start timestamptz NOT NULL,
    holder uuid NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    report jsonb,
    CONSTRAINT periods_pk_each_runs_once PRIMARY KEY (name, period_start)
);
