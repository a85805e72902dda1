-- Which process wrote the end of an attempt, where that was not its holder: the claiming worker, or
-- maintenance. Whoever loses the answer to a claim or a rescue asks by this for what it has ended.
--
-- Processes of 0.2.0 leave it empty.

SET lock_timeout = '2s';

ALTER TABLE attempts ADD COLUMN ended_by uuid;
