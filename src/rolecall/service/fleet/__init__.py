"""The service on many machines: each runs `rolecall serve --database postgresql://…` against one PostgreSQL server.

- `serving.py` sets up a machine, and `machine.py` runs it.
- `database.py` defines the server's address and tables.
- `shared.py` provides connections that wait while the server is unavailable.
- `reach.py` gives the event loop access to the database.
- `orders.py` keeps the orders to take steps, as DBOS workflows; `needs.py` says what a step needs from a machine.
- `step.py` carries out orders, each in a process that starts in `worker.py`.
- `dispatch.py` decides which step runs where, and finds abandoned threads.
- `machines.py` lists the machines. Commands that only read import no other module of this package.
"""
