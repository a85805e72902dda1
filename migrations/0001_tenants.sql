-- Who may use the fleet, and the few numbers that every process must agree on.

SET lock_timeout = '2s';

-- One row. Two different lock timeouts in one fleet would steal live claims, so the claim and the
-- transition trigger both read it here.
CREATE TABLE fleet (
    only_row boolean NOT NULL DEFAULT true CONSTRAINT fleet_pk_one_row_only PRIMARY KEY,
    lock_timeout interval NOT NULL DEFAULT interval '10 minutes',
    retention interval NOT NULL DEFAULT interval '30 days',
    CONSTRAINT fleet_has_one_row CHECK (only_row),
    CONSTRAINT fleet_lock_timeout_outlives_a_beat CHECK (lock_timeout >= interval '1 second'),
    -- Idempotency keys live on the job rows, and they are promised for 30 days.
    CONSTRAINT fleet_retention_keeps_idempotency_keys CHECK (retention >= interval '30 days')
);
INSERT INTO fleet DEFAULT VALUES;

CREATE TABLE tenants (
    id text NOT NULL CONSTRAINT tenants_pk PRIMARY KEY,
    name text NOT NULL,
    max_open_jobs bigint NOT NULL DEFAULT 1000000,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT tenants_id_is_a_slug CHECK (id ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    CONSTRAINT tenants_quota_is_positive CHECK (max_open_jobs > 0)
);

-- A key is shown once and stored as a hash: 256 random bits need no slow hash.
CREATE TABLE api_keys (
    id uuid NOT NULL CONSTRAINT api_keys_pk PRIMARY KEY,
    tenant_id text NOT NULL,
    name text NOT NULL,
    secret_sha256 bytea NOT NULL,
    scopes text [] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    CONSTRAINT api_keys_belong_to_a_tenant FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT api_keys_secret_is_unique UNIQUE (secret_sha256),
    CONSTRAINT api_keys_secret_is_hashed CHECK (octet_length(secret_sha256) = 32),
    CONSTRAINT api_keys_scopes_are_known CHECK (
        scopes <@ ARRAY['submit', 'read', 'operate'] AND cardinality(scopes) > 0
    )
);
CREATE INDEX api_keys_of_a_tenant ON api_keys (tenant_id);
