"""Workflows in continuous integration: a GitHub Actions or GitLab CI job runs a thread until it ends or waits for a
person.

`event.py` reads the event and decides, without network access, whether a thread starts or continues. `job.py` carries
out that decision. `place.py` fetches the thread's store and files from the previous job and saves them for the next
one, under a ref of the repository. `client.py` talks to the forge, and `comment.py` writes the text of the comments.
"""
