"""The door for editors: a workflow as an agent of the Agent Client Protocol.

`command.py` starts the agent, `agent.py` answers the editor's requests, and `conversation.py` is one session: a thread,
its questions, and the threads that follow it. `updates.py` makes the updates that the editor shows; `hints.py` words
the advice on what to do next.
"""
