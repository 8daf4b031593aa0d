"""Each repository's own searchable memory: its files cut into passages, found by words and by meaning.

`sync.py` brings `knowledge.db` up to date with the files, `query.py` answers from it; `index.py` is the file
between them. Nothing here prints or reads the environment. numpy, the tokenizer and the grammars are imported
by the modules that use them and by nobody else, because a command that needs none of them must not pay for them.
"""
