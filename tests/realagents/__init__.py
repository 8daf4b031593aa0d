"""The adapters against the real programs, with a scripted model on loopback: `make test-agents`.

Without ROLECALL_TEST_AGENTS (the folder of scripts/install-agents) every module here is skipped.
"""
