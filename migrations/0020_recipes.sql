-- Every version of a recipe that was ever in force, by the hash of its content: whoever starts with one
-- stores it, so any worker makes what another process pinned. One content may have had several names, and
-- the rows of a name, by first_seen_at, are its history.
--
-- Processes of earlier releases leave both columns empty: theirs is the version that they had.

SET lock_timeout = '2s';

CREATE TABLE recipes (
    hash text COLLATE "C" NOT NULL,
    name text NOT NULL,
    content jsonb NOT NULL,
    first_seen_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT recipes_pk PRIMARY KEY (hash, name),
    CONSTRAINT recipes_hash_is_one CHECK (hash ~ '^[0-9a-f]{32}$')
);
GRANT SELECT ON recipes
TO imagefleet_api, imagefleet_worker, imagefleet_maintenance, imagefleet_operator;
GRANT INSERT (hash, name, content) ON recipes TO imagefleet_api, imagefleet_worker;

ALTER TABLE images ADD COLUMN recipe_hash text;
ALTER TABLE image_revisions ADD COLUMN recipe_hash text;
GRANT INSERT (recipe_hash) ON images TO imagefleet_api;
GRANT UPDATE (recipe_hash) ON images TO imagefleet_worker;
