"""How long the programs of a job wait, after a signal, for what is below them to end before they kill it.

Whoever kills too early takes the time from all programs below: the times grow from the script upwards. That
of the reaper is in its own file, since it imports nothing; it is between `JOB_SECONDS` and `LEADER_SECONDS`.
"""

SCRIPT_SECONDS = 5.0
"""How long a rank waits for its script."""

HOSTS_SECONDS = 6.0
"""How long the coordinator waits for the ranks of all hosts."""

LAUNCHER_SECONDS = 7.0
"""How long the guard waits for the launcher or the coordinator, and `node` for the launcher of its host."""

JOB_SECONDS = 8.0
"""How long zlaunch waits for the guard."""

LEADER_SECONDS = 15.0
"""How long the zlaunch of another host waits for the leader to end the job."""
