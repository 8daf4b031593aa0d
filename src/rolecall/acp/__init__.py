"""The door for editors: a workflow as an agent of the Agent Client Protocol.

`command.py` starts it, `agent.py` answers the editor's requests, `conversation.py` is one session: a thread, its
questions and the threads that follow it. `updates.py` words what the editor shows, `hints.py` the advice on what to do
next.
"""
