"""Nothing is lost: the daemon and what it rests on are killed, taken away and filled while jobs end.

Each scenario is a command, ``python -m tests.chaos.NAME [--seed N]``, on a real Slurm; its last line holds the counts,
its exit status is 1 where an invariant broke. The tests run shorter versions.
"""
