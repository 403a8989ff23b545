"""A Celery application on Kombu's Kafka transport: each task appends its number to a file, one of them very late."""

import os
import time

from celery import Celery

LONG_TASK = 50
app = Celery("tasks", broker=os.environ["ECOSYSTEM_BROKER"])
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"allow_create_topics": True},
    broker_connection_retry_on_startup=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
)


@app.task(name="note")
def note(number):
    with open(os.environ["ECOSYSTEM_FILE"] + ".begun", "a") as begun:
        begun.write(f"{number}\n")
    is_long = number == LONG_TASK and not os.path.exists(os.environ["ECOSYSTEM_FILE"] + ".long")
    if is_long:  # only when it runs for the first time
        open(os.environ["ECOSYSTEM_FILE"] + ".long", "w").close()
    time.sleep(60 if is_long else 0.02)
    with open(os.environ["ECOSYSTEM_FILE"], "a") as done:
        done.write(f"{number}\n")


if __name__ == "__main__":
    import sys

    for each in range(int(sys.argv[1])):
        note.delay(each)
