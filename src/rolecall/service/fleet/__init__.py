"""The service on many machines: each runs `rolecall serve --database postgresql://…` against one PostgreSQL server.

`serving.py` sets up a machine and `machine.py` runs it. `database.py` has the server's address and tables, `shared.py`
the connections that wait for an unavailable server, and `reach.py` the event loop's access to the database.
`orders.py` keeps the steps to take, as DBOS workflows; `needs.py` says what a step needs from a machine; `step.py`
carries out orders, each in a process that starts in `worker.py`. `dispatch.py` decides which step runs where and finds
abandoned threads. `machines.py` lists the machines; commands that only read import nothing else.
"""
