"""The service on many machines: each runs `rolecall serve --database postgresql://…` against one PostgreSQL.

`database.py` is how a machine reaches the server and waits for it, `orders.py` the steps that are to be taken, as
workflows of DBOS, `needs.py` what a step needs of a machine, `machines.py` who there is, `dispatch.py` who runs and
what was left lying, `machine.py` one machine's life, `serving.py` puts it together. Imported by nothing that reads.
"""
