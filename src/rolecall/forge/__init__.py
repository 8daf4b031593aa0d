"""Workflows in continuous integration: a job of GitHub or GitLab runs a thread until it ends or waits for a person.

`event.py` reads the event and decides, without network access, whether a thread starts or continues. `job.py` does
that. `place.py` fetches the thread's store and files from the previous job and saves them for the next one, under a ref
of the repository. `client.py` talks to the forge, and `comment.py` words the comments.
"""
