-- What the children of an attempt took: processor time, the most memory that one had, and the bytes that they
-- read and made; null where there was no child, or nobody could tell. And how much memory a worker gives its
-- children together: what needs more is for a worker that has it.
--
-- Processes of earlier releases leave all of it empty. A child of their workers has 1 GiB at most.

SET lock_timeout = '2s';

ALTER TABLE attempts
ADD COLUMN cpu_seconds real,
ADD COLUMN peak_bytes bigint,
ADD COLUMN read_bytes bigint,
ADD COLUMN made_bytes bigint;

ALTER TABLE workers ADD COLUMN memory_bytes bigint;
GRANT INSERT (memory_bytes) ON workers TO imagefleet_worker;
