"""The web door: a page to see and steer every thread, and the JSON interface that the page uses.

`app.py` has the routes and decides who may call them. `verbs.py` defines how a module declares the verbs of its noun.
"""
