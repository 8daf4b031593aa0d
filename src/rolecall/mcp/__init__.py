"""The tools of a project and of threads over the Model Context Protocol.

`protocol.py` knows what a message is answered with, `stdio.py` carries messages over a pipe, `http.py` is the
door on the official SDK and `guard.py` who is let in there, `tools.py` is the table of what can be called. No
tool is written here: each is a verb of the library with a schema before it, and `hints.py` words
advice by names of tools.
"""
