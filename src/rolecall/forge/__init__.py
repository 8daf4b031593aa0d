"""Workflows in continuous integration: a job of GitHub or GitLab runs a thread until it ends or waits for a person.

`event.py` reads what happened and decides, without asking anybody, whether a thread starts or continues. `job.py` does
that. `place.py` brings the thread's store and files from the job before and saves them for the next one, under a ref of
the repository. `client.py` speaks to the forge, and `comment.py` words what people read there.
"""
