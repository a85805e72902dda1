-- The point of a picture that is kept where it is cut, as shares of its width and height; null: none. Of an
-- image it is the one that its producer asked for last, of a revision the one that it was made with.
--
-- Processes of releases before leave all of it empty, and cut as if there were none.

SET lock_timeout = '2s';

-- Not validated: rows that are there have no point, and no scan of millions is needed to know that.
ALTER TABLE images
ADD COLUMN focal_x double precision,
ADD COLUMN focal_y double precision,
ADD CONSTRAINT images_focal_point_is_within CHECK (
    num_nulls(focal_x, focal_y) IN (0, 2) AND focal_x BETWEEN 0 AND 1 AND focal_y BETWEEN 0 AND 1
) NOT VALID;
ALTER TABLE image_revisions
ADD COLUMN focal_x double precision,
ADD COLUMN focal_y double precision,
ADD CONSTRAINT image_revisions_focal_point_is_within CHECK (
    num_nulls(focal_x, focal_y) IN (0, 2) AND focal_x BETWEEN 0 AND 1 AND focal_y BETWEEN 0 AND 1
) NOT VALID;

-- The worker may write whole revisions already.
GRANT INSERT (focal_x, focal_y), UPDATE (focal_x, focal_y) ON images TO imagefleet_api;
