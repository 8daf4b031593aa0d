"""The service on many machines: each runs `rolecall serve --database postgresql://…` against one PostgreSQL.

`serving.py` puts a machine together, `machine.py` is its life. `database.py` has the server's address and tables,
`shared.py` the connections that wait for it, `line.py` the one that hears, `reach.py` how the loop asks. `orders.py`
has the steps that are to be taken, as workflows of DBOS, `needs.py` what a step needs of a machine; `step.py` carries
orders out, each in a process that `worker.py` begins. `dispatch.py` decides who runs where and finds what was left
lying, `leading.py` when.
`machines.py` lists the machines; commands that only read import nothing else.
"""
