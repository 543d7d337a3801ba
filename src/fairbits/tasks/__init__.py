"""Tasks: independent pieces of work, done in this process one after the other, or by Ray on many machines.

| module       | holds                                                                                  |
|--------------|----------------------------------------------------------------------------------------|
| `task`       | what work is, what a task needs, and how far it is                                     |
| `pool`       | READ FIRST: `open_pool`, and the pool that does everything in this process             |
| `ray_pool`   | the pool of a Ray cluster: connects, submits, collects, turns Ray's errors into ours   |
| `ray_worker` | what happens in a process that Ray has started                                         |

Ray schedules, places and retries tasks; nothing here does. Results come back to the process that called `Pool.run`,
and only that process writes them.
"""
