"""The tools of a project and of threads over the Model Context Protocol.

`command.py` starts a server and `protocol.py` answers messages, which `stdio.py` carries over a pipe and `http.py` over
HTTP. `tools.py` is the table of tools. Each tool is a verb of the library with a schema; `hints.py` words hints with
the names of tools.
"""
