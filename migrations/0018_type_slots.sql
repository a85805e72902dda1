-- How many jobs of each of its types a worker runs at once, in their order; null: of that one, or of all,
-- as many as it has slots.
--
-- Workers of earlier releases leave it empty, and claim whatever comes; dispatchers of theirs do not read
-- it, and announce what their lane has slots for: what is too much goes back to its turn.

SET lock_timeout = '2s';

ALTER TABLE workers ADD COLUMN type_slots integer [];
GRANT INSERT (type_slots) ON workers TO imagefleet_worker;
