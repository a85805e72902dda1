-- How attempts ended in a minute and how long they took, by the word of each end: whoever asks what ran within the last
-- hour reads sixty minutes, however many attempts they had. Of minutes only; those before this file have none.
-- Processes of earlier releases know nothing of it, and what they roll up has none either.

SET lock_timeout = '2s';

ALTER TABLE rollups ADD COLUMN flows jsonb NOT NULL DEFAULT '[]';
