-- What the fleet publishes. The pointer to the current revision lives here and nowhere else.

SET lock_timeout = '2s';

CREATE TABLE images (
    id uuid NOT NULL CONSTRAINT images_pk PRIMARY KEY,
    tenant_id text NOT NULL,
    reference text,
    recipe text NOT NULL,
    -- The current revision, flipped by the statement that completes its job; null until the first.
    source_seq bigint,
    revision bigint,
    claim_no bigint,
    job_id uuid,
    published_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT images_pointer_is_whole CHECK (
        num_nulls(source_seq, revision, claim_no, job_id, published_at) IN (0, 5)
    ),
    CONSTRAINT images_reference_is_bounded CHECK (length(reference) <= 255)
) WITH (fillfactor = 80);
-- NULLS LAST for the reason that the lists of jobs have.
CREATE INDEX images_list_of_a_tenant ON images (tenant_id, id DESC NULLS LAST);
CREATE INDEX images_list_by_reference ON images (tenant_id, reference, id DESC NULLS LAST)
WHERE reference IS NOT NULL;

-- One original each upload or replacement; `source_seq` is the target_seq of the job that brought it.
CREATE TABLE image_sources (
    image_id uuid NOT NULL,
    source_seq bigint NOT NULL,
    tenant_id text NOT NULL,
    key text NOT NULL,
    etag text,
    sha256 text,
    bytes bigint NOT NULL,
    content_type text NOT NULL,
    width integer,
    height integer,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT image_sources_pk PRIMARY KEY (image_id, source_seq),
    CONSTRAINT image_sources_key_is_unique UNIQUE (key)
);

-- One published rendering; it belongs to exactly one job, and its revision is that job's target_seq.
CREATE TABLE image_revisions (
    image_id uuid NOT NULL,
    revision bigint NOT NULL,
    tenant_id text NOT NULL,
    source_seq bigint NOT NULL,
    claim_no bigint NOT NULL,
    job_id uuid NOT NULL,
    recipe text NOT NULL,
    format text NOT NULL,
    width integer NOT NULL,
    height integer NOT NULL,
    bytes bigint NOT NULL,
    sha256 text NOT NULL,
    thumbhash text,
    color text,
    encoder text NOT NULL,
    published_at timestamptz NOT NULL DEFAULT now(),
    superseded_at timestamptz,
    invalidation_id uuid,
    swept_at timestamptz,
    CONSTRAINT image_revisions_pk PRIMARY KEY (image_id, revision),
    CONSTRAINT image_revisions_one_a_job UNIQUE (job_id)
);
CREATE INDEX image_revisions_to_sweep ON image_revisions (superseded_at)
WHERE superseded_at IS NOT NULL AND swept_at IS NULL;

CREATE TABLE variants (
    image_id uuid NOT NULL,
    revision bigint NOT NULL,
    name text NOT NULL,
    format text NOT NULL,
    key text NOT NULL,
    content_type text NOT NULL,
    width integer NOT NULL,
    height integer NOT NULL,
    bytes bigint NOT NULL,
    sha256 text NOT NULL,
    warnings text [] NOT NULL DEFAULT '{}',
    CONSTRAINT variants_pk PRIMARY KEY (image_id, revision, name, format),
    CONSTRAINT variants_key_is_unique UNIQUE (key)
);

-- A presigned POST is good for one object; the row is the gate through which it becomes a job.
CREATE TABLE uploads (
    id uuid NOT NULL CONSTRAINT uploads_pk PRIMARY KEY,
    tenant_id text NOT NULL,
    image_id uuid NOT NULL,
    key text NOT NULL,
    content_type text NOT NULL,
    max_bytes bigint NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    job_id uuid,
    used_at timestamptz,
    CONSTRAINT uploads_key_is_unique UNIQUE (key),
    CONSTRAINT uploads_used_by_one_job CHECK ((job_id IS NULL) = (used_at IS NULL))
);
CREATE INDEX uploads_unused ON uploads (expires_at) WHERE job_id IS NULL;

-- Written by the API with its 202, before anything is deleted; nothing is published over it.
CREATE TABLE image_tombstones (
    image_id uuid NOT NULL CONSTRAINT image_tombstones_pk PRIMARY KEY,
    tenant_id text NOT NULL,
    job_id uuid NOT NULL,
    requested_by text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    objects_deleted_at timestamptz,
    objects jsonb,
    invalidation_id uuid,
    dark_at timestamptz,
    emptied_again_at timestamptz
);
CREATE INDEX image_tombstones_to_empty_again ON image_tombstones (objects_deleted_at)
WHERE objects_deleted_at IS NOT NULL AND emptied_again_at IS NULL;
CREATE INDEX image_tombstones_not_dark ON image_tombstones (objects_deleted_at)
WHERE objects_deleted_at IS NOT NULL AND dark_at IS NULL;

-- What the edge owes. A debt is a row; a batch is a frozen list of debts that was or will be sent.
CREATE TABLE invalidation_batches (
    id uuid NOT NULL CONSTRAINT invalidation_batches_pk PRIMARY KEY,
    items jsonb NOT NULL,
    paths integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    sends integer NOT NULL DEFAULT 0,
    accepted_at timestamptz,
    cloudfront_id text,
    completed_at timestamptz,
    last_error text,
    CONSTRAINT invalidation_batches_accepted_knows_its_id CHECK (
        (accepted_at IS NULL) = (cloudfront_id IS NULL)
    ),
    CONSTRAINT invalidation_batches_complete_after_accepted CHECK (
        completed_at IS NULL OR accepted_at IS NOT NULL
    )
);
CREATE INDEX invalidation_batches_unfinished ON invalidation_batches (created_at)
WHERE completed_at IS NULL;
CREATE INDEX invalidation_batches_complete ON invalidation_batches (completed_at)
WHERE completed_at IS NOT NULL;

CREATE TABLE invalidations (
    id uuid NOT NULL DEFAULT gen_random_uuid() CONSTRAINT invalidations_pk PRIMARY KEY,
    image_id uuid NOT NULL,
    tenant_id text NOT NULL,
    reason text NOT NULL,
    debts integer NOT NULL DEFAULT 1,
    owed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_owed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    batch_id uuid,
    -- Of the operator who asked last, where one did.
    requested_by text,
    request_reason text,
    CONSTRAINT invalidations_reason_is_known CHECK (reason IN ('replaced', 'deleted', 'operator')),
    CONSTRAINT invalidations_belong_to_a_batch FOREIGN KEY (batch_id)
    REFERENCES invalidation_batches (id)
);
-- Debts of one image merge only while no batch has taken them.
CREATE UNIQUE INDEX invalidations_merge_while_unstamped ON invalidations (image_id)
WHERE batch_id IS NULL;
CREATE INDEX invalidations_owed ON invalidations (owed_at) WHERE batch_id IS NULL;
CREATE INDEX invalidations_of_a_batch ON invalidations (batch_id) WHERE batch_id IS NOT NULL;

-- What CloudFront bills, by the month of UTC in which it took them; outlives the batches.
CREATE TABLE invalidation_months (
    month date NOT NULL CONSTRAINT invalidation_months_pk PRIMARY KEY,
    paths bigint NOT NULL,
    debts bigint NOT NULL,
    batches bigint NOT NULL
);
