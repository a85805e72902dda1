"""A worker: hears of jobs, claims them, does their work and settles what came of it."""
