"""A searchable index of each repository: its files are cut into passages, which are found by words and by meaning.

`sync.py` brings `knowledge.db` up to date with the files, `query.py` answers questions from it, and `index.py` defines
the file format. Nothing here prints or reads the environment. numpy, the tokenizer and the grammars are imported only
by the modules that use them, so that other commands start quickly.
"""
