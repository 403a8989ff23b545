"""Work queues on topics: `flowstone.Queue`, a share consumer (KIP-932) for every broker that has share groups.

`queue.py` is what users see. Behind it, in a thread with an event loop of its own: `consumer.py` puts together the
membership (`membership.py`), the sessions with the leaders (`leader_session.py`, with `session_requests.py` as its pure
part), and the tasks that are held (`held_tasks.py`, pure).
"""
