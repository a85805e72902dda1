-- Of how many images and deletions the service levels promise something (docs/service-levels.md), and for how many of
-- those it came too late or never: counted with all that ended, so that whoever asks whether the fleet keeps its
-- promises reads no history. What ended before this file is promised nothing.

SET lock_timeout = '2s';

ALTER TABLE rollups
ADD COLUMN promised bigint NOT NULL DEFAULT 0,
ADD COLUMN late bigint NOT NULL DEFAULT 0;

-- Of deletions: no attempt tells when an image is dark.
ALTER TABLE rollup_entries
ADD COLUMN promised bigint NOT NULL DEFAULT 0,
ADD COLUMN late bigint NOT NULL DEFAULT 0;

GRANT INSERT (promised, late) ON rollup_entries TO imagefleet_maintenance;
